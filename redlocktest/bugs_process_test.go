package redlocktest

import (
	"context"
	"crypto/rand"
	"errors"
	mathrand "math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// processServer keeps the locks of processes while TestPlantedBugs runs.
var processServer *server.Server

func startProcesses(t *testing.T) { processServer = server.Redis(t) }

// processBugs are planted in a backend that another process opens, by a URL that begins with
// the name of the bug.
var processBugs = []bug{
	processBug("each process has locks of its own", "process/exclude", "exclusion", "alone"),
	processBug("a lock lasts a minute, whatever its TTL", "process/killed-holder", "rule 3", "minute"),
	processBug("the end of a lease goes by a clock that runs twice as fast", "process/stopped-holder", "rule 3", "fast"),
	processBug("tokens by the client's clock", "process/exclude", "rule 8", "tokens"),
	processBug("the server keeps a lock until an end by the client's clock", "process/killed-holder", "rule 3", "end"),
	processBug("tokens by a clock that is an hour wrong", "process/clocks", "rule 8", "tokens"),
	processBug("an end by a clock that is an hour wrong", "process/clocks", "rule 3 | exclusion | driver.Lease.Renew", "end"),
	processBug("a lease that is over is renewed", "process/stopped-holder", "driver.Lease.Renew", "renews"),
}

// processBug returns the bug with the name how, which begins the URL.
func processBug(name, want, rule, how string) bug {
	return bug{name: name, want: want, rule: rule, check: func(t *testing.T, only string) error {
		needClocks(t, how)
		h := processHarness(how)
		h.Timeout, h.Only = caseTime(name, time.Minute), only // a busy machine starts processes slowly
		if how == "minute" {                                  // found when the time is over
			h.Timeout = caseTime(name, 8*time.Second)
		}
		return Check(h)
	}}
}

// needClocks skips a bug that shows only in a process with a wall clock of its own, where there is
// none: see package wallclock.
func needClocks(t *testing.T, how string) {
	if (how == "tokens" || how == "end") && runtime.GOOS+"/"+runtime.GOARCH != "linux/amd64" {
		t.Skip("a process has a wall clock of its own only on linux/amd64")
	}
}

func processHarness(how string) Harness {
	url := processServer.URL()
	other := url
	if how == "alone" {
		other = strings.TrimSuffix(url, "0") + "1" // another database
	}
	return Harness{
		Open:    func() (driver.Backend, error) { return dlock.OpenBackend(url) },
		Process: func() (*Client, error) { return StartClient(how + ":" + other) },
		TTL:     300 * time.Millisecond, Short: true, quiet: true,
	}
}

// TestStressOfProcesses: the stress finds what depends on a client's clock. The session of a process
// may end at any time, if its leases tell so; if they do not, the stress finds that others get their
// locks.
func TestStressOfProcesses(t *testing.T) {
	server.Deep(t)
	startProcesses(t)
	for how, finds := range map[string]bool{"sound": false, "tokens": true, "end": true, "ends": false, "ends untold": true} {
		t.Run(how, func(t *testing.T) {
			needClocks(t, how)
			t.Parallel()
			h, o := processHarness(how), StressOptions{Operations: 3000, Processes: 3}
			ends := strings.HasPrefix(how, "ends")
			if ends {
				h.Open = func() (driver.Backend, error) { return openForProcess("session:" + processServer.URL()) }
			}
			if ends && finds {
				o.Operations = 100_000 // what it finds ends it
			}
			report, err := ExamineStress(t.Context(), h, o)
			if err != nil {
				t.Fatal(err)
			}
			if found := len(report.Failures) > 0; found != finds || ends && !finds && report.Losses == 0 {
				t.Errorf("found: %v; %v", report.Failures, report)
			}
		})
	}
}

// TestAProcessTellsALoss: once Renew says that a lease is lost with its session, its Lost is closed; a
// Release closes nothing.
func TestAProcessTellsALoss(t *testing.T) {
	startProcesses(t)
	for how, ends := range map[string]bool{"ends": true, "session": false} {
		c, err := StartClient(how + ":" + processServer.URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		for lost := false; !lost; { // one lease in four ends
			l, err := c.Acquire(t.Context(), &driver.Request{Key: rand.Text(), Owner: "a", TTL: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			for range 20 {
				if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Minute}); errors.Is(err, driver.ErrLost) {
					lost = true
				}
			}
			if told := over(l.Grant().Lost); told != lost || l.Grant().Lost == nil || lost && !ends {
				t.Fatalf("%s: lost %v, told %v", how, lost, told)
			}
			if err := l.Release(t.Context()); err != nil && !lost || over(l.Grant().Lost) && !lost && !ends {
				t.Fatalf("%s: Release gives %v", how, err)
			}
			lost = lost || !ends
		}
	}
}

// soundProcesses runs the cases of processes without a bug.
func soundProcesses(t *testing.T) {
	if err := processBug("", "", "", "sound").check(t, "process"); err != nil {
		t.Error(err)
	}
}

// openForProcess opens the backend that a process serves: by a URL, which may have a bug's name
// before it.
func openForProcess(url string) (driver.Backend, error) {
	how, rest, _ := strings.Cut(url, ":")
	if !strings.HasPrefix(rest, "redis:") {
		return dlock.OpenBackend(url)
	}
	b, err := dlock.OpenBackend(rest)
	if err != nil {
		return nil, err
	}
	o, err := redis.ParseURL(rest)
	if err != nil {
		return nil, err
	}
	p := &oddProcess{Backend: b, how: how, client: redis.NewClient(o)}
	if how == "session" || strings.HasPrefix(how, "ends") {
		return &sessionProcess{oddProcess: p, session: make(chan struct{})}, nil
	}
	return p, nil
}

// sessionProcess is a backend whose leases end with its session, or in how "ends" some of them
// with sessions of their own that end early.
type sessionProcess struct {
	*oddProcess
	session chan struct{}
	closes  sync.Once
}

func (b *sessionProcess) Info() driver.Info {
	i := b.Backend.Info()
	i.Features |= driver.FeatureSession
	return i
}

func (b *sessionProcess) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	l, err := b.Backend.Acquire(ctx, req)
	if err != nil {
		return nil, err
	}
	s := &sessionLease{Lease: l, told: b.how != "ends untold", lost: b.session, freed: make(chan struct{})}
	if b.how != "session" && mathrand.N(4) == 0 {
		s.lost = make(chan struct{})
		time.AfterFunc(mathrand.N(time.Millisecond), s.end)
	}
	return s, nil
}

func (b *sessionProcess) Close() error {
	b.closes.Do(func() { close(b.session) })
	return b.oddProcess.Close()
}

type sessionLease struct {
	driver.Lease
	told  bool
	lost  chan struct{}
	ended atomic.Bool
	freed chan struct{} // closed when the server has freed the lock of an ended session
}

// end ends the session, for the client at once, if it is told, and then for the server.
func (l *sessionLease) end() {
	defer close(l.freed)
	l.ended.Store(true)
	if l.told {
		close(l.lost)
	}
	_ = l.Lease.Release(context.Background())
}

func (l *sessionLease) Grant() driver.Grant {
	g := l.Lease.Grant()
	g.Lost = l.lost
	return g
}

func (l *sessionLease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	switch g, err := l.Lease.Renew(ctx, r); {
	case !l.ended.Load():
		return g, err
	case l.told:
		<-l.lost
		return driver.Grant{}, driver.ErrLost
	}
	return l.Grant(), nil
}

func (l *sessionLease) Release(ctx context.Context) error {
	if !l.ended.Load() {
		return l.Lease.Release(ctx)
	}
	<-l.freed
	if l.told {
		return driver.ErrLost
	}
	return nil
}

// oddProcess is a backend with a bug, in another process.
type oddProcess struct {
	driver.Backend
	how    string
	client *redis.Client
}

func (b *oddProcess) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	start, sent := time.Now(), *req
	switch b.how {
	case "minute":
		sent.TTL = max(sent.TTL, time.Minute)
	case "fast":
		sent.TTL = max(sent.TTL/2, driver.MinTTL)
	}
	l, err := b.Backend.Acquire(ctx, &sent)
	if err != nil {
		return nil, err
	}
	if b.how == "end" {
		keys, err := b.client.Keys(ctx, "*"+req.Key+"*").Result()
		for _, key := range keys {
			if left, _ := b.client.PTTL(ctx, key).Result(); left < 2*req.TTL { // it is no counter
				err = errors.Join(err, b.client.PExpireAt(ctx, key, start.Add(req.TTL)).Err())
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return &oddLease{Lease: l, how: b.how, at: time.Now(), until: driver.Expires(start, req.TTL)}, nil
}

func (b *oddProcess) Close() error { return errors.Join(b.Backend.Close(), b.client.Close()) }

type oddLease struct {
	driver.Lease
	how   string
	at    time.Time // of the grant
	until time.Time
}

func (l *oddLease) Grant() driver.Grant {
	g := l.Lease.Grant()
	switch l.how {
	case "fast", "minute":
		g.Expires = l.until
	case "tokens":
		g.Fence = uint64(l.at.UnixMicro())
	}
	return g
}

func (l *oddLease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	g, err := l.Lease.Renew(ctx, r)
	if l.how == "renews" && errors.Is(err, driver.ErrLost) {
		return l.Grant(), nil
	}
	return g, err
}

package redlocktest

import (
	"context"
	"errors"
	"runtime"
	"strings"
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

// TestStressOfProcessesWithClocksOfTheirOwn: the stress finds what depends on a client's clock.
func TestStressOfProcessesWithClocksOfTheirOwn(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	startProcesses(t)
	for how, finds := range map[string]bool{"sound": false, "tokens": true, "end": true} {
		t.Run(how, func(t *testing.T) {
			needClocks(t, how)
			t.Parallel()
			report, err := ExamineStress(t.Context(), processHarness(how), StressOptions{Operations: 3000})
			if err != nil {
				t.Fatal(err)
			}
			tidy(t, report.Failures)
			if found := len(report.Failures) > 0; found != finds {
				t.Errorf("found: %v; %v", report.Failures, report)
			}
		})
	}
}

// soundProcess has no bug.
func soundProcess() bug { return processBug("", "", "", "sound") }

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
	return &oddProcess{Backend: b, how: how, client: redis.NewClient(o)}, nil
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

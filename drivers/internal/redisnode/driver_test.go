package redisnode_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/internal/ownprocess"
	"github.com/redlock-go/redlock/drivers/valkeygo"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A library is a client library, with the driver over it.
type library struct {
	Scheme string // "redis"
	Driver driver.Driver
	// App returns a backend over a client like an application's: with retries and the library's
	// default settings; and its ping and close.
	App func(addr string, callTimeout time.Duration) (b driver.Backend, ping func() error, end func(), err error)
}

var libraries = []library{
	{"redis", goredis.Driver{}, func(addr string, callTimeout time.Duration) (driver.Backend, func() error, func(), error) {
		c := redis.NewClient(&redis.Options{Addr: addr})
		b, err := goredis.New(c, &goredis.Options{CallTimeout: callTimeout})
		return b, func() error { return c.Ping(context.Background()).Err() }, func() { _ = c.Close() }, err
	}},
	{"valkey", valkeygo.Driver{}, func(addr string, callTimeout time.Duration) (driver.Backend, func() error, func(), error) {
		c, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{addr}})
		if err != nil {
			return nil, nil, nil, err
		}
		b, err := valkeygo.New(c, &valkeygo.Options{CallTimeout: callTimeout})
		return b, func() error { return c.Do(context.Background(), c.B().Ping().Build()).Error() }, c.Close, err
	}},
}

// A test is one entry of the tables below.
type test struct {
	name string
	run  func(*suite, *testing.T)
}

// The tests run in parallel: they mostly wait. Long ones come first. Those of an adapter depend on the client
// library, and run over each on the server of its name, but not the costly ones with -short: they start many
// servers, or one for each of many cases.
// Those of what the drivers share run over go-redis, on both kinds of server unless with -short.
var (
	costly = []test{
		{"Failovers", (*suite).failovers},
		{"Cluster", (*suite).cluster},
		{"RightsThatAreDocumentedSuffice", (*suite).allRights},
		{"ErrorsSayWhatIsWrong", (*suite).messages},
	}
	adapter = []test{
		{"WrongRepliesEndNoProcess", (*suite).hostile},
		{"WithoutPubSubOrTheQueueWaitersPoll", (*suite).noSignals},
		{"LockThatNoReplicaHasIsNotGranted", (*suite).waitReplicas},
		{"SilentSubscriptionIsReplaced", (*suite).silentConnection},
		{"ConnectingHoldsUpNeitherCallersNorClose", (*suite).hungConnect},
		{"DeadlinesHoldOnAnApplicationsClient", (*suite).appDeadlines},
		{"TLSPasswordUserAndSocket", (*suite).ways},
		{"InspectorShowsLocksAndNothingElse", (*suite).inspector},
		{"CallsEndWithTheirContext", (*suite).cancelledCalls},
		{"InspectionEndsWithItsContext", (*suite).cancelledInspection},
		{"ErrorsSayEachFactOnce", func(s *suite, t *testing.T) {
			srv := server.StartFor(t, s.kind)
			drivertest.RunErrors(t, s.open(t, s.url(srv.Addr(), "?call_timeout=500ms")), srv.Addr(), srv.Pause, srv.Resume)
		}},
	}
	shared = []test{
		{"ReadersAndForeignLocksExcludeEachOther", (*suite).sharedForeign},
		{"OperatorsSeeEachReader", (*suite).sharedOperators},
		{"ReadersWithKeepGuardAndLostAnswer", (*suite).sharedLeases},
		{"IdleWaitersAskNobody", (*suite).idleWaiters},
		{"RestartGuard", (*suite).guards},
		{"CleanUpOutlivesAnOutage", (*suite).cleanUpAfterOutage},
		{"FlushedScriptsAreLoadedAgain", (*suite).scriptFlush},
		{"CountersEndAndTokensRise", (*suite).countersEnd},
		{"ReleasesThatNobodyWaitsForAreNotAnnounced", (*suite).silentRelease},
		{"ForeignHolderIsPolledQuickly", (*suite).foreignHolder},
		{"QueueServesFirstComeFirst", (*suite).queueOrder},
		{"QueuePassesOverTheDeadAndTheSilent", (*suite).queueDead},
		{"QueueForgetsAWaiterThatLeaves", (*suite).queueLeaves},
		{"QueueLetsInReadersUpToTheFirstWriter", (*suite).queueShared},
	}
)

func (s *suite) tests() []test {
	var all []test
	if s.own() && !testing.Short() {
		all = costly
	}
	if s.own() {
		all = slices.Concat(all, adapter)
	}
	if s.Scheme == "redis" {
		all = slices.Concat(all, shared)
	}
	return all
}

// TestMain lets eight tests run in parallel on any number of processors: they mostly wait. At the end no
// password may be in the lines of go-redis' logger, which all clients of a process share.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	if testing.Short() {
		debug.SetGCPercent(400) // a small heap, of which collecting was a tenth of the work
	}
	var lines logged
	redis.SetLogger(&lines)
	code := m.Run()
	if said := lines.String(); strings.Contains(said, secret) {
		fmt.Println("the library's log shows a password: " + said)
		code = 1
	}
	os.Exit(code)
}

type logged struct {
	mu sync.Mutex
	strings.Builder
}

func (l *logged) Printf(_ context.Context, format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l, format+"\n", v...)
}

// TestConformance runs the suite, with -short over go-redis alone. On each server it has a process of its
// own, because it takes the goroutines of other tests for leaks.
func TestConformance(t *testing.T) {
	t.Parallel()
	eachSuite(t, func(t *testing.T, s *suite) {
		if testing.Short() && s.Scheme == "valkey" {
			t.Skip("short: one library is enough")
		}
		ownprocess.Run(t, s.conformance)
	})
}

// TestDriver runs all other tests.
func TestDriver(t *testing.T) {
	t.Parallel()
	eachSuite(t, func(t *testing.T, s *suite) {
		t.Parallel()
		for _, test := range s.tests() {
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				test.run(s, t)
			})
		}
	})
}

func eachSuite(t *testing.T, do func(*testing.T, *suite)) {
	for _, s := range []*suite{
		{library: libraries[0], kind: server.KindRedis}, {library: libraries[0], kind: server.KindValkey}, {library: libraries[1], kind: server.KindValkey},
	} {
		if s.own() || !testing.Short() {
			t.Run(s.Scheme+" on "+s.name(), func(t *testing.T) { do(t, s) })
		}
	}
}

type suite struct {
	library
	kind  server.Kind
	owner atomic.Int64
}

// name returns the name of the server, without "-server".
func (s *suite) name() string { return strings.TrimSuffix(string(s.kind), "-server") }

// own reports whether the server has the driver's name.
func (s *suite) own() bool { return s.name() == s.Scheme }

func (s *suite) url(addr, more string) string { return s.Scheme + "://" + addr + more }

func (s *suite) open(t testing.TB, url string) driver.Backend {
	t.Helper()
	return s.openWith(t, &driver.Config{DSN: url})
}

func (s *suite) openWith(t testing.TB, cfg *driver.Config) driver.Backend {
	t.Helper()
	if !strings.Contains(cfg.DSN, "call_timeout") { // where time is not the question, none runs out on a busy machine
		sep := "?"
		if strings.Contains(cfg.DSN, "?") {
			sep = "&"
		}
		cfg.DSN += sep + "call_timeout=10s&dial_timeout=10s"
	}
	b, err := s.Driver.Open(cfg)
	drivertest.Must(t, err)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		<-b.(interface{ Idle() <-chan struct{} }).Idle()
	})
	return b
}

// ask returns a request of a new owner.
func (s *suite) ask(key string, ttl time.Duration) *driver.Request {
	return &driver.Request{Key: key, Owner: fmt.Sprintf("test/%d", s.owner.Add(1)), TTL: ttl}
}

func (s *suite) lock(t testing.TB, b driver.Backend, key string, ttl time.Duration) driver.Lease {
	t.Helper()
	return drivertest.Grant(t, b, s.ask(key, ttl))
}

func unlock(t testing.TB, l driver.Lease) {
	t.Helper()
	drivertest.Release(t, l)
}

// warm makes the first contact, however long it takes. Each try has its own key and a short
// TTL, because a release without an answer in time may leave its lock until the TTL ends.
func (s *suite) warm(t testing.TB, b driver.Backend) {
	t.Helper()
	n := 0
	eventually(t, func() error {
		n++
		l, err := b.Acquire(context.Background(), s.ask(fmt.Sprint("warm", n), 5*time.Second))
		if err == nil {
			err = l.Release(context.Background())
		}
		return err
	})
}

// eventually calls ok until it returns nil, for less than the TTL of most locks here, a minute.
func eventually(t testing.TB, ok func() error) {
	t.Helper()
	deadline := time.Now().Add(50 * time.Second)
	for tick := time.NewTicker(5 * time.Millisecond); ; <-tick.C {
		err := ok()
		if err == nil {
			tick.Stop()
			return
		}
		if time.Now().After(deadline) {
			tick.Stop()
			t.Fatal(err)
		}
	}
}

// locks lists the keys of a server that are not counters.
func locks(srv *server.Server) ([]string, error) {
	reply, err := srv.Do("KEYS", "*")
	if err != nil {
		return nil, err
	}
	var left []string
	for _, k := range reply.([]any) {
		if name := fmt.Sprint(k); !strings.Contains(name, "redlock1:fence:") && !strings.Contains(name, "redlock1:mark") {
			left = append(left, name)
		}
	}
	return left, nil
}

func noLocks(t testing.TB, srv *server.Server) {
	t.Helper()
	eventually(t, func() error {
		left, err := locks(srv)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%d keys were left behind, %q among them", len(left), left[0])
		}
		return err
	})
}

func (s *suite) conformance(t *testing.T) {
	const prefix, grace, secret = "app:", 200 * time.Millisecond, "pw-" + secret
	srv := server.StartFor(t, s.kind, server.WithAppendOnly("always"), server.WithPassword(secret))
	at := func(addr string) string { return s.url(":"+secret+"@"+addr, "") }
	var notices drivertest.NoticeLog
	h := fault.Harness(srv.Addr(), func(addr string) (driver.Backend, error) {
		return s.Driver.Open(&driver.Config{DSN: at(addr), Prefix: prefix, Notify: notices.Add})
	})
	h.Driver, h.URL, h.Secret, h.Prefix, h.Grace = s.Driver, at(srv.Addr()), secret, prefix, grace
	h.Notices = notices.All
	h.Timeout = 5 * time.Minute // for a machine that is very busy
	if testing.Short() {
		h.TTL = 250 * time.Millisecond
	}
	if s.Scheme == "valkey" && !server.IsDeep() {
		h.Skip = map[string]string{}
		for _, group := range []string{"request", "exclusion", "verdict", "expiry", "fence", "node", "history"} {
			h.Skip[group] = "package goredis tests the scripts"
		}
	}
	h.Short = !s.own() // fewer repetitions on the other kind of server
	h.Residue = func(context.Context) ([]string, error) { return locks(srv) }
	h.Faults.DropReply = fault.DropAnswer(fault.ProtocolRESP)
	h.Faults.Kill, h.Faults.Restart, h.Faults.Pause, h.Faults.Resume = srv.Kill, srv.StartAgain, srv.Pause, srv.Resume
	redlocktest.Run(t, h)
}

// appDeadlines: even if the application's client may wait for many seconds, no caller waits
// longer than the call timeout and its context allow; and the client is not closed.
func (s *suite) appDeadlines(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	p := fault.NewProxy(t, srv.Addr())
	b, ping, end, err := s.App(p.Addr(), time.Second)
	drivertest.Must(t, err)
	t.Cleanup(end)
	t.Cleanup(func() { _ = b.Close() })
	s.warm(t, b)
	l := s.lock(t, b, "k", time.Minute)
	p.BlackHole()
	inTime := func(what string, ask func() error) {
		start := time.Now()
		if err := ask(); drivertest.Verdict(err) != "unknown" {
			t.Errorf("%s at a black hole: %v", what, err)
		}
		if d := time.Since(start); d > 8*time.Second { // shorter than the client would wait by itself
			t.Errorf("%s came back after %v", what, d)
		}
	}
	acquire := func(key string, d time.Duration) func() error {
		return func() error {
			ctx, cancel := context.WithTimeout(context.Background(), d)
			defer cancel()
			_, err := b.Acquire(ctx, s.ask(key, time.Minute))
			return err
		}
	}
	inTime("a lone Acquire", acquire("lone", time.Minute))
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() { inTime("Acquire", acquire(fmt.Sprintf("b%d", i), 100*time.Millisecond)) })
	}
	wg.Wait()
	inTime("Renew", func() error {
		_, err := l.Renew(context.Background(), &driver.Renewal{TTL: time.Minute})
		return err
	})
	drivertest.Must(t, p.Restore())
	unlock(t, l)
	if err := b.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if _, err := b.Acquire(context.Background(), s.ask("k", time.Minute)); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("Acquire after Close: %v", err)
	}
	eventually(t, ping)
	noLocks(t, srv)
}

// cleanUpAfterOutage: an attempt took effect, and for longer than the tries of a release take,
// nothing else passed. Its lock is freed when the server can be reached again.
func (s *suite) cleanUpAfterOutage(t *testing.T) {
	const callTimeout = 100 * time.Millisecond
	srv := server.StartFor(t, s.kind)
	p := fault.NewProxy(t, srv.Addr())
	b := s.open(t, s.url(p.Addr(), fmt.Sprintf("?call_timeout=%v", callTimeout)))
	for try := 0; ; try++ { // a request that comes too late has no effect
		s.warm(t, b)
		var sent atomic.Bool
		p.Judge(fault.ToClient, fault.Lose(-1, fault.Mute))
		p.Judge(fault.ToServer, func(_ int64, chunk []byte) (int, fault.Action) {
			if sent.Swap(true) {
				return 0, fault.Mute
			}
			return len(chunk), fault.Pass
		})
		if _, err := b.Acquire(t.Context(), s.ask("k", time.Hour)); err == nil {
			t.Fatal("a lock was granted without a reply")
		}
		<-time.After(20 * callTimeout)
		if left, err := locks(srv); err != nil {
			t.Fatal(err)
		} else if slices.Contains(left, "k") {
			break
		} else if try == 20 {
			t.Fatalf("no attempt took effect; the locks are %q", left)
		}
		drivertest.Must(t, p.Restore())
	}
	drivertest.Must(t, p.Restore())
	noLocks(t, srv)
}

func (s *suite) scriptFlush(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	b := s.open(t, s.url(srv.Addr(), ""))
	l := s.lock(t, b, "k", time.Minute)
	for _, step := range []func() error{
		func() error {
			_, err := l.Renew(context.Background(), &driver.Renewal{TTL: time.Minute})
			return err
		},
		func() error { return l.Release(context.Background()) },
		func() error { l = s.lock(t, b, "k", time.Minute); return nil },
	} {
		do(t, srv, "SCRIPT", "FLUSH")
		if err := step(); err != nil {
			t.Error(err)
		}
	}
}

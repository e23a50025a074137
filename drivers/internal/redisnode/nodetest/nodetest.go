// Package nodetest tests a driver for Redis and Valkey against real servers: the
// conformance suite, and what is particular to these servers. It is for the tests of
// the drivers alone.
package nodetest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A Driver is what is tested.
type Driver struct {
	Scheme string // "redis"
	Driver driver.Driver
	// App returns a backend on a client as an application may have it: with retries
	// and the library's default settings.
	App func(addr string, callTimeout time.Duration) (*App, error)
	// Bare returns a function that sets a key, which is new, through a client with the
	// library's default settings, and one that closes the client.
	Bare func(Way) (set func(ctx context.Context, key string) error, end func(), err error)
	// Goroutines are functions of the library that live as long as its client.
	Goroutines []string
}

// An App is a backend on an application's own client.
type App struct {
	Backend driver.Backend
	Ping    func() error // by the client
	Close   func()       // closes the client
}

// A test is one entry of the tables below.
type test struct {
	name string
	run  func(*suite, *testing.T)
}

// alone are the tests beside which nothing else may run: they look for leaked goroutines,
// or count on a reservation's few milliseconds.
var alone = []test{
	{"Conformance", (*suite).conformance},
	{"LineServesFirstComeFirst", steadily((*suite).lineOrder)},
	{"LinePassesOverTheDeadAndTheSilent", steadily((*suite).lineDead)},
	{"LineForgetsWhoLeaves", steadily((*suite).lineLeaves)},
	{"LineKeepsThePlaceOfWhoWasForestalled", steadily((*suite).lineKeeps)},
	{"ForeignReleaseWakesAll", steadily((*suite).lineForeign)},
	{"WithoutTheRightToALineReleasesWakeAll", steadily((*suite).lineRefused)},
	{"ThousandLeasesNeedFewConnections", (*suite).thousand},
}

// together are the tests that run side by side: they mostly wait.
var together = []test{
	{"IdleWaitersAskNobody", (*suite).idleWaiters},
	{"SilentSubscriptionIsReplaced", (*suite).silentConnection},
	{"ConnectingHoldsUpNeitherCallersNorClose", (*suite).hungConnect},
	{"OneWinnerOfAHundredThroughRetriesAndLostReplies", (*suite).oneWinner},
	{"CancelledAcquiresLeaveNoKey", (*suite).cancelled},
	{"AcquiresThroughJitterLeaveNoKey", (*suite).jitter},
	{"LatePacketIsRefusedByTheServer", (*suite).latePacket},
	{"CloseWaitsForNoLostReply", (*suite).closeAfterLostReply},
	{"ForeignLockExcludesAndIsExcluded", (*suite).foreign},
	{"StartedCallsDoWhatBlockingOnesDo", (*suite).starting},
	{"FlushedScriptsAreLoadedAgain", (*suite).scriptFlush},
	{"RestartedServerIsAnotherServer", (*suite).restart},
	{"ErrorsSayWhatIsWrong", (*suite).words},
	{"HungServerBoundsWhatIsUnderWay", (*suite).hung},
	{"ShortDeadlinesBreakNoConnection", (*suite).shortDeadlines},
	{"DeadlinesHoldOnAnApplicationsClient", (*suite).appDeadlines},
	{"ReleasesThatNobodyWaitsForAreNotAnnounced", (*suite).silentRelease},
	{"ForeignHolderIsPolledQuickly", (*suite).foreignHolder},
	{"WaitersShareOneConnection", (*suite).oneSubscriber},
	{"WaiterSurvivesABreakAndARestart", (*suite).waiterSurvives},
	{"WithoutPubSubWatchFailsAndSaysSoOnce", (*suite).noPubSub},
	{"TLSPasswordUserAndSocket", (*suite).ways},
	{"InspectorShowsLocksAndNothingElse", (*suite).inspector},
	{"CheckNamesWhatIsUnsafe", (*suite).check},
}

// halves are more tests that run side by side, about servers and their topologies rather than
// about a driver's library: with -short each runs with one driver, by its scheme.
var halves = map[string][]test{
	"redis": {
		{"RestartGuard", (*suite).guards},
		{"SentinelFailover", (*suite).sentinel},
		{"LineInACluster", steadily((*suite).lineCluster)},
		{"LockThatNoReplicaHasIsNotGranted", (*suite).waitReplicas},
		{"CountersEndAndTokensRise", (*suite).countersEnd},
		{"CounterAtItsEndRefuses", (*suite).counterAtItsEnd},
	},
	"valkey": {
		{"Failovers", (*suite).failovers},
		{"Cluster", (*suite).cluster},
		{"RightsThatAreDocumentedSuffice", (*suite).allRights},
		{"ForeignValueOfManyMiBIsNotSentBack", (*suite).hugeValue},
		{"ForeignLibraryGetsItsTurnInAGap", (*suite).foreignGap},
		{"TokensRiseWhateverTheCounterHolds", (*suite).tokens},
	},
}

// Main runs the tests of a package that calls Run, eight of them side by side on any
// number of processors.
func Main(m *testing.M) int {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	return m.Run()
}

// RunAlone runs the conformance suite and the other tests beside which nothing else may
// run: on both servers, or with -short on the one that the driver is named for.
func RunAlone(t *testing.T, d Driver) {
	eachKind(t, d, func(t *testing.T, s *suite) {
		for _, test := range alone {
			t.Run(test.name, func(t *testing.T) { test.run(s, t) })
		}
	})
}

// Run runs all other tests, side by side, or with -short those of one half and what is in none.
func Run(t *testing.T, d Driver) {
	t.Run("BadURLsNameThePartAndNeverThePassword", func(t *testing.T) { badURLs(t, d) })
	tests := halves[d.Scheme]
	if !testing.Short() {
		tests = slices.Concat(halves["redis"], halves["valkey"])
	}
	tests = slices.Concat(tests, together) // those that take long come first
	eachKind(t, d, func(t *testing.T, s *suite) {
		t.Parallel()
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				test.run(s, t)
			})
		}
	})
}

func eachKind(t *testing.T, d Driver, do func(*testing.T, *suite)) {
	for _, kind := range []server.Kind{server.KindRedis, server.KindValkey} {
		if name := strings.TrimSuffix(string(kind), "-server"); !testing.Short() || name == d.Scheme {
			t.Run(name, func(t *testing.T) { do(t, &suite{Driver: d, kind: kind}) })
		}
	}
}

type suite struct {
	Driver
	kind  server.Kind
	owner atomic.Int64
}

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
	b, err := s.Driver.Driver.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return b
}

// ask returns a request of a new owner.
func (s *suite) ask(key string, ttl time.Duration) *driver.Request {
	return &driver.Request{Key: key, Owner: fmt.Sprintf("test/%d", s.owner.Add(1)), TTL: ttl}
}

func (s *suite) lock(t testing.TB, b driver.Backend, key string, ttl time.Duration) driver.Lease {
	t.Helper()
	l, err := b.Acquire(context.Background(), s.ask(key, ttl))
	if err != nil {
		t.Fatalf("Acquire %q: %v", key, err)
	}
	return l
}

// lockSoon is lock where a call may time out on a busy machine.
func (s *suite) lockSoon(t testing.TB, b driver.Backend, key string, ttl time.Duration) (l driver.Lease) {
	t.Helper()
	eventually(t, func() (err error) {
		l, err = b.Acquire(context.Background(), s.ask(key, ttl))
		return err
	})
	return l
}

// warm makes the first contact, however long that takes. Each try has a key of its own: a
// release that is not answered in time may leave its lock until the TTL ends, and so that is short.
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

func unlock(t testing.TB, l driver.Lease) {
	t.Helper()
	if err := l.Release(context.Background()); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

// eventually tries until ok returns nil, for at most half a minute.
func eventually(t testing.TB, ok func() error) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
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

// locks lists the keys of a server that are no counters.
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
	const prefix, grace, secret = "app:", 200 * time.Millisecond, "pw-s3cr3t"
	srv := server.StartFor(t, s.kind, server.WithAppendOnly("always"), server.WithPassword(secret))
	at := func(addr string) string { return s.url(":"+secret+"@"+addr, "?grace="+grace.String()) }
	var mu sync.Mutex
	var notices []driver.Notice
	h := fault.Harness(srv.Addr(), func(addr string) (driver.Backend, error) {
		return s.Driver.Driver.Open(&driver.Config{DSN: at(addr), Prefix: prefix, Notify: func(n driver.Notice) {
			mu.Lock()
			defer mu.Unlock()
			notices = append(notices, n)
		}})
	})
	h.Driver, h.URL, h.Secret, h.Prefix, h.Grace = s.Driver.Driver, at(srv.Addr()), secret, prefix, grace
	h.Notices = func() []driver.Notice {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(notices)
	}
	h.Residue = func(context.Context) ([]string, error) { return locks(srv) }
	h.IgnoreGoroutines = append([]string{server.Goroutine}, s.Goroutines...)
	h.Faults.Kill, h.Faults.Pause, h.Faults.Resume = srv.Kill, srv.Pause, srv.Resume
	h.Faults.Restart = func(memory bool) error {
		if memory {
			return srv.Start()
		}
		return srv.RestartEmpty()
	}
	redlocktest.Run(t, h)
}

func (s *suite) oneWinner(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	const clients, each = 10, 10
	var backends [clients]driver.Backend
	var proxies [clients]*fault.Proxy
	for i := range backends {
		proxies[i] = fault.NewProxy(t, srv.Addr())
		backends[i] = s.app(t, proxies[i].Addr(), 20*time.Second).Backend
		s.warm(t, backends[i])
	}
	for round := range 5 {
		key := fmt.Sprintf("prize%d", round)
		for _, p := range proxies {
			p.CutReplies(1)
		}
		var won, unknown atomic.Int64
		var wg sync.WaitGroup
		for i := range clients * each {
			wg.Go(func() {
				_, err := backends[i%clients].Acquire(context.Background(), s.ask(key, time.Minute))
				switch {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, driver.ErrHeld):
					unknown.Add(1)
				}
			})
		}
		wg.Wait()
		// A retry finds its own attempt, so that a lost reply loses no winner.
		if won.Load() != 1 || unknown.Load() != 0 {
			t.Errorf("%d winners and %d unknown outcomes, want one and none", won.Load(), unknown.Load())
		}
	}
}

func (s *suite) app(t testing.TB, addr string, callTimeout time.Duration) *App {
	t.Helper()
	a, err := s.App(addr, callTimeout)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	t.Cleanup(func() { _ = a.Backend.Close() })
	return a
}

// appDeadlines: a client that may wait for many seconds makes nobody wait for longer
// than the call timeout and the caller's context say, and is not closed.
func (s *suite) appDeadlines(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	p := fault.NewProxy(t, srv.Addr())
	a := s.app(t, p.Addr(), time.Second)
	s.warm(t, a.Backend)
	l := s.lockSoon(t, a.Backend, "k", time.Minute)
	const most = 8 * time.Second // less than the client would wait by itself
	p.BlackHole()
	start := time.Now()
	if _, err := a.Backend.Acquire(context.Background(), s.ask("lone", time.Minute)); err == nil || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrRefused) {
		t.Errorf("a lone Acquire at a black hole: %v", err)
	}
	if d := time.Since(start); d > most {
		t.Errorf("a lone Acquire came back after %v", d)
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			start := time.Now()
			_, err := a.Backend.Acquire(ctx, s.ask(fmt.Sprintf("b%d", i), time.Minute))
			if err == nil || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrRefused) {
				t.Errorf("Acquire at a black hole: %v", err)
			}
			if d := time.Since(start); d > most {
				t.Errorf("Acquire came back after %v, and had 100ms", d)
			}
		})
	}
	wg.Wait()
	start = time.Now()
	if _, err := l.Renew(context.Background(), &driver.Renewal{TTL: time.Minute}); err == nil || errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew at a black hole: %v", err)
	}
	if d := time.Since(start); d > most {
		t.Errorf("Renew came back after %v", d)
	}
	if err := p.Restore(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { return l.Release(context.Background()) })
	if err := a.Backend.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if _, err := a.Backend.Acquire(context.Background(), s.ask("k", time.Minute)); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("Acquire after Close: %v", err)
	}
	eventually(t, a.Ping)
	noLocks(t, srv)
}

func (s *suite) cancelled(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	b := s.open(t, s.url(srv.Addr(), ""))
	s.warm(t, b)
	gate := make(chan struct{}, 16)
	var wg sync.WaitGroup
	for i := range 1000 {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i%20)*20*time.Microsecond)
			defer cancel()
			if l, err := b.Acquire(ctx, s.ask(fmt.Sprintf("c%d", i), time.Minute)); err == nil {
				if err := l.Release(ctx); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
		})
	}
	wg.Wait()
	noLocks(t, srv)
}

func (s *suite) jitter(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	p := fault.NewProxy(t, srv.Addr())
	b := s.open(t, s.url(p.Addr(), ""))
	s.warm(t, b)
	p.Delay(fault.ToServer, 10*time.Millisecond, 30*time.Millisecond)
	var wg sync.WaitGroup
	var timedOut atomic.Int64
	for i := range 1000 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(15+i%30)*time.Millisecond)
			defer cancel()
			l, err := b.Acquire(ctx, s.ask(fmt.Sprintf("j%d", i), time.Minute))
			if err != nil {
				timedOut.Add(1)
				return
			}
			if err := l.Release(ctx); err != nil {
				timedOut.Add(1) // it says that the lock may stay until its TTL ends
			}
		})
	}
	wg.Wait()
	if timedOut.Load() == 0 {
		t.Error("every call was in time: nothing was tested")
	}
	if err := b.Close(); err != nil { // brings the clean-up to its end
		t.Error(err)
	}
	noLocks(t, srv)
}

// latePacket holds an acquire back until nobody waits for it any more, on a
// connection that the release does not share.
func (s *suite) latePacket(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	p := fault.NewProxy(t, srv.Addr())
	b := s.open(t, s.url(p.Addr(), "?call_timeout=100ms"))
	s.warm(t, b)
	noLocks(t, srv) // what the first contact left in doubt is undone before
	p.Pause()
	_, err := b.Acquire(context.Background(), s.ask("late", time.Minute))
	if err == nil || errors.Is(err, driver.ErrHeld) {
		t.Fatalf("Acquire through a partition: %v", err)
	}
	<-time.After(time.Second) // until its not-after is over, by the server's clock
	p.Resume()
	eventually(t, func() error {
		l, err := b.Acquire(context.Background(), s.ask("next", time.Second)) // a release may time out too, and leave it until its end
		if err == nil {
			err = l.Release(context.Background())
		}
		return err
	})
	if err := b.Close(); err != nil { // brings the clean-up to its end, behind the packet
		t.Fatal(err)
	}
	noLocks(t, srv)
	// Whoever takes a lock leaves a counter.
	if n, err := srv.Do("EXISTS", "redlock1:fence:{late}"); err != nil || fmt.Sprint(n) != "0" {
		t.Errorf("the late packet took the lock: %v, %v", n, err)
	}
	if n, err := srv.Do("EXISTS", "redlock1:fence:{next}"); err != nil || fmt.Sprint(n) != "1" {
		t.Errorf("a lock left no counter, so nothing was tested: %v, %v", n, err)
	}
}

// closeAfterLostReply: a reply that was lost makes Close wait for nothing where the server
// answers: what took effect is known from the next answer, and a server that was started
// anew knows nothing of what was sent before.
func (s *suite) closeAfterLostReply(t *testing.T) {
	const callTimeout = 20 * time.Second
	for name, c := range map[string]func(t *testing.T, b driver.Backend, p *fault.Proxy, srv *server.Server){
		"found by the second try": func(t *testing.T, b driver.Backend, p *fault.Proxy, _ *server.Server) {
			p.CutReplies(1)
			unlock(t, s.lock(t, b, "k", time.Minute))
		},
		"undone": func(t *testing.T, b driver.Backend, p *fault.Proxy, _ *server.Server) {
			p.CutReplies(1)
			ctx, cancel := context.WithCancel(context.Background())
			p.Delay(fault.ToServer, 50*time.Millisecond, 0)
			time.AfterFunc(10*time.Millisecond, cancel)
			if l, err := b.Acquire(ctx, s.ask("k", time.Minute)); err == nil {
				unlock(t, l)
			}
		},
		"a server started anew": func(t *testing.T, b driver.Backend, _ *fault.Proxy, srv *server.Server) {
			if err := srv.RestartEmpty(); err != nil {
				t.Fatal(err)
			}
			unlock(t, s.lockSoon(t, b, "k", time.Minute))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := server.StartFor(t, s.kind)
			p := fault.NewProxy(t, srv.Addr())
			b := s.open(t, s.url(p.Addr(), fmt.Sprintf("?call_timeout=%v", callTimeout)))
			s.warm(t, b)
			c(t, b, p, srv)
			start := time.Now()
			if err := b.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			if d := time.Since(start); d > callTimeout/2 {
				t.Errorf("Close took %v: it waited for a call that could not take effect any more", d)
			}
			noLocks(t, srv)
		})
	}
}

func (s *suite) foreign(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	b := s.open(t, s.url(srv.Addr(), ""))
	if _, err := srv.Do("SET", "theirs", "redsync's value", "NX", "PX", "60000"); err != nil {
		t.Fatal(err)
	}
	var held *driver.HeldError
	if _, err := b.Acquire(context.Background(), s.ask("theirs", time.Minute)); !errors.As(err, &held) {
		t.Fatalf("a foreign lock: %v", err)
	}
	if held.Holder != "redsync's value" || !held.Since.IsZero() || held.RetryAfter <= 0 || held.Clock.IsZero() || held.Server == "" {
		t.Errorf("a foreign lock's holder: %+v", held)
	}
	l := s.lock(t, b, "ours", time.Minute)
	if reply, err := srv.Do("SET", "ours", "v", "NX", "PX", "60000"); err != nil || reply != nil {
		t.Errorf("SET NX on our lock: %v, %v", reply, err)
	}
	unlock(t, l)
	if reply, err := srv.Do("SET", "ours", "v", "NX", "PX", "60000"); err != nil || reply == nil {
		t.Errorf("SET NX after our release: %v, %v", reply, err)
	}
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
		if _, err := srv.Do("SCRIPT", "FLUSH"); err != nil {
			t.Fatal(err)
		}
		if err := step(); err != nil {
			t.Error(err)
		}
	}
}

func (s *suite) restart(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	b := s.open(t, s.url(srv.Addr(), ""))
	l := s.lock(t, b, "k", time.Minute)
	first := l.Grant()
	if err := srv.RestartEmpty(); err != nil {
		t.Fatal(err)
	}
	var lost error
	eventually(t, func() error {
		_, lost = l.Renew(context.Background(), &driver.Renewal{TTL: time.Minute})
		if lost == nil || !errors.Is(lost, driver.ErrLost) {
			return fmt.Errorf("renewal after the server forgot: %w", lost)
		}
		return nil
	})
	second := s.lockSoon(t, b, "k", time.Minute).Grant()
	if second.Server == first.Server || second.Server == "" {
		t.Errorf("Server is %q before a restart and %q after", first.Server, second.Server)
	}
	if second.Fence <= first.Fence {
		t.Errorf("token %d follows %d", second.Fence, first.Fence)
	}
}

func (s *suite) tokens(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	b := s.open(t, s.url(srv.Addr(), ""))
	ahead := uint64(time.Now().Add(time.Hour).UnixMicro())
	if _, err := srv.Do("SET", "redlock1:fence:{k}", fmt.Sprint(ahead)); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(3) {
		l := s.lock(t, b, "k", time.Minute)
		if got := l.Grant().Fence; got != ahead+1+i {
			t.Fatalf("token %d, want %d", got, ahead+1+i)
		}
		unlock(t, l)
	}
	if _, err := srv.Do("SET", "redlock1:fence:{k}", "rubbish"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Acquire(context.Background(), s.ask("k", time.Minute)); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("a counter that is no number: %v", err)
	}
	if left, _ := locks(srv); len(left) > 0 {
		t.Errorf("the refused lock was left: %q", left)
	}
	if v, _ := srv.Do("GET", "redlock1:fence:{k}"); fmt.Sprint(v) != "rubbish" {
		t.Errorf("what is not ours was overwritten with %v", v)
	}
}

// hung: a server that never answers gets a bounded number of calls, every caller
// returns in time, and nothing of it remains.
func (s *suite) hung(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	p := fault.NewProxy(t, srv.Addr())
	b := s.open(t, s.url(p.Addr(), "?call_timeout=100ms&dial_timeout=100ms"))
	s.warm(t, b)
	accepted := p.Stats().Conns
	p.BlackHole()
	var wg sync.WaitGroup
	start := time.Now()
	for i := range 200 {
		wg.Go(func() {
			_, err := b.Acquire(context.Background(), s.ask(fmt.Sprintf("h%d", i), time.Minute))
			if err == nil || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrRefused) {
				t.Errorf("Acquire at a black hole: %v", err)
			} else if !errors.Is(err, context.DeadlineExceeded) && !strings.Contains(err.Error(), "reached") {
				t.Errorf("Acquire at a black hole does not say that time ran out: %v", err)
			}
		})
	}
	wg.Wait()
	if d := time.Since(start); d > 30*time.Second {
		t.Errorf("the callers came back after %v", d)
	}
	if n := p.Stats().Conns - accepted; n > 60 {
		t.Errorf("%d connections were made to a server that does not answer", n)
	}
	if err := p.Restore(); err != nil {
		t.Fatal(err)
	}
	s.warm(t, b)
}

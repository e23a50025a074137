package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/memory"
)

// lines is a log handler that stores its lines.
type lines struct {
	mu  sync.Mutex
	got []line
}

type line struct {
	ctx   context.Context
	level slog.Level
	msg   string
	attrs map[string]string
}

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *lines) WithGroup(string) slog.Handler            { return l }

func (l *lines) Handle(ctx context.Context, r slog.Record) error {
	one := line{ctx: ctx, level: r.Level, msg: r.Message, attrs: map[string]string{}}
	r.Attrs(func(a slog.Attr) bool { one.attrs[a.Key] = a.Value.String(); return true })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.got = append(l.got, one)
	return nil
}

func (l *lines) all() []line {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]line(nil), l.got...)
}

func failingRenewal(context.Context, *driver.Renewal) error { return errOutage }

// TestAnOutageHasOneLineAndThenACount: the first failure has a line with its cause; after that one
// line every ten seconds says how many more there were, as long as there are any.
func TestAnOutageHasOneLineAndThenACount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, log := newSpy(), &lines{}
		var failed, freed = atomic.Uint64{}, make(chan struct{})
		c := newSpyClient(t, s, dlock.WithLogger(slog.New(log)), dlock.WithTTL(6*time.Second), dlock.WithHooks(on("renew", func(_ context.Context, e dlock.Event) {
			if <-freed; e.Err != nil {
				failed.Add(1)
			}
		})))
		for i := range 1000 {
			lock(t, c, fmt.Sprint(i))
		}
		s.set(func() { s.renew = failingRenewal })
		time.Sleep(3500 * time.Millisecond)
		s.set(func() { s.renew = nil })
		time.Sleep(time.Minute)
		close(freed)
		synctest.Wait()
		if n := failed.Load(); n == 0 || n != c.Stats().RenewalFailed {
			t.Errorf("a hook that hung for a minute heard of %d failures of %d", n, c.Stats().RenewalFailed)
		}
		got := log.all()
		if len(got) != 2 || c.Stats().Held != 1000 {
			t.Fatalf("%d lines, %d leases held; want 2 and 1,000: %.300v", len(got), c.Stats().Held, got)
		}
		if got[0].level != slog.LevelWarn || got[0].msg != "dlock: backend unavailable" ||
			got[0].attrs["err"] != errOutage.Error() || got[0].attrs["backend"] != "memory" {
			t.Errorf("it begins with %+v", got[0])
		}
		if got[1].msg != "dlock: backend still unavailable" || got[1].attrs["times"] == "0" {
			t.Errorf("the count is %+v", got[1])
		}
	})
}

// unwatched is a backend whose Watch fails with errs, one after the other, before it succeeds.
type unwatched struct {
	watching
	errs  []error
	calls []time.Time
}

func (u *unwatched) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	n := len(u.calls)
	if u.calls = append(u.calls, time.Now()); n < len(u.errs) {
		return nil, u.errs[n]
	}
	return u.watching.Watch(ctx, key)
}

// A Watch that fails is said once, and tried again after a pause unless it is refused for ever. An
// outage is said, and contention is not.
func TestAWaiterThatMustPollSaysSo(t *testing.T) {
	const polls, away = "dlock: waiters poll, since the backend cannot signal them", "dlock: backend unavailable"
	for _, tt := range []struct {
		watch   []error
		attempt error
		calls   int
		says    string
	}{
		{nil, nil, 1, ""},
		{[]error{errOutage, errOutage}, nil, 3, polls},
		{[]error{&driver.RefusedError{Reason: "no such right"}}, nil, 1, polls},
		{nil, errOutage, 1, away},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, log := newSpy(), &lines{}
			s.hide = driver.FeatureQueueing
			s.acquire = func(context.Context, *driver.Request) error {
				if s.acquires.Load() == 1 {
					return tt.attempt
				}
				return nil
			}
			u := &unwatched{watching: watching{s}, errs: tt.watch}
			time.AfterFunc(5*time.Second, s.Backend.(*memory.Backend).Hold("k"))
			c := newSpyClient(t, u, dlock.WithLogger(slog.New(log)))
			unlock(t, lock(t, c, "k"))
			synctest.Wait()
			got := ""
			for _, l := range log.all() {
				got += l.msg
			}
			if got != tt.says || len(u.calls) != tt.calls || len(u.calls) > 1 && !u.calls[1].After(u.calls[0]) {
				t.Errorf("%v, %v: it watches at %v, and says %q, want %q", tt.watch, tt.attempt, u.calls, got, tt.says)
			}
		})
	}
}

// Nobody else can tell that a lock which was kept for its minimum hold was not released.
func TestAReleaseAfterTheMinimumHoldThatFailsIsLogged(t *testing.T) {
	for err, want := range map[error]int{nil: 0, driver.ErrLost: 0, errOutage: 1} {
		synctest.Test(t, func(t *testing.T) {
			s, log := newSpy(), &lines{}
			s.release = func(context.Context) error { return err }
			unlock(t, lock(t, newSpyClient(t, s, dlock.WithLogger(slog.New(log))), "k", dlock.WithMinHold(time.Second)))
			time.Sleep(2 * time.Second)
			if got := log.all(); len(got) != want || s.releases.Load() != 1 {
				t.Errorf("%v: %d releases, %+v", err, s.releases.Load(), got)
			}
		})
	}
}

func TestALogLineHasTheContextOfItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		s, log := newSpy(), &lines{}
		c := newSpyClient(t, s, dlock.WithLogger(slog.New(log)))
		l, err := c.Lock(context.WithValue(t.Context(), key{}, "trace"), "k")
		if err != nil {
			t.Fatal(err)
		}
		s.Backend.(*memory.Backend).Expire("k")
		<-l.Done()
		synctest.Wait()
		got := log.all()
		if len(got) != 1 || got[0].ctx.Value(key{}) != "trace" || got[0].msg != "dlock: lease lost" || got[0].attrs["key"] != "k" {
			t.Errorf("got %+v, want one line with the values of Lock's context", got)
		}
	})
}

func TestALogLineOutlivesTheContextOfItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := newSpy(), &lines{}
		s.acquire = func(context.Context, *driver.Request) error { return errOutage }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _ = newSpyClient(t, s, dlock.WithLogger(slog.New(log))).Lock(ctx, "k")
		if got := log.all(); len(got) != 1 || got[0].ctx.Err() != nil {
			t.Errorf("got %+v, want one line whose context has not ended", got)
		}
	})
}

// stuckLog is a handler that blocks until it is freed.
type stuckLog struct {
	slog.Handler
	freed chan struct{}
}

func (stuckLog) Enabled(context.Context, slog.Level) bool { return true }
func (l stuckLog) Handle(ctx context.Context, r slog.Record) error {
	<-l.freed
	return l.Handler.Handle(ctx, r)
}

// While a log handler hangs, notices of the driver are left out beyond a thousand, and nothing else is. Close
// says that it hangs.
func TestALogHandlerThatHangsMissesNoticesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, freed := &lines{}, make(chan struct{})
		c, err := dlock.OpenURL("test:", dlock.WithLogger(slog.New(stuckLog{log, freed})))
		if err != nil {
			t.Fatal(err)
		}
		l := lock(t, c, "k", dlock.WithMaxHold(time.Second))
		for range 2000 {
			testDriver.got.Notify(driver.Notice{Kind: driver.NoticeDegraded})
		}
		<-l.Done()
		if err := c.Close(); err == nil || !strings.Contains(err.Error(), "a log handler has not returned") {
			t.Errorf("Close = %v", err)
		}
		close(freed)
		synctest.Wait()
		got := log.all()
		if n := len(got); n < 1024 || n > 1030 || got[n-1].msg != "dlock: lease lost" {
			t.Errorf("%d lines, and the last is %+v", n, got[n-1])
		}
	})
}

// A hook and a log handler that block cost no lease, and delay no end of one.
func TestWhatBlocksInTheBackgroundHoldsUpNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		freed := make(chan struct{})
		defer close(freed)
		c := newSpyClient(t, s, dlock.WithLogger(slog.New(stuckLog{slog.DiscardHandler, freed})),
			dlock.WithHooks(on("renew lost", func(context.Context, dlock.Event) { <-freed })))
		l, lossy := lock(t, c, "k", dlock.WithTTL(2*time.Second)), lock(t, c, "lossy")
		s.Backend.(*memory.Backend).Expire("lossy")
		<-lossy.Done()
		s.set(func() { s.renew = failingRenewal })
		time.Sleep(700 * time.Millisecond)
		s.set(func() { s.renew = nil })
		time.Sleep(time.Minute)
		if err := l.Err(); err != nil {
			t.Error(err)
		}
		s.set(func() { s.renew = failingRenewal })
		deadline, _ := l.Deadline()
		<-l.Done()
		if time.Now().After(deadline) {
			t.Error("Done came after the deadline")
		}
	})
}

// noticing is a backend that sends a notice of every request, under its own mutex.
type noticing struct {
	driver.Backend
	mu     sync.Mutex
	notify func(driver.Notice)
}

func (n *noticing) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.notify(driver.Notice{Kind: driver.NoticeDegraded, Key: r.Key})
	return n.Backend.Acquire(ctx, r)
}

// noticer is a driver of such backends.
type noticer struct{}

func (noticer) Open(cfg *driver.Config) (driver.Backend, error) {
	return &noticing{Backend: memory.New(), notify: cfg.Notify}, nil
}

func init() { dlock.Register("noticing", noticer{}) }

func TestAHookThatCallsBackDoesNotFreezeTheBackend(t *testing.T) {
	var c *dlock.Client
	called := make(chan error, 1)
	c, err := dlock.OpenURL("noticing:", dlock.WithLogger(nil), dlock.WithHooks(on("notice", func(ctx context.Context, e dlock.Event) {
		if e.Notice.Key == "first" {
			l, err := c.TryLock(ctx, "second")
			if err == nil {
				err = l.Unlock()
			}
			called <- err
		}
	})))
	if err != nil {
		t.Fatal(err)
	}
	unlock(t, lock(t, c, "first"))
	if err := <-called; err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestCloseWaitsForHooksAndNamesOneThatDoesNotReturn(t *testing.T) {
	for took, says := range map[time.Duration]string{time.Second: "<nil>", time.Hour: "hook has not returned"} {
		synctest.Test(t, func(t *testing.T) {
			var ended atomic.Int64
			s, gone := newSpy(), make(chan struct{})
			s.session(gone)
			before := goroutines()
			c := newSpyClient(t, s, dlock.WithHooks(on("lost", func(context.Context, dlock.Event) { time.Sleep(took); ended.Add(1) })))
			lock(t, c, "k")
			close(gone)
			synctest.Wait()
			if err := c.Close(); !strings.Contains(fmt.Sprint(err), says) || ended.Load() == 0 != (err != nil) {
				t.Errorf("Close = %v, and %d hooks have returned", err, ended.Load())
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			if n := goroutines() - before; n > 0 {
				t.Errorf("%d goroutines are left", n)
			}
		})
	}
}

// A hook delays a call whose request failed, until the client is closed.
func TestNothingIsLoggedAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := newSpy(), &lines{}
		s.acquire = func(context.Context, *driver.Request) error { return errOutage }
		before := goroutines()
		c := newSpyClient(t, s, dlock.WithLogger(slog.New(log)), dlock.WithHooks(on("attempt", func(context.Context, dlock.Event) { time.Sleep(time.Second) })))
		ended := make(chan error)
		go func() { _, err := c.Lock(t.Context(), "k"); ended <- err }()
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, dlock.ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
		synctest.Wait()
		if got, n := log.all(), goroutines()-before; len(got) > 0 || n > 0 {
			t.Errorf("%d goroutines are left, and the log says %+v", n, got)
		}
	})
}

func TestAHookOfTheBackgroundThatEndsItsGoroutineEndsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var called atomic.Int64
		c := newSpyClient(t, newSpy(), dlock.WithHooks(on("renew", func(context.Context, dlock.Event) { called.Add(1); runtime.Goexit() })))
		lock(t, c, "k")
		time.Sleep(time.Minute)
		if called.Load() < 10 {
			t.Errorf("called %d times", called.Load())
		}
	})
}

// Every field of an event means one thing.
func TestEventsSayWhatTheirFieldsMean(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.New()
		time.AfterFunc(2*time.Second, m.Hold("k"))
		s := &spy{Backend: m.Peer()}
		type times struct{ waited, held time.Duration }
		got := map[string]times{}
		var mu sync.Mutex
		say := func(ctx context.Context, e dlock.Event) {
			mu.Lock()
			defer mu.Unlock()
			got[e.Op] = times{e.Waited, e.Held}
		}
		c := newSpyClient(t, s, dlock.WithHooks(on("lock lost unlock", say)))
		l := lock(t, c, "k")
		time.Sleep(time.Second)
		unlock(t, l)
		synctest.Wait()
		mu.Lock()
		if w := got["unlock"]; w != (times{0, time.Second}) {
			t.Errorf("unlock: %+v", w)
		}
		mu.Unlock()
		l = lock(t, c, "k", dlock.WithMaxHold(3*time.Second))
		<-l.Done()
		_ = l.Unlock()
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if w := got["lost"]; w != (times{0, 3 * time.Second}) {
			t.Errorf("lost: %+v", w)
		}
		if w := got["unlock"]; w != (times{}) { // the loss has told for how long it was held
			t.Errorf("unlock: %+v", w)
		}
		if w := got["lock"]; w != (times{0, 0}) {
			t.Errorf("the second lock: %+v", w)
		}
	})
}

func TestRecoveriesOfADriverAreInfoAndItsMessagesAreConstant(t *testing.T) {
	log := &lines{}
	c, err := dlock.OpenURL("test:", dlock.WithLogger(slog.New(log)))
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{quorum.NoticeNodeSkipped, quorum.NoticeNodeRestored} {
		testDriver.got.Notify(driver.Notice{Kind: k, Node: "a:1", Err: errOutage})
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	got := log.all()
	if len(got) != 2 || got[0].msg != got[1].msg || got[0].level != slog.LevelWarn || got[1].level != slog.LevelInfo ||
		got[1].attrs["kind"] != quorum.NoticeNodeRestored || got[1].attrs["node"] != "a:1" {
		t.Errorf("got %+v", got)
	}
}

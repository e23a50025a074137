package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
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

// heldBy makes another client hold key for d, and returns a spy on the same space.
func heldBy(t *testing.T, d time.Duration) *spy {
	t.Helper()
	m := memory.New()
	release := m.Hold("k")
	time.AfterFunc(d, release)
	return &spy{Backend: m.Peer()}
}

// free reports whether another client of s's lock space can get key.
func free(t *testing.T, s *spy, key string) bool {
	t.Helper()
	_, err := s.Backend.(*memory.Backend).Peer().Acquire(t.Context(), &driver.Request{Key: key, Owner: "other/1", TTL: time.Second})
	if err != nil && !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	return err == nil
}

func TestAHoldCountsFromTheGrantAndNotFromTheBeginningOfTheWait(t *testing.T) {
	for _, wait := range []time.Duration{25 * time.Second, 3 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			s := heldBy(t, wait)
			l := lock(t, newSpyClient(t, s), "k", dlock.WithMaxHold(30*time.Second))
			got := time.Now()
			<-l.Done()
			if held := time.Since(got); held != 30*time.Second {
				t.Errorf("after a wait of %v: held for %v, want WithMaxHold's 30 s", wait, held)
			}
			if s.grants.Load() != 1 {
				t.Errorf("%d grants: one was thrown away", s.grants.Load())
			}
			_ = l.Unlock()
		})
		synctest.Test(t, func(t *testing.T) {
			s := heldBy(t, wait)
			unlock(t, lock(t, newSpyClient(t, s), "k", dlock.WithMinHold(time.Minute)))
			time.Sleep(59 * time.Second)
			if free(t, s, "k") {
				t.Errorf("after a wait of %v: WithMinHold was not kept", wait)
			}
		})
	}
}

// stuckLog is a handler that blocks until it is freed.
type stuckLog struct {
	slog.Handler
	freed chan struct{}
}

func (stuckLog) Enabled(context.Context, slog.Level) bool { return true }

func (l stuckLog) Handle(context.Context, slog.Record) error {
	<-l.freed
	return nil
}

func TestALogThatBlocksHoldsUpNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		s.renew = func(context.Context, *driver.Renewal) error { return errOutage }
		log := stuckLog{slog.DiscardHandler, make(chan struct{})}
		c := newSpyClient(t, s, dlock.WithLogger(slog.New(log)))
		lossy := lock(t, c, "lossy", dlock.WithTTL(2*time.Second))
		failing := lock(t, c, "failing", dlock.WithMaxHold(5*time.Second))
		plain := lock(t, c, "plain")
		for _, l := range []*dlock.Lease{lossy, failing, plain} {
			deadline, _ := l.Deadline()
			<-l.Done()
			if time.Now().After(deadline) || l.Err() == nil {
				t.Errorf("%s: Done came after its deadline", l.Key())
			}
		}
		close(log.freed)
	})
}

func TestCloseWaitsForAnUnlockUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		s.release = func(context.Context) error { time.Sleep(time.Second); return nil }
		c := newSpyClient(t, s)
		l := lock(t, c, "k")
		done := make(chan error)
		go func() { done <- l.Unlock() }()
		synctest.Wait()
		go func() { done <- c.Close() }()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if !free(t, s, "k") {
			t.Error("the key is left")
		}
	})
}

func TestCloseKeepsTheMinHoldOfALeaseThatNobodyUnlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		c := newSpyClient(t, s)
		lock(t, c, "k", dlock.WithMinHold(time.Minute))
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(59 * time.Second)
		if free(t, s, "k") {
			t.Error("WithMinHold was not kept")
		}
		time.Sleep(2 * time.Second)
		if !free(t, s, "k") {
			t.Error("the key is left")
		}
	})
}

func TestCloseDoesNotWaitForAMinHoldInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		c := newSpyClient(t, s)
		l := lock(t, c, "k", dlock.WithMinHold(time.Hour))
		s.set(func() { s.renew = func(context.Context, *driver.Renewal) error { return errOutage } })
		unlock(t, l)
		start := time.Now()
		if err := c.Close(); !errors.Is(err, errOutage) {
			t.Errorf("Close = %v, want the outage: the lock may end too early", err)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("Close took %v", took)
		}
	})
}

// dying is a session backend with a TTL, as Postgres is one: its locks end with Close.
type dying struct {
	*spy
	mu     sync.Mutex
	leases []driver.Lease
}

func (d *dying) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	l, err := d.spy.Acquire(ctx, r)
	if err == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.leases = append(d.leases, l)
	}
	return l, err
}

func (d *dying) Close() error {
	for _, l := range d.leases {
		_ = l.Release(context.Background())
	}
	return d.spy.Close()
}

func TestCloseWaitsForTheMinHoldOfASessionWithATTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dying{spy: newSpy()}
		d.info = func(i *driver.Info) { i.Features |= driver.FeatureSession }
		c := newSpyClient(t, d)
		unlock(t, lock(t, c, "unlocked", dlock.WithMinHold(time.Minute)))
		lock(t, c, "held", dlock.WithMinHold(time.Minute))
		go func() { _ = c.Close() }()
		time.Sleep(59 * time.Second)
		if free(t, d.spy, "unlocked") || free(t, d.spy, "held") {
			t.Error("WithMinHold was not kept")
		}
		time.Sleep(2 * time.Second)
		if !free(t, d.spy, "unlocked") || !free(t, d.spy, "held") {
			t.Error("a key is left")
		}
	})
}

func TestARenewalUnderWayDoesNotShortenAMinHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		var renewals atomic.Int64
		s.renew = func(context.Context, *driver.Renewal) error {
			if renewals.Add(1) == 1 {
				time.Sleep(time.Second)
			}
			return nil
		}
		c := newSpyClient(t, s)
		l := lock(t, c, "k", dlock.WithMinHold(time.Minute))
		time.Sleep(3500 * time.Millisecond) // a renewal for ten seconds is under way
		unlock(t, l)
		time.Sleep(5 * time.Second)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(50 * time.Second)
		if free(t, s, "k") {
			t.Error("WithMinHold was not kept")
		}
	})
}

func TestAMinHoldOverTheMaxHoldIsRefused(t *testing.T) {
	c := newSpyClient(t, newSpy())
	_, err := c.Lock(t.Context(), "k", dlock.WithMinHold(time.Minute), dlock.WithMaxHold(time.Second))
	wantInvalid(t, "WithMinHold", err)
}

func TestPingKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		s.session(nil)
		c := newSpyClient(t, s, dlock.WithMinHold(time.Minute))
		if err := c.Ping(t.Context()); err != nil || s.releases.Load() != 1 {
			t.Errorf("Ping = %v, with %d releases", err, s.releases.Load())
		}
	})
}

func TestChannelsOfLossThatAreNotSharedAreNotWatchedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		c := newSpyClient(t, s)
		before := goroutines()
		for range 1000 {
			s.set(func() { lost := make(chan struct{}); s.granted = func(g *driver.Grant) { g.Lost = lost } })
			unlock(t, lock(t, c, "k"))
			time.Sleep(100 * time.Millisecond)
		}
		if n := goroutines() - before; n > 50 {
			t.Errorf("%d goroutines after 100 s of one lease at a time", n)
		}
	})
}

func TestAWaitThatItsContextEndedSaysSoWhateverTheVerdict(t *testing.T) {
	for _, verdict := range []error{
		&driver.HeldError{}, errOutage,
		&quorum.Error{Need: 2, Verdict: &driver.HeldError{}, Votes: []quorum.Vote{{Node: "a:1"}}},
	} {
		s := newSpy()
		ctx, cancel := context.WithCancel(t.Context())
		s.acquire = func(context.Context, *driver.Request) error { cancel(); return verdict }
		_, err := newSpyClient(t, s).Lock(ctx, "k")
		if !errors.Is(err, context.Canceled) || !errors.Is(err, verdict) {
			t.Errorf("got %v, want Canceled and %v", err, verdict)
		}
	}
}

func TestAnErrorThatNamesTheContextsEndComesAfterIt(t *testing.T) {
	t.Parallel()
	c := newSpyClient(t, newSpy())
	l := lock(t, c, "k")
	defer l.Unlock()
	for range 200 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, err := c.Lock(ctx, "k")
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			t.Fatalf("%v, and the context says that it has not ended", err)
		}
		cancel()
	}
}

func TestEveryWaiterReportsWhatTheFirstHeard(t *testing.T) {
	for _, outage := range []bool{false, true} {
		eachWay(t, func(t *testing.T, s *spy, b driver.Backend) {
			if outage {
				s.acquire = func(context.Context, *driver.Request) error { return errOutage }
			} else {
				defer s.Backend.(*memory.Backend).Peer().Hold("k")()
			}
			c := newSpyClient(t, b)
			var wg sync.WaitGroup
			for i := range 3 {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					_, err := c.Lock(ctx, "k")
					if errors.Is(err, dlock.ErrHeld) == outage || errors.Is(err, dlock.ErrUnavailable) != outage {
						t.Errorf("waiter %d, outage %v: %v", i, outage, err)
					}
				})
			}
			wg.Wait()
		})
	}
}

func TestTheShortestTTLsAreRenewedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSpyClient(t, newSpy())
		for _, ms := range []time.Duration{10, 11, 12, 20} {
			l := lock(t, c, fmt.Sprint(ms), dlock.WithTTL(ms*time.Millisecond))
			time.Sleep(time.Second)
			if err := l.Err(); err != nil {
				t.Errorf("TTL %d ms: %v", ms, err)
			}
		}
	})
}

func TestDoReportsThatItsClientWasClosedUnderIt(t *testing.T) {
	c := newSpyClient(t, newSpy())
	err := dlock.Do(t.Context(), c, "k", func(context.Context) error { return c.Close() })
	if !errors.Is(err, dlock.ErrClosed) || !errors.Is(err, dlock.ErrReleased) {
		t.Errorf("Do = %v though its lock was given up in the middle", err)
	}
}

func TestAContextThatEndedHasACause(t *testing.T) {
	c := newSpyClient(t, newSpy())
	for range 50 {
		l := lock(t, c, "k")
		var contexts []context.Context
		for range 100 {
			ctx, cancel := l.Context(context.Background())
			defer cancel()
			contexts = append(contexts, ctx)
		}
		done := make(chan struct{})
		go func() { defer close(done); _ = l.Unlock() }()
		for contexts[50].Err() == nil {
			runtime.Gosched()
		}
		if context.Cause(contexts[50]) == nil {
			t.Fatal("Err says that it ended, and Cause does not")
		}
		<-done
	}
}

func TestAStartComesBeforeEveryFailed(t *testing.T) {
	var started, failed int
	c := newSpyClient(t, newSpy(), dlock.WithHooks(dlock.Hooks{
		Start: func(ctx context.Context, _, _ string) context.Context { started++; return ctx },
		Event: on("lock", func(context.Context, dlock.Event) { failed++ }).Event,
	}))
	_, _ = c.Lock(t.Context(), "")
	if started != 1 || failed != 1 {
		t.Errorf("%d times Start, %d times Failed", started, failed)
	}
}

func TestAHookThatPanicsLeavesNoLock(t *testing.T) {
	boom := func(context.Context, dlock.Event) { panic("boom") }
	for name, hooks := range map[string]dlock.Hooks{
		"Attempt":  on("attempt", boom),
		"Acquired": on("lock", boom),
		"Start": {Start: func(ctx context.Context, op, _ string) context.Context {
			if op == "unlock" {
				panic("boom")
			}
			return ctx
		}},
	} {
		s := newSpy()
		c := newSpyClient(t, s, dlock.WithHooks(hooks))
		func() {
			defer func() {
				if recover() != "boom" {
					t.Errorf("%s: the panic did not pass", name)
				}
			}()
			l, err := c.Lock(t.Context(), "k")
			if err == nil {
				err = l.Unlock()
			}
			t.Errorf("%s: %v", name, err)
		}()
		if !free(t, s, "k") || c.Stats().Held != 0 {
			t.Errorf("%s: the lock is left", name)
		}
	}
}

func TestAHookThatEndsItsGoroutineLeavesNoLock(t *testing.T) {
	end := func(context.Context, dlock.Event) { runtime.Goexit() } // t.FailNow does
	for name, hooks := range map[string]dlock.Hooks{"Attempt": on("attempt", end), "Acquired": on("lock", end)} {
		s := newSpy()
		c := newSpyClient(t, s, dlock.WithHooks(hooks))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, err := c.Lock(t.Context(), "k")
			t.Errorf("%s: Lock returned %v", name, err)
		}()
		<-ended
		if !free(t, s, "k") || c.Stats().Held != 0 {
			t.Errorf("%s: the lock is left", name)
		}
	}
}

// The longest durations mean "for ever", and no sum with them overflows.
func TestTheLongestDurationsAreForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		c := newSpyClient(t, s)
		l := lock(t, c, "k", dlock.WithMaxHold(math.MaxInt64))
		time.Sleep(2 * time.Hour)
		if err := l.Err(); err != nil {
			t.Errorf("WithMaxHold: %v", err)
		}
		if err := l.Unlock(); err != nil {
			t.Error(err)
		}

		l = lock(t, c, "k", dlock.WithMaxHold(0), dlock.WithMinHold(math.MaxInt64))
		if err := l.Unlock(); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Hour)
		if free(t, s, "k") {
			t.Error("WithMinHold was forgotten")
		}
	})
}

func TestAReleaseOfWhatIsGoneDidNotFail(t *testing.T) {
	s := newSpy()
	c := newSpyClient(t, s)
	l := lock(t, c, "k")
	s.set(func() { s.release = func(context.Context) error { return driver.ErrLost } })
	if err := l.Unlock(); !errors.Is(err, dlock.ErrLost) || c.Stats().ReleaseFailed != 0 {
		t.Errorf("Unlock = %v, Stats = %+v", err, c.Stats())
	}
}

func TestNoOverlapUnderAMixOfCalls(t *testing.T) {
	s := newSpy()
	s.hide = driver.FeatureQueueing
	c := newSpyClient(t, watching{s})
	var inside atomic.Int64
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			for j := range 20 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*j%50+1)*time.Millisecond)
				take := c.Lock
				if i%5 == 0 {
					take = c.TryLock
				}
				l, err := take(ctx, "k", dlock.WithTTL(time.Minute))
				cancel()
				if err != nil {
					continue
				}
				if inside.Add(1) != 1 {
					t.Error("two holders")
				}
				inside.Add(-1)
				unlock(t, l)
			}
		})
	}
	wg.Wait()
	if st := c.Stats(); st.Held != 0 || st.Waiting != 0 {
		t.Errorf("Stats = %+v", st)
	}
}

// Only the server knows the locks of a dead process.
func TestAMinHoldIsKeptExactlyThoughTheProcessDies(t *testing.T) {
	for _, unlocked := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newSpy()
			if unlocked { // a grace belongs to a TTL, and not to a minimum hold
				s.acquire = func(_ context.Context, r *driver.Request) error {
					r.Quorum = &quorum.Info{Terms: quorum.Terms{N: 3, Guard: time.Hour, Grace: time.Hour}}
					return nil
				}
			}
			l := lock(t, newSpyClient(t, s), "k", dlock.WithMinHold(time.Minute))
			granted := time.Now()
			time.Sleep(time.Microsecond)
			synctest.Wait()
			if unlocked {
				time.Sleep(55 * time.Second) // less than a TTL is left
				unlock(t, l)
			}
			s.set(func() { // nothing arrives any more
				s.renew = func(context.Context, *driver.Renewal) error { return errOutage }
				s.release = func(context.Context) error { return errOutage }
			})
			time.Sleep(time.Until(granted.Add(time.Minute - time.Millisecond)))
			if free(t, s, "k") {
				t.Error("the lock is free before the minimum hold is over")
			}
			time.Sleep(2 * time.Millisecond)
			if !free(t, s, "k") {
				t.Error("the lock is kept after the minimum hold")
			}
		})
	}
}

// A backend that cannot keep a lock beyond its lease.
func TestCloseWaitsForAMinHoldThatNoTTLCovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		s.hide = driver.FeatureKeep
		c := newSpyClient(t, s)
		unlock(t, lock(t, c, "k", dlock.WithTTL(20*time.Second), dlock.WithMinHold(time.Minute)))
		start := time.Now()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took != 40*time.Second {
			t.Errorf("Close took %v, want 40 s, until a TTL covers the rest", took)
		}
		time.Sleep(19 * time.Second)
		if free(t, s, "k") {
			t.Error("WithMinHold was not kept")
		}
	})
}

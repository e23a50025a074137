package dlock_test

import (
	"context"
	"errors"
	"fmt"
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

// free reports whether another client of s's lock space can get key.
func free(t *testing.T, s *spy, key string) bool {
	t.Helper()
	_, err := s.Backend.(*memory.Backend).Peer().Acquire(t.Context(), &driver.Request{Key: key, Owner: "other/1", TTL: time.Second})
	if err != nil && !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	return err == nil
}

// A hold counts from the grant, and not from the beginning of the wait.
func TestMaxHoldEndsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.New()
		time.AfterFunc(3*time.Minute, m.Hold("k"))
		s := &spy{Backend: m.Peer()}
		l := lock(t, newSpyClient(t, s), "k", dlock.WithMaxHold(30*time.Second))
		time.Sleep(30*time.Second - 1)
		if err := l.Err(); err != nil {
			t.Errorf("too early: %v", err)
		}
		<-l.Done()
		if err := l.Err(); !errors.Is(err, dlock.ErrMaxHold) || !errors.Is(err, dlock.ErrLost) || s.grants.Load() != 1 {
			t.Errorf("after 30 s: %v, want ErrMaxHold, which is ErrLost; %d grants", err, s.grants.Load())
		}
		if errors.Is(dlock.ErrLost, dlock.ErrMaxHold) {
			t.Error("not every loss is ErrMaxHold")
		}
		_ = l.Unlock()
	})
}

// A lock with WithMinHold stays after Unlock, also if the client is closed, or the process ends: then the
// server keeps it, or Close waits where it cannot.
func TestMinHoldKeepsTheLock(t *testing.T) {
	const hold = time.Minute
	session := func(i *driver.Info) { i.Features |= driver.FeatureSession }
	for name, tt := range map[string]struct {
		info    func(*driver.Info)
		hide    driver.Features
		ttl     time.Duration
		closing time.Duration // how long Close takes
	}{
		"kept by the server":   {ttl: 10 * time.Second},
		"a short TTL":          {ttl: time.Second},
		"a long TTL":           {ttl: 2 * time.Minute},
		"by no server":         {hide: driver.FeatureKeep, ttl: 10 * time.Second, closing: hold},
		"a session with a TTL": {info: session, ttl: 10 * time.Second, closing: hold},
		"a session without":    {closing: hold},
	} {
		for _, closed := range []bool{false, true} {
			for _, unlocked := range []bool{true, false} {
				if !closed && !unlocked {
					continue
				}
				synctest.Test(t, func(t *testing.T) {
					m := memory.New()
					time.AfterFunc(3*time.Minute, m.Hold("k"))
					s := &spy{Backend: m.Peer(), info: tt.info, hide: tt.hide}
					opts := []dlock.LockOption{dlock.WithMinHold(hold), dlock.WithTTL(tt.ttl)}
					if tt.ttl == 0 {
						s.session(nil)
						opts = opts[:1]
					}
					c := newSpyClient(t, s)
					l := lock(t, c, "k", opts...)
					granted := time.Now()
					if unlocked {
						unlock(t, l)
						if !errors.Is(l.Err(), dlock.ErrReleased) {
							t.Errorf("%s: Err = %v, want ErrReleased at once", name, l.Err())
						}
					}
					if closed {
						go func() {
							if err := c.Close(); err != nil || time.Since(granted) != tt.closing {
								t.Errorf("%s: Close = %v after %v, want %v", name, err, time.Since(granted), tt.closing)
							}
						}()
					}
					time.Sleep(hold - 1)
					if free(t, s, "k") {
						t.Errorf("%s: closed %v, unlocked %v: the lock was not kept", name, closed, unlocked)
					}
					time.Sleep(2 * time.Millisecond)
					if !free(t, s, "k") {
						t.Errorf("%s: closed %v, unlocked %v: the lock is left", name, closed, unlocked)
					}
				})
			}
		}
	}
	_, err := newSpyClient(t, newSpy()).Lock(t.Context(), "k", dlock.WithMinHold(time.Minute), dlock.WithMaxHold(time.Second))
	wantInvalid(t, "WithMinHold", err)
	lock(t, newSpyClient(t, newSpy()), "k", dlock.WithMinHold(time.Millisecond), dlock.WithMaxHold(time.Millisecond))
}

// Ping takes a lock and keeps nothing; it is no lock of the client.
func TestPing(t *testing.T) {
	s, called := newSpy(), 0
	s.session(nil)
	c := newSpyClient(t, s, dlock.WithMinHold(time.Minute), dlock.WithHooks(dlock.Hooks{
		Start: func(ctx context.Context, _, _ string) context.Context { called++; return ctx },
		Event: func(context.Context, dlock.Event) { called++ },
	}))
	if err := c.Ping(t.Context()); err != nil || s.releases.Load() != 1 || called != 0 || c.Stats() != (dlock.Stats{}) {
		t.Errorf("Ping = %v, %d releases, %d hooks were called, Stats = %+v", err, s.releases.Load(), called, c.Stats())
	}
	free := s.Backend.(*memory.Backend).Hold("dlock.ping")
	if err := c.Ping(t.Context()); err != nil {
		t.Errorf("while another pings: %v", err)
	}
	free()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var e *dlock.Error
	if err := c.Ping(ctx); !errors.Is(err, context.Canceled) || !errors.As(err, &e) || e.Op != "ping" || e.Attempts != 1 {
		t.Errorf("Ping after cancellation = %v", err)
	}
	if s.owners[0] == s.owners[1] {
		t.Errorf("two pings are %q", s.owners[0])
	}
	s.release = func(context.Context) error { return errOutage }
	if err := c.Ping(t.Context()); !errors.Is(err, dlock.ErrUnavailable) {
		t.Errorf("whose release fails: %v", err)
	}
	s.Backend.(*memory.Backend).Fail(errOutage)
	if err := c.Ping(t.Context()); !errors.Is(err, dlock.ErrUnavailable) {
		t.Errorf("in an outage: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := c.Ping(t.Context()); !errors.Is(err, dlock.ErrClosed) {
		t.Errorf("of a closed client: %v", err)
	}
}

// No lock is left if a hook panics, or ends its goroutine, as t.FailNow does.
func TestAHookThatDoesNotReturnLeavesNoLock(t *testing.T) {
	for _, end := range []func(){runtime.Goexit, func() { panic("boom") }} {
		event := func(context.Context, dlock.Event) { end() }
		for name, hooks := range map[string]dlock.Hooks{
			"attempt": on("attempt", event),
			"lock":    on("lock", event),
			"Start of unlock": {Start: func(ctx context.Context, op, _ string) context.Context {
				if op == "unlock" {
					end()
				}
				return ctx
			}},
		} {
			s := newSpy()
			c := newSpyClient(t, s, dlock.WithHooks(hooks))
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				defer func() { _ = recover() }()
				l, err := c.Lock(t.Context(), "k")
				if err == nil {
					err = l.Unlock()
				}
				t.Errorf("%s: %v", name, err)
			}()
			<-ended
			if !free(t, s, "k") || c.Stats().Held != 0 {
				t.Errorf("%s: the lock is left", name)
			}
		}
	}
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

// What is lost cannot be kept: a session that broke before, or while Close waits.
func TestCloseDoesNotWaitForAMinHoldOfALockThatIsGone(t *testing.T) {
	for _, ttl := range []bool{false, true} {
		for _, wait := range []time.Duration{0, time.Minute} {
			synctest.Test(t, func(t *testing.T) {
				s, gone := newSpy(), make(chan struct{})
				if s.hide = driver.FeatureKeep; !ttl {
					s.session(gone)
				}
				c := newSpyClient(t, s)
				l := lock(t, c, "k", dlock.WithMinHold(time.Hour))
				lose := func() { close(gone); s.Backend.(*memory.Backend).Expire("k") }
				if unlock(t, l); wait == 0 {
					lose()
				} else {
					time.AfterFunc(wait, lose)
				}
				start := time.Now()
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				if took := time.Since(start); took < wait || took > wait+dlock.DefaultTTL/3 || !ttl && took > wait {
					t.Errorf("with a TTL: %v: Close took %v for a lock that was lost after %v", ttl, took, wait)
				}
			})
		}
	}
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

// The server says so at the release, or when it is to keep the lock for WithMinHold.
func TestAReleaseOfWhatIsGoneDidNotFail(t *testing.T) {
	for _, minHold := range []time.Duration{0, 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			s := newSpy()
			c := newSpyClient(t, s)
			l := lock(t, c, "k", dlock.WithMinHold(minHold))
			s.set(func() {
				s.release = func(context.Context) error { return driver.ErrLost }
				s.renew = func(context.Context, *driver.Renewal) error { return driver.ErrLost }
			})
			if err := l.Unlock(); !errors.Is(err, dlock.ErrLost) || c.Stats().ReleaseFailed != 0 {
				t.Errorf("WithMinHold(%v): Unlock = %v, Stats = %+v", minHold, err, c.Stats())
			}
			time.Sleep(time.Minute) // nothing is due of it
		})
	}
}

// A renewal at once tells the server of a minimum hold that is longer than the TTL, and costs nobody
// else a request.
func TestOnlyAMinHoldBeyondTheTTLIsToldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for hold, want := range map[time.Duration]int64{0: 0, dlock.DefaultTTL: 0, dlock.DefaultTTL + 1: 1} {
			for _, hide := range []driver.Features{0, driver.FeatureKeep} {
				s := newSpy()
				s.hide = hide
				lock(t, newSpyClient(t, s), "k", dlock.WithMinHold(hold))
				time.Sleep(time.Second)
				if got := s.renewals.Load(); hide == 0 && got != want || hide != 0 && got != 0 {
					t.Errorf("a minimum hold of %v, without %v: %d renewals", hold, hide, got)
				}
			}
		}
	})
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

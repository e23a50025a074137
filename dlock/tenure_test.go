package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// wait starts calls of lock, one after the other, each of which holds its lock for a moment, and
// returns a function that waits for all and returns the order in which they were served.
func waitInOrder(n int, lock func(i int) *dlock.Lease, hold func(i int, l *dlock.Lease)) (served func() []int) {
	var mu sync.Mutex
	var order []int
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			l := lock(i)
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			hold(i, l)
		})
		synctest.Wait()
	}
	return func() []int { wg.Wait(); return order }
}

// TestALockIsPassedOnInOrderWithoutTheServer: what 20 calls wait for costs a request or two, and each
// has a lease with a token of its own.
func TestALockIsPassedOnInOrderWithoutTheServer(t *testing.T) {
	eachWay(t, func(t *testing.T, s *spy, b driver.Backend) {
		var events sync.Map
		c := newSpyClient(t, b, dlock.WithHooks(dlock.Hooks{Event: func(_ context.Context, e dlock.Event) {
			n, _ := events.LoadOrStore(fmt.Sprint(e.Op, e.Passed), new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
		}}))
		start, first := time.Now(), lock(t, c, "k")
		last := first
		served := waitInOrder(20, func(int) *dlock.Lease { return lock(t, c, "k") }, func(i int, l *dlock.Lease) {
			if l.Fence() <= last.Fence() || !errors.Is(last.Err(), dlock.ErrReleased) || l.Err() != nil || l == last {
				t.Errorf("lease %d has token %d and is over with %v; the one before has %d, and is over with %v", i, l.Fence(), l.Err(), last.Fence(), last.Err())
			}
			unlock(t, last) // a second call does nothing
			<-last.Done()
			last = l
			unlock(t, l)
		})
		before := s.acquires.Load()
		if before > 4 {
			t.Errorf("%d requests for one holder and 20 waiters, want those of the first waiter alone", before)
		}
		unlock(t, first)
		for i, got := range served() {
			if i != got {
				t.Fatalf("served %d in place %d", got, i)
			}
		}
		n, got := s.acquires.Load()-before, c.Stats()
		if n > 6 || got.Acquired+got.Passed != 21 || got.Passed < 15 || got.Released != uint64(s.releases.Load()) || s.releases.Load() != s.grants.Load() {
			t.Errorf("%d requests, %d grants, %d releases: %+v", n, s.grants.Load(), s.releases.Load(), got)
		}
		for op, want := range map[string]uint64{"locktrue": got.Passed, "lockfalse": got.Acquired, "unlocktrue": got.Passed, "unlockfalse": got.Released} {
			if n, _ := events.Load(op); n == nil || uint64(n.(*atomic.Int64).Load()) != want {
				t.Errorf("event %s came %v times, want %d: %+v", op, n, want, got)
			}
		}
		after := lock(t, c, "k")
		if used := after.Fence() - first.Fence(); used > uint64(4*21+time.Since(start).Microseconds()) {
			t.Errorf("21 leases used %d tokens: the counter overtakes the clock", used)
		}
		unlock(t, after)
	})
}

// TestWhatIsPassedOn: which leases get the lock of another one, and which ask the server.
func TestWhatIsPassedOn(t *testing.T) {
	call := func(opts ...dlock.LockOption) func(context.Context, *dlock.Client) error {
		return func(ctx context.Context, c *dlock.Client) error {
			return dlock.Do(ctx, c, "k", func(ctx context.Context) error {
				if l, _ := dlock.LeaseFor(ctx, "k"); l.Fence() != 0 != c.Backend().Info().Features.Has(driver.FeatureFencing) {
					t.Errorf("the token is %d", l.Fence())
				}
				return nil
			}, opts...)
		}
	}
	nothing := func(context.Context) error { return nil }
	plain := []dlock.Option(nil)
	for name, tt := range map[string]struct {
		call    func(context.Context, *dlock.Client) error
		options []dlock.Option
		hide    driver.Features
		want    bool
		holder  []dlock.LockOption
	}{
		"Do":          {call(), plain, 0, true, nil},
		"WithMaxHold": {call(dlock.WithMaxHold(time.Second)), plain, 0, true, nil},
		"DoAll": {func(ctx context.Context, c *dlock.Client) error {
			return dlock.DoAll(ctx, c, []string{"k", "l"}, nothing)
		}, plain, 0, true, nil},
		"Elect":          {func(ctx context.Context, c *dlock.Client) error { return dlock.Elect(ctx, c, "k", nothing) }, plain, 0, true, nil},
		"without tokens": {call(), plain, driver.FeatureTokens | driver.FeatureFencing, true, nil},
		"one token each": {call(), plain, driver.FeatureTokens, false, nil},
		"turned off":     {call(), []dlock.Option{dlock.WithPassOn(0)}, 0, false, nil},
		"another TTL":    {call(dlock.WithTTL(9 * time.Second)), plain, 0, false, nil},
		"another margin": {call(dlock.WithMargin(time.Second)), plain, 0, false, nil},
		"WithMinHold":    {call(dlock.WithMinHold(time.Millisecond)), plain, 0, false, nil},
		"WithSlots":      {call(dlock.WithSlots(1)), plain, 0, false, nil},
		"WithShared":     {call(dlock.WithShared()), plain, 0, false, nil},
		"TryLock": {func(_ context.Context, c *dlock.Client) error {
			_, err := c.TryLock(context.Background(), "k")
			if errors.Is(err, dlock.ErrHeld) {
				err = nil
			}
			return err
		}, plain, 0, false, nil},
		"from WithSlots": {call(), plain, driver.FeatureTokens | driver.FeatureFencing, false, []dlock.LockOption{dlock.WithSlots(1)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSpy()
				s.hide = tt.hide
				if tt.hide.Has(driver.FeatureFencing) {
					s.granted = func(g *driver.Grant) { g.Fence, g.Tokens = 0, 0 }
				}
				s.acquire = func(_ context.Context, r *driver.Request) error {
					if r.Tokens > 1 && tt.options != nil {
						t.Errorf("%d tokens are asked for", r.Tokens)
					}
					return nil
				}
				c := newSpyClient(t, s, tt.options...)
				holder := tenured(t, c, tt.want || tt.hide == 0 && tt.options == nil, tt.holder...)
				done := make(chan error, 1)
				go func() { done <- tt.call(t.Context(), c) }()
				synctest.Wait()
				before := c.Stats().Passed
				unlock(t, holder)
				if err := <-done; err != nil {
					t.Error(err)
				}
				if got := c.Stats().Passed > before; got != tt.want {
					t.Errorf("passed on: %v", got)
				}
			})
		})
	}
}

// TestALeaseIsReleasedBesideItsRenewal: a lock is not passed on while a renewal of it is under way, or
// if less than half of its TTL is left.
func TestALeaseIsReleasedBesideItsRenewal(t *testing.T) {
	const half = dlock.DefaultTTL / 2
	for left, want := range map[time.Duration]bool{6500 * time.Millisecond: false, half: true, half - 1: false} {
		synctest.Test(t, func(t *testing.T) {
			s := newSpy()
			s.renew = failingRenewal
			if left > half {
				s.renew = func(ctx context.Context, _ *driver.Renewal) error { return hang(ctx) }
			}
			c := newSpyClient(t, s, dlock.WithPassOn(time.Minute))
			holder := tenured(t, c, true)
			served := waitInOrder(1, func(int) *dlock.Lease { return lock(t, c, "k") }, func(_ int, l *dlock.Lease) { unlock(t, l) })
			deadline, _ := holder.Deadline()
			time.Sleep(time.Until(deadline) - left)
			before := c.Stats().Passed
			unlock(t, holder)
			served()
			if got := c.Stats().Passed > before; s.renewals.Load() == 0 || got != want {
				t.Errorf("%v before its end, after %d renewals, it was passed on: %v", left, s.renewals.Load(), got)
			}
		})
	}
}

// tenured returns a lease of k that can be passed on, as it can if somebody waited for the key.
func tenured(t *testing.T, c *dlock.Client, certainly bool, opts ...dlock.LockOption) *dlock.Lease {
	for range 3 {
		l := lock(t, c, "k")
		served := waitInOrder(2, func(int) *dlock.Lease { return lock(t, c, "k") }, func(_ int, l *dlock.Lease) { unlock(t, l) })
		unlock(t, l)
		served()
	}
	if certainly && c.Stats().Passed == 0 {
		t.Errorf("nothing was passed on to calls that wait: %+v", c.Stats())
	}
	return lock(t, c, "k", opts...)
}

// TestATenureEndsSoon: the waiter of another client waits for one bound and one hold longer at most.
func TestATenureEndsSoon(t *testing.T) {
	for bound, opts := range map[time.Duration][]dlock.Option{
		10 * time.Millisecond: nil, 50 * time.Millisecond: {dlock.WithPassOn(50 * time.Millisecond)}, 0: {dlock.WithPassOn(0)},
	} {
		eachWay(t, func(t *testing.T, s *spy, b driver.Backend) {
			if _, native := b.(*spy); s.hide != 0 && native {
				t.Skip("waiters that poll have no order")
			}
			const hold = time.Millisecond
			ours, end := newSpyClient(t, b, opts...), make(chan struct{})
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for {
						select {
						case <-end:
							return
						default:
							l := lock(t, ours, "k")
							time.Sleep(hold)
							unlock(t, l)
						}
					}
				})
			}
			theirs := newSpyClient(t, s.Backend.(*memory.Backend).Peer())
			for range 30 {
				time.Sleep(rand.N(20 * time.Millisecond))
				start := time.Now()
				l := lock(t, theirs, "k")
				if waited := time.Since(start); waited > bound+hold+time.Millisecond {
					t.Errorf("another client waited for %v beside tenures of %v", waited, bound)
				}
				unlock(t, l)
			}
			close(end)
			wg.Wait()
			if passed := ours.Stats().Passed > 0; passed != (bound > 0) {
				t.Errorf("passed on: %v", passed)
			}
		})
	}
}

// TestAWaiterBehindALongHoldHasItsPlaceAtTheServer: from the end of the tenure on it is served in the
// order of all clients.
func TestAWaiterBehindALongHoldHasItsPlaceAtTheServer(t *testing.T) {
	for name, of := range map[string]func(*spy) []dlock.Option{
		"a tenure": func(*spy) []dlock.Option { return nil },
		"a tenure of a session": func(s *spy) []dlock.Option {
			s.session(nil)
			s.hide = driver.FeatureTokens | driver.FeatureFencing
			return nil
		},
		"a grant with one token": func(s *spy) []dlock.Option {
			s.granted = func(g *driver.Grant) { g.Tokens = 1 }
			return []dlock.Option{dlock.WithPassOn(time.Hour)}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSpy()
			ours, theirs := newSpyClient(t, s, of(s)...), newSpyClient(t, s.Backend.(*memory.Backend).Peer())
			time.Sleep(time.Hour) // a program that has run for long
			holder := tenured(t, ours, name != "a grant with one token")
			served := waitInOrder(2, func(i int) *dlock.Lease {
				if i == 1 {
					time.Sleep(100 * time.Millisecond)
					return lock(t, theirs, "k")
				}
				return lock(t, ours, "k")
			}, func(_ int, l *dlock.Lease) { unlock(t, l) })
			time.Sleep(time.Second)
			unlock(t, holder)
			if got := served(); got[0] != 0 {
				t.Errorf("%s: the waiter that came later was served first", name)
			}
		})
	}
}

// TestALockIsPassedOnForFourTimesWhatItTook: the default, beside a slow server, and for 10 ms at least.
func TestALockIsPassedOnForFourTimesWhatItTook(t *testing.T) {
	const ms = time.Millisecond
	for held, want := range map[time.Duration]bool{80*ms - 2: true, 80 * ms: false, 10*ms - 2: true, 10 * ms: false} {
		took := 20 * ms
		if held <= 10*ms {
			took = 0
		}
		synctest.Test(t, func(t *testing.T) {
			s := newSpy()
			s.acquire = func(context.Context, *driver.Request) error { time.Sleep(took); return nil }
			s.granted = func(g *driver.Grant) { g.Expires = g.Expires.Add(-took) } // it counts from the request
			c := newSpyClient(t, s)
			holder := tenured(t, c, true)
			before := c.Stats().Passed
			served := waitInOrder(1, func(int) *dlock.Lease { return lock(t, c, "k") }, func(_ int, l *dlock.Lease) { unlock(t, l) })
			time.Sleep(held)
			unlock(t, holder)
			served()
			if got := c.Stats().Passed > before; got != want {
				t.Errorf("after %v, of a grant that took %v, it was passed on: %v", held, took, got)
			}
		})
	}
}

// TestATenureEndsBesideAHookOfUnlock: what the hook outlasts is released, whoever waits.
func TestATenureEndsBesideAHookOfUnlock(t *testing.T) {
	for _, waiters := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			var slow atomic.Bool
			c := newSpyClient(t, newSpy(), dlock.WithHooks(dlock.Hooks{Start: func(ctx context.Context, op, _ string) context.Context {
				if op == "unlock" && slow.Swap(false) {
					time.Sleep(time.Second)
				}
				return ctx
			}}))
			holder := tenured(t, c, true)
			served := waitInOrder(waiters, func(int) *dlock.Lease { return lock(t, c, "k") }, func(_ int, l *dlock.Lease) { unlock(t, l) })
			slow.Store(true)
			unlock(t, holder)
			if got := served(); !slices.IsSorted(got) {
				t.Errorf("the waiters are served in the order %v", got)
			}
		})
	}
}

// TestTokensAreAskedForAsLongAsSomebodyWaits: two for the first tenure, and one from a second after the
// last local waiter on.
func TestTokensAreAskedForAsLongAsSomebodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		var asked atomic.Uint32
		s.acquire = func(_ context.Context, r *driver.Request) error { asked.Store(r.Tokens); return nil }
		c := newSpyClient(t, ways["polled"](s))
		free := s.Backend.(*memory.Backend).Peer().Hold("k")
		ctx, cancel := context.WithCancel(t.Context())
		served := waitInOrder(2, func(i int) *dlock.Lease {
			if i == 1 {
				_, _ = c.Lock(ctx, "k")
				return nil
			}
			return lock(t, c, "k")
		}, func(int, *dlock.Lease) {})
		time.Sleep(3 * time.Second)
		if n := asked.Load(); n != 2 {
			t.Errorf("%d tokens are asked for while one waits, want 2", n)
		}
		cancel()
		time.Sleep(2 * time.Second)
		if n := asked.Load(); n != 0 {
			t.Errorf("%d tokens are asked for when nobody waits", n)
		}
		free()
		served()
	})
}

// lateContext calls a function between its end and the first answer of Err that says so.
type lateContext struct {
	context.Context
	once sync.Once
	late func()
}

func (c *lateContext) Err() error {
	err := c.Context.Err()
	if err != nil {
		c.once.Do(c.late)
	}
	return err
}

// TestACallThatGivesUpPassesOnWhatItIsGiven: it gives up at the instant at which it is given the lock, or
// its turn to ask for it. The next call gets that. If there is none, the lock is released.
func TestACallThatGivesUpPassesOnWhatItIsGiven(t *testing.T) {
	for _, turn := range []bool{false, true} {
		for _, waiters := range []int{0, 2} {
			synctest.Test(t, func(t *testing.T) {
				s := newSpy()
				c := newSpyClient(t, s, dlock.WithPassOn(time.Minute))
				holder, first := tenured(t, c, true), func() {}
				if turn {
					unlock(t, holder)
					time.Sleep(2 * time.Second)
					holder = lock(t, c, "k")
					ctx, cancel := context.WithCancel(t.Context())
					left := waitInOrder(1, func(int) *dlock.Lease { _, _ = c.Lock(ctx, "k"); return nil }, func(int, *dlock.Lease) {})
					first = func() { cancel(); left() }
				}
				ctx, cancel := context.WithCancel(t.Context())
				gone := make(chan error)
				go func() {
					late := &lateContext{Context: ctx, late: func() {
						if first(); !turn {
							unlock(t, holder)
						}
					}}
					_, err := c.Lock(late, "k")
					gone <- err
				}()
				synctest.Wait()
				served := waitInOrder(waiters, func(int) *dlock.Lease { return lock(t, c, "k") }, func(_ int, l *dlock.Lease) { unlock(t, l) })
				before := c.Stats().Passed
				cancel()
				if err := <-gone; !errors.Is(err, context.Canceled) {
					t.Errorf("the call that gives up: %v", err)
				}
				synctest.Wait()
				unlock(t, holder)
				if got := served(); !slices.IsSorted(got) {
					t.Errorf("served in the order %v", got)
				}
				synctest.Wait()
				n := c.Stats()
				if s.grants.Load() != s.releases.Load() || n.Held != 0 || n.Waiting != 0 || waiters > 0 && !turn && n.Passed == before {
					t.Errorf("turn %v: %d grants, %d releases, %d passed on: %+v", turn, s.grants.Load(), s.releases.Load(), n.Passed-before, n)
				}
				if !free(t, s, "k") {
					t.Errorf("turn %v, %d waiters: the lock is left", turn, waiters)
				}
			})
		}
	}
}

// TestAKeyThatWasWaitedForIsPassedOnForASecond: a grant has several tokens if a call of this client waited
// for the key within the last second, behind another call or at the server.
func TestAKeyThatWasWaitedForIsPassedOnForASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		var asked atomic.Uint32
		s.acquire = func(_ context.Context, r *driver.Request) error { asked.Store(r.Tokens); return nil }
		c := newSpyClient(t, s, dlock.WithPassOn(time.Minute))
		hold := func(int) *dlock.Lease { return lock(t, c, "k") }
		for name, wait := range map[string]func(){
			"at the server": func() {
				l := lock(t, c, "k")
				served := waitInOrder(1, hold, func(_ int, l *dlock.Lease) { unlock(t, l) })
				time.Sleep(5 * time.Second)
				unlock(t, l)
				served()
			},
			"for a lease that is passed on": func() {
				l := tenured(t, c, true)
				time.Sleep(5 * time.Second)
				served := waitInOrder(1, hold, func(_ int, l *dlock.Lease) { unlock(t, l) })
				unlock(t, l)
				served()
			},
			"for a lease that is not": func() {
				l := tenured(t, c, true)
				served := waitInOrder(1, func(int) *dlock.Lease { return lock(t, c, "k", dlock.WithTTL(time.Second)) },
					func(_ int, l *dlock.Lease) { unlock(t, l) })
				time.Sleep(5 * time.Second)
				unlock(t, l)
				served()
			},
		} {
			wait()
			time.Sleep(time.Second - 1)
			for _, want := range []bool{true, false} { // the first of them waits for nobody, and nobody waits for it
				unlock(t, lock(t, c, "k"))
				if n := asked.Load(); n > 1 != want {
					t.Errorf("a call waited %s: %d tokens are asked for, want several: %v", name, n, want)
				}
				time.Sleep(time.Nanosecond)
			}
			time.Sleep(2 * time.Second)
		}
	})
}

// TestALeaseThatWasPassedOnIsLost: by a report, by the end of its TTL, and by Close.
func TestALeaseThatWasPassedOnIsLost(t *testing.T) {
	for name, tt := range map[string]struct {
		lose func(m *memory.Backend, c *dlock.Client)
		want error
		most time.Duration
	}{
		"a report":        {func(m *memory.Backend, _ *dlock.Client) { m.Expire("k") }, dlock.ErrLost, 0},
		"its deadline":    {func(m *memory.Backend, _ *dlock.Client) { m.Fail(errOutage) }, dlock.ErrLost, dlock.DefaultTTL - 302*time.Millisecond},
		"WithMaxHold":     {func(*memory.Backend, *dlock.Client) {}, dlock.ErrMaxHold, time.Minute},
		"a closed client": {func(_ *memory.Backend, c *dlock.Client) { _ = c.Close() }, dlock.ErrClosed, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := memory.New()
				c := newSpyClient(t, m, dlock.WithMaxHold(time.Minute))
				granted := time.Now()
				holder := tenured(t, c, true)
				before, passed := c.Stats().Passed, make(chan *dlock.Lease)
				go func() { passed <- lock(t, c, "k") }()
				synctest.Wait()
				time.Sleep(5 * time.Millisecond)
				unlock(t, holder)
				l := <-passed
				if c.Stats().Passed == before {
					t.Errorf("nothing was passed on: %+v", c.Stats())
				}
				start := time.Now()
				tt.lose(m, c)
				<-l.Done()
				end := granted.Add(tt.most)
				if errors.Is(tt.want, dlock.ErrMaxHold) {
					end = start.Add(tt.most)
				}
				if err := l.Err(); !errors.Is(err, tt.want) || tt.most > 0 && time.Now().After(end) || tt.most == 0 && time.Since(start) > 0 {
					t.Errorf("it ended %v after the grant: %v", time.Since(granted), err)
				}
				m.Fail(nil)
				if !errors.Is(tt.want, dlock.ErrClosed) {
					_ = l.Unlock()
					unlock(t, lock(t, c, "k"))
				}
			})
		})
	}
}

// TestNobodyWaitsForATenureThatNeverBegan: its lease was lost while a hook delayed the call that got it.
func TestNobodyWaitsForATenureThatNeverBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.New()
		var slow atomic.Bool
		c := newSpyClient(t, m, dlock.WithPassOn(time.Hour), dlock.WithHooks(on("attempt", func(context.Context, dlock.Event) {
			if slow.Swap(false) {
				time.Sleep(time.Second)
				m.Expire("k")
			}
		})))
		unlock(t, tenured(t, c, true))
		slow.Store(true)
		l := lock(t, c, "k", dlock.WithMaxHold(time.Millisecond))
		start := time.Now()
		unlock(t, lock(t, c, "k"))
		if waited := time.Since(start); !errors.Is(l.Err(), dlock.ErrMaxHold) || waited > time.Second {
			t.Errorf("a call waited for %v for the tenure of a lease that is over: %v", waited, l.Err())
		}
	})
}

// TestNobodyWaitsForATenureThatIsOver: its lease was lost, or a hook that panics has ended it, and
// nobody unlocks it.
func TestNobodyWaitsForATenureThatIsOver(t *testing.T) {
	for _, lose := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			m, panics := memory.New(), atomic.Bool{}
			c := newSpyClient(t, m, dlock.WithPassOn(time.Hour), dlock.WithHooks(dlock.Hooks{Event: func(_ context.Context, e dlock.Event) {
				if e.Op == "lock" && panics.CompareAndSwap(true, false) { // the waiter's does not
					time.Sleep(time.Millisecond)
					panic("a hook")
				}
			}}))
			unlock(t, tenured(t, c, true))
			panics.Store(!lose)
			got := make(chan struct{})
			go func() {
				defer close(got)
				time.Sleep(time.Microsecond)
				l, err := c.Lock(t.Context(), "k", dlock.WithMaxHold(time.Minute))
				if err != nil {
					t.Error(err)
					return
				}
				unlock(t, l)
			}()
			func() {
				defer func() { _ = recover() }()
				_, _ = c.Lock(t.Context(), "k")
			}()
			synctest.Wait()
			start := time.Now()
			m.Expire("k")
			<-got
			if waited := time.Since(start); waited > time.Second {
				t.Errorf("lost: %v: a waiter waited for %v", lose, waited)
			}
		})
	}
}

// TestAHookThatPanicsReleasesNobodysLock: the lock that a lease has passed on is another lease's.
func TestAHookThatPanicsReleasesNobodysLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var armed atomic.Bool
		c := newSpyClient(t, memory.New(), dlock.WithHooks(dlock.Hooks{Event: func(_ context.Context, e dlock.Event) {
			if e.Op == "unlock" && armed.CompareAndSwap(true, false) {
				panic("a hook")
			}
		}}))
		holder := tenured(t, c, true)
		passed := make(chan *dlock.Lease)
		go func() { passed <- lock(t, c, "k") }()
		synctest.Wait()
		armed.Store(true)
		func() {
			defer func() { _ = recover() }()
			_ = holder.Unlock()
		}()
		l := <-passed
		if _, err := c.TryLock(t.Context(), "k"); !errors.Is(err, dlock.ErrHeld) {
			t.Errorf("another got the lock of the valid lease: %v", err)
		}
		unlock(t, l)
	})
}

// TestAClientThatIsAloneSendsTheSame: no request differs, and a call allocates at most once more.
func TestAClientThatIsAloneSendsTheSame(t *testing.T) {
	var allocs [2]float64
	for i, opts := range [][]dlock.Option{{dlock.WithPassOn(0)}, nil} {
		s := newSpy()
		s.acquire = func(_ context.Context, r *driver.Request) error {
			if r.Tokens != 0 {
				t.Errorf("%d tokens are asked for", r.Tokens)
			}
			return nil
		}
		c := newSpyClient(t, s, opts...)
		allocs[i] = testing.AllocsPerRun(200, func() { unlock(t, lock(t, c, "k")) })
	}
	if allocs[1] > allocs[0]+1 {
		t.Errorf("%v allocations, and %v without passing on", allocs[1], allocs[0])
	}
}

// ledger counts the grants that were not released, and those that were released twice.
type ledger struct {
	driver.Backend
	mu     sync.Mutex
	leases []*entered
}

type entered struct {
	driver.Lease
	released atomic.Int64
}

func (l *entered) Release(ctx context.Context) error {
	l.released.Add(1)
	return l.Lease.Release(ctx)
}

func (b *ledger) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	l, err := b.Backend.Acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	e := &entered{Lease: l}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leases = append(b.leases, e)
	return e, nil
}

// TestPassingOnUnderRandomCalls: locks, unlocks, cancellations, losses, outages and Close at random
// times. At most one lease is valid at an instant, its tokens rise, every call ends, and each grant
// is released once.
func TestPassingOnUnderRandomCalls(t *testing.T) {
	seeds := 300
	switch {
	case server.IsDeep():
		seeds = 20_000
	case testing.Short():
		seeds = 100
	}
	base, passed, lost := rand.Uint64(), uint64(0), uint64(0)
	for i := range seeds {
		seed := base + uint64(i)
		if !t.Run("", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, l := passOnAtRandom(t, rand.New(rand.NewPCG(seed, 0)))
				passed, lost = passed+p, lost+l
			})
		}) {
			t.Fatalf("the seed is %d", seed)
		}
	}
	t.Logf("%d leases were passed on, and %d lost", passed, lost)
	if passed < uint64(seeds) || lost < uint64(seeds)/10 {
		t.Errorf("in %d runs %d leases were passed on, and %d lost: the test shows nothing", seeds, passed, lost)
	}
}

func passOnAtRandom(t *testing.T, rnd *rand.Rand) (passed, lost uint64) {
	var (
		mu    sync.Mutex // guards rnd, and all below
		valid *dlock.Lease
		last  uint64
		wg    sync.WaitGroup
		m     = memory.New()
		ttl   = []time.Duration{40 * time.Millisecond, 200 * time.Millisecond, time.Second}[rnd.IntN(3)]
		ended = make(chan struct{})
	)
	roll := func(n int) int { mu.Lock(); defer mu.Unlock(); return rnd.IntN(n) }
	below := func(d time.Duration) time.Duration { return time.Duration(roll(int(d))) }
	var books []*ledger
	var clients []*dlock.Client
	for range 2 {
		b := &ledger{Backend: m.Peer()}
		opts := []dlock.Option{dlock.WithTTL(ttl)}
		if d := roll(4); d > 0 {
			opts = append(opts, dlock.WithPassOn(time.Duration(d*d)*10*time.Millisecond))
		}
		books, clients = append(books, b), append(clients, newSpyClient(t, b, opts...))
	}
	closing := roll(3) == 0
	had := func(l *dlock.Lease, shared bool) {
		mu.Lock()
		defer mu.Unlock()
		if l.Err() != nil {
			return
		}
		if !shared && valid != nil && valid != l && valid.Err() == nil {
			t.Errorf("two leases are valid, with tokens %d and %d", valid.Fence(), l.Fence())
		}
		if l.Fence() <= last && !shared {
			t.Errorf("token %d after %d", l.Fence(), last)
		}
		last = max(last, l.Fence())
		if !shared {
			valid = l
		}
	}
	for range 2 + roll(8) {
		c := clients[roll(2)]
		wg.Go(func() {
			for range 5 + roll(20) {
				ctx, cancel := context.WithCancel(context.Background())
				if roll(3) == 0 {
					time.AfterFunc(below(20*time.Millisecond), cancel)
				}
				var opts []dlock.LockOption
				shared := roll(12) == 0
				switch {
				case shared:
					opts = append(opts, dlock.WithShared())
				case roll(12) == 0:
					opts = append(opts, dlock.WithTTL(ttl*2))
				case roll(12) == 0:
					opts = append(opts, dlock.WithMaxHold(time.Millisecond))
				}
				call := c.Lock
				if roll(15) == 0 {
					call = c.TryLock
				}
				l, err := call(ctx, "k", opts...)
				switch {
				case err == nil:
					had(l, shared)
					if roll(3) > 0 {
						time.Sleep(below([]time.Duration{time.Millisecond, 5 * time.Millisecond, ttl}[roll(3)]))
					}
					_ = l.Unlock()
				case ctx.Err() == nil && !errors.Is(err, dlock.ErrClosed) && !errors.Is(err, dlock.ErrHeld):
					t.Error(err)
				}
				cancel()
			}
		})
	}
	go func() {
		for range roll(6) {
			time.Sleep(below(50 * time.Millisecond))
			switch roll(3) {
			case 0:
				m.Expire("k")
			case 1:
				b := books[roll(2)].Backend.(*memory.Backend)
				b.SetOutage(memory.Outage{Err: errOutage, RenewalsOnly: true})
				time.Sleep(below(2 * ttl))
				b.SetOutage(memory.Outage{})
			case 2:
				if closing {
					_ = clients[0].Close()
				}
			}
		}
		close(ended)
	}()
	done := make(chan struct{})
	go func() { wg.Wait(); <-ended; close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Minute):
		t.Fatal("a call waits for ever")
	}
	time.Sleep(2 * time.Second) // what goes on in the background ends
	for i, c := range clients {
		s, grants := c.Stats(), uint64(len(books[i].leases))
		if s.Held != 0 || s.Waiting != 0 || s.Acquired > grants || !closing && s.Acquired != grants {
			t.Errorf("%d grants: %+v", grants, s)
		}
		passed, lost = passed+s.Passed, lost+s.Lost
		for _, l := range books[i].leases {
			if n := l.released.Load(); n > 1 || n == 0 && !closing {
				t.Errorf("a grant was released %d times", n)
			}
		}
	}
	return passed, lost
}

package dlock_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

// everyWait runs a test with each way of waiting.
func everyWait(t *testing.T, f func(t *testing.T, space *memory.Backend, client func() *dlock.Client)) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				space := memory.New()
				f(t, space, func() *dlock.Client { return newSpyClient(t, way(&spy{Backend: space.Peer()})) })
			})
		})
	}
}

// held returns how many keys are held in a space.
func held(t *testing.T, space *memory.Backend) (n int) {
	t.Helper()
	err := space.List(t.Context(), "", func(*driver.State) bool { n++; return true })
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestSlotsAreTakenUntilNoneIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := memory.New()
		c := newSpyClient(t, space)
		var slots []int
		var leases []*dlock.Lease
		for range 5 {
			l, err := newSpyClient(t, space.Peer()).TryLock(t.Context(), "k", dlock.WithSlots(5))
			if err != nil {
				t.Fatal(err)
			}
			if l.Key() != "k" {
				t.Errorf("Key = %q", l.Key())
			}
			slots, leases = append(slots, l.Slot()), append(leases, l)
		}
		slices.Sort(slots)
		if !slices.Equal(slots, []int{0, 1, 2, 3, 4}) {
			t.Errorf("slots %v", slots)
		}
		start := time.Now()
		if _, err := c.TryLock(t.Context(), "k", dlock.WithSlots(5)); !errors.Is(err, dlock.ErrHeld) || time.Since(start) > 0 {
			t.Errorf("no slot is free: got %v after %v", err, time.Since(start))
		}
		if _, err := c.TryLock(t.Context(), "k", dlock.WithSlots(4)); !errors.Is(err, dlock.ErrHeld) {
			t.Errorf("no slot is free of another number of them: got %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := c.Lock(ctx, "k", dlock.WithSlots(5)); !errors.Is(err, dlock.ErrHeld) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("no slot becomes free: got %v", err)
		}
		unlock(t, leases[3])
		if l := lock(t, c, "k", dlock.WithSlots(5)); l.Slot() != leases[3].Slot() || l.Fence() <= leases[3].Fence() {
			t.Errorf("slot %d with token %d after slot %d with %d", l.Slot(), l.Fence(), leases[3].Slot(), leases[3].Fence())
		}
	})
}

func TestSlotsThatCannotBeAreRefused(t *testing.T) {
	c := newSpyClient(t, memory.New())
	for name, opts := range map[string][]dlock.LockOption{
		"0":      {dlock.WithSlots(0)},
		"-1":     {dlock.WithSlots(-1)},
		"1025":   {dlock.WithSlots(1025)},
		"shared": {dlock.WithSlots(1), dlock.WithShared()},
	} {
		if _, err := c.TryLock(t.Context(), "k", opts...); !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
	unlock(t, lock(t, c, "k", dlock.WithSlots(1024)))
	long := strings.Repeat("k", driver.MaxKey-2)
	if _, err := c.TryLock(t.Context(), long, dlock.WithSlots(11)); !errors.Is(err, dlock.ErrInvalid) {
		t.Errorf("a long key: got %v, want ErrInvalid", err)
	}
	unlock(t, lock(t, c, long, dlock.WithSlots(10)))
	unlock(t, lock(t, c, long+"kk"))
	if _, err := dlock.New(memory.New(), dlock.WithSlots(2), dlock.WithShared()); !errors.Is(err, dlock.ErrInvalid) {
		t.Errorf("New: got %v, want ErrInvalid", err)
	}
}

func TestASlotThatIsFreedElsewhereIsTakenWithinASecond(t *testing.T) {
	everyWait(t, func(t *testing.T, space *memory.Backend, client func() *dlock.Client) {
		for _, n := range []int{1, 3, 16, 40} {
			holder, waiter := client(), client()
			var leases []*dlock.Lease
			for range n {
				leases = append(leases, lock(t, holder, "k", dlock.WithSlots(n)))
			}
			for range 5 {
				i := rand.IntN(n)
				var got *dlock.Lease
				var at time.Time
				var wg sync.WaitGroup
				wg.Go(func() { got, at = lock(t, waiter, "k", dlock.WithSlots(n)), time.Now() })
				time.Sleep(time.Duration(rand.IntN(3000)) * time.Millisecond)
				synctest.Wait()
				if got != nil {
					t.Fatalf("one more than %d holders", n)
				}
				if w := waiter.Stats().Waiting; w != 1 {
					t.Errorf("Stats.Waiting = %d for one call", w)
				}
				freed := time.Now()
				unlock(t, leases[i])
				wg.Wait()
				if took := at.Sub(freed); took > time.Second || got.Slot() != leases[i].Slot() {
					t.Errorf("%d slots: slot %d was taken after %v, as %d", n, leases[i].Slot(), took, got.Slot())
				}
				leases[i] = got
			}
			for _, l := range leases {
				unlock(t, l)
			}
			time.Sleep(2 * time.Second)
			if left := held(t, space); left != 0 {
				t.Fatalf("%d slots: %d keys are left", n, left)
			}
		}
	})
}

// A call that waits for a slot has its place at the server, and is told nothing of its backend. A slot that it
// is granted when it was about to ask for all of them again is its own.
func TestACallWaitsForASlotAtTheServer(t *testing.T) {
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, log, begin := newSpy(), &lines{}, time.Now()
			s.acquire = func(ctx context.Context, r *driver.Request) error {
				if r.Wait && time.Since(begin) < 10*time.Second {
					return hang(ctx)
				}
				return nil
			}
			c := newSpyClient(t, s, dlock.WithLogger(slog.New(log)))
			holder := lock(t, c, "k", dlock.WithSlots(1))
			served := waitInOrder(1, func(int) *dlock.Lease { return lock(t, c, "k", dlock.WithSlots(1)) }, func(_ int, l *dlock.Lease) { unlock(t, l) })
			time.Sleep(11 * time.Second)
			if late {
				s.set(func() { s.granted = func(*driver.Grant) { time.Sleep(time.Second) } })
			}
			start, before := time.Now(), s.grants.Load()
			unlock(t, holder)
			served()
			if took := time.Since(start); !late && took > 0 || s.grants.Load() != before+1 {
				t.Errorf("it got the slot after %v and %d grants", took, s.grants.Load()-before)
			}
			if got := log.all(); len(got) > 0 {
				t.Errorf("the log says %+v", got)
			}
		})
	}
}

// Two clients use different numbers of slots, and some calls are cancelled while they wait.
func TestNeverMoreHoldersThanSlotsAndEveryCallIsServed(t *testing.T) {
	everyWait(t, func(t *testing.T, _ *memory.Backend, client func() *dlock.Client) {
		patience := 10 * time.Second
		if strings.HasSuffix(t.Name(), "/polled") {
			patience = time.Minute // a release may serve its own client again and again, until the end
		}
		var (
			mu     sync.Mutex
			holds  = map[int]bool{} // by slot
			tokens = map[int]uint64{}
			most   int
		)
		took := func(l *dlock.Lease, slots int) {
			mu.Lock()
			defer mu.Unlock()
			slot := l.Slot()
			if slot >= slots || holds[slot] || l.Fence() <= tokens[slot] {
				t.Errorf("slot %d of %d: held %t, token %d after %d", slot, slots, holds[slot], l.Fence(), tokens[slot])
			}
			holds[slot], tokens[slot] = true, l.Fence()
			most = max(most, len(holds))
		}
		use := func(c *dlock.Client, slots int) error {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			giveUp := rand.IntN(3) == 0
			if giveUp {
				defer time.AfterFunc(rand.N(500*time.Millisecond), cancel).Stop()
			}
			l, err := c.Lock(ctx, "k", dlock.WithSlots(slots))
			if giveUp && errors.Is(err, context.Canceled) {
				return nil
			}
			if err != nil {
				return err
			}
			took(l, slots)
			time.Sleep(rand.N(100 * time.Millisecond))
			mu.Lock()
			delete(holds, l.Slot())
			mu.Unlock()
			return l.Unlock()
		}
		end := time.Now().Add(30 * time.Second)
		var wg sync.WaitGroup
		for i, c := range []*dlock.Client{client(), client()} {
			for range 10 {
				wg.Go(func() {
					for time.Now().Before(end) {
						if err := use(c, 4-i); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
		}
		wg.Wait()
		if most != 4 {
			t.Errorf("at most %d of 4 slots were used at once", most)
		}
	})
}

// The calls of one client are served in the order in which they came, whichever slot is freed.
func TestWaitersForSlotsOfOneClientAreServedInOrder(t *testing.T) {
	everyWait(t, func(t *testing.T, _ *memory.Backend, client func() *dlock.Client) {
		holder, c := client(), client()
		var leases [3]*dlock.Lease
		for i := range leases {
			leases[i] = lock(t, holder, "k", dlock.WithSlots(3))
		}
		type served struct {
			call int
			l    *dlock.Lease
		}
		got := make(chan served)
		const calls = 20
		for i := range calls {
			go func() { got <- served{i, lock(t, c, "k", dlock.WithSlots(3))} }()
			synctest.Wait()
		}
		for want := range calls {
			freed := rand.IntN(len(leases))
			unlock(t, leases[freed])
			next := <-got
			if next.call != want {
				t.Errorf("call %d was served as number %d", next.call, want)
			}
			leases[freed] = next.l
		}
	})
}

package dlock_test

import (
	"context"
	"errors"
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
		c := newClient(t, space)
		var slots []int
		var leases []*dlock.Lease
		for range 5 {
			l, err := newClient(t, space.Peer()).TryLock(t.Context(), "k", dlock.WithSlots(5))
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
		if _, err := c.TryLock(t.Context(), "k", dlock.WithSlots(5)); !errors.Is(err, dlock.ErrHeld) {
			t.Errorf("no slot is free: got %v", err)
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
	c := newClient(t, memory.New())
	for name, opts := range map[string][]dlock.LockOption{
		"0":      {dlock.WithSlots(0)},
		"-1":     {dlock.WithSlots(-1)},
		"1025":   {dlock.WithSlots(1025)},
		"shared": {dlock.WithSlots(3), dlock.WithShared()},
	} {
		if _, err := c.TryLock(t.Context(), "k", opts...); !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
	long := strings.Repeat("k", driver.MaxKey-2)
	if _, err := c.TryLock(t.Context(), long, dlock.WithSlots(11)); !errors.Is(err, dlock.ErrInvalid) {
		t.Errorf("a long key: got %v, want ErrInvalid", err)
	}
	unlock(t, lock(t, c, long, dlock.WithSlots(10)))
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

// Many processes use different numbers of slots; some are cut off or closed while they hold
// one.
func TestNeverMoreHoldersThanSlotsAndAllAreUsed(t *testing.T) {
	everyWait(t, func(t *testing.T, space *memory.Backend, _ func() *dlock.Client) {
		const ttl = 2 * time.Second
		var (
			mu      sync.Mutex
			holding = map[*dlock.Lease]bool{}
			tokens  = map[int]uint64{}
			most    int
			grants  int
		)
		took := func(l *dlock.Lease) {
			mu.Lock()
			defer mu.Unlock()
			holding[l] = true
			grants++
			valid := map[int]bool{}
			n := 0
			for l := range holding {
				if l.Err() == nil {
					n++
					valid[l.Slot()] = true
				}
			}
			most = max(most, n)
			if n > 4 || len(valid) != n {
				t.Errorf("%d holders in slots %v", n, valid)
			}
			if l.Fence() <= tokens[l.Slot()] {
				t.Errorf("slot %d: token %d after %d", l.Slot(), l.Fence(), tokens[l.Slot()])
			}
			tokens[l.Slot()] = l.Fence()
		}
		runs := 2 * time.Minute
		if testing.Short() {
			runs = 30 * time.Second
		}
		end := time.Now().Add(runs)
		var wg sync.WaitGroup
		for p := range 6 {
			wg.Go(func() {
				for time.Now().Before(end) { // a process lives for some seconds
					b := space.Peer()
					c, err := dlock.New(b, dlock.WithLogger(nil))
					if err != nil {
						t.Error(err)
						return
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rand.IntN(8))*time.Second)
					var workers sync.WaitGroup
					for range 3 {
						workers.Go(func() {
							for ctx.Err() == nil {
								l, err := c.Lock(ctx, "k", dlock.WithSlots(4-p%2), dlock.WithTTL(ttl))
								if err != nil {
									continue
								}
								took(l)
								select {
								case <-time.After(time.Duration(rand.IntN(400)) * time.Millisecond):
								case <-l.Done():
								}
								mu.Lock()
								delete(holding, l)
								mu.Unlock()
								_ = l.Unlock()
							}
						})
					}
					if p == 5 || rand.IntN(2) == 0 {
						<-ctx.Done()
						b.Fail(errOutage) // killed: nothing is released
					}
					workers.Wait()
					cancel()
					_ = c.Close()
				}
			})
		}
		wg.Wait()
		if most != 4 || grants < 200 {
			t.Errorf("at most %d holders in %d grants", most, grants)
		}
		t.Logf("%d grants", grants)
	})
}

// The calls of one client are served in order.
func TestWaitersForSlotsOfOneClientAreServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := memory.New()
		holder, c := newClient(t, space), newClient(t, space.Peer())
		a, b := lock(t, holder, "k", dlock.WithSlots(2)), lock(t, holder, "k", dlock.WithSlots(2))
		got := make(chan int, 20)
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				l, err := c.Lock(t.Context(), "k", dlock.WithSlots(2))
				if err != nil {
					t.Error(err)
				}
				got <- i
				time.Sleep(time.Millisecond)
				_ = l.Unlock()
			})
			synctest.Wait()
		}
		unlock(t, a)
		unlock(t, b)
		for i := range 20 {
			if n := <-got; n/2 != i/2 { // two at a time
				t.Errorf("call %d came as number %d", n, i)
			}
		}
		wg.Wait()
	})
}

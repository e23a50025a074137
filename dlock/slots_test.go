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

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
	"github.com/redlock-go/redlock/drivers/memory"
)

func lockAll(t *testing.T, c dlock.Locker, keys ...string) *dlock.Leases {
	t.Helper()
	ls, err := dlock.LockAll(t.Context(), c, keys)
	if err != nil {
		t.Fatal(err)
	}
	return ls
}

func TestLockAllTakesEachKeyOnceInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := memory.New()
		var order []string
		c := newClient(t, space, dlock.WithHooks(dlock.Hooks{
			Acquired: func(_ context.Context, e dlock.Event) { order = append(order, e.Key) },
		}))
		ls := lockAll(t, c, "b", "a", "c", "b")
		if want := []string{"a", "b", "c"}; !slices.Equal(order, want) || !slices.Equal(ls.Keys(), want) {
			t.Errorf("took %v, has %v", order, ls.Keys())
		}
		time.Sleep(time.Minute) // renewed
		if err := ls.Err(); err != nil {
			t.Error(err)
		}
		if d, ok := ls.Deadline(); !ok || !d.After(time.Now()) {
			t.Errorf("Deadline = %v, %t", d, ok)
		}
		if ls.Fence("a") == 0 || ls.Fence("z") != 0 {
			t.Errorf("tokens %d, %d", ls.Fence("a"), ls.Fence("z"))
		}
		ctx, cancel := ls.Context(t.Context())
		defer cancel()
		for _, key := range ls.Keys() {
			if l, ok := dlock.LeaseFor(ctx, key); !ok || l.Key() != key || l.Fence() != ls.Fence(key) {
				t.Errorf("LeaseFor(%s) = %v, %t", key, l, ok)
			}
		}
		if err := ls.Unlock(); err != nil {
			t.Error(err)
		}
		if held(t, space) != 0 || !errors.Is(ls.Err(), dlock.ErrReleased) || ctx.Err() == nil {
			t.Errorf("after Unlock: %d keys, %v, %v", held(t, space), ls.Err(), ctx.Err())
		}
		<-ls.Done()
		if err := ls.Unlock(); err != nil {
			t.Errorf("the second Unlock: %v", err)
		}
		if _, err := dlock.LockAll(t.Context(), c, nil); !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("no keys: got %v", err)
		}
	})
}

func TestLockAllIsAllOrNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := memory.New()
		defer space.Hold("c")()
		c := newClient(t, space.Peer())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := dlock.LockAll(ctx, c, []string{"d", "c", "b", "a"}, dlock.WithMinHold(time.Hour))
		if !errors.Is(err, dlock.ErrHeld) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `"c"`) {
			t.Errorf("got %v", err)
		}
		if n := held(t, space); n != 1 {
			t.Errorf("%d keys are held, want the other's alone", n)
		}
	})
}

// Callers that name the keys in different orders never deadlock, and never have a key at the
// same time.
func TestLockAllInAnyOrderNeverDeadlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := memory.New()
		keys := []string{"a", "b", "c", "d"}
		var mu sync.Mutex
		in := map[string]bool{}
		var wg sync.WaitGroup
		for range 8 {
			c := newClient(t, space.Peer())
			wg.Go(func() {
				for range 50 {
					mine := slices.Clone(keys)
					rand.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
					mine = mine[:1+rand.IntN(4)]
					ls, err := dlock.LockAll(t.Context(), c, mine)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					for _, key := range mine {
						if in[key] {
							t.Errorf("%s has two holders", key)
						}
						in[key] = true
					}
					mu.Unlock()
					time.Sleep(time.Duration(rand.IntN(1000)))
					mu.Lock()
					for _, key := range mine {
						in[key] = false
					}
					mu.Unlock()
					if err := ls.Unlock(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	})
}

func TestTheFirstLossEndsAllLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := memory.New()
		c := newClient(t, space)
		ls := lockAll(t, c, "a", "b", "c")
		ctx, cancel := ls.Context(t.Context())
		defer cancel()
		space.Expire("b")
		<-ls.Done()
		err := ls.Err()
		if !errors.Is(err, dlock.ErrLost) || !strings.Contains(err.Error(), `"b"`) {
			t.Errorf("Err = %v", err)
		}
		if !errors.Is(context.Cause(ctx), dlock.ErrLost) {
			t.Errorf("the context ended with %v", context.Cause(ctx))
		}
		for _, key := range ls.Keys() {
			l, _ := dlock.LeaseFor(ctx, key)
			if <-l.Done(); !errors.Is(l.Err(), dlock.ErrLost) {
				t.Errorf("%s: %v", key, l.Err())
			}
		}
		if n := held(t, space); n != 2 {
			t.Errorf("%d keys are held before Unlock, want the two that were not lost", n)
		}
		if err := ls.Unlock(); !errors.Is(err, dlock.ErrLost) || strings.Count(err.Error(), `"b"`) != 1 {
			t.Errorf("Unlock = %v", err)
		}
		if n := held(t, space); n != 0 {
			t.Errorf("%d keys are left", n)
		}
	})
}

// The context of several leases looks at the clock for each of them.
func TestTheContextOfLeasesLooksAtTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls, err := dlock.LockAll(t.Context(), newClient(t, memory.New()), []string{"a", "b"}, dlock.WithRenewal(false))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := ls.Context(t.Context())
		defer cancel()
		d, _ := ls.Deadline()
		time.Sleep(time.Until(d))
		if ctx.Err() == nil || ls.Err() == nil {
			t.Errorf("at the deadline: %v, %v", ctx.Err(), ls.Err())
		}
		_ = ls.Unlock()
	})
}

func TestLockAllBeginsAgainAfterALossOnTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := memory.New()
		release := space.Hold("b")
		c := newClient(t, space.Peer())
		var ls *dlock.Leases
		var wg sync.WaitGroup
		wg.Go(func() { ls = lockAll(t, c, "a", "b") })
		time.Sleep(time.Minute)
		lookup, err := c.Lookup(t.Context(), "a")
		if err != nil || len(lookup.Holders) != 1 {
			t.Fatalf("%+v, %v", lookup, err)
		}
		space.Expire("a")
		time.Sleep(time.Minute)
		release()
		wg.Wait()
		if ls.Err() != nil || ls.Fence("a") <= lookup.Holders[0].Fence {
			t.Errorf("a has token %d after %d: %v", ls.Fence("a"), lookup.Holders[0].Fence, ls.Err())
		}
		if n := held(t, space); n != 2 {
			t.Errorf("%d keys are held", n)
		}
		if err := ls.Unlock(); err != nil {
			t.Error(err)
		}
	})
}

func TestLeasesEndWithTheirClient(t *testing.T) {
	c, err := dlock.New(memory.New(), dlock.WithLogger(nil))
	if err != nil {
		t.Fatal(err)
	}
	ls := lockAll(t, c, "a", "b")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	<-ls.Done()
	if err := ls.Unlock(); !errors.Is(err, dlock.ErrClosed) || strings.Count(err.Error(), "closed") != 1 {
		t.Errorf("Unlock = %v", err)
	}
}

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

func TestDoAllTakesEachKeyOnceInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := memory.New()
		var order []string
		c := newSpyClient(t, space, dlock.WithHooks(on("lock", func(_ context.Context, e dlock.Event) { order = append(order, e.Key) })))
		err := dlock.DoAll(t.Context(), c, []string{"b", "a", "c", "b"}, func(ctx context.Context) error {
			if want := []string{"a", "b", "c"}; !slices.Equal(order, want) {
				t.Errorf("took %v", order)
			}
			time.Sleep(time.Minute) // renewed
			for _, key := range order {
				if l, ok := dlock.LeaseFor(ctx, key); !ok || l.Key() != key || l.Err() != nil {
					t.Errorf("LeaseFor(%s) = %v, %t", key, l, ok)
				}
			}
			return nil
		})
		if err != nil || held(t, space) != 0 {
			t.Errorf("after DoAll: %d keys, %v", held(t, space), err)
		}
		if err := dlock.DoAll(t.Context(), c, nil, nil); !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("no keys: got %v", err)
		}
	})
}

func TestDoAllIsAllOrNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := memory.New()
		defer space.Hold("c")()
		c := newSpyClient(t, space.Peer())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := dlock.DoAll(ctx, c, []string{"d", "c", "b", "a"}, func(context.Context) error {
			t.Error("the function was called")
			return nil
		})
		if !errors.Is(err, dlock.ErrHeld) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `"c"`) {
			t.Errorf("got %v", err)
		}
		if n := held(t, space); n != 1 {
			t.Errorf("%d keys are held, want the other's alone", n)
		}
	})
}

// Callers that name the keys in different orders never block each other for ever, and a key has one
// holder at a time.
func TestDoAllInAnyOrderNeverDeadlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := memory.New()
		clients := []*dlock.Client{newSpyClient(t, space.Peer()), newSpyClient(t, space.Peer())}
		var in [4]sync.Mutex // one for each key
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for range 50 {
					mine := []string{"a", "b", "c", "d"}
					rand.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
					mine = mine[:1+rand.IntN(4)]
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // all calls together hold for less
					err := dlock.DoAll(ctx, clients[i%2], mine, func(context.Context) error {
						for _, key := range mine {
							key := &in[key[0]-'a']
							if !key.TryLock() {
								return errors.New("a key has two holders")
							}
							defer key.Unlock()
						}
						time.Sleep(rand.N(time.Millisecond))
						return nil
					})
					cancel()
					if err != nil {
						t.Errorf("%v: %v", mine, err)
						return
					}
				}
			})
		}
		wg.Wait()
	})
}

// The first loss ends the context of the function, which also looks at the clock for each lease,
// and the error names the key.
func TestTheFirstLossEndsDoAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := memory.New()
		c := newSpyClient(t, space)
		for name, lose := range map[string]func(context.Context){
			"b": func(context.Context) { space.Expire("b") },
			"a": func(ctx context.Context) {
				l, _ := dlock.LeaseFor(ctx, "a")
				space.Expire("a")
				if ctx.Err() == nil || l.Err() == nil {
					t.Errorf("right after the loss: %v, %v", ctx.Err(), l.Err())
				}
			},
		} {
			err := dlock.DoAll(t.Context(), c, []string{"a", "b", "c"}, func(ctx context.Context) error {
				lose(ctx)
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), dlock.ErrLost) {
					t.Errorf("the context ended with %v", context.Cause(ctx))
				}
				return context.Cause(ctx)
			})
			var e *dlock.Error
			if !errors.Is(err, dlock.ErrLost) || !errors.As(err, &e) || e.Key != name || strings.Count(err.Error(), "lease was lost") != 1 {
				t.Errorf("%s: %v", name, err)
			}
			if n := held(t, space); n != 0 {
				t.Errorf("%d keys are left", n)
			}
		}
	})
}

func TestDoAllBeginsAgainAfterALossOnTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := memory.New()
		release := space.Hold("b")
		c := newSpyClient(t, space.Peer())
		var before uint64
		var wg sync.WaitGroup
		wg.Go(func() {
			err := dlock.DoAll(t.Context(), c, []string{"a", "b"}, func(ctx context.Context) error {
				if l, _ := dlock.LeaseFor(ctx, "a"); l.Err() != nil || l.Fence() <= before {
					t.Errorf("a has token %d after %d: %v", l.Fence(), before, l.Err())
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
		time.Sleep(time.Minute)
		lookup, err := c.Lookup(t.Context(), "a")
		if err != nil || len(lookup.Holders) != 1 {
			t.Fatalf("%+v, %v", lookup, err)
		}
		before = lookup.Holders[0].Fence
		space.Expire("a")
		time.Sleep(time.Minute)
		release()
		wg.Wait()
	})
}

package dlock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestAnEndedLeaseIsForgotten(t *testing.T) {
	c, _ := sleeper(t)
	for range 10 {
		l, err := c.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(c.leases) + len(c.sched.due) + len(c.queues.byKey); n != 0 {
		t.Errorf("%d entries are left of leases that ended", n)
	}
}

// A hundred thousand callers that give up hold up no other key, and leave nothing behind.
func TestAnAbandonedWaiterTakesNothingThatOtherKeysNeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		qs := newWaitQueues(nil)
		q, _, _, _ := qs.enter(t.Context(), "k")
		ctx, cancel := context.WithCancel(t.Context())
		for range 1000 {
			go func() { _, _, _, _ = qs.enter(ctx, "k") }()
		}
		synctest.Wait()
		qs.mu.Lock() // the mutex of all keys is held
		cancel()
		synctest.Wait()
		qs.mu.Unlock()
		if n := q.users.Load(); n != 1 {
			t.Errorf("%d callers wait for the mutex of all keys", n-1)
		}
		qs.leave(q, nil)
		if !qs.empty("k") {
			t.Error("the queue is left")
		}
	})
}

// Callers become the first in the order of their arrival, and one that gives up at that moment lets
// the next one go.
func TestCallersAreServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		qs := newWaitQueues(nil)
		q, _, _, _ := qs.enter(t.Context(), "k")
		var order []int
		for i := range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				q, _, _, err := qs.enter(ctx, "k")
				if err == nil {
					order = append(order, i)
					qs.leave(q, nil)
				}
			}()
			synctest.Wait()
			if i%3 == 0 {
				cancel()
			}
		}
		qs.leave(q, nil)
		synctest.Wait()
		if !slices.IsSorted(order) || len(order) != 66 || !qs.empty("k") {
			t.Errorf("the order is %v", order)
		}
	})
}

func TestAShortLeaseIsNotHeldUpByALongOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := sleeper(t)
		if _, err := c.Lock(t.Context(), "long", WithTTL(time.Hour)); err != nil {
			t.Fatal(err)
		}
		l, err := c.Lock(t.Context(), "short", WithTTL(50*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := l.Err(); err != nil {
			t.Error(err)
		}
	})
}

func TestAForgottenImportIsNamed(t *testing.T) {
	for name, hint := range map[string]string{
		"redis":      "github.com/redlock-go/redlock/drivers/goredis",
		"valkeys":    "github.com/redlock-go/redlock/drivers/valkeygo",
		"postgresql": "github.com/redlock-go/redlock/drivers/postgres",
		"mariadb":    "github.com/redlock-go/redlock/drivers/sqltable/mysql",
		"nosuch":     "forgotten import?",
	} {
		err := unknownDriver(name)
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), hint) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// The context of several leases looks at the clock for each of them, and not only for the last.
func TestTheContextOfLeasesKnowsOfASleepBeforeAnyTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, slept := sleeper(t)
		err := Do(t.Context(), c, "a", func(ctx context.Context) error {
			return Do(ctx, c, "b", func(ctx context.Context) error {
				slept.Add(int64(6 * time.Second))
				if err := ctx.Err(); err == nil {
					t.Error("a is over, and the context does not know it")
				}
				return nil
			}, WithTTL(time.Minute))
		}, WithTTL(5*time.Second))
		if !errors.Is(err, ErrLost) {
			t.Error(err)
		}
	})
}

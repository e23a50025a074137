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

// A caller that gives up at the moment when it becomes the first wakes the next one.
func TestACallerThatGivesUpAsTheFirstLetsTheNextGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		qs := newWaitQueues(nil)
		q, _, _, _ := qs.enter(t.Context(), "k")
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, _, _, _ = qs.enter(ctx, "k") }()
		synctest.Wait()
		q.mu.Lock() // it gives up, and before it can say so, it becomes the first
		cancel()
		q.wakeNext()
		q.mu.Unlock()
		qs.part(q) // the first has left
		synctest.Wait()
		if !qs.empty("k") {
			t.Fatal("the queue has a first that is gone, and nobody can ever enter")
		}
	})
}

// queued returns a queue with a first and n callers behind it.
func queued(n int) (*waitQueues, *waitQueue, []*waiter) {
	qs := newWaitQueues(nil)
	q, _ := qs.join("k")
	q.taken = true
	behind := make([]*waiter, n)
	for i := range behind {
		qs.join("k")
		behind[i] = q.push()
	}
	return qs, q, behind
}

func TestAnAbandonedWaiterTakesNothingThatOtherKeysNeed(t *testing.T) {
	qs, q, behind := queued(1000)
	qs.mu.Lock() // the mutex of all keys is held
	for _, w := range behind {
		_ = q.abandon(w)
		qs.part(q)
	}
	qs.mu.Unlock()
	qs.leave(q, nil)
	if !qs.empty("k") {
		t.Error("the queue is left")
	}
}

// Callers give up from the back, and in any other order: the cost of each does not depend on
// how many wait.
func TestAnAbandonedWaiterCostsTheSameHoweverManyWait(t *testing.T) {
	took := func(n int) time.Duration {
		best := time.Hour
		qs, q, behind := queued(n)
		for range 5 {
			if len(behind) == 0 {
				qs, q, behind = queued(n)
			}
			rest := len(behind) - 1000
			start := time.Now()
			for _, w := range slices.Backward(behind[rest:]) {
				_ = q.abandon(w)
				qs.part(q)
			}
			behind = behind[:rest]
			best = min(best, time.Since(start))
		}
		return best
	}
	if few, many := took(1000), took(100_000); many > 40*few {
		t.Errorf("a thousand gave up in %v of a thousand, and in %v of a hundred thousand", few, many)
	}
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

package dlock

import (
	"context"
	"errors"
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
		t.Errorf("%d things are kept of leases that ended", n)
	}
}

// Whoever gives up at the very moment at which its turn comes passes the turn on.
func TestATurnThatNobodyTakesIsPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := newWaitQueues(nil)
		first, _, _ := ls.enter(t.Context(), "k")
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, _, _ = ls.enter(ctx, "k") }()
		synctest.Wait()
		ls.mu.Lock() // it gives up, and before it can say so, its turn has come
		cancel()
		close(first.behind[0])
		first.behind = nil
		ls.mu.Unlock()
		synctest.Wait()
		if !ls.empty("k") {
			t.Fatal("the line has a first who is gone, and nobody can ever enter")
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
		"nosuch":     "forgotten import?",
	} {
		err := unknownDriver(name)
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), hint) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

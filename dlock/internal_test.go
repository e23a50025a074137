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
	if n := len(c.leases) + len(c.queues.byKey); n != 0 {
		t.Errorf("%d entries are left of leases that ended", n)
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

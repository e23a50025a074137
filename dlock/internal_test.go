package dlock

import (
	"errors"
	"strings"
	"testing"
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

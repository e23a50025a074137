package goredis_test

import (
	"testing"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/drivers/internal/ownprocess"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// The names of scripts, which are SHA-1 sums, are no cryptography: a process that may use only
// approved algorithms can lock.
func TestAProcessThatMayUseOnlyFIPSLocks(t *testing.T) {
	ownprocess.Run(t, func(t *testing.T) {
		b, err := goredis.Driver{}.Open(&driver.Config{DSN: "redis://" + server.Redis(t).Addr() + "?call_timeout=10s&dial_timeout=10s"})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close() //nolint:errcheck // nothing is under way
		l, err := b.Acquire(t.Context(), &driver.Request{Key: "k", Owner: "o", TTL: 10e9})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}, "GODEBUG=fips140=only")
}

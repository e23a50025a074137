package everything_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// redisClients are the schemes of the two client libraries.
var redisClients = []string{"redis", "valkey"}

// startFuzzed starts a server with a user whose password must appear in no error.
func startFuzzed(f *testing.F) *server.Server {
	s := server.Redis(f)
	if _, err := s.Do("ACL", "SETUSER", "fuzz", "on", ">"+canary, "~*", "&*", "+@all"); err != nil {
		f.Fatal(err)
	}
	return s
}

func openFuzzed(t *testing.T, scheme, addr, parameters string) driver.Backend {
	b, err := dlock.OpenBackend(scheme + "://fuzz:" + canary + "@" + addr + "?restart_guard=off" + parameters)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// FuzzStoredOnRedis writes foreign and mangled values to the drivers' keys. No call crashes,
// two leases are never valid at the same time, and no token is lower than an earlier one.
func FuzzStoredOnRedis(f *testing.F) {
	for i, value := range []string{"", "x", "-1", "0", "9007199254740991", "9007199254740992", "1e300", "nan", "inf", "0x7fffffffffffffff", "99999999999999999999999",
		"1 2 3", "9e15 1 1", "99999999999999999 0 0", "0 99999999999999999 0", "a b c", "redlock1:next|", "redlock1:next|5|p", "redlock1:next|5|listen.1", "fuzz/1|", "|5", "\x00\xff", strings.Repeat("9", 400)} {
		f.Add(uint8(i), value, false)
		f.Add(uint8(i+1), value, i%4 == 0)
	}
	if testing.Short() {
		f.Skip("starts a server")
	}
	s := startFuzzed(f)
	var keys atomic.Int64
	f.Fuzz(func(t *testing.T, what uint8, value string, ofAnotherType bool) {
		t.Parallel()
		n := keys.Add(1)
		scheme, prefix := redisClients[n%2], fmt.Sprintf("f%d:", n)
		a := openFuzzed(t, scheme, s.Addr(), "&prefix="+prefix)
		b := openFuzzed(t, scheme, s.Addr(), "&prefix="+prefix)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		const key = "k"
		acquire := func(by driver.Backend) driver.Lease {
			l, err := by.Acquire(ctx, fuzzRequest(key))
			quiet(t, "Acquire", err)
			return l
		}
		before := acquire(a)
		if before == nil {
			return // the machine stalled
		}
		name := prefix + []string{key, "redlock1:fence:{" + prefix + key + "}", "redlock1:mark", "redlock1:queue:{" + prefix + key + "}"}[what%4]
		if what%4 != 0 && what&4 != 0 { // the lock is free while the key beside it is mangled
			_ = before.Release(ctx)
		}
		command := []string{"SET", name, value}
		if ofAnotherType {
			command = []string{"ZADD", name, "1", value}
			_, _ = s.Do("DEL", name)
		}
		if _, err := s.Do(command...); err != nil {
			t.Fatal(err)
		}
		valid := func(l driver.Lease) bool { return l != nil && time.Now().Before(l.Grant().Expires) }
		rising := func(l driver.Lease) {
			if l != nil && (l.Grant().Fence <= before.Grant().Fence || l.Grant().Fence > driver.MaxFence) {
				t.Errorf("token %d after %d", l.Grant().Fence, before.Grant().Fence)
			}
		}
		one, two := acquire(b), acquire(a)
		rising(one)
		rising(two)
		if valid(one) && valid(two) {
			t.Errorf("two owners at once, with tokens %d and %d", one.Grant().Fence, two.Grant().Fence)
		}
		if what%4 != 0 && what&4 == 0 && (valid(one) || valid(two)) && valid(before) {
			t.Errorf("a second owner has the lock beside the first, whose value was not changed")
		}
		i := b.(driver.Inspector)
		_, err := i.Lookup(ctx, key)
		quiet(t, "Lookup", err)
		quiet(t, "List", i.List(ctx, "", func(*driver.State) bool { return true }))
		_, err = i.Check(ctx)
		quiet(t, "Check", err)
		quiet(t, "Break", b.(driver.Admin).Break(ctx, key, driver.Holder{Fence: before.Grant().Fence}))
		for _, l := range []driver.Lease{before, one, two} {
			if l == nil {
				continue
			}
			_, err := l.Renew(ctx, &driver.Renewal{TTL: fuzzTTL})
			quiet(t, "Renew", err)
			quiet(t, "Release", l.Release(ctx))
		}
		if three := acquire(b); three != nil { // the remaining values do not hide an earlier token
			rising(three)
			_ = three.Release(ctx)
		}
	})
}

package zookeeper_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// TestAnErrorSaysEachFactOnce: dlock names the operation and the key, so a driver's error must
// not.
func TestAnErrorSaysEachFactOnce(t *testing.T) {
	t.Parallel()
	g := server.ZooKeeper(t, 1)
	b := open(t, "zk://"+g.Addrs()[0]+"?call_timeout=500ms")
	const key, ttl = "the-key", time.Minute
	l := redlocktest.Grant(t, b, &driver.Request{Key: key, Owner: "a/1", TTL: ttl})
	if err := g.Pause(); err != nil {
		t.Fatal(err)
	}
	calls := map[string]func(context.Context) error{
		"acquire": func(ctx context.Context) error {
			_, err := b.Acquire(ctx, &driver.Request{Key: "other", Owner: "a/2", TTL: ttl})
			return err
		},
		"renew": func(ctx context.Context) error {
			_, err := l.Renew(ctx, &driver.Renewal{TTL: ttl})
			return err
		},
		"look up": func(ctx context.Context) error {
			_, err := b.Lookup(ctx, key)
			return err
		},
		"list": func(ctx context.Context) error {
			return b.List(ctx, "", func(*driver.State) bool { return true })
		},
		"check": func(ctx context.Context) error {
			_, err := b.Check(ctx)
			return err
		},
		"break": func(ctx context.Context) error { return b.Break(ctx, key, l.Grant().Fence) },
	}
	says := func(op string, err error) {
		switch {
		case err == nil:
			t.Errorf("%s succeeds, and the server is stopped", op)
		case strings.Contains(err.Error(), op), strings.Contains(err.Error(), key), strings.Count(err.Error(), "zookeeper") != 1:
			t.Errorf("%s: the error repeats the operation, the key or the backend: %v", op, err)
		}
	}
	var all sync.WaitGroup
	for op, call := range calls {
		all.Go(func() { says(op, call(t.Context())) })
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			says(op, call(ctx))
		})
	}
	all.Wait()
	says("release", l.Release(t.Context()))
	if err := g.Resume(); err != nil {
		t.Fatal(err)
	}
}

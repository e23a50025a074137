package redisnode

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// upstream answers like a proxy that lost its server: the call has taken effect.
type upstream struct {
	*wire
	fails atomic.Int32 // for this many calls
}

func (u *upstream) Exec(ctx context.Context, calls []*Call) {
	u.wire.Exec(ctx, calls)
	for _, c := range calls {
		if c.SHA != "" && c.Err == nil && u.fails.Add(-1) >= 0 {
			c.Reply, c.Err = nil, ServerError("upstream failure")
		}
	}
}

func TestAnErrorThatNoRedisGivesIsAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	s := server.Redis(t)
	u := &upstream{wire: plain(t, s)}
	n, err := New(Config{Client: u, Name: "redis", Addr: "server", CallTimeout: 10 * time.Second}) // however busy the machine is
	drivertest.Must(t, err)
	t.Cleanup(func() { _ = n.Close() })
	ask := func(key string) (driver.Lease, error) {
		return n.Acquire(t.Context(), &driver.Request{Key: key, Owner: "o/" + key, TTL: time.Minute})
	}
	l, err := ask("warm")
	drivertest.Must(t, err)
	u.fails.Store(1)
	if _, err := ask("once"); err != nil {
		t.Errorf("the second try does not find the effect of the first: %v", err)
	}
	u.fails.Store(1)
	if err := l.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
	u.fails.Store(2)
	if _, err := ask("twice"); err == nil || !n.unknown(err) {
		t.Errorf("got %v, want an unknown outcome", err)
	}
	if err := n.Close(); err != nil { // waits for the clean-up
		t.Fatal(err)
	}
	if left := do(t, s, "EXISTS", "twice"); left != int64(0) {
		t.Error("a lock was left behind by an attempt with an unknown outcome")
	}
}

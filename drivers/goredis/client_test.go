package goredis

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/internal/redisnode"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// nobody is an address without a listener.
func nobody(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	drivertest.Must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// If there is no listener every call returns an error that says so, and that nothing was sent:
// alone, in a pipeline or in a transaction. (A pipeline of go-redis that gets no connection may
// leave its commands without an error.)
func TestEveryCallOfARefusedBatchSaysSo(t *testing.T) {
	r := redis.NewClient(&redis.Options{MaxRetries: -1, Addr: nobody(t)})
	t.Cleanup(func() { _ = r.Close() })
	c := &client{redis: r, once: true, own: true}
	plain := func() *redisnode.Call { return &redisnode.Call{SHA: strings.Repeat("0", 40), Keys: []string{"k"}} }
	behind := func() *redisnode.Call {
		return &redisnode.Call{Text: "return {1}", Keys: []string{"k"}, Behind: "mark"}
	}
	for name, calls := range map[string][]*redisnode.Call{
		"alone":            {plain()},
		"with others":      {plain(), plain(), plain()},
		"in a transaction": {behind()},
		"all":              {plain(), behind(), plain()},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		c.Exec(ctx, calls)
		cancel()
		for i, call := range calls {
			if !errors.Is(call.Err, redisnode.ErrNotSent) || !errors.Is(call.Err, syscall.ECONNREFUSED) {
				t.Errorf("%s: call %d: %v, reply %v", name, i, call.Err, call.Reply)
			}
		}
	}
}

// After a node of a Cluster has failed, the slots are asked for until a node answers, even if the
// first one that is asked hangs: the next calls then reach the new primary.
func TestTheSlotsAreReloadedDespiteAHangingNode(t *testing.T) {
	primary, failed := server.Redis(t).Addr(), nobody(t)
	var asked atomic.Int32
	r := redis.NewClusterClient(&redis.ClusterOptions{
		MaxRetries: -1, ContextTimeoutEnabled: true,
		ClusterSlots: func(ctx context.Context) ([]redis.ClusterSlot, error) {
			addr := primary
			switch asked.Add(1) {
			case 1: // the first contact, before the failover
				addr = failed
			case 2: // a node that hangs
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: addr}}}}, nil
		},
	})
	t.Cleanup(func() { _ = r.Close() })
	c := &client{redis: r, once: true, own: true}
	for begun := time.Now(); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		call := &redisnode.Call{Text: "return 1", Keys: []string{"k"}}
		c.Exec(ctx, []*redisnode.Call{call})
		cancel()
		if call.Err == nil {
			return
		}
		if time.Since(begun) > 2*time.Minute {
			t.Fatalf("after %d questions no call reaches the new primary: %v", asked.Load(), call.Err)
		}
	}
}

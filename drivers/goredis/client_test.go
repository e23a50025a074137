package goredis

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/drivers/internal/redisnode"
)

// nobody is an address at which nobody listens.
func nobody(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Where nobody listens every call says so, and that nothing was sent, whether it goes
// alone, with others or in a transaction. (A pipeline of go-redis that gets no connection
// may leave its commands without an error.)
func TestEveryCallOfARefusedBatchSaysSo(t *testing.T) {
	r := redis.NewClient(&redis.Options{MaxRetries: -1, Addr: nobody(t)})
	t.Cleanup(func() { _ = r.Close() })
	c := &client{redis: r, inner: r, once: true, own: true}
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

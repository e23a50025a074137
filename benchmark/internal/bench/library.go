package bench

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"
)

// commands sends commands to one server through one client library. A reply is a string, an
// int64, nil or a []any of these.
type commands interface {
	do(ctx context.Context, args []string) (any, error)
	close() error
}

// A library is a client library.
type library struct {
	name string
	how  string
	// open connects, at once or with the first command, within timeout.
	open func(addr string, timeout time.Duration) (commands, error)
}

// libraries are the client libraries that this module has drivers for.
var libraries = []library{
	{"go-redis", "go-redis with its default pool, without retries", openGoRedis},
	{"valkey-go", "valkey-go as it pipelines by default", openValkeyGo},
}

type goRedis struct{ client *redis.Client }

func openGoRedis(addr string, timeout time.Duration) (commands, error) {
	return goRedis{redis.NewClient(&redis.Options{
		Addr:                  addr,
		MaxRetries:            -1,
		ContextTimeoutEnabled: true, // otherwise go-redis ignores deadlines while it reads
		DialTimeout:           timeout,
		Protocol:              2,
	})}, nil
}

func (g goRedis) do(ctx context.Context, args []string) (any, error) {
	list := make([]any, len(args))
	for i, a := range args {
		list[i] = a
	}
	v, err := g.client.Do(ctx, list...).Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return v, err
}

func (g goRedis) close() error { return g.client.Close() }

type valkeyGo struct{ client valkey.Client }

func openValkeyGo(addr string, timeout time.Duration) (commands, error) {
	c, err := valkey.NewClient(valkey.ClientOption{
		InitAddress:       []string{addr},
		Dialer:            net.Dialer{Timeout: timeout}, // also bounds the handshake
		ForceSingleClient: true,
		DisableCache:      true,
		DisableRetry:      true,
	})
	if err != nil {
		return nil, err
	}
	return valkeyGo{c}, nil
}

func (v valkeyGo) do(ctx context.Context, args []string) (any, error) {
	cmd := v.client.B().Arbitrary(args...)
	build := cmd.Build
	if args[0] == "BLPOP" {
		build = cmd.Blocking
	}
	reply, err := v.client.Do(ctx, build()).ToAny()
	if valkey.IsValkeyNil(err) {
		return nil, nil
	}
	return reply, err
}

func (v valkeyGo) close() error {
	v.client.Close()
	return nil
}

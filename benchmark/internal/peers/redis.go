package peers

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	redsyncrueidis "github.com/go-redsync/redsync/v4/redis/rueidis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidiscompat"
	"github.com/redlock-go/redlock/benchmark/internal/bench"
)

// overRedis returns the Redis libraries that poll.
func overRedis() []bench.Contestant {
	list := []bench.Contestant{{
		Name: "redislock", Client: "go-redis", Kind: bench.Peer, Serves: bench.OneKeyStore, Waits: true, Open: openRedislock,
		How: "redislock over go-redis with its defaults; a wait tries again every 100 ms (LinearBackoff), as its README does",
	}}
	for _, client := range []struct {
		name string
		open pool
	}{{"rueidis", rueidisPool}, {"go-redis", goRedisPool}} {
		for _, c := range []bench.Contestant{
			{Name: "redsync fail-fast", How: "redsync v4 with WithFailFast(true)", Open: openRedsync(client.open, redsync.WithFailFast(true))},
			{Name: "redsync", How: "redsync v4 with its defaults; a wait calls LockContext until it succeeds", Open: openRedsync(client.open)},
		} {
			c.Client, c.How = client.name, c.How+"; over "+client.name+" with its defaults"
			c.Kind, c.Serves, c.Waits = bench.Peer, bench.AnyKeyStore, true
			list = slices.Insert(list, 0, c)
		}
	}
	return list
}

// pool opens a redsync connection pool to one server.
type pool func(addr string) (redsyncredis.Pool, func() error, error)

func goRedisPool(addr string) (redsyncredis.Pool, func() error, error) {
	c := redis.NewClient(&redis.Options{Addr: addr})
	return redsyncgoredis.NewPool(c), c.Close, nil
}

func rueidisPool(addr string) (redsyncredis.Pool, func() error, error) {
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true})
	if err != nil {
		return nil, nil, err
	}
	return redsyncrueidis.NewPool(rueidiscompat.NewAdapter(c)), func() error { c.Close(); return nil }, nil
}

func openRedsync(open pool, opts ...redsync.Option) func(context.Context, *bench.Setup) (*bench.Client, error) {
	return func(_ context.Context, s *bench.Setup) (*bench.Client, error) {
		var pools []redsyncredis.Pool
		var closes []func() error
		end := func() (err error) {
			for _, c := range closes {
				err = errors.Join(err, c())
			}
			return err
		}
		for _, addr := range s.Addrs {
			p, closePool, err := open(addr)
			if err != nil {
				return nil, errors.Join(err, end())
			}
			pools, closes = append(pools, p), append(closes, closePool)
		}
		locks, opts := redsync.New(pools...), append([]redsync.Option{redsync.WithExpiry(s.TTL)}, opts...)
		return &bench.Client{Close: end, Lock: func(ctx context.Context, key string, wait bool) (func() error, error) {
			m := locks.NewMutex(key, opts...)
			take := m.TryLockContext
			if wait {
				take = m.LockContext
			}
			err := take(ctx)
			for wait && err != nil && ctx.Err() == nil {
				err = take(ctx)
			}
			return func() error {
				ok, err := m.UnlockContext(context.Background())
				if err == nil && !ok {
					err = errors.New("not unlocked")
				}
				return err
			}, err
		}}, nil
	}
}

func openRedislock(_ context.Context, s *bench.Setup) (*bench.Client, error) {
	c := redis.NewClient(&redis.Options{Addr: s.Addrs[0]})
	locks := redislock.New(c)
	return &bench.Client{Close: c.Close, Lock: func(ctx context.Context, key string, wait bool) (func() error, error) {
		var opts *redislock.Options
		if wait {
			opts = &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}
		}
		h, err := locks.Obtain(ctx, key, s.TTL, opts)
		for wait && ctx.Err() == nil && errors.Is(err, redislock.ErrNotObtained) {
			h, err = locks.Obtain(ctx, key, s.TTL, opts)
		}
		return func() error { return h.Release(context.Background()) }, err
	}}, nil
}

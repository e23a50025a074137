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
		Name: "redislock, go-redis", Kind: bench.Peer, Client: "go-redis", Serves: bench.OneKeyStore, Waits: true, Open: openRedislock,
		How: "redislock over go-redis with its defaults; a wait tries again every 100 ms (LinearBackoff), as its README does",
	}}
	for _, client := range []struct {
		name string
		open pool
	}{{"rueidis", rueidisPool}, {"go-redis", goRedisPool}} {
		for _, c := range []bench.Contestant{
			{Name: "redsync fail-fast, ", How: "redsync v4 with WithFailFast(true)", Open: openRedsync(client.open, redsync.WithFailFast(true))},
			{Name: "redsync, ", How: "redsync v4 with its defaults; a wait calls LockContext until it succeeds", Open: openRedsync(client.open)},
		} {
			c.Name, c.Client, c.How = c.Name+client.name, client.name, c.How+"; over "+client.name+" with its defaults"
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

type redsyncLocker struct {
	r      *redsync.Redsync
	opts   []redsync.Option
	closes []func() error
}

func openRedsync(open pool, opts ...redsync.Option) func(context.Context, *bench.Setup) (bench.Locker, error) {
	return func(_ context.Context, s *bench.Setup) (bench.Locker, error) {
		l := &redsyncLocker{opts: append([]redsync.Option{redsync.WithExpiry(s.TTL)}, opts...)}
		var pools []redsyncredis.Pool
		for _, n := range s.Nodes {
			p, closes, err := open(n.Addr)
			if err != nil {
				return nil, errors.Join(err, l.Close())
			}
			pools, l.closes = append(pools, p), append(l.closes, closes)
		}
		l.r = redsync.New(pools...)
		return l, nil
	}
}

func (l *redsyncLocker) Lock(ctx context.Context, key string, wait bool) (bench.Held, error) {
	m := l.r.NewMutex(key, l.opts...)
	if !wait {
		return redsyncHeld{m}, m.TryLockContext(ctx)
	}
	for {
		err := m.LockContext(ctx)
		if err == nil {
			return redsyncHeld{m}, nil
		}
		if ctx.Err() != nil {
			return nil, err
		}
	}
}

func (l *redsyncLocker) Close() error {
	var errs []error
	for _, c := range l.closes {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

type redsyncHeld struct{ m *redsync.Mutex }

func (h redsyncHeld) Unlock() error {
	ok, err := h.m.UnlockContext(context.Background())
	if err == nil && !ok {
		err = errors.New("not unlocked")
	}
	return err
}

type redislockLocker struct {
	c   *redis.Client
	l   *redislock.Client
	ttl time.Duration
}

func openRedislock(_ context.Context, s *bench.Setup) (bench.Locker, error) {
	c := redis.NewClient(&redis.Options{Addr: s.Nodes[0].Addr})
	return &redislockLocker{c, redislock.New(c), s.TTL}, nil
}

func (l *redislockLocker) Lock(ctx context.Context, key string, wait bool) (bench.Held, error) {
	var opts *redislock.Options
	if wait {
		opts = &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}
	}
	for {
		h, err := l.l.Obtain(ctx, key, l.ttl, opts)
		if err == nil {
			return redislockHeld{h}, nil
		}
		if !wait || ctx.Err() != nil || !errors.Is(err, redislock.ErrNotObtained) {
			return nil, err
		}
	}
}

func (l *redislockLocker) Close() error { return l.c.Close() }

type redislockHeld struct{ l *redislock.Lock }

func (h redislockHeld) Unlock() error { return h.l.Release(context.Background()) }

package peers

import (
	"context"
	"errors"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/bench"
	"github.com/redlock-go/redlock/redlocktest/server"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

// overEtcd returns the locks of etcd's client.
func overEtcd() []bench.Contestant {
	return []bench.Contestant{{
		Name: "etcd concurrency", Client: "etcd", Kind: bench.Peer, Waits: true,
		How: "concurrency.Mutex of etcd's client v3 with one session for each client, on one member with its defaults, which writes every change to its disk. " +
			"It counts TTLs in whole seconds, of which an etcd takes no less than two",
		Serves: bench.One(server.KindEtcd),
		Open: func(ctx context.Context, s *bench.Setup) (*bench.Client, error) {
			c, err := clientv3.New(clientv3.Config{Endpoints: s.Addrs, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
			if err != nil {
				return nil, err
			}
			const least = 2 * time.Second
			ttl := max(s.TTL, least).Round(time.Second)
			session, err := newSession(ctx, c, int(ttl.Seconds()))
			if err != nil {
				return nil, errors.Join(err, c.Close())
			}
			return &bench.Client{Close: func() error { return errors.Join(session.Close(), c.Close()) }, Lock: func(ctx context.Context, key string, wait bool) (func() error, error) {
				m := concurrency.NewMutex(session, key)
				take := m.TryLock
				if wait {
					take = m.Lock
				}
				return func() error { return m.Unlock(context.Background()) }, take(ctx)
			}}, nil
		},
	}}
}

// newSession fails when ctx ends. The session that it returns outlives ctx.
func newSession(ctx context.Context, c *clientv3.Client, seconds int) (*concurrency.Session, error) {
	lease, err := c.Grant(ctx, int64(seconds))
	if err != nil {
		return nil, err
	}
	return concurrency.NewSession(c, concurrency.WithTTL(seconds), concurrency.WithLease(lease.ID))
}

package goredis

import (
	"context"
	"net"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/redisnode"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/redisurl"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/resp"
)

// Driver opens backends by URL. The zero Driver is ready.
type Driver struct{}

var _ driver.Driver = Driver{}

// Open reads cfg.DSN (see the package's documentation) and makes a client with settings for
// locks. Its only I/O is reading certificates.
func (Driver) Open(cfg *driver.Config) (driver.Backend, error) {
	node, err := redisnode.Open("redis", cfg, func(t *redisurl.Target, conns *resp.Conns) redisnode.Client {
		return &client{redis: open(t, conns), once: true, own: true, secrets: []string{t.Password, t.SentinelPassword}}
	})
	if err != nil {
		return nil, err
	}
	return &Backend{node}, nil
}

// open makes a client that obeys deadlines and never retries: the driver retries where it is
// harmless.
func open(t *redisurl.Target, conns *resp.Conns) redis.UniversalClient {
	o := &redis.UniversalOptions{
		Addrs: t.Addrs, MasterName: t.Master, SentinelUsername: t.SentinelUser, SentinelPassword: t.SentinelPassword,
		Username: t.User, Password: t.Password, DB: t.DB, TLSConfig: t.TLS,
		Protocol: 2, MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true,
		DialTimeout: t.DialTimeout, ReadTimeout: t.CallTimeout, WriteTimeout: t.CallTimeout,
		PoolSize: t.PoolSize, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return conns.Dial(ctx, &net.Dialer{Timeout: t.DialTimeout, KeepAlive: 5 * time.Minute}, t.TLS, network, addr)
		},
	}
	switch t.Topology {
	case redisurl.Sentinel:
		return redis.NewFailoverClient(o.Failover())
	case redisurl.Cluster:
		return redis.NewClusterClient(o.Cluster())
	}
	single := o.Simple()
	single.Network = t.Network
	return redis.NewClient(single)
}

package goredis

import (
	"github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/redisnode"
)

// Driver opens backends by URL. The zero Driver is ready.
type Driver struct{}

var _ driver.Driver = Driver{}

// Open reads cfg.DSN, see the package's documentation, and makes a client with the
// settings that suit locks. It does no I/O but reading certificates.
func (Driver) Open(cfg *driver.Config) (driver.Backend, error) {
	node, err := redisnode.Open("redis", cfg, func(t *redisnode.Target) redisnode.Client {
		c := open(t)
		return &client{redis: c, inner: c, once: true, own: true}
	})
	if err != nil {
		return nil, err
	}
	return &Backend{node}, nil
}

// open makes a client that heeds deadlines, and that tries nothing again by itself:
// the driver does that where it is harmless.
func open(t *redisnode.Target) redis.UniversalClient {
	const never = -1
	switch t.Topology {
	case redisnode.Sentinel:
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: t.Master, SentinelAddrs: t.Addrs,
			SentinelUsername: t.SentinelUser, SentinelPassword: t.SentinelPassword,
			Username: t.User, Password: t.Password, DB: t.DB, TLSConfig: t.TLS,
			Protocol: 2, MaxRetries: never, ContextTimeoutEnabled: true, DisableIdentity: true,
			DialTimeout: t.DialTimeout, ReadTimeout: t.CallTimeout, WriteTimeout: t.CallTimeout,
			PoolSize: t.PoolSize,
		})
	case redisnode.Cluster:
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: t.Addrs, Username: t.User, Password: t.Password, TLSConfig: t.TLS,
			Protocol: 2, MaxRetries: never, ContextTimeoutEnabled: true, DisableIdentity: true,
			DialTimeout: t.DialTimeout, ReadTimeout: t.CallTimeout, WriteTimeout: t.CallTimeout,
			PoolSize: t.PoolSize,
		})
	}
	return redis.NewClient(&redis.Options{
		Network: t.Network, Addr: t.Addrs[0], Username: t.User, Password: t.Password, DB: t.DB, TLSConfig: t.TLS,
		Protocol: 2, MaxRetries: never, ContextTimeoutEnabled: true, DisableIdentity: true,
		DialTimeout: t.DialTimeout, ReadTimeout: t.CallTimeout, WriteTimeout: t.CallTimeout,
		PoolSize: t.PoolSize,
	})
}

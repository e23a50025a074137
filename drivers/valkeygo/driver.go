package valkeygo

import (
	"net"

	"github.com/valkey-io/valkey-go"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/redisnode"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/redisurl"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/resp"
)

// Driver opens backends by URL. The zero Driver is ready.
type Driver struct{}

var _ driver.Driver = Driver{}

// Open reads cfg.DSN (see the package's documentation) and makes a client with settings for
// locks, which connects at the first call. Open's only I/O is reading certificates.
func (Driver) Open(cfg *driver.Config) (driver.Backend, error) {
	node, err := redisnode.Open("valkey", cfg, func(t *redisurl.Target, conns *resp.Conns) redisnode.Client {
		return newClient(options(t), t.Network, conns)
	})
	if err != nil {
		return nil, err
	}
	return &Backend{node}, nil
}

// options returns options for a client that gives every call its own connection while it is
// under way, so that an expired deadline closes only that connection, and that never retries:
// the driver retries where it is harmless.
func options(t *redisurl.Target) valkey.ClientOption {
	o := valkey.ClientOption{
		InitAddress: t.Addrs, Username: t.User, Password: t.Password, SelectDB: t.DB, TLSConfig: t.TLS,
		Dialer:                net.Dialer{Timeout: t.DialTimeout},
		ConnWriteTimeout:      max(t.CallTimeout, t.DialTimeout),
		DisableAutoPipelining: true,
		DisableRetry:          true,
		DisableCache:          true,
		BlockingPoolSize:      t.PoolSize + 1, // one more for pub/sub
		ClientSetInfo:         valkey.DisableClientSetInfo,
	}
	switch t.Topology {
	case redisurl.Sentinel:
		o.Sentinel = valkey.SentinelOption{
			MasterSet: t.Master, Username: t.SentinelUser, Password: t.SentinelPassword,
			Dialer: net.Dialer{Timeout: t.DialTimeout}, TLSConfig: t.TLS,
		}
	case redisurl.Single:
		o.ForceSingleClient = true
	}
	return o
}

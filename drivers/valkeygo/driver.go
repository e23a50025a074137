package valkeygo

import (
	"net"

	"github.com/valkey-io/valkey-go"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/redisnode"
)

// Driver opens backends by URL. The zero Driver is ready.
type Driver struct{}

var _ driver.Driver = Driver{}

// Open reads cfg.DSN, see the package's documentation. The client, with the
// settings that suit locks, connects at the first call: Open does no I/O but reading
// certificates.
func (Driver) Open(cfg *driver.Config) (driver.Backend, error) {
	node, err := redisnode.Open("valkey", cfg, func(t *redisnode.Target) redisnode.Client {
		return newClient(options(t), t.Network)
	})
	if err != nil {
		return nil, err
	}
	return &Backend{node}, nil
}

// options are of a client that gives every call a connection of its own while it is
// under way: an expired deadline closes that one, and nobody else's; and that tries
// nothing again by itself: the driver does that where it is harmless.
func options(t *redisnode.Target) valkey.ClientOption {
	o := valkey.ClientOption{
		InitAddress: t.Addrs, Username: t.User, Password: t.Password, SelectDB: t.DB, TLSConfig: t.TLS,
		Dialer:                net.Dialer{Timeout: t.DialTimeout},
		ConnWriteTimeout:      max(t.CallTimeout, t.DialTimeout),
		DisableAutoPipelining: true,
		DisableRetry:          true,
		DisableCache:          true,
		BlockingPoolSize:      t.PoolSize + 1, // one for pub/sub
		ClientSetInfo:         valkey.DisableClientSetInfo,
	}
	switch t.Topology {
	case redisnode.Sentinel:
		o.Sentinel = valkey.SentinelOption{
			MasterSet: t.Master, Username: t.SentinelUser, Password: t.SentinelPassword,
			Dialer: net.Dialer{Timeout: t.DialTimeout}, TLSConfig: t.TLS,
		}
	case redisnode.Single:
		o.ForceSingleClient = true
	}
	return o
}

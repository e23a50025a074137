package redisnode

import (
	"errors"

	"github.com/redlock-go/redlock/driver"
)

// Open makes a node of a URL, for the driver with this name; connect makes a client of
// what the URL says, which heeds deadlines, and does no I/O.
func Open(name string, cfg *driver.Config, connect func(*Target) Client) (*Node, error) {
	t, err := Parse(name, cfg.DSN)
	if err != nil {
		return nil, err
	}
	c := connect(t)
	n, err := New(Config{
		Client: c, Name: name, Addr: t.String(), Prefix: cfg.Prefix,
		CallTimeout: t.CallTimeout, Grace: t.Grace,
		Guard: t.Guard, Bootstrap: t.Bootstrap, StrictGuard: t.StrictGuard, Durable: t.Durable, DB: t.DB,
		Cluster: t.Topology == Cluster, Failover: t.Topology != Single,
		WaitReplicas: t.WaitReplicas, ForeignGap: t.ForeignGap, Connections: t.PoolSize, Direct: Direct{Heeds: true}, Event: cfg.Notify,
	})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return n, nil
}

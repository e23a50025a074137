package redisnode

import (
	"errors"

	"github.com/redlock-go/redlock/drivers/internal/redisnode/names"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/redisurl"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/resp"
)

// Open makes a node from a URL, for the driver with this name. connect makes a client from the
// parsed URL, and gets the connections of which the client must make each; the client must respect
// deadlines, and connect must do no I/O.
func Open(name string, cfg *driver.Config, connect func(*redisurl.Target, *resp.Conns) Client) (*Node, error) {
	t, err := redisurl.Parse(name, cfg.DSN)
	if err != nil {
		return nil, err
	}
	conns := resp.New(t.Password, t.SentinelPassword)
	c := connect(t, conns)
	n, err := New(Config{
		Client: c, Name: name, Addr: t.String(), Prefix: cfg.Prefix,
		CallTimeout: t.CallTimeout,
		Guard:       t.Guard, Bootstrap: t.Bootstrap, Durable: t.Durable, DB: t.DB,
		Cluster: t.Topology == redisurl.Cluster, Failover: t.Topology != redisurl.Single,
		WaitReplicas: t.WaitReplicas, ForeignGap: t.ForeignGap, Abandon: conns.Abandon, Notify: cfg.Notify,
	})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return n, nil
}

// New returns a node, or an *InvalidError. It does no I/O.
func New(cfg Config) (*Node, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, names: names.Prefix(cfg.Prefix), ending: make(chan struct{}), over: make(chan struct{})}
	n.serverMark, n.waiterChannels = n.names.Mark("", false), n.names.Own()
	n.guard = newGuard(&n.cfg, &n.wg)
	n.router = newRouter(n)
	n.queue = newWaitQueue(n)
	return n, nil
}

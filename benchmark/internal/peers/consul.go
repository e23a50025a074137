package peers

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/redlock-go/redlock/benchmark/internal/bench"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// overConsul returns the locks of Consul's client.
func overConsul() []bench.Contestant {
	return []bench.Contestant{{
		Name: "consul api", Client: "consul", Kind: bench.Peer, Waits: true,
		How:    "Lock of Consul's client with one session for each client, which lives on, on one server with its defaults, which writes every change to its disk",
		Serves: bench.One(server.KindConsul),
		Open: func(ctx context.Context, s *bench.Setup) (*bench.Client, error) {
			c, sent, err := bench.Consul(s.Addrs[0])
			if err != nil {
				return nil, err
			}
			const least = 10 * time.Second
			ttl := max(s.TTL, least).String()
			id, _, err := c.Session().Create(&api.SessionEntry{TTL: ttl}, (&api.WriteOptions{}).WithContext(ctx))
			if err != nil {
				return nil, err
			}
			end, ended := make(chan struct{}), make(chan error, 1)
			go func() { ended <- c.Session().RenewPeriodic(ttl, id, nil, end) }() // and destroys it
			return &bench.Client{Requests: sent, Close: func() error { close(end); return <-ended }, Lock: func(ctx context.Context, key string, wait bool) (func() error, error) {
				l, err := c.LockOpts(&api.LockOptions{Key: key, Session: id, LockTryOnce: !wait, LockWaitTime: time.Millisecond})
				if err != nil {
					return nil, err
				}
				lost, err := l.Lock(ctx.Done())
				if err == nil && lost == nil {
					err = errors.New("held")
				}
				return l.Unlock, err
			}}, nil
		},
	}}
}

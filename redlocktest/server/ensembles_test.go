//go:build unix

package server

import (
	"context"
	"errors"
	"testing"
)

// TestEnsemblesServeAfterAKillAndARestartWithoutMemory; the tests of nested modules, which use them, do
// not pass without this either.
func TestEnsemblesServeAfterAKillAndARestartWithoutMemory(t *testing.T) {
	Deep(t)
	for name, of := range map[string]struct {
		start func() *Group
		ready func(context.Context, *Server, *process) error
	}{
		"etcd":      {func() *Group { return Etcd(t, 3, WithTLS(), WithClientCerts()) }, readyEtcd},
		"zookeeper": {func() *Group { return ZooKeeper(t, 3) }, readyZooKeeper},
		"consul":    {func() *Group { return Consul(t, 3) }, readyConsul},
		"nats":      {func() *Group { return NATS(t, 3) }, readyNATS},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := of.start()
			minority := func() error {
				err := g.KillMajority()
				for _, s := range g.Nodes {
					if of.ready(t.Context(), s, nil) == nil && name != "etcd" {
						t.Errorf("%s serves without a majority", s.Addr())
					}
				}
				return errors.Join(err, g.Start())
			}
			for _, again := range []func() error{g.RestartEmpty, minority, func() error { return errors.Join(g.Kill(), g.Start()) }} {
				must(t, again())
				for _, s := range g.Nodes {
					must(t, poll(t.Context(), func(ctx context.Context) error { return of.ready(ctx, s, nil) }))
				}
			}
		})
	}
}

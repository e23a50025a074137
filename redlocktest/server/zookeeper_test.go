//go:build unix

package server

import (
	"context"
	"errors"
	"testing"
)

func TestZooKeeperMembersServeAfterAKillAndARestartWithoutMemory(t *testing.T) {
	t.Parallel()
	forOtherModules(t)
	g := ZooKeeper(t, 3)
	minority := func() error {
		err := g.KillMajority()
		for _, s := range g.Nodes {
			if (zookeeper{}).ready(t.Context(), s, nil) == nil {
				t.Errorf("%s serves without a majority", s.Addr())
			}
		}
		return errors.Join(err, g.Start())
	}
	for _, again := range []func() error{g.RestartEmpty, minority, func() error { return errors.Join(g.Kill(), g.Start()) }} {
		must(t, again())
		for _, s := range g.Nodes {
			must(t, poll(t.Context(), func(ctx context.Context) error { return zookeeper{}.ready(ctx, s, nil) }))
			if want := "zk://alice:pw@" + s.Addr(); s.URLFor("alice", "pw") != want {
				t.Errorf("URL %s, want %s", s.URLFor("alice", "pw"), want)
			}
		}
	}
}

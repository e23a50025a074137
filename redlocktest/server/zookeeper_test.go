//go:build unix

package server

import (
	"errors"
	"testing"
)

func TestZooKeeperMembersServeAfterAKillAndARestartWithoutMemory(t *testing.T) {
	t.Parallel()
	forOtherModules(t)
	g := ZooKeeper(t, 3)
	for _, again := range []func() error{g.RestartEmpty, func() error { return errors.Join(g.Kill(), g.Start()) }} {
		must(t, again())
		for _, s := range g.Nodes {
			must(t, zookeeper{}.ready(t.Context(), s, nil))
			if want := "zk://alice:pw@" + s.Addr(); s.URLFor("alice", "pw") != want {
				t.Errorf("URL %s, want %s", s.URLFor("alice", "pw"), want)
			}
		}
	}
}

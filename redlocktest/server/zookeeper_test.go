//go:build unix

package server

import (
	"errors"
	"testing"
)

func TestZooKeeperMembersServeAfterAKillAndARestartWithoutMemory(t *testing.T) {
	t.Parallel()
	members := 3
	if testing.Short() {
		members = 1
	}
	g := ZooKeeper(t, members)
	for _, again := range []func() error{func() error { return errors.Join(g.Kill(), g.Start()) }, g.RestartEmpty} {
		must(t, again())
		for _, s := range g.Nodes {
			must(t, zookeeper{}.ready(t.Context(), s, nil))
			if want := "zk://alice:pw@" + s.Addr(); s.URLFor("alice", "pw") != want {
				t.Errorf("URL %s, want %s", s.URLFor("alice", "pw"), want)
			}
		}
	}
}

package zookeeper_test

import (
	"testing"

	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func TestAnErrorSaysEachFactOnce(t *testing.T) {
	t.Parallel()
	g := server.ZooKeeper(t, 1)
	drivertest.RunErrors(t, open(t, "zk://"+g.Addrs()[0]+"?call_timeout=500ms"), "zookeeper", g.Pause, g.Resume)
}

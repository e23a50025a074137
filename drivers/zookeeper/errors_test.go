package zookeeper_test

import (
	"errors"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func TestAnErrorSaysEachFactOnce(t *testing.T) {
	t.Parallel()
	way := fault.NewProxy(t, single(t).Addrs()[0])
	b := open(t, "zk://"+way.Addr()+"/"+t.Name()+"?call_timeout=500ms")
	drivertest.RunErrors(t, b, "zookeeper", func() error { way.Pause(); return nil }, func() error { way.Resume(); return nil })
}

// TestAServerThatKnowsNoPasswordsRefuses: it ends the connection, and every later one.
func TestAServerThatKnowsNoPasswordsRefuses(t *testing.T) {
	t.Parallel()
	g := server.ZooKeeper(t, 1, server.WithArgs("-Dzookeeper.DigestAuthenticationProvider.enabled=false"))
	b := open(t, "zk://app:secret@"+g.Addrs()[0]+"?call_timeout=30s")
	if _, err := b.Acquire(t.Context(), drivertest.NewRequest("k", time.Minute)); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("Acquire: %v", err)
	}
}

package zookeeper_test

import (
	"testing"

	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/fault"
)

func TestAnErrorSaysEachFactOnce(t *testing.T) {
	t.Parallel()
	way := fault.NewProxy(t, single(t).Addrs()[0])
	b := open(t, "zk://"+way.Addr()+"/"+t.Name()+"?call_timeout=500ms")
	drivertest.RunErrors(t, b, "zookeeper", func() error { way.Pause(); return nil }, func() error { way.Resume(); return nil })
}

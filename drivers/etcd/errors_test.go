package etcd_test

import (
	"testing"

	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func TestAnErrorSaysEachFactOnce(t *testing.T) {
	t.Parallel()
	g := server.Etcd(t, 1)
	drivertest.RunErrors(t, open(t, "etcd://"+g.Addrs()[0]+"?call_timeout=500ms"), "etcd", g.Pause, g.Resume)
}

package zookeeper_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/zookeeper"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func TestAnErrorSaysEachFactOnce(t *testing.T) {
	t.Parallel()
	way := fault.NewProxy(t, single(t).Addrs()[0])
	b := open(t, "zk://"+way.Addr()+"/"+t.Name()+"?call_timeout=500ms")
	drivertest.RunErrors(t, b, "zookeeper", func() error { way.Pause(); return nil }, func() error { way.Resume(); return nil })
}

// TestWhichErrorsSettleARequest: a server's failure, or an answer that it was too busy, does not. What
// the request was to remove may be there still, and another try may remove it.
func TestWhichErrorsSettleARequest(t *testing.T) {
	t.Parallel()
	for code, want := range map[int32]bool{
		-101: true, -102: true, -103: true, -110: true, -111: true, -114: true, -8: true,
		-1: false, -2: false, -3: false, -4: false, -5: false, -7: false, -115: false, -122: false, -127: false,
	} {
		if zookeeper.Definite(code) != want {
			t.Errorf("error %d settles a request: %v", code, !want)
		}
	}
}

// TestRequestsOutnumberTheirNumbers: the numbers of requests begin anew before they are negative, which
// stand for other answers.
func TestRequestsOutnumberTheirNumbers(t *testing.T) {
	t.Parallel()
	b := open(t, patientURL(single(t)))
	l := drivertest.Grant(t, b, drivertest.NewRequest(t.Name(), time.Minute))
	b.SetRequest(math.MaxInt32 - 2)
	for range 5 {
		drivertest.Renew(t, l, time.Minute)
	}
	drivertest.Release(t, l)
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

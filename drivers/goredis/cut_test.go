package goredis_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// The server ends all connections, as in a restart, just after it has answered on each: the next call meets one of
// them at most, and is made again on a new one.
func TestACallOutlivesTheEndOfAllConnections(t *testing.T) {
	t.Parallel()
	p := fault.NewProxy(t, server.Redis(t).Addr())
	p.RTT(5 * time.Millisecond) // so that there are several
	b, err := goredis.Driver{}.Open(&driver.Config{DSN: "redis://" + p.Addr() + "?call_timeout=1m"})
	drivertest.Must(t, err)
	defer func() { _ = b.Close() }()
	for round := range 20 {
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				l, err := b.Acquire(t.Context(), &driver.Request{Key: fmt.Sprint("k", i), Owner: fmt.Sprintf("o/%d.%d", round, i), TTL: time.Minute})
				if err == nil {
					err = l.Release(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		p.CutAll()
		l, err := b.Acquire(t.Context(), &driver.Request{Key: "k", Owner: fmt.Sprintf("o/%d", round), TTL: time.Minute})
		drivertest.Must(t, err)
		drivertest.Must(t, l.Release(t.Context()))
	}
}

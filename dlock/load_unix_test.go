//go:build unix

package dlock_test

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/redlocktest/server"
)

var load = struct {
	time   *time.Duration
	leases *int
	ttl    *time.Duration
	busy   *int
}{
	flag.Duration("load", 0, "hold -load.leases on a Redis for so long; zero: do not"),
	flag.Int("load.leases", 10_000, "how many leases to hold"),
	flag.Duration("load.ttl", 10*time.Second, "their TTL"),
	flag.Int("load.busy", 64, "how many goroutines lock and unlock meanwhile"),
}

// cpu is the processor time that this process has taken.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // fails for bad arguments alone
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Many leases live on a Redis while many goroutines lock and unlock: none is lost, and the
// goroutines that renew are few. It takes a machine of its own, and so a flag: go test -run
// ManyLeasesLive ./dlock -load 1m -load.leases 1000 -load.ttl 1s.
func TestManyLeasesLiveOnABusyRedis(t *testing.T) {
	if *load.time == 0 {
		t.Skip("without -load")
	}
	s := server.Redis(t)
	c, err := dlock.OpenURL("redis://"+s.Addr()+"/0", dlock.WithLogger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for j := i; j < *load.leases; j += 64 {
				if _, err := c.Lock(t.Context(), fmt.Sprint("held/", j), dlock.WithTTL(*load.ttl), dlock.WithMaxHold(0)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), *load.time)
	defer cancel()
	before, began, idle := c.Stats(), cpu(), runtime.NumGoroutine()
	var pairs atomic.Int64
	for i := range *load.busy {
		wg.Go(func() {
			for ctx.Err() == nil {
				l, err := c.Lock(ctx, fmt.Sprint("busy/", i))
				if err == nil {
					_ = l.Unlock()
					pairs.Add(1)
				}
			}
		})
	}
	most := 0
	for tick := time.NewTicker(time.Millisecond); ctx.Err() == nil; <-tick.C {
		most = max(most, runtime.NumGoroutine())
	}
	took := cpu() - began
	wg.Wait()
	st := c.Stats()
	t.Logf("%d leases with a TTL of %v for %v beside %d goroutines: %d lost, %d renewals, %d failed; %d goroutines beyond those at most; %d pairs; %v of processor time",
		*load.leases, *load.ttl, *load.time, *load.busy, st.Lost, st.Renewed-before.Renewed, st.RenewalFailed, most-idle-*load.busy, pairs.Load(), took.Round(time.Millisecond))
	if st.Lost != before.Lost {
		t.Errorf("%d leases were lost", st.Lost)
	}
	if more := most - idle - *load.busy; more > 600 {
		t.Errorf("%d goroutines more than those that lock", more)
	}
}

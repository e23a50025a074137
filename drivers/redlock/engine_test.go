package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/fault"
)

// Locks are taken and released while a minority is killed, stopped or black-holed.
func TestAMinorityMayFail(t *testing.T) {
	long(t)
	t.Parallel()
	c := start(t, 5)
	for name, f := range map[string]struct{ harm, heal func(i int) error }{
		"killed":     {func(i int) error { return c.servers[i].Kill() }, func(i int) error { return c.servers[i].Start() }},
		"stopped":    {func(i int) error { return c.servers[i].Pause() }, func(i int) error { return c.servers[i].Resume() }},
		"black hole": {func(i int) error { c.proxies[i].BlackHole(); return nil }, func(i int) error { return c.proxies[i].Restore() }},
	} {
		t.Run(name, func(t *testing.T) {
			b := c.open("", unguarded)
			for _, i := range []int{1, 4} {
				drivertest.Must(t, f.harm(i))
			}
			var last uint64
			for range 50 {
				l := c.hold(b, "minority/"+name, 10*time.Second)
				if f := l.Grant().Fence; f <= last {
					t.Fatalf("token %d after %d", f, last)
				} else {
					last = f
				}
				c.release(l)
			}
			for _, i := range []int{1, 4} {
				drivertest.Must(t, f.heal(i))
			}
			c.gone("minority/"+name, 20*time.Second)
		})
	}
}

// A node that never answers is skipped, costs a bounded number of goroutines, and none after Close.
func TestABlackHoleCostsABoundedNumberOfGoroutines(t *testing.T) {
	long(t)
	c := start(t, 5)
	idle := runtime.NumGoroutine()
	b, err := dlock.OpenBackend(c.url("", unguarded))
	drivertest.Must(t, err)
	c.proxies[2].BlackHole()
	const locks = 8000
	var most, failed atomic.Int64
	parallel(16, locks, func(i int) {
		l, err := b.Acquire(context.Background(), ask(fmt.Sprint("bounded/", i), 5*time.Second))
		if err == nil {
			err = l.Release(context.Background())
		}
		if err != nil { // four nodes did not answer in time: the machine is busy
			failed.Add(1)
		}
		w := int64(runtime.NumGoroutine() - idle)
		for m := most.Load(); w > m && !most.CompareAndSwap(m, w); m = most.Load() {
		}
	})
	t.Logf("%d of %d locks failed, at most %d goroutines more", failed.Load(), locks, most.Load())
	if failed.Load() > locks/2 {
		t.Errorf("%d of %d locks failed", failed.Load(), locks)
	}
	if most.Load() > locks/2 { // those before the node is skipped may have one each
		t.Errorf("there were %d goroutines more", most.Load())
	}
	if err := errors.Join(b.Close(), c.proxies[2].Restore()); err != nil {
		t.Error(err)
	}
	c.until(func() error {
		buf := make([]byte, 1<<20)
		stacks := string(buf[:runtime.Stack(buf, true)])
		if strings.Contains(stacks, "drivers/redlock.(*node") || strings.Contains(stacks, "goredis.") {
			return fmt.Errorf("after Close (%d goroutines at first):\n%s", idle, stacks)
		}
		return nil
	})
}

// However an attempt ends, with a slow node too, no key is left after the bound of G4.
func TestNoOrphans(t *testing.T) {
	t.Parallel()
	c := start(t, 5)
	b := c.open("ABCD", unguarded, calm)
	c.proxies[4].Delay(fault.ToClient, 10*time.Millisecond, 30*time.Millisecond)
	const ttl, soon = time.Minute, 20 * time.Second
	cycles, many := 60, 1000
	if testing.Short() {
		many = 100
	}
	for i := range cycles {
		l, err := b.Acquire(t.Context(), ask("cycle", ttl))
		if err != nil {
			t.Fatalf("cycle %d: %v", i, err)
		}
		drivertest.Must(t, l.Release(t.Context()))
	}
	c.gone("cycle", soon)

	for range many {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(rand.N(2*time.Millisecond), cancel)
		if l, err := b.Acquire(ctx, ask("cancelled", ttl)); err == nil {
			drivertest.Must(t, l.Release(ctx))
		}
		cancel()
	}
	c.gone("cancelled", soon)
}

// A holder that is cut off knows before another owner has the lock.
func TestAPartitionedHolderKnowsFirst(t *testing.T) {
	t.Parallel()
	drivertest.RunLoss(t, start(t, 3).harness(), 2*time.Second)
}

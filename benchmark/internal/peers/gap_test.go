package peers

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-redsync/redsync/v4"

	"github.com/redlock-go/redlock/dlock"
	_ "github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/redlocktest/server"
)

var gapFor = flag.Duration("gap", 0, "for how long 16 waiters of ours and one of redsync share a key, without and with foreign_gap; 0: do not")

// This measures how often redsync, with its defaults, gets a key for which 16 waiters of ours
// always wait, and how much foreign_gap costs ours.
func TestRedsyncBesideOurWaiters(t *testing.T) {
	if *gapFor == 0 {
		t.Skip("it measures: give -gap 10s to run it")
	}
	srv := server.Redis(t)
	for _, gap := range []string{"", "?foreign_gap=250ms"} {
		ctx, cancel := context.WithTimeout(t.Context(), *gapFor)
		var wg sync.WaitGroup
		var ours, theirs atomic.Int64
		for range 16 { // like processes: each has its own client
			c, err := dlock.OpenURL(fmt.Sprintf("redis://%s%s", srv.Addr(), gap))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			wg.Go(func() {
				for ctx.Err() == nil {
					l, err := c.Lock(ctx, "shared")
					if err != nil {
						continue
					}
					ours.Add(1)
					if err := l.Unlock(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		pool, end, err := goRedisPool(srv.Addr())
		if err != nil {
			t.Fatal(err)
		}
		rs := redsync.New(pool)
		wg.Go(func() {
			for ctx.Err() == nil {
				m := rs.NewMutex("shared")
				if m.LockContext(ctx) != nil {
					continue
				}
				theirs.Add(1)
				if _, err := m.Unlock(); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Wait()
		cancel()
		if err := end(); err != nil {
			t.Error(err)
		}
		t.Logf("redis://…%s: %.0f locks a second of ours, %.1f of redsync's", gap, float64(ours.Load())/gapFor.Seconds(), float64(theirs.Load())/gapFor.Seconds())
		if gap != "" && theirs.Load() < int64(gapFor.Seconds()) {
			t.Errorf("redsync got %d locks in %v", theirs.Load(), *gapFor)
		}
	}
}

package goredis_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// hammered is what one client got of a hot key.
type hammered struct {
	locks   int64
	longest time.Duration // that a call of Lock took
	tokens  []uint64
}

// hammer lets goroutines of each client take one key, again and again, for d.
func hammer(t *testing.T, d time.Duration, goroutines int, clients ...*dlock.Client) []*hammered {
	t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var holders atomic.Int64
	got := make([]*hammered, len(clients))
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	for i, c := range clients {
		h := &hammered{}
		got[i] = h
		for range goroutines {
			wg.Go(func() {
				for {
					start := time.Now()
					l, err := c.Lock(ctx, "hot")
					if ctx.Err() != nil {
						if err == nil {
							_ = l.Unlock()
						}
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					if n := holders.Add(1); n > 1 {
						t.Errorf("%d have the lock", n)
					}
					mu.Lock()
					h.locks++
					h.longest = max(h.longest, time.Since(start))
					h.tokens = append(h.tokens, l.Fence())
					mu.Unlock()
					holders.Add(-1)
					if err := l.Unlock(); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	return got
}

func open(t *testing.T, addr string, opts ...dlock.Option) *dlock.Client {
	t.Helper()
	c, err := dlock.OpenURL("redis://"+addr, append(opts, dlock.WithLogger(nil))...)
	drivertest.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestAHotKeyIsPassedOn: a lock that is passed on costs the server no script, and tokens rise. How many locks a
// tenure has depends on what else the machine does, so the test ends at a round with eight in each, of two scripts.
func TestAHotKeyIsPassedOn(t *testing.T) {
	server.Deep(t)
	srv := server.Redis(t)
	last := uint64(0)
	round := func(c *dlock.Client) (locks, scripts int64) {
		t.Helper()
		_, err := srv.Do("CONFIG", "RESETSTAT")
		drivertest.Must(t, err)
		got := hammer(t, 400*time.Millisecond, 64, c)[0]
		for _, token := range got.tokens {
			if token <= last {
				t.Fatalf("token %d after %d", token, last)
			}
			last = token
		}
		stats, err := srv.Do("INFO", "commandstats")
		drivertest.Must(t, err)
		if _, calls, some := strings.Cut(fmt.Sprint(stats), "cmdstat_evalsha:calls="); some { // in a round on a busy machine there may be none
			_, err = fmt.Sscanf(calls, "%d,", &scripts)
			drivertest.Must(t, err)
		}
		return got.locks, scripts
	}
	for c, some := open(t, srv.Addr(), dlock.WithPassOn(0)), false; !some; {
		locks, scripts := round(c)
		if scripts < 2*locks {
			t.Errorf("%d locks that were never passed on took %d scripts", locks, scripts)
		}
		some = locks > 0
	}
	for c := open(t, srv.Addr()); ; {
		if locks, scripts := round(c); locks > 0 && locks >= 4*scripts {
			return
		}
	}
}

// TestClientsShareAHotKey: a client passes its lock on for a while, and then another one has it.
func TestClientsShareAHotKey(t *testing.T) {
	server.Deep(t)
	addr := server.Redis(t).Addr()
	for _, n := range []int{2, 8} {
		var clients []*dlock.Client
		for range n {
			clients = append(clients, open(t, addr))
		}
		got, all := hammer(t, 5*time.Second, 64/n, clients...), int64(0)
		for _, h := range got {
			all += h.locks
		}
		for _, h := range got {
			share := float64(h.locks) / float64(all)
			t.Logf("%d clients: %d of %d locks (%.0f %%), the longest wait: %v", n, h.locks, all, 100*share, h.longest)
			if even := 1 / float64(n); share < even/2 || share > 2*even {
				t.Errorf("one of %d clients got %.0f %% of the locks", n, 100*share)
			}
		}
	}
}

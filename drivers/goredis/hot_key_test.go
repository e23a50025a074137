package goredis_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/fault"
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

// TestAHotKeyIsPassedOn: what passing a lock on gains, by the best of rounds that take turns, and that
// its tokens rise.
func TestAHotKeyIsPassedOn(t *testing.T) {
	server.Deep(t)
	addr := server.Redis(t).Addr()
	far := fault.NewProxy(t, addr)
	far.RTT(time.Millisecond)
	for name, tt := range map[string]struct {
		addr  string
		least float64
	}{"loopback": {addr, 8}, "a link of 1 ms": {far.Addr(), 50}} {
		const round = 400 * time.Millisecond
		clients := []*dlock.Client{open(t, tt.addr, dlock.WithPassOn(0)), open(t, tt.addr)}
		var best [2]float64 // locks a second
		last := uint64(0)
		for range 8 {
			for i, c := range clients {
				got := hammer(t, round, 64, c)[0]
				best[i] = max(best[i], float64(got.locks)/round.Seconds())
				for _, token := range got.tokens {
					if token <= last {
						t.Fatalf("%s: token %d after %d", name, token, last)
					}
					last = token
				}
			}
		}
		gain := best[1] / best[0]
		t.Logf("%s: %.0f locks a second, and %.0f without passing on: %.0f times", name, best[1], best[0], gain)
		if gain < tt.least {
			t.Errorf("%s: passing on gains %.1f times, want %v", name, gain, tt.least)
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

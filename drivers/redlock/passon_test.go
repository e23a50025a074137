package redlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// Tokens of locks that clients pass on within themselves are distinct and in order, though clients are
// cut off in the middle of their ranges for longer than the TTL, servers are killed one at a time, and
// the counters are ahead of the clock.
func TestTokensOfPassedLocksUnderKills(t *testing.T) {
	server.Deep(t)
	t.Parallel()
	const clients, callers, ttl = 3, 8, time.Second
	c := start(t, 3, server.WithAppendOnly("always"))
	for i := range c.servers { // then the clock raises no token
		c.do(i, "SET", "redlock1:fence:{hot}", fmt.Sprint(time.Now().Add(time.Hour).UnixMicro()), "PX", "600000")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var mu sync.Mutex
	var largest uint64
	lost, tokens := 0, map[uint64]bool{}
	var stats dlock.Stats
	var all sync.WaitGroup
	for range clients {
		view := &cluster{t: t, servers: c.servers}
		for _, s := range c.servers {
			view.proxies = append(view.proxies, fault.NewProxy(t, s.Addr()))
		}
		client, err := dlock.New(view.open("", unguarded, "node_timeout=300ms"), dlock.WithTTL(ttl))
		drivertest.Must(t, err)
		var work sync.WaitGroup
		for range callers {
			work.Go(func() {
				for ctx.Err() == nil {
					mu.Lock()
					before := largest
					mu.Unlock()
					l, err := client.Lock(ctx, "hot")
					if err != nil {
						continue
					}
					mu.Lock()
					switch f := l.Fence(); {
					case tokens[f]:
						t.Errorf("token %d was given twice", f)
					case f <= before:
						t.Errorf("token %d was given after %d had been returned", f, before)
					default:
						tokens[f], largest = true, max(largest, f)
					}
					mu.Unlock()
					if l.Unlock() != nil {
						mu.Lock()
						lost++
						mu.Unlock()
					}
				}
			})
		}
		work.Go(func() { // as if the machine had died, which has the lock or waits for it
			for pause(ctx, time.Second+rand.N(3*time.Second)) {
				for _, p := range view.proxies {
					p.BlackHole()
				}
				pause(ctx, 2*ttl)
				for _, p := range view.proxies {
					if err := p.Restore(); err != nil {
						t.Error(err)
					}
				}
			}
		})
		all.Go(func() {
			work.Wait()
			mu.Lock()
			defer mu.Unlock()
			s := client.Stats()
			stats.Acquired, stats.Passed = stats.Acquired+s.Acquired, stats.Passed+s.Passed
			_ = client.Close()
		})
	}
	for pause(ctx, rand.N(time.Second)) {
		s := c.servers[rand.IntN(len(c.servers))]
		drivertest.Must(t, s.Kill())
		pause(ctx, rand.N(time.Second))
		drivertest.Must(t, s.Start())
	}
	all.Wait()
	t.Logf("%d grants, %d passes, %d lost", stats.Acquired, stats.Passed, lost)
	if stats.Acquired < 50 || stats.Passed < stats.Acquired || lost == 0 {
		t.Errorf("%d grants, %d passes, %d lost: nothing was tried", stats.Acquired, stats.Passed, lost)
	}
}

// pause waits, and reports whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

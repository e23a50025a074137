package dlock_test

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// On real backends: clients that come and go, some of which let their leases run out, never
// hold too many slots, use all slots, and take a slot that another client frees. With -short on
// a file and one server.
func TestSlotsOnServers(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]func(t *testing.T) string{
		"file":     func(t *testing.T) string { return "file://" + filepath.ToSlash(t.TempDir()) },
		"redis":    func(t *testing.T) string { return server.Redis(t).URL() },
		"valkey":   func(t *testing.T) string { return server.Valkey(t).URL() },
		"postgres": func(t *testing.T) string { return server.Postgres(t).URL() },
		"quorum": func(t *testing.T) string {
			return "redlock:" + server.Redis(t).URL() + "," + server.Redis(t).URL() + "," + server.Redis(t).URL() + ",restart_guard=off"
		},
	} {
		if testing.Short() && name != "file" && name != "redis" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := url(t)
			client := func() *dlock.Client {
				c, err := dlock.OpenURL(url, dlock.WithLogger(nil))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = c.Close() })
				return c
			}
			neverMoreThan(t, 20, client)
			takenWhenFreed(t, 20, client)
		})
	}
}

func neverMoreThan(t *testing.T, n int, client func() *dlock.Client) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	start, mixed := time.Now(), 5*time.Second
	if testing.Short() {
		mixed = time.Second
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	holding, most, grants := map[*dlock.Lease]bool{}, 0, 0
	for range 3 {
		c := client()
		for range n/2 + 1 {
			wg.Go(func() {
				for ctx.Err() == nil {
					gather := time.Since(start) > mixed // no slot is given back until all are held
					hold := time.Minute
					if !gather && rand.IntN(3) == 0 { // lost while it is held
						hold = 150 * time.Millisecond
					}
					l, err := c.Lock(ctx, "slots", dlock.WithSlots(n), dlock.WithMaxHold(hold))
					if err != nil {
						continue
					}
					mu.Lock()
					grants++
					holding[l] = true
					valid := map[int]bool{}
					for other := range holding {
						if other.Err() != nil {
							delete(holding, other)
						} else if valid[other.Slot()] {
							t.Errorf("slot %d of %d has two holders", other.Slot(), n)
						} else {
							valid[other.Slot()] = true
						}
					}
					most = max(most, len(valid))
					if most == n && time.Since(start) > time.Second {
						cancel()
					}
					mu.Unlock()
					time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond)
					for gather && ctx.Err() == nil && l.Err() == nil {
						time.Sleep(10 * time.Millisecond)
					}
					_ = l.Unlock()
				}
			})
		}
	}
	wg.Wait()
	if most != n {
		t.Errorf("%d of %d slots were used", most, n)
	}
	t.Logf("%d slots: %d grants", n, grants)
}

func takenWhenFreed(t *testing.T, n int, client func() *dlock.Client) {
	holder, waiter := client(), client()
	var leases []*dlock.Lease
	for range n {
		leases = append(leases, lock(t, holder, "freed", dlock.WithSlots(n)))
	}
	for range 3 {
		i := rand.IntN(n)
		got := make(chan *dlock.Lease)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		go func() {
			l, err := waiter.Lock(ctx, "freed", dlock.WithSlots(n))
			if err != nil {
				t.Error(err)
			}
			got <- l
		}()
		for waiter.Stats().Waiting == 0 {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
		unlock(t, leases[i])
		freed := time.Now()
		if leases[i] = <-got; leases[i] == nil {
			return
		}
		t.Logf("taken after %v", time.Since(freed))
	}
	for _, l := range leases {
		unlock(t, l)
	}
}

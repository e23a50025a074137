package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/redlock"
	"github.com/redlock-go/redlock/redlocktest/fault"
)

var owners atomic.Int64

func ask(key string, ttl time.Duration) *driver.Request {
	return &driver.Request{Key: key, Owner: fmt.Sprintf("test/%d", owners.Add(1)), TTL: ttl}
}

// calm is a node timeout that suffices on a busy machine, for tests that are not about silent
// nodes. A cluster's nodes use it as their call timeout too.
const calm = "node_timeout=5s"

// long skips a test that takes long if -short is given. -short keeps the simulation, the rules
// of terms.go, the conformance suite and one test of each kind of fault.
func long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("short: it takes seconds")
	}
}

// release releases a lease, again and again until enough nodes confirm it.
func (c *cluster) release(l driver.Lease) {
	c.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(poll) {
		err := l.Release(c.t.Context())
		if err == nil || errors.Is(err, driver.ErrLost) {
			return
		}
		if time.Now().After(end) {
			c.t.Fatal(err)
		}
	}
}

// poll is how often a test looks whether something has happened.
const poll = 5 * time.Millisecond

// whenFree takes the lock as soon as it is free.
func (c *cluster) whenFree(b *redlock.Backend, key string, ttl time.Duration) driver.Lease {
	c.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(poll) {
		l, err := b.Acquire(c.t.Context(), ask(key, ttl))
		if err == nil {
			return l
		}
		if time.Now().After(end) {
			c.t.Fatal(err)
		}
	}
}

// renew renews a lease, and fails the test if no attempt succeeds before its deadline.
func (c *cluster) renew(l driver.Lease, ttl time.Duration) {
	c.t.Helper()
	for ; ; time.Sleep(poll) {
		_, err := l.Renew(c.t.Context(), &driver.Renewal{TTL: ttl})
		if err == nil {
			return
		}
		if errors.Is(err, driver.ErrLost) || time.Now().After(l.Grant().Expires) {
			c.t.Fatal(err)
		}
	}
}

// Locks are taken and released while a minority is killed, stopped or black-holed.
func TestAMinorityMayFail(t *testing.T) {
	long(t)
	t.Parallel()
	c := start(t, 5, "redis", "valkey")
	for name, f := range map[string]struct{ harm, heal func(i int) error }{
		"killed":     {func(i int) error { return c.servers[i].Kill() }, func(i int) error { return c.servers[i].Start() }},
		"stopped":    {func(i int) error { return c.servers[i].Pause() }, func(i int) error { return c.servers[i].Resume() }},
		"black hole": {func(i int) error { c.proxies[i].BlackHole(); return nil }, func(i int) error { return c.proxies[i].Restore() }},
	} {
		t.Run(name, func(t *testing.T) {
			b := c.open(true)
			for _, i := range []int{1, 4} {
				if err := f.harm(i); err != nil {
					t.Fatal(err)
				}
			}
			var last uint64
			for range 50 {
				l := c.whenFree(b, "minority/"+name, 10*time.Second)
				if f := l.Grant().Fence; f <= last {
					t.Fatalf("token %d after %d", f, last)
				} else {
					last = f
				}
				c.release(l)
			}
			for _, i := range []int{1, 4} {
				if err := f.heal(i); err != nil {
					t.Fatal(err)
				}
			}
			c.gone("minority/"+name, 20*time.Second)
		})
	}
}

// A node that never answers is skipped, costs a bounded number of goroutines, and none after Close.
func TestABlackHoleCostsABoundedNumberOfGoroutines(t *testing.T) {
	long(t)
	c := start(t, 5, "redis")
	idle := runtime.NumGoroutine()
	b, err := dlock.OpenBackend(c.url(true))
	if err != nil {
		t.Fatal(err)
	}
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
	for ; ; time.Sleep(poll) {
		buf := make([]byte, 1<<20)
		stacks := string(buf[:runtime.Stack(buf, true)])
		if !strings.Contains(stacks, "drivers/redlock.(*node") && !strings.Contains(stacks, "goredis.") {
			break
		}
		if time.Now().After(limit()) {
			t.Fatalf("after Close (%d goroutines at first):\n%s", idle, stacks)
		}
	}
}

// However an attempt ends, with a slow node too, no key is left after the bound of G4.
func TestNoOrphans(t *testing.T) {
	t.Parallel()
	c := start(t, 5, "redis", "valkey")
	url := c.urlThrough(func(i int) bool { return i == 4 }, calm)
	b, other := c.openURL(url), c.openURL(url)
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
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	c.gone("cycle", soon)

	for range many {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(rand.N(2*time.Millisecond), cancel)
		if l, err := b.Acquire(ctx, ask("cancelled", ttl)); err == nil {
			if err := l.Release(ctx); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
	}
	c.gone("cancelled", soon)

	l, err := other.Acquire(t.Context(), ask("race", ttl))
	if err != nil {
		t.Fatal(err)
	}
	for range many {
		rival, err := b.Acquire(t.Context(), ask("race", ttl))
		if err != nil {
			continue
		}
		if time.Now().Before(l.Grant().Expires) {
			t.Fatal("two holders")
		}
		if err := rival.Release(t.Context()); err != nil { // on a busy machine the attempts outlast the lease
			t.Fatal(err)
		}
		break
	}
	if err := l.Release(t.Context()); err != nil && !errors.Is(err, driver.ErrLost) {
		t.Fatal(err)
	}
	c.gone("race", soon)
}

// If a holder is cut off, its Done channel closes before another owner has the lock.
func TestAPartitionedHolderKnowsFirst(t *testing.T) {
	t.Parallel()
	c := start(t, 3, "redis")
	trials := 200
	if testing.Short() {
		trials = 10
	}
	const ttl = 2 * time.Second
	cut, err := dlock.OpenURL(c.url(true), dlock.WithTTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cut.Close() }() // its servers cannot be reached
	other, err := dlock.OpenURL(c.url(false), dlock.WithTTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	var all sync.WaitGroup
	holders := make([]*dlock.Lease, trials)
	for i := range trials {
		if holders[i], err = cut.Lock(t.Context(), fmt.Sprint("part/", i)); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range c.proxies {
		p.Pause()
	}
	for i := range trials {
		all.Go(func() {
			l, err := other.Lock(t.Context(), fmt.Sprint("part/", i))
			if err != nil {
				t.Error(err)
				return
			}
			select {
			case <-holders[i].Done():
			default:
				t.Errorf("trial %d: granted to another owner while the holder's Done is open", i)
			}
			_ = l.Unlock() // if it fails, its short lease ends
		})
	}
	all.Wait()
	for _, p := range c.proxies {
		if err := p.Restore(); err != nil {
			t.Error(err)
		}
	}
}

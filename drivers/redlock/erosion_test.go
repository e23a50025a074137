package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A lease survives a row of minorities though other processes wait for it: each node is stopped in
// turn until it has lost the lease, twice, and carries it again, usually after two renewals. A
// waiting process is no burden meanwhile.
func TestALeaseOutlivesARowOfMinoritiesBesideWaiters(t *testing.T) {
	long(t)
	t.Parallel()
	ttl, waiters := time.Second, []int{1}
	if server.IsDeep() {
		ttl, waiters = 3*time.Second, []int{1, 3, 16}
	}
	for _, n := range waiters {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			for ttl, answer := ttl, 250*time.Millisecond; erode(t, ttl, answer, n); ttl, answer = 2*ttl, 2*answer {
				if time.Now().After(limit()) {
					t.Fatalf("this machine is too busy for a TTL of %v", ttl)
				}
				t.Logf("this machine stood still for a TTL of %v, or for an answer within %v: with twice of that", ttl, answer)
			}
		})
	}
}

// erode is one trial, with so many processes that wait; answer is the node timeout. It reports whether the
// lease ended because this process did not run, or did not get answers in time of the nodes that were not
// stopped, all of which carried the lease. A lease that nodes say is lost, or that ends before its
// deadline, fails the test.
func erode(t *testing.T, ttl, answer time.Duration, waiters int) (starved bool) {
	c := start(t, 5)
	// A vote with an unknown outcome, as there may be on a busy machine, delays its node by the guard.
	options := []string{"bootstrap=true", "restart_guard=" + (2 * ttl).String(), "node_timeout=" + answer.String()}
	var renewals atomic.Int64
	var last atomic.Pointer[dlock.Event] // renewal
	client := func(hooks dlock.Hooks) *dlock.Client {
		c, err := dlock.New(c.open(everyNode, options...), dlock.WithLogger(nil), dlock.WithHooks(hooks))
		drivertest.Must(t, err)
		return c
	}
	holder := client(dlock.Hooks{Event: func(_ context.Context, e dlock.Event) {
		if e.Op == "renew" {
			renewals.Add(1)
			last.Store(&e)
		}
	}})
	defer func() { _ = holder.Close() }()
	lease, err := holder.Lock(t.Context(), "k", dlock.WithTTL(ttl))
	drivertest.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	for range waiters {
		c := client(dlock.Hooks{})
		waiting.Go(func() {
			defer func() { _ = c.Close() }()
			if l, err := c.Lock(ctx, "k", dlock.WithTTL(ttl)); !errors.Is(err, context.Canceled) && lease.Err() == nil {
				t.Errorf("a waiter got %v, %v", l, err)
			}
		})
	}
	scripts := func() (n int) {
		t.Helper()
		for _, s := range c.servers {
			n += scriptCalls(t, s)
		}
		return n
	}
	whole := func() (after int64) {
		t.Helper()
		began := renewals.Load()
		c.until(func() error {
			if n := c.carriers("k", lease.Fence()); lease.Err() == nil && n < len(c.servers) {
				return fmt.Errorf("%d nodes carry the lease: %v", n, c.keys("k"))
			}
			return nil
		})
		return renewals.Load() - began
	}
	whole()
	began, before, renewed := time.Now(), scripts(), renewals.Load()
	late := 0
	for turn := range 2 {
		for i, s := range c.servers {
			drivertest.Must(t, s.Pause())
			select {
			case <-time.After(2 * ttl):
			case <-lease.Done():
			}
			drivertest.Must(t, s.Resume())
			n := whole()
			if err := lease.Err(); err != nil {
				e := last.Load()
				if e != nil && (errors.Is(e.Err, driver.ErrLost) || e.Err == nil && time.Until(e.Deadline) > 0) {
					t.Fatalf("%v, after the renewal %+v", err, e)
				}
				return true
			}
			t.Logf("turn %d, node %d: it carries the lease again after %d renewals", turn+1, i, n)
			if n > 3 { // one may have begun before the return
				late++
			}
		}
	}
	if late > len(c.servers) {
		t.Errorf("%d of %d times a node carries the lease again only after more than two renewals", late, 2*len(c.servers))
	}
	others := scripts() - before - len(c.servers)*int(renewals.Load()-renewed)
	rate := float64(others) / time.Since(began).Seconds() / float64(waiters)
	t.Logf("a waiting process ran %.2f scripts a second", rate)
	if rate*ttl.Seconds() > 9 { // 3 to 6.3, the most with 16 waiters: an attempt each time that the lease would have ended, and one or two at each stop
		t.Errorf("a waiting process ran %.1f scripts a second", rate)
	}
	return false
}

var evalsha = regexp.MustCompile(`cmdstat_evalsha:calls=(\d+)`)

// scriptCalls returns how many script calls a server has completed.
func scriptCalls(t *testing.T, s *server.Server) int {
	t.Helper()
	reply, err := s.Do("INFO", "commandstats")
	drivertest.Must(t, err)
	m := evalsha.FindStringSubmatch(fmt.Sprint(reply))
	if m == nil {
		return 0
	}
	n, err := strconv.Atoi(m[1])
	drivertest.Must(t, err)
	return n
}

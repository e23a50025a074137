package redlock_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/redlock"
	"github.com/redlock-go/redlock/redlocktest/server"
)

var waitersFlag = flag.Int("redlock.waiters", 1, "how many processes wait for the lease whose nodes are stopped")

// carriers counts the servers whose lock has this token.
func (f *fleet) carriers(key string, token uint64) (n int) {
	f.t.Helper()
	for i := range f.servers {
		if value := fmt.Sprint(f.do(i, "GET", key)); strings.HasSuffix(value, fmt.Sprintf("|%d", token)) {
			n++
		}
	}
	return n
}

// A lease survives a row of minorities though other processes wait for it: each node is stopped in
// turn until it has lost the lease, twice, and carries it again, usually after two renewals. A
// waiting process is no burden meanwhile.
func TestALeaseOutlivesARowOfMinoritiesBesideWaiters(t *testing.T) {
	long(t)
	t.Parallel()
	ttl := time.Second
	if server.IsDeep() {
		ttl *= 3
	}
	f := newFleet(t, 5)
	// A vote with an unknown outcome, as there may be on a busy machine, delays its node by the guard.
	o := redlock.Options{Bootstrap: true, Guard: 2 * ttl, NodeTimeout: 250 * time.Millisecond}
	client := func() *dlock.Client {
		b := f.quorum("", f.servers, 5, o)
		c, err := dlock.New(b, dlock.WithLogger(nil))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	var renewals atomic.Int64
	holder, err := dlock.New(f.quorum("", f.servers, 5, o), dlock.WithLogger(nil),
		dlock.WithHooks(dlock.Hooks{Event: func(_ context.Context, e dlock.Event) {
			if e.Op == "renew" {
				renewals.Add(1)
			}
		}}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Close() }()
	lease, err := holder.Lock(t.Context(), "k", dlock.WithTTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	for range *waitersFlag {
		c := client()
		waiting.Go(func() {
			if l, err := c.Lock(ctx, "k", dlock.WithTTL(ttl)); !errors.Is(err, context.Canceled) {
				t.Errorf("a waiter got %v, %v", l, err)
			}
		})
	}
	scripts := func() (n int) {
		t.Helper()
		for _, s := range f.servers {
			n += scriptCalls(t, s)
		}
		return n
	}
	whole := func() (after int64) {
		t.Helper()
		began := renewals.Load()
		for f.carriers("k", lease.Fence()) < len(f.servers) {
			if err := lease.Err(); err != nil {
				t.Fatal(err)
			}
			if time.Now().After(limit()) {
				for i := range f.servers {
					t.Logf("node %d: lock %v, counter %v", i, f.do(i, "GET", "k"), f.do(i, "GET", "redlock1:fence:{k}"))
				}
				t.Fatalf("%d nodes carry the lease, with token %d", f.carriers("k", lease.Fence()), lease.Fence())
			}
			time.Sleep(poll)
		}
		return renewals.Load() - began
	}
	whole()
	began, before, renewed := time.Now(), scripts(), renewals.Load()
	defer func() { // the scripts of the waiting processes, also if the lease does not heal
		others := scripts() - before - len(f.servers)*int(renewals.Load()-renewed)
		rate := float64(others) / time.Since(began).Seconds() / float64(*waitersFlag)
		t.Logf("a waiting process ran %.2f scripts a second", rate)
		if rate*ttl.Seconds() > 12 { // about 5: an attempt each time that the lease would have ended, and one or two at each stop
			t.Errorf("a waiting process ran %.1f scripts a second", rate)
		}
	}()
	late := 0
	for turn := range 2 {
		for i, s := range f.servers {
			if err := s.Pause(); err != nil {
				t.Fatal(err)
			}
			select {
			case <-time.After(2 * ttl):
			case <-lease.Done():
			}
			if err := s.Resume(); err != nil {
				t.Fatal(err)
			}
			n := whole()
			t.Logf("turn %d, node %d: it carries the lease again after %d renewals", turn+1, i, n)
			if n > 3 { // one may have begun before the return
				late++
			}
		}
	}
	if late > len(f.servers) {
		t.Errorf("%d of %d times a node carries the lease again only after more than two renewals", late, 2*len(f.servers))
	}
}

// A bid that fails leaves the counter of a node that granted it as it was, whether the counter is a
// moment behind the clock, long behind it, or not there.
func TestAFailedBidGivesItsVoteBack(t *testing.T) {
	t.Parallel()
	const ttl = 20 * time.Second
	c := start(t, 3, "redis", "valkey", "redis")
	url := strings.Replace(c.url(false, calm, "bootstrap=true"), "restart_guard=off,", "", 1)
	a, b := c.openURL(url), c.openURL(url)
	held := c.whenFree(a, "k", ttl)
	c.renew(held, ttl)
	token := strconv.FormatUint(held.Grant().Fence, 10)
	old := strconv.FormatUint(held.Grant().Fence-60e6, 10)
	for _, waits := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		if waits {
			if _, err := b.Watch(ctx, "k"); err != nil {
				t.Fatal(err)
			}
		}
		for i, s := range c.servers {
			for _, counter := range []string{token, old, "<nil>"} {
				set := []string{"SET", "redlock1:fence:{k}", counter, "PX", "120000"}
				if counter == "<nil>" {
					set = []string{"DEL", "redlock1:fence:{k}"}
				}
				for _, do := range [][]string{{"DEL", "k"}, set} {
					if _, err := s.Do(do...); err != nil {
						t.Fatal(err)
					}
				}
				before := scriptCalls(t, s)
				if _, err := b.Acquire(t.Context(), ask("k", ttl)); !errors.Is(err, driver.ErrHeld) {
					t.Fatal(err)
				}
				for ; ; time.Sleep(poll) {
					lock, _ := s.Do("GET", "k")
					now, err := s.Do("GET", "redlock1:fence:{k}")
					if err != nil {
						t.Fatal(err)
					}
					if scriptCalls(t, s) >= before+2 && lock == nil && fmt.Sprint(now) == counter { // it has voted, and was released
						break
					}
					if time.Now().After(limit()) {
						t.Fatalf("waiting: %v, node %d: the counter was %s, and a failed bid leaves %v, and the lock %v", waits, i, counter, now, lock)
					}
				}
				for len(c.keys("k")) < 3 { // it joins
					c.renew(held, ttl)
				}
			}
		}
		cancel()
	}
	c.release(held)
}

var evalsha = regexp.MustCompile(`cmdstat_evalsha:calls=(\d+)`)

// scriptCalls returns how many script calls a server has completed.
func scriptCalls(t *testing.T, s *server.Server) int {
	t.Helper()
	reply, err := s.Do("INFO", "commandstats")
	if err != nil {
		t.Fatal(err)
	}
	m := evalsha.FindStringSubmatch(fmt.Sprint(reply))
	if m == nil {
		return 0
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/redlock"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// Several clients use new servers for the first time at the same time, and each gets its lock
// at once. No node was ever in quarantine, and a notice says that the servers counted as new.
func TestNewServersVoteAtOnceWithBootstrap(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 5)
	rounds := 5
	if testing.Short() {
		rounds = 1
	}
	for round := range rounds {
		o := &drivertest.NoticeLog{}
		prefix := fmt.Sprintf("%d:", round)
		var late atomic.Bool
		clients := make([]*redlock.Backend, 4)
		for i := range clients {
			clients[i] = f.quorum(prefix, f.servers, 5, redlock.Options{Bootstrap: true, Notify: o.Add, NodeTimeout: 5 * time.Second})
		}
		parallel(32, 32, func(i int) { // several callers of each client at once
			for end := limit(); ; {
				stated := len(o.Of(quorum.NoticeBootstrapped, "")) > 0
				_, err := f.vote(clients[i%4], fmt.Sprint("k", i), 10*time.Second)
				if err == nil {
					return
				}
				if stated || time.Now().After(end) {
					t.Errorf("first contact: %v", err)
					return
				}
				late.Store(true) // a machine that stood still: nobody could state it before
			}
		})
		if q := o.Of(quorum.NoticeQuarantined, ""); len(q) > 0 && !late.Load() {
			t.Errorf("in quarantine: %+v", q)
		}
		if len(o.Of(quorum.NoticeBootstrapped, "")) == 0 {
			t.Error("no notice says that the servers counted as new")
		}
	}
}

// Without bootstrap, new servers vote after at most one guard. The refusal says why, for how
// long, and what to do. Lock waits, and the log has one line for the wait and one for each
// node.
func TestNewServersVoteWithinTheGuardWithoutBootstrap(t *testing.T) {
	long(t)
	t.Parallel()
	const guard = 3 * time.Second
	f := newFleet(t, 5)
	o := &drivertest.NoticeLog{}
	b := f.quorum("", f.servers, 5, redlock.Options{Guard: guard, Notify: o.Add})
	began := time.Now()
	_, err := b.Acquire(context.Background(), ask("k", guard))
	for err != nil && strings.Contains(err.Error(), clocksUnknown) { // a machine that stood still: nobody had answered
		_, err = b.Acquire(context.Background(), ask("k", guard))
	}
	var r *driver.RefusedError
	if !errors.As(err, &r) || !errors.Is(err, driver.ErrRefused) {
		t.Fatalf("first contact: %v", err)
	}
	// The other nodes' clocks are known to within half a round trip.
	whole, took := guard+guard/100+4*redlock.DefaultClockAllowance+10*time.Millisecond, time.Since(began)
	if r.RetryAfter > whole+took || r.RetryAfter < whole-2*took-10*time.Millisecond {
		t.Errorf("RetryAfter is %v, %v after the first contact, with a guard of %v", r.RetryAfter, took, guard)
	}
	for _, part := range []string{"restart guard", "for another ", "dlock bootstrap", "bootstrap=true"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %v", part, err)
		}
	}

	f.await(b, "waited for", time.Second)
	if took := time.Since(began); took < guard {
		t.Errorf("it took %v with a guard of %v", took, guard)
	}
	nodes := map[string]int{}
	for _, e := range o.Of(quorum.NoticeQuarantined, "") {
		nodes[e.Node]++
		if !strings.Contains(e.Detail, "for another ") {
			t.Errorf("the notice says %q", e.Detail)
		}
	}
	for node, n := range nodes {
		if n != 1 {
			t.Errorf("%d notices of %s", n, node)
		}
	}
	if len(nodes) < 3 {
		t.Errorf("notices of %d nodes", len(nodes))
	}
	if got := o.Of(quorum.NoticeBootstrapped, ""); len(got) > 0 {
		t.Errorf("and %+v", got)
	}
}

// While one node is down, a client can tell neither that all nodes are new nor which terms they
// had. So no node votes, with or without bootstrap, and the first contact does not hang.
func TestWithANodeDownNobodyIsNew(t *testing.T) {
	long(t)
	t.Parallel()
	const guard = 3 * time.Second
	f := newFleet(t, 5)
	o := &drivertest.NoticeLog{}
	b := f.quorum("", f.servers, 4, redlock.Options{Guard: guard, Bootstrap: true, Notify: o.Add})
	_, err := f.answer(b, "k", guard)
	if !errors.Is(err, driver.ErrRefused) {
		t.Fatalf("first contact: %v", err)
	}
	if !strings.Contains(err.Error(), clocksUnknown) {
		t.Errorf("the error does not say why: %v", err)
	}
	if got := o.Of(quorum.NoticeBootstrapped, ""); len(got) > 0 {
		t.Errorf("it says %+v", got)
	}
	// The fifth node may remember a longer guard. After it has answered, all nodes vote like
	// new ones.
	f.await(f.quorum("", f.servers, 5, redlock.Options{Guard: guard, Notify: o.Add}), "k", guard)
	f.await(b, "k", guard)
	if got := o.Of(quorum.NoticeBootstrapped, ""); len(got) > 0 {
		t.Errorf("it says %+v", got)
	}
	if _, err := b.Bootstrap(context.Background(), &quorum.Bootstrap{}); err == nil || !strings.Contains(err.Error(), f.closed[4].Addr()) {
		t.Errorf("Bootstrap without all nodes: %v", err)
	}
}

// An operator's statement does not override the servers' memory.
func TestBootstrapVoidsNoMemory(t *testing.T) {
	long(t)
	t.Parallel()
	f := newFleet(t, 3)
	o := redlock.Options{Guard: 30 * time.Second}
	b := f.quorum("", f.servers, 3, o)
	if r, err := bootstrap(b, quorum.Bootstrap{}); err != nil || r.Memory != quorum.MemoryNew {
		t.Fatalf("Bootstrap of new servers: %+v, %v", r, err)
	}
	if _, err := f.vote(b, "k", 20*time.Second); err != nil {
		t.Fatalf("after it: %v", err)
	}
	for i := range 2 {
		if err := crash(f, i, f.servers[i]); err != nil {
			t.Fatal(err)
		}
	}
	o.Bootstrap = true
	b = f.quorum("", f.servers, 3, o)
	if _, err := f.answer(b, "k", 20*time.Second); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("two of three servers were restarted, and bootstrap stayed on: %v", err)
	}
	if _, err := bootstrap(b, quorum.Bootstrap{}); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("Bootstrap where one remembers: %v", err)
	}
	_, err := f.vote(b, "k", 20*time.Second)
	var r *driver.RefusedError
	if !errors.As(err, &r) || r.RetryAfter < 20*time.Second {
		t.Errorf("after that: %v", err)
	}
}

// The guard costs no command: a lock and its release are two script calls on each node, with
// and without it. (The settings of a server are reviewed once in half a guard.) On a busy machine
// a late call may be repeated, so the best of several rounds counts.
func TestTheGuardCostsNoRoundTrip(t *testing.T) {
	t.Parallel()
	const locks, rounds = 30, 10
	f := newFleet(t, 5)
	for prefix, o := range map[string]redlock.Options{"with:": {Bootstrap: true, Guard: time.Hour}, "without:": {Guard: -1}} {
		o.NodeTimeout = 5 * time.Second
		b := f.quorum(prefix, f.servers, 5, o)
		calls := func() (n int) {
			for _, s := range f.servers {
				n += scriptCalls(t, s)
			}
			return n
		}
		f.cycle(b, prefix, "first") // makes contact
		best := 1 << 30
		for round := 0; round < rounds && best > 10*locks; round++ {
			before, all := calls(), true
			for i := range locks {
				all = f.cycle(b, prefix, fmt.Sprint("k", i)) && all
			}
			if all {
				best = min(best, calls()-before)
			}
		}
		if best != 10*locks {
			t.Errorf("%s %d locks and releases on five nodes were %d calls of scripts", prefix, locks, best)
		}
	}
}

// cycle takes and releases a lock on all nodes, and reports whether all had it.
func (f *fleet) cycle(b *redlock.Backend, prefix, key string) bool {
	f.t.Helper()
	l := f.hold(b, key, 10*time.Second)
	on := func(n int) bool {
		for end := time.Now().Add(time.Second); f.carriers(prefix+key, l.Grant().Fence) != n; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				return false
			}
		}
		return true
	}
	all := on(5)
	if err := l.Release(context.Background()); err != nil {
		f.t.Fatal(err)
	}
	return on(0) && all
}

// A lease on all five nodes survives the restart of two. Its renewals go on; the two nodes do
// not join it during their quarantine, but do afterwards.
func TestALeaseOutlivesAMinorityAndIsHealedAfterTheQuarantine(t *testing.T) {
	long(t)
	t.Parallel()
	const guard = 2 * time.Second
	f := newFleet(t, 5)
	b := f.quorum("", f.servers, 5, redlock.Options{Guard: guard, Bootstrap: true})
	l := f.hold(b, "k", guard)
	carried := func(n int, during func(driver.Grant)) {
		t.Helper()
		for ; f.carriers("k", l.Grant().Fence) < n; time.Sleep(guard / 20) {
			g, err := l.Renew(context.Background(), &driver.Renewal{TTL: guard})
			if err != nil && (errors.Is(err, driver.ErrLost) || !time.Now().Before(l.Grant().Expires)) {
				t.Fatalf("Renew: %v (%+v)", err, l.Grant().Votes)
			}
			during(g)
		}
	}
	carried(5, func(driver.Grant) {})
	f.each(2, func(i int, s *server.Server) error { return crash(f, i, s) })
	back, refused := time.Now(), false
	carried(4, func(g driver.Grant) {
		for _, v := range g.Votes {
			refused = refused || errors.Is(v.Err, driver.ErrRefused) && strings.Contains(v.Err.Error(), "restart guard")
		}
	})
	if took := time.Since(back); took < guard || !refused {
		t.Errorf("a node joined %v after its restart, with a guard of %v (refused: %v)", took, guard, refused)
	}
	carried(5, func(driver.Grant) {})
	if err := l.Release(context.Background()); err != nil {
		t.Error(err)
	}
}

// A first contact that hangs delays no caller beyond its context.
func TestAFirstContactThatHangsIsWaitedForTogether(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	b := f.quorum("", f.servers, 0, redlock.Options{NodeTimeout: 10 * time.Second})
	for _, p := range f.closed {
		if err := p.Restore(); err != nil {
			t.Fatal(err)
		}
		p.BlackHole()
	}
	began := time.Now()
	parallel(20, 20, func(int) {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		if _, err := b.Acquire(ctx, ask("k", 20*time.Second)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
	if took := time.Since(began); took > 9*time.Second {
		t.Errorf("twenty callers waited for %v, want 100 ms", took)
	}
	for _, p := range f.closed { // ends the calls under way, so that Close need not wait
		if err := p.Restore(); err != nil {
			t.Error(err)
		}
	}
}

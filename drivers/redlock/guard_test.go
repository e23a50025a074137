package redlock_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/redlock"
	"github.com/redlock-go/redlock/redlocktest/server"
)

var restartTrials = flag.Int("redlock.restarts", 0, "how many locks are held while nodes restart, for each way in which they forget; 0: 20, or 150 in the deep depth (300 were run many times)")

// guard returns the options of a quorum whose nodes have a guard, and vote at once.
func guarded(guard time.Duration) []string {
	if guard < 0 {
		return []string{unguarded, "node_timeout=1s"} // the machine may be busy
	}
	return []string{"restart_guard=" + guard.String(), "bootstrap=true", "node_timeout=1s"}
}

// An amnesia is a way in which servers forget locks. before is called while no lock is held,
// forget while all are held, and then after the rivals' first attempt. before and then may be nil.
type amnesia struct {
	options              []server.Option
	before, forget, then func(i int, s *server.Server) error
}

func command(args ...string) func(int, *server.Server) error {
	return func(_ int, s *server.Server) error {
		_, err := s.Do(args...)
		return err
	}
}

// appended returns the append-only file to which a server currently writes.
func appended(s *server.Server) (string, error) {
	files, err := filepath.Glob(filepath.Join(s.Dir(), "appendonlydir", "*.incr.aof"))
	if err != nil {
		return "", err
	}
	if len(files) != 1 {
		return "", fmt.Errorf("the append only files are %v", files)
	}
	return files[0], nil
}

func amnesias() map[string]*amnesia {
	var size sync.Map // size of the file, by server
	return map[string]*amnesia{
		"no memory":  {forget: crash},
		"an old RDB": {before: command("SAVE"), forget: crash},
		"AOF everysec and lost writes": {
			options: []server.Option{server.WithAppendOnly("everysec")},
			before: func(_ int, s *server.Server) error {
				name, err := appended(s)
				if err != nil {
					return err
				}
				file, err := os.Stat(name)
				if err == nil {
					size.Store(s, file.Size())
				}
				return err
			},
			forget: func(_ int, s *server.Server) error {
				if err := s.Kill(); err != nil {
					return err
				}
				name, err := appended(s)
				if err != nil {
					return err
				}
				most, _ := size.Load(s)
				if err := os.Truncate(name, most.(int64)); err != nil {
					return err
				}
				return s.Start()
			},
		},
		"FLUSHALL": {forget: command("FLUSHALL")},
		"a boot with the clock an hour behind, and NTP": {
			options: []server.Option{server.WithClock()},
			forget: func(_ int, s *server.Server) error {
				if err := s.Kill(); err != nil {
					return err
				}
				return errors.Join(s.SetClock(-time.Hour), s.Start())
			},
			then: func(_ int, s *server.Server) error { return s.SetClock(0) },
		},
	}
}

// Each held lock is a trial: it is on three of five nodes, of which one, two or all forget it.
// These nodes and the other two could then grant it to another client.
func TestNodesThatForgotHeldLocksGiveThemToNobodyElse(t *testing.T) {
	long(t)
	t.Parallel()
	want := cmp.Or(*restartTrials, redlock.Amount(20, 150))
	if redlock.Race {
		want /= 8
	}
	ways := amnesias()
	for i, name := range slices.Sorted(maps.Keys(ways)) {
		a := ways[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t, 5, a.options...)
			for n := 1; n <= 3; n++ {
				if !server.IsDeep() && n != 1+i%3 {
					continue // another way of forgetting has this number of nodes
				}
				trials, second, guard := 0, 0, 1500*time.Millisecond
				for round := 0; trials < want; round++ {
					if time.Now().After(limit()) {
						t.Fatalf("%d of %d trials: the machine is too busy for leases of %v", trials, want, guard)
					}
					asked, got := c.trial(a, n, fmt.Sprintf("%d-%d:", n, round), guard, min(150, want))
					trials, second = trials+asked, second+got
					if asked < min(30, want) {
						guard = min(2*guard, redlock.DefaultGuard) // a round takes longer than that
					}
				}
				t.Logf("%d of 5 nodes forgot: %d trials, %d second holders", n, trials, second)
				if second > 0 {
					t.Errorf("%d of 5 nodes forgot, and of %d locks that were held %d were given to another", n, trials, second)
				}

				// Without the guard such trials find second holders.
				second = 0
				for round := 0; second == 0; round++ {
					if time.Now().After(limit()) {
						t.Fatalf("%d of 5 nodes forgot: with the guard off no second holder was found", n)
					}
					_, second = c.trial(a, n, fmt.Sprintf("%d-%d-off:", n, round), -guard, 20)
					if round%4 == 3 {
						guard = min(2*guard, redlock.DefaultGuard)
					}
				}
			}
		})
	}
}

// trial takes locks on the first three nodes, makes n of them forget, and lets rivals try. It
// returns how many locks the rivals asked for while they were held, and how many of these they
// got. The leases are as long as the guard; a negative guard is off.
func (c *cluster) trial(a *amnesia, n int, prefix string, guard time.Duration, locks int) (asked, second int) {
	c.t.Helper()
	ttl := guard.Abs()
	options := append(guarded(guard), "prefix="+prefix)
	rivals := []*redlock.Backend{c.open(everyNode, options...), c.open(everyNode, options...)}
	for _, b := range rivals { // first contact
		c.use(b, "first", ttl)
	}
	holder := c.view("ABC", slices.DeleteFunc(options, func(o string) bool { return o == "bootstrap=true" })...)
	c.use(holder, "first of all", ttl)
	if a.before != nil {
		c.each(n, a.before)
	}

	held := make([]driver.Lease, locks)
	parallel(16, locks, func(i int) {
		held[i], _ = holder.Acquire(context.Background(), ask(fmt.Sprint("k", i), ttl))
	})
	c.each(n, a.forget)

	// An attempt is one vote of all nodes. The context cuts the further rounds of a split vote
	// short.
	var verdicts, given atomic.Int64
	over := make([]atomic.Bool, locks)
	attempt := func(i int) {
		if held[i] == nil || over[i].Load() {
			over[i].Store(true)
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 150*time.Millisecond)
		defer cancel()
		l, err := rivals[i%2].Acquire(ctx, ask(fmt.Sprint("k", i), ttl))
		switch held := time.Now().Before(held[i].Grant().Expires); {
		case !held && err == nil:
			_ = l.Release(context.Background())
			fallthrough
		case !held:
			over[i].Store(true)
		case err == nil:
			given.Add(1)
			over[i].Store(true)
		case errors.As(err, new(*quorum.Error)), errors.Is(err, context.DeadlineExceeded): // a split vote may take all of its time
			verdicts.Add(1)
		}
	}
	parallel(16, locks, attempt)
	asked = min(int(verdicts.Load()+given.Load()), locks)
	if a.then != nil {
		c.each(n, a.then)
	}
	for left := true; left; {
		parallel(16, locks, attempt)
		left = false
		for i := range over {
			left = left || !over[i].Load()
		}
	}
	if given.Load() == 0 {
		c.use(rivals[0], "k0", ttl) // and then it goes on
	}
	return asked, int(given.Load())
}

// Several clients use new servers for the first time at the same time, and each gets its lock
// at once. No node was ever in quarantine, and a notice says that the servers counted as new.
// On a machine that stands still they may not: a client looks for half a second whether another one is
// stating it. Then new servers are asked.
func TestNewServersVoteAtOnceWithBootstrap(t *testing.T) {
	t.Parallel()
	c := start(t, 5)
	rounds := 5
	if testing.Short() {
		rounds = 1
	}
	for round, right := 0, 0; right < rounds; round++ {
		o := &drivertest.NoticeLog{}
		c.notify = o.Add
		clients := make([]*redlock.Backend, 4)
		for i := range clients {
			clients[i] = c.open(everyNode, "bootstrap=true", fmt.Sprintf("prefix=%d:", round), calm)
		}
		began := time.Now()
		errs := make([]error, 32)
		parallel(32, 32, func(i int) { // several callers of each client at once
			for errs[i] = driver.ErrHeld; errs[i] != nil && time.Since(began) < 5*time.Second; time.Sleep(poll) {
				_, errs[i] = clients[i%4].Acquire(context.Background(), ask(fmt.Sprint("k", i), 10*time.Second))
				if errors.Is(errs[i], driver.ErrRefused) && !strings.Contains(errs[i].Error(), clocksUnknown) {
					return
				}
			}
		})
		took, err := time.Since(began), errors.Join(errs...)
		switch wrong := o.Of(quorum.NoticeQuarantined, ""); {
		case err == nil && len(wrong) == 0 && len(o.Of(quorum.NoticeBootstrapped, "")) > 0:
			right++
		case took < redlock.LongestLook || time.Now().After(limit()):
			t.Fatalf("the first contact took %v; notices of a quarantine: %+v; errors: %v", took, wrong, err)
		}
	}
}

// The guard costs no command: a lock and its release are two script calls on each node, with
// and without it. (The settings of a server are reviewed once in half a guard.) On a busy machine
// a late call may be repeated, so the best of several rounds counts.
func TestTheGuardCostsNoRoundTrip(t *testing.T) {
	t.Parallel()
	const locks, rounds = 10, 10
	c := start(t, 5)
	for prefix, options := range map[string][]string{"with:": {"bootstrap=true", "restart_guard=1h"}, "without:": {unguarded}} {
		b := c.open(everyNode, append(options, "prefix="+prefix, calm)...)
		calls := func() (n int) {
			for _, s := range c.servers {
				n += scriptCalls(t, s)
			}
			return n
		}
		c.onAll(b, prefix, "first") // makes contact
		best := 1 << 30
		for round := 0; round < rounds && best > 10*locks; round++ {
			before, all := calls(), true
			for i := range locks {
				all = c.onAll(b, prefix, fmt.Sprint("k", i)) && all
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

// onAll takes and releases a lock, and reports whether all nodes had it.
func (c *cluster) onAll(b *redlock.Backend, prefix, key string) bool {
	c.t.Helper()
	l := c.hold(b, key, 10*time.Second)
	on := func(n int) bool {
		for end := time.Now().Add(time.Second); c.carriers(prefix+key, l.Grant().Fence) != n; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				return false
			}
		}
		return true
	}
	all := on(5)
	drivertest.Must(c.t, l.Release(context.Background()))
	return on(0) && all
}

// A lease on all five nodes survives the restart of two. Its renewals go on; the two nodes do
// not join it during their quarantine, but do afterwards.
func TestALeaseOutlivesAMinorityAndIsHealedAfterTheQuarantine(t *testing.T) {
	long(t)
	t.Parallel()
	const guard = 8 * time.Second // the lease's TTL too: a busy machine may stand still for some seconds
	c := start(t, 5)
	b := c.open(everyNode, guarded(guard)...)
	l := c.hold(b, "k", guard)
	carried := func(n int, during func(driver.Grant)) {
		t.Helper()
		for ; c.carriers("k", l.Grant().Fence) < n; time.Sleep(guard / 20) {
			during(c.renew(l, guard))
		}
	}
	carried(5, func(driver.Grant) {})
	c.each(2, crash)
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

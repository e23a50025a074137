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

// state makes the statement s, again and again until it is made or refused.
func state(q *redlock.Backend, s quorum.Bootstrap) (r *quorum.MemoryReport, err error) {
	for end := limit(); ; time.Sleep(poll) {
		r, err = q.Bootstrap(context.Background(), &s)
		if err == nil || errors.Is(err, driver.ErrRefused) || time.Now().After(end) {
			return r, err
		}
	}
}

// A book notes until when each lease is valid, and detects two holders.
type book struct {
	t      *testing.T
	mu     sync.Mutex
	until  map[string]map[driver.Lease]time.Time // by key; a lease that may still be held counts
	grants int
}

// valid notes a grant or a renewal. It may be called so late that the lease has ended and another
// owner rightly has the lock.
func (b *book) valid(key, who string, l driver.Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now, until := time.Now(), l.Grant().Expires
	for other, end := range b.until[key] {
		if other != l && end.After(now) && until.After(now) {
			b.t.Errorf("%s got %q, and another has it for %v", who, key, end.Sub(now))
		}
	}
	if b.until[key] == nil {
		b.until[key] = map[driver.Lease]time.Time{}
	}
	b.until[key][l] = until
	b.grants++
}

// freed is called just before a release.
func (b *book) freed(key string, l driver.Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.until[key], l)
}

// A member takes locks through a quorum until it is stopped, and holds some of them for long.
type member struct {
	name    string
	grants  atomic.Int64
	refused atomic.Pointer[error] // the latest permanent refusal
	leave   func()
}

func (b *book) join(name string, q *redlock.Backend, ttl time.Duration) *member {
	const keys, workers = 24, 4
	m := &member{name: name}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	m.leave = func() { stop(); wg.Wait() }
	for w := range workers {
		wg.Go(func() {
			for n := w; ctx.Err() == nil; n++ {
				m.cycle(b, q, fmt.Sprint("k", n%keys), ttl, n/workers)
			}
		})
	}
	return m
}

func (m *member) cycle(b *book, q *redlock.Backend, key string, ttl time.Duration, n int) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	l, err := q.Acquire(ctx, ask(key, ttl))
	if err != nil {
		var r *driver.RefusedError
		if errors.As(err, &r) && r.RetryAfter == 0 {
			m.refused.Store(&err)
		}
		time.Sleep(3 * time.Millisecond)
		return
	}
	b.valid(key, m.name, l)
	m.grants.Add(1)
	switch n % 4 {
	case 2: // renewed for a while
		for range 10 {
			time.Sleep(ttl / 10)
			if _, err := l.Renew(context.Background(), &driver.Renewal{TTL: ttl}); err == nil {
				b.valid(key, m.name, l)
			}
			if !time.Now().Before(l.Grant().Expires) {
				return
			}
		}
	case 3: // never released
		return
	}
	b.freed(key, l)
	_ = l.Release(context.Background())
}

// progress waits until each of these members has got five more locks.
func (c *cluster) progress(members ...*member) {
	c.t.Helper()
	for _, m := range members {
		before := m.grants.Load()
		c.until(func() error {
			if m.grants.Load() < before+5 {
				return fmt.Errorf("%s gets no locks", m.name)
			}
			return nil
		})
	}
}

// Three nodes become five, and then their guard is raised and lowered, while clients run: Bootstrap
// is called with the new list and options, and then clients get them. No lock is granted for one
// guard, so that no lease from before is valid beside one from after, though nodes are restarted
// meanwhile. Clients with the old list are refused, with an error that says what to do.
func TestNodesAndTermsAreChangedUnderLoad(t *testing.T) {
	long(t)
	t.Parallel()
	const short, long = time.Second, 2 * time.Second
	c := start(t, 5)
	b := &book{t: t, until: map[string]map[driver.Lease]time.Time{}}
	open := func(c *cluster, guard time.Duration) *redlock.Backend {
		return c.open(everyNode, "bootstrap=true", "node_timeout=300ms", "restart_guard="+guard.String(), fmt.Sprintf("clock_allowance=%v", guard/20))
	}
	three := c.first(3)
	old := []*member{b.join("three 1", open(three, short), short), b.join("three 2", open(three, short), short)}
	c.progress(old...)
	held, err := c.verdict(open(three, short), "held", short)
	drivertest.Must(t, err)
	change := func(q *redlock.Backend, forget int, guard time.Duration) {
		t.Helper()
		stated := time.Now()
		for range 2 { // nodes that forgot may not know of the change
			if _, err := state(q, quorum.Bootstrap{Statement: quorum.StateChanged}); err != nil {
				t.Fatal(err)
			}
			c.each(forget, crash) // held locks too
			forget = 0
		}
		c.use(q, "after", short)
		if took := time.Since(stated); took < guard {
			t.Errorf("a lock was given %v after the change, with a guard of %v", took, guard)
		}
	}

	// Without a statement the new list is refused.
	five := open(c, short)
	_, err = c.verdict(five, "k", short)
	if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "dlock bootstrap --changed") {
		t.Errorf("five nodes where there are three: %v", err)
	}
	c.progress(old...)
	change(five, 2, short) // of the old three
	if _, err := held.Renew(context.Background(), &driver.Renewal{TTL: short}); err == nil {
		t.Error("a lease on the old nodes was renewed")
	}
	fresh := []*member{b.join("five 1", five, short), b.join("five 2", open(c, short), short)}
	c.progress(fresh...)
	for _, m := range old {
		n := m.grants.Load()
		c.progress(fresh...)
		if now := m.grants.Load(); now != n {
			t.Errorf("%s got %d locks after the change", m.name, now-n)
		}
		why := m.refused.Load()
		if why == nil || !strings.Contains((*why).Error(), "of a quorum of 5, and this one has 3") {
			t.Errorf("%s is not told: %v", m.name, why)
		}
		m.leave()
	}

	// Clients with other options keep to the nodes' terms, until these are changed.
	longer := open(c, long)
	_, err = c.verdict(longer, "k", long)
	for _, part := range []string{"restart_guard", "2s", "1s", "dlock bootstrap --changed"} {
		if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %v", part, err)
		}
	}
	change(longer, 3, short)
	raised := b.join("longer leases", longer, long)
	c.progress(append(fresh, raised)...)
	change(five, 3, long)
	c.progress(fresh...)
	if _, err = c.verdict(longer, "k", long); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("after the guard was lowered: %v", err)
	}
	for _, m := range append(fresh, raised) {
		m.leave()
	}
	t.Logf("%d grants and renewals", b.grants)
}

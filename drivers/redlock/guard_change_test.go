package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/redlock"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A book notes who has a lock, and until when, and finds two holders.
type book struct {
	t       *testing.T
	mu      sync.Mutex
	until   map[string]map[int64]time.Time // by key and lease; a lease in doubt counts
	leases  int64
	grants  atomic.Int64
	overlap atomic.Int64
}

func newBook(t *testing.T) *book { return &book{t: t, until: map[string]map[int64]time.Time{}} }

// granted is told of a grant right after it; or later, when the lease may be over, and the
// lock another's by right.
func (b *book) granted(key, who string, until time.Time) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	for lease, end := range b.until[key] {
		if end.After(now) && until.After(now) {
			b.overlap.Add(1)
			b.t.Errorf("%s got %q, and another has it for %v", who, key, end.Sub(now))
		} else if !end.After(now) {
			delete(b.until[key], lease)
		}
	}
	if b.until[key] == nil {
		b.until[key] = map[int64]time.Time{}
	}
	b.leases++
	b.until[key][b.leases] = until
	b.grants.Add(1)
	return b.leases
}

// extended is told of a renewal that succeeded; freed right before a release.
func (b *book) extended(key string, lease int64, until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.until[key][lease] = until
}

func (b *book) freed(key string, lease int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.until[key], lease)
}

// A member takes locks through a quorum, and holds some of them for long, until stopped.
type member struct {
	name    string
	grants  atomic.Int64
	refused atomic.Pointer[error] // the last that is permanent
	stop    chan struct{}
	wg      sync.WaitGroup
}

const bookKeys, bookWorkers = 24, 4

func (b *book) join(name string, q *redlock.Backend, ttl time.Duration) *member {
	m := &member{name: name, stop: make(chan struct{})}
	for w := range bookWorkers {
		m.wg.Go(func() {
			for n := w; ; n++ {
				select {
				case <-m.stop:
					return
				default:
				}
				m.cycle(b, q, fmt.Sprint("k", n%bookKeys), ttl, n/bookWorkers)
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
	until := l.Grant().Expires
	lease := b.granted(key, m.name, until)
	m.grants.Add(1)
	switch n % 4 {
	case 0, 1: // released
	case 2: // renewed for a while
		for range 10 {
			time.Sleep(ttl / 10)
			if g, err := l.Renew(context.Background(), &driver.Renewal{TTL: ttl}); err == nil {
				until = g.Expires
				b.extended(key, lease, until)
			}
			if !time.Now().Before(until) {
				return
			}
		}
	case 3: // forgotten
		return
	}
	b.freed(key, lease)
	_ = l.Release(context.Background())
}

func (m *member) leave() {
	close(m.stop)
	m.wg.Wait()
}

// progress waits until each of these has got so many more locks.
func progress(t *testing.T, members ...*member) {
	t.Helper()
	for _, m := range members {
		before := m.grants.Load()
		for end := time.Now().Add(guardLimit); m.grants.Load() < before+5; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s gets no locks", m.name)
			}
		}
	}
}

// Terms are raised and lowered while clients bid throughout and nodes are restarted: with the
// options of the client that states them. Nobody is served under terms that are unsafe beside
// another's.
func TestTermsAreChangedUnderLoad(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short")
	}
	const short, long = time.Second, 2 * time.Second
	f := newFleet(t, 5)
	b := newBook(t)
	open := func(guard, allowance time.Duration) *redlock.Backend {
		return f.quorum("", f.servers, 5, redlock.Options{Guard: guard, ClockAllowance: allowance, Bootstrap: true, NodeTimeout: 300 * time.Millisecond})
	}
	old := []*member{b.join("old 1", open(short, 50*time.Millisecond), short), b.join("old 2", open(short, 50*time.Millisecond), short)}
	progress(t, old...)
	// A client with longer leases is told what to do.
	fresh := open(long, 150*time.Millisecond)
	longer := b.join("longer leases", fresh, long)
	told := func(m *member, words ...string) {
		t.Helper()
		for end := time.Now().Add(guardLimit); ; time.Sleep(5 * time.Millisecond) {
			why := m.refused.Load()
			if why != nil {
				for _, w := range words {
					if !strings.Contains((*why).Error(), w) {
						t.Errorf("%s is told %v, without %q", m.name, *why, w)
					}
				}
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s is not refused", m.name)
			}
		}
	}
	told(longer, "restart_guard", "2s", "1s", "dlock bootstrap --terms")
	state := func(q *redlock.Backend, s driver.Bootstrap) *driver.MemoryReport {
		t.Helper()
		r, err := bootstrap(q, s)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	// shown waits until all nodes show these terms, and nothing to come if none is said.
	shown := func(guard, allowance time.Duration, next bool) {
		t.Helper()
		for end := time.Now().Add(guardLimit); ; {
			r := state(fresh, driver.Bootstrap{DryRun: true})
			n := 0
			for _, node := range r.Nodes {
				if terms := node.Report.Terms; terms != nil && terms.Guard == guard && terms.Allowance == allowance && (node.Report.Next != nil) == next {
					n++
				}
			}
			if n == len(f.servers) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%d of %d nodes have a guard of %v and an allowance of %v: %+v", n, len(f.servers), guard, allowance, r.Nodes[0].Report)
			}
		}
	}
	shown(short, 50*time.Millisecond, false)
	// forget makes a majority forget what is held.
	forget := func(q *redlock.Backend, ttl time.Duration) {
		parallel(bookKeys, bookKeys, func(i int) {
			key := fmt.Sprint("k", i)
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if l, err := q.Acquire(ctx, ask(key, ttl)); err == nil {
				b.granted(key, "who leaves them", l.Grant().Expires)
			}
		})
		f.each(3, func(i int, s *server.Server) error { return crash(f, i, s) })
	}

	// Raised: what protects grows at once, and what permits waits until all is over that was
	// granted before.
	state(fresh, driver.Bootstrap{Statement: driver.StateTerms})
	r := state(fresh, driver.Bootstrap{DryRun: true})
	for _, node := range r.Nodes {
		if n := node.Report; n.Terms.Guard == short && (n.Terms.Quarantine < long || n.Next == nil || n.From.IsZero()) {
			t.Errorf("%s has %+v, next %+v from %v", node.Node, n.Terms, n.Next, n.From)
		}
	}
	forget(open(short, 50*time.Millisecond), short)
	progress(t, old...)
	state(fresh, driver.Bootstrap{Statement: driver.StateTerms}) // those that forgot have not heard of it
	progress(t, longer)
	progress(t, old...)
	shown(long, 150*time.Millisecond, false)
	forget(fresh, long)
	progress(t, longer)

	// Lowered: not below a lease that lives.
	lower := open(short, 50*time.Millisecond)
	longer.leave()
	l := f.hold(fresh, "long", long)
	_, err := lower.Bootstrap(context.Background(), &driver.Bootstrap{Statement: driver.StateTerms})
	if time.Now().Before(l.Grant().Expires.Add(-long/2)) && (!errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), `lock "`) || !strings.Contains(err.Error(), "restart guard of 1s")) {
		t.Errorf("below a lease of %v: %v", long, err)
	}
	_ = l.Release(context.Background())
	for end := time.Now().Add(guardLimit); ; time.Sleep(10 * time.Millisecond) { // some were left behind
		if _, err = lower.Bootstrap(context.Background(), &driver.Bootstrap{Statement: driver.StateTerms}); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	progress(t, old...)
	longer = b.join("longer leases again", fresh, long)
	told(longer, "restart_guard", "2s", "1s", "dlock bootstrap --terms")
	progress(t, old...)
	longer.leave()
	shown(short, 50*time.Millisecond, false)
	for _, m := range old {
		m.leave()
	}
	t.Logf("%d grants, %d overlaps", b.grants.Load(), b.overlap.Load())
}

// hold takes a lock.
func (f *fleet) hold(q *redlock.Backend, key string, ttl time.Duration) driver.Lease {
	f.t.Helper()
	for end := time.Now().Add(guardLimit); ; {
		l, err := q.Acquire(context.Background(), ask(key, ttl))
		if err == nil {
			return l
		}
		if time.Now().After(end) {
			f.t.Fatal(err)
		}
		pause(err)
	}
}

// answer bids until it is granted or refused: that nodes do not answer a busy machine in time
// is neither, nor that they have what it bid for before.
func (f *fleet) answer(q *redlock.Backend, key string, ttl time.Duration) (l driver.Lease, err error) {
	for end := time.Now().Add(guardLimit); ; {
		l, err = q.Acquire(context.Background(), ask(key, ttl))
		if err == nil || errors.Is(err, driver.ErrRefused) || time.Now().After(end) {
			return l, err
		}
	}
}

// stateNew states that servers are new.
func stateNew(t testing.TB, q *redlock.Backend) {
	t.Helper()
	if _, err := bootstrap(q, driver.Bootstrap{}); err != nil {
		t.Fatal(err)
	}
}

// bootstrap states it until that is done or refused.
func bootstrap(q *redlock.Backend, s driver.Bootstrap) (r *driver.MemoryReport, err error) {
	for end := time.Now().Add(guardLimit); ; {
		r, err = q.Bootstrap(context.Background(), &s)
		if err == nil || errors.Is(err, driver.ErrRefused) || time.Now().After(end) {
			return r, err
		}
	}
}

// Three nodes become five while clients run: Bootstrap with the new list first, and then the
// clients get it. Those that have the old one are refused, and told what to do; what they
// held ends before anybody gets it.
func TestTheNumberOfNodesIsChangedUnderLoad(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short")
	}
	const guard = time.Second
	f := newFleet(t, 5)
	b := newBook(t)
	o := redlock.Options{Guard: guard, Bootstrap: true, NodeTimeout: 300 * time.Millisecond}
	open := func(servers []*server.Server) *redlock.Backend { return f.quorum("", servers, 5, o) }
	three := f.servers[:3]
	old := []*member{b.join("three 1", open(three), guard), b.join("three 2", open(three), guard)}
	progress(t, old...)
	held, err := f.answer(open(three), "held", guard)
	if err != nil {
		t.Fatal(err)
	}

	// Without it the new list is refused.
	five := open(f.servers)
	_, err = f.answer(five, "k", guard)
	if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "dlock bootstrap --nodes") {
		t.Errorf("five nodes where there are three: %v", err)
	}
	progress(t, old...)

	stated := time.Now()
	for end := time.Now().Add(guardLimit); ; { // until no node was late
		if _, err = five.Bootstrap(context.Background(), &driver.Bootstrap{Statement: driver.StateNodes}); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	_, err = five.Acquire(context.Background(), ask("k", guard))
	if err == nil && time.Since(stated) < guard {
		t.Errorf("a lock %v after the change", time.Since(stated))
	}
	if _, err := held.Renew(context.Background(), &driver.Renewal{TTL: guard}); err == nil {
		t.Error("a lease on the old nodes was renewed")
	}
	fresh := []*member{b.join("five 1", open(f.servers), guard), b.join("five 2", open(f.servers), guard)}
	progress(t, fresh...)
	if took := time.Since(stated); took < guard {
		t.Errorf("locks were given %v after the change, with a guard of %v", took, guard)
	}
	for _, m := range old {
		n := m.grants.Load()
		progress(t, fresh...)
		if now := m.grants.Load(); now != n {
			t.Errorf("%s got %d locks after the change", m.name, now-n)
		}
		why := m.refused.Load()
		if why == nil || !strings.Contains((*why).Error(), "of a quorum of 5, and this one has 3") {
			t.Errorf("%s is not told: %v", m.name, why)
		}
		m.leave()
	}
	// A node is restarted now and then as ever.
	if err := crash(f, 0, f.servers[0]); err != nil {
		t.Fatal(err)
	}
	progress(t, fresh...)
	for _, m := range fresh {
		m.leave()
	}
	t.Logf("%d grants, %d overlaps", b.grants.Load(), b.overlap.Load())
}

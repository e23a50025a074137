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
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/redlock"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A book notes until when each lease is valid, and detects two holders.
type book struct {
	t       *testing.T
	mu      sync.Mutex
	until   map[string]map[int64]time.Time // by key and lease; a lease that may still be held counts
	leases  int64
	grants  atomic.Int64
	overlap atomic.Int64
}

func newBook(t *testing.T) *book { return &book{t: t, until: map[string]map[int64]time.Time{}} }

// granted notes a grant. It may be called so late that the lease has ended and another owner
// rightly has the lock.
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

// extended notes a successful renewal. freed is called just before a release.
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

// A member takes locks through a quorum until it is stopped, and holds some of them for long.
type member struct {
	name    string
	grants  atomic.Int64
	refused atomic.Pointer[error] // the latest permanent refusal
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
	case 0, 1: // released at once
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
	case 3: // never released
		return
	}
	b.freed(key, lease)
	_ = l.Release(context.Background())
}

func (m *member) leave() {
	close(m.stop)
	m.wg.Wait()
}

// progress waits until each of these members has got five more locks.
func progress(t *testing.T, members ...*member) {
	t.Helper()
	for _, m := range members {
		before := m.grants.Load()
		for end := limit(); m.grants.Load() < before+5; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s gets no locks", m.name)
			}
		}
	}
}

// Terms are raised to the options of the client that states them, while clients bid and nodes are
// restarted: protections grow at once, and permissions when every earlier lease has ended. No
// client is served under terms that are unsafe beside another's. They are lowered, but not below a
// lease that is held.
func TestTermsAreChangedUnderLoad(t *testing.T) {
	long(t)
	t.Parallel()
	const short, long = time.Second, 2 * time.Second
	f := newFleet(t, 5)
	b := newBook(t)
	open := func(guard, allowance time.Duration) *redlock.Backend {
		return f.quorum("", f.servers, 5, redlock.Options{Guard: guard, ClockAllowance: allowance, Bootstrap: true, NodeTimeout: 300 * time.Millisecond})
	}
	old := b.join("old", open(short, 50*time.Millisecond), short)
	progress(t, old)
	fresh := open(long, 150*time.Millisecond)
	longer := b.join("longer leases", fresh, long)
	for longer.refused.Load() == nil {
		time.Sleep(poll)
	}
	for _, part := range []string{"restart_guard", "2s", "1s", "dlock bootstrap --terms"} { // what to do
		if why := *longer.refused.Load(); !strings.Contains(why.Error(), part) {
			t.Errorf("%q is not in %v", part, why)
		}
	}
	state := func(s quorum.Bootstrap) *quorum.MemoryReport {
		t.Helper()
		r, err := bootstrap(fresh, s)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	state(quorum.Bootstrap{Statement: quorum.StateTerms})
	for _, node := range state(quorum.Bootstrap{DryRun: true}).Nodes {
		if n := node.Report; n.Terms.Guard == short && (n.Terms.Quarantine < long || n.Next == nil || n.From.IsZero()) {
			t.Errorf("%s has %+v, next %+v from %v", node.Node, n.Terms, n.Next, n.From)
		}
	}
	f.each(3, func(i int, s *server.Server) error { return crash(f, i, s) }) // a majority forgets held locks
	progress(t, old)
	state(quorum.Bootstrap{Statement: quorum.StateTerms}) // the nodes that forgot do not know the terms
	progress(t, longer, old)
	f.each(3, func(i int, s *server.Server) error { return crash(f, i, s) })
	progress(t, longer)
	longer.leave()

	lower := open(short, 50*time.Millisecond)
	l := f.hold(fresh, "long", long)
	_, err := lower.Bootstrap(context.Background(), &quorum.Bootstrap{Statement: quorum.StateTerms})
	if time.Now().Before(l.Grant().Expires.Add(-long/2)) && (!errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), `lock "`)) {
		t.Errorf("below a lease of %v: %v", long, err)
	}
	_ = l.Release(context.Background())
	for err = errors.New("not yet"); err != nil; time.Sleep(poll) { // leases that were never released delay it
		if _, err = lower.Bootstrap(context.Background(), &quorum.Bootstrap{Statement: quorum.StateTerms}); time.Now().After(limit()) {
			t.Fatal(err)
		}
	}
	progress(t, old)
	old.leave()
	t.Logf("%d grants, %d overlaps", b.grants.Load(), b.overlap.Load())
}

// hold takes a lock, waiting as long as it must.
func (f *fleet) hold(q *redlock.Backend, key string, ttl time.Duration) driver.Lease {
	f.t.Helper()
	for end := limit(); ; {
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

// answer bids until the nodes grant or refuse the lock. It bids again after a late answer, and
// while an earlier bid of its own still holds the key.
func (f *fleet) answer(q *redlock.Backend, key string, ttl time.Duration) (l driver.Lease, err error) {
	for end := limit(); ; time.Sleep(poll) {
		l, err = q.Acquire(context.Background(), ask(key, ttl))
		if err == nil || errors.Is(err, driver.ErrRefused) || time.Now().After(end) {
			return l, err
		}
	}
}

// clocksUnknown is what nodes say that vote as soon as the other nodes have answered.
const clocksUnknown = "until the clocks and the terms of the other nodes are known"

// vote is answer, but bids again while nodes were not answered for by the others: on a machine
// that stands still that is no verdict.
func (f *fleet) vote(q *redlock.Backend, key string, ttl time.Duration) (l driver.Lease, err error) {
	for end := limit(); ; time.Sleep(poll) {
		if l, err = f.answer(q, key, ttl); err == nil || !strings.Contains(err.Error(), clocksUnknown) || time.Now().After(end) {
			return l, err
		}
	}
}

// bootstrap makes the statement s, again and again until it is made or refused.
func bootstrap(q *redlock.Backend, s quorum.Bootstrap) (r *quorum.MemoryReport, err error) {
	for end := limit(); ; time.Sleep(poll) {
		r, err = q.Bootstrap(context.Background(), &s)
		if err == nil || errors.Is(err, driver.ErrRefused) || time.Now().After(end) {
			return r, err
		}
	}
}

// Three nodes become five while clients run: first Bootstrap is called with the new list, then
// the clients get it. Clients with the old list are refused, with an error that says what to
// do; their leases end before anybody else gets these locks.
func TestTheNumberOfNodesIsChangedUnderLoad(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: it waits for quarantines")
	}
	const guard = time.Second
	f := newFleet(t, 5)
	b := newBook(t)
	o := redlock.Options{Guard: guard, Bootstrap: true, NodeTimeout: 300 * time.Millisecond}
	open := func(servers []*server.Server) *redlock.Backend { return f.quorum("", servers, 5, o) }
	three := f.servers[:3]
	old := []*member{b.join("three 1", open(three), guard), b.join("three 2", open(three), guard)}
	progress(t, old...)
	held, err := f.vote(open(three), "held", guard)
	if err != nil {
		t.Fatal(err)
	}

	// Without Bootstrap the new list is refused.
	five := open(f.servers)
	_, err = f.answer(five, "k", guard)
	if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "dlock bootstrap --nodes") {
		t.Errorf("five nodes where there are three: %v", err)
	}
	progress(t, old...)

	stated := time.Now()
	for end := limit(); ; time.Sleep(poll) { // repeats while a node answers late
		if _, err = five.Bootstrap(context.Background(), &quorum.Bootstrap{Statement: quorum.StateNodes}); err == nil {
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
	// A restart of a node does no harm after the change.
	if err := crash(f, 0, f.servers[0]); err != nil {
		t.Fatal(err)
	}
	progress(t, fresh...)
	for _, m := range fresh {
		m.leave()
	}
	t.Logf("%d grants, %d overlaps", b.grants.Load(), b.overlap.Load())
}

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

// The guard is made longer while clients run and nodes are restarted: the guard first, one
// client after the other, and then the leases.
func TestTheGuardIsRolledOutUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	const before, after = time.Second, 2 * time.Second
	f := newFleet(t, 5)
	b := newBook(t)
	open := func(guard time.Duration) *redlock.Backend {
		return f.quorum("", f.servers, 5, redlock.Options{Guard: guard, Bootstrap: true, NodeTimeout: 300 * time.Millisecond})
	}
	kept := func(i int) time.Duration { // as the server has it, without its margin
		meta := strings.Fields(fmt.Sprint(f.do(i, "GET", "redlock1:meta")))
		var us int64
		_, _ = fmt.Sscan(meta[5], &us)
		return time.Duration(us) * time.Microsecond
	}
	old := []*member{b.join("old 1", open(before), before), b.join("old 2", open(before), before)}
	progress(t, old...)
	// forget makes a majority forget what is held, locks of this quorum among it.
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
	// The guard: both kinds run beside each other.
	first := b.join("new guard 1", open(after), before)
	old[0].leave()
	forget(open(before), before)
	progress(t, first, old[1])
	second := b.join("new guard 2", open(after), before)
	old[1].leave()
	progress(t, first, second)
	// The leases.
	longer := b.join("longer leases", open(after), after)
	progress(t, first, longer)
	first.leave()
	second.leave()
	forget(open(after), after)
	progress(t, longer)
	longer.leave()
	for i := range f.servers {
		if got := kept(i); got < after {
			t.Errorf("node %d keeps a guard of %v", i, got)
		}
	}
	if _, err := open(before).Acquire(context.Background(), ask("k", after)); !errors.Is(err, driver.ErrInvalid) && !errors.Is(err, driver.ErrRefused) {
		t.Errorf("a TTL over the guard: %v", err)
	}
	t.Logf("%d grants, %d overlaps", b.grants.Load(), b.overlap.Load())
}

// Three nodes become five while clients run: Bootstrap with the new list first, and then the
// clients get it. Those that have the old one are refused, and told what to do; what they
// held ends before anybody gets it.
func TestTheNumberOfNodesIsChangedUnderLoad(t *testing.T) {
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
	// until makes an attempt again while it is neither granted nor refused: the machine is busy.
	until := func(q *redlock.Backend, key string) (l driver.Lease, err error) {
		for end := time.Now().Add(guardLimit); ; {
			l, err = q.Acquire(context.Background(), ask(key, guard))
			if err == nil || errors.Is(err, driver.ErrRefused) || time.Now().After(end) {
				return l, err
			}
		}
	}
	held, err := until(open(three), "held")
	if err != nil {
		t.Fatal(err)
	}

	// Without it the new list is refused.
	five := open(f.servers)
	_, err = until(five, "k")
	if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "dlock bootstrap --nodes") {
		t.Errorf("five nodes where there are three: %v", err)
	}
	progress(t, old...)

	stated := time.Now()
	for end := time.Now().Add(guardLimit); ; { // until no node was late
		if _, err = five.Bootstrap(context.Background(), &driver.Bootstrap{Resize: true}); err == nil {
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

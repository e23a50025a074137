package dlock_test

import (
	"bytes"
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

// spy is a backend whose calls a test sees, changes or holds up. Once it is in use, set
// changes its fields. It has no optional interface unless watching wraps it.
type spy struct {
	driver.Backend
	mu      sync.Mutex
	owners  []string
	hide    driver.Features // features that it pretends not to have
	info    func(*driver.Info)
	acquire func(context.Context, *driver.Request) error // an error is returned instead of the call
	granted func(*driver.Grant)
	renew   func(context.Context, *driver.Renewal) error
	renewed func() error // after the renewal took effect: an error is a lost reply
	release func(context.Context) error

	acquires, grants, renewals, releases atomic.Int64
}

// set changes the fields.
func (s *spy) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func read[T any](s *spy, field *T) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *field
}

func newSpy() *spy { return &spy{Backend: memory.New()} }

func (s *spy) Info() driver.Info {
	i := s.Backend.Info()
	i.Features &^= s.hide
	if s.info != nil {
		s.info(&i)
	}
	return i
}

func (s *spy) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	s.acquires.Add(1)
	s.mu.Lock()
	s.owners = append(s.owners, r.Owner)
	s.mu.Unlock()
	if f := read(s, &s.acquire); f != nil {
		if err := f(ctx, r); err != nil {
			return nil, err
		}
	}
	if r.TTL == 0 { // memory has a TTL, and stands in for a session here
		copied := *r
		copied.TTL = s.Backend.Info().MaxTTL
		r = &copied
	}
	l, err := s.Backend.Acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	s.grants.Add(1)
	return &spyLease{Lease: l, s: s}, nil
}

type spyLease struct {
	driver.Lease
	s *spy
}

func (l *spyLease) Grant() driver.Grant {
	g := l.Lease.Grant()
	g.Lost = nil // a loss is learned by a renewal, unless session says otherwise
	if f := read(l.s, &l.s.granted); f != nil {
		f(&g)
	}
	return g
}

func (l *spyLease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	l.s.renewals.Add(1)
	if f := read(l.s, &l.s.renew); f != nil {
		if err := f(ctx, r); err != nil {
			return driver.Grant{}, err
		}
	}
	g, err := l.Lease.Renew(ctx, r)
	if f := read(l.s, &l.s.granted); err == nil && f != nil {
		f(&g)
	}
	if f := read(l.s, &l.s.renewed); err == nil && f != nil {
		err = f()
	}
	return g, err
}

func (l *spyLease) Release(ctx context.Context) error {
	l.s.releases.Add(1)
	if f := read(l.s, &l.s.release); f != nil {
		if err := f(ctx); err != nil {
			return err
		}
	}
	return l.Lease.Release(ctx)
}

// watching gives a spy memory's Watcher.
type watching struct{ *spy }

func (w watching) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	return w.Backend.(driver.Watcher).Watch(ctx, key)
}

// session makes a spy a backend without TTL, whose leases end with lost.
func (s *spy) session(lost <-chan struct{}) {
	s.info = func(i *driver.Info) {
		i.MinTTL, i.MaxTTL = 0, 0
		i.Features |= driver.FeatureSession
	}
	s.granted = func(g *driver.Grant) {
		*g = driver.Grant{Fence: g.Fence, Lost: lost}
	}
}

// goroutines counts those of the caller's bubble. runtime.NumGoroutine counts other tests' too,
// and one that is just ending, which synctest.Wait no longer waits for.
func goroutines() int {
	stacks := make([]byte, 4<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	heading, _, _ := bytes.Cut(stacks, []byte("]:"))
	bubble := heading[bytes.LastIndex(heading, []byte("synctest bubble ")):]
	return bytes.Count(stacks, append(bubble, ']'))
}

package fault

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Errors for faults. None is a verdict: to the caller the outcome is unknown.
var (
	ErrNotSent   = errors.New("fault: the request was not sent")
	ErrReplyLost = errors.New("fault: the reply was lost")
	ErrHung      = errors.New("fault: no answer")
)

// Op is a call of a backend or of its leases.
type Op int

// The calls that a Script can make fail.
const (
	Acquire Op = iota
	Renew
	Release
	Watch
	ops
)

// String returns the call's name.
func (o Op) String() string {
	if o < 0 || o >= ops {
		return "unknown"
	}
	return [...]string{"acquire", "renew", "release", "watch"}[o]
}

// A Fault describes the failure of one call. Its parts happen in this order; the zero
// Fault is a call that goes well.
type Fault struct {
	// Delay is how late the call reaches the backend. If ctx ends earlier, the call never
	// reaches the backend, and fails with ctx's error.
	Delay time.Duration
	// Before is returned instead of making the call: nothing took effect.
	Before error
	// Hang keeps the call from being made and from returning until ctx ends, until
	// Heal or until Close. (A Release whose ctx has ended already has 5 s for all of
	// this: it works after cancellation.)
	Hang bool
	// After is returned although the call was made: it took effect, and the reply was lost. A
	// granted lock is released in the background, as every driver must do (rule 2), unless
	// Orphan is set.
	After error
	// HangAfter is Hang after the effect.
	HangAfter bool
	// Orphan keeps the lock that a failed Acquire was granted: the clean-up was lost too.
	Orphan bool
	// Late is how late the reply is. If ctx ends before, the call fails as with After.
	Late time.Duration

	_ struct{}
}

// A Call is one call to a backend.
type Call struct {
	Op    Op
	Key   string
	Owner string
	N     int // how many earlier calls of this Op there were

	_ struct{}
}

// A Script decides which calls of the backends that Wrap made with it fail, and how. The zero
// Script lets everything go well. Its methods are safe for concurrent use.
type Script struct {
	mu     sync.Mutex
	next   [ops][]Fault
	always [ops]*Fault
	decide func(Call) Fault
	calls  [ops]int
	healed chan struct{} // closed and replaced by Heal
}

// Next sets the faults of the next calls of op, one each, behind those of earlier calls of
// Next.
func (s *Script) Next(op Op, faults ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next[op] = append(s.next[op], faults...)
}

// Always sets the fault of every call of op for which Next has none left.
func (s *Script) Always(op Op, f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.always[op] = &f
}

// Decide sets a function that returns the fault of every call for which neither Next nor Always
// has one. It may be called concurrently.
func (s *Script) Decide(f func(Call) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decide = f
}

// Heal forgets all faults. Calls that hang return ErrHung.
func (s *Script) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next, s.always, s.decide = [ops][]Fault{}, [ops]*Fault{}, nil
	if s.healed != nil {
		close(s.healed)
		s.healed = nil
	}
}

// Calls returns how many calls of op there were.
func (s *Script) Calls(op Op) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[op]
}

// fault returns the next call's fault, and a channel that ends its hanging.
func (s *Script) fault(op Op, key, owner string) (Fault, <-chan struct{}) {
	s.mu.Lock()
	call := Call{Op: op, Key: key, Owner: owner, N: s.calls[op]}
	s.calls[op]++
	if s.healed == nil {
		s.healed = make(chan struct{})
	}
	healed, decide := s.healed, s.decide
	var f Fault
	switch queue := s.next[op]; {
	case len(queue) > 0:
		f, s.next[op], decide = queue[0], queue[1:], nil
	case s.always[op] != nil:
		f, decide = *s.always[op], nil
	}
	s.mu.Unlock()
	if decide != nil {
		f = decide(call)
	}
	return f, healed
}

// Wrap returns a backend that makes b's calls with the script's faults. It has exactly b's
// optional interfaces, as have its leases, and is a fmt.Stringer. Closing it closes b.
func Wrap(b driver.Backend, s *Script) driver.Backend {
	f := &backend{inner: b, script: s, closed: make(chan struct{})}
	o := optionalOf(b)
	if o.watcher != nil {
		o.watcher = watcher{f, o.watcher}
	}
	return o.add(f)
}

// releaseLimit bounds a Release that hangs, and the clean-up of a lost grant.
const releaseLimit = 5 * time.Second

var _ driver.Backend = (*backend)(nil)

type backend struct {
	inner  driver.Backend
	script *Script

	mu      sync.Mutex // guards the count against Close
	closed  chan struct{}
	cleanup sync.WaitGroup
}

func (b *backend) layer() any { return b }

// String returns the wrapped backend's String.
func (b *backend) String() string {
	if s, ok := b.inner.(fmt.Stringer); ok {
		return s.String()
	}
	return b.inner.Info().Name
}

func (b *backend) Info() driver.Info { return b.inner.Info() }

// Close lets hanging calls return, waits for the clean-up that is under way, and closes the
// wrapped backend.
func (b *backend) Close() error {
	b.mu.Lock()
	select {
	case <-b.closed:
	default:
		close(b.closed)
	}
	b.mu.Unlock()
	b.cleanup.Wait()
	return b.inner.Close()
}

func (b *backend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	var granted driver.Lease
	f, err := b.spoil(ctx, Acquire, req.Key, req.Owner, func() (err error) {
		granted, err = b.inner.Acquire(ctx, req)
		return err
	})
	if err != nil {
		if granted != nil && !f.Orphan {
			b.undo(ctx, granted)
		}
		return nil, err
	}
	return &lease{b, granted, req.Key, req.Owner}, nil
}

// undo releases a grant whose reply was lost.
func (b *backend) undo(ctx context.Context, granted driver.Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.closed: // after Close leases are not released
		return
	default:
	}
	b.cleanup.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
		defer cancel()
		_ = granted.Release(ctx) // the lock ends by its TTL
	})
}

// spoil makes a call with the script's fault.
func (b *backend) spoil(ctx context.Context, op Op, key, owner string, call func() error) (Fault, error) {
	f, healed := b.script.fault(op, key, owner)
	if err := sleep(ctx, f.Delay); err != nil {
		return f, err
	}
	if f.Before != nil {
		return f, f.Before
	}
	if f.Hang {
		return f, b.hang(ctx, healed)
	}
	if err := call(); err != nil {
		return f, err
	}
	if f.HangAfter {
		return f, b.hang(ctx, healed)
	}
	if f.After != nil {
		return f, f.After
	}
	return f, sleep(ctx, f.Late)
}

// hang returns when ctx ends, or at Heal or Close.
func (b *backend) hang(ctx context.Context, healed <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrHung, ctx.Err())
	case <-healed:
		return ErrHung
	case <-b.closed:
		return fmt.Errorf("%w: %w", ErrHung, driver.ErrClosed)
	}
}

// sleep returns after d, or with ctx's error when it ends before.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var _ driver.Lease = (*lease)(nil)

type lease struct {
	b          *backend
	inner      driver.Lease
	key, owner string
}

func (l *lease) Grant() driver.Grant { return l.inner.Grant() }

func (l *lease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	var g driver.Grant
	_, err := l.b.spoil(ctx, Renew, l.key, l.owner, func() (err error) {
		g, err = l.inner.Renew(ctx, r)
		return err
	})
	if err != nil {
		return driver.Grant{}, err
	}
	return g, nil
}

// As the contract says, Release works after cancellation, for a bounded time.
func (l *lease) Release(ctx context.Context) error {
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
		defer cancel()
	}
	_, err := l.b.spoil(ctx, Release, l.key, l.owner, func() error { return l.inner.Release(ctx) })
	return err
}

type watcher struct {
	b     *backend
	inner driver.Watcher
}

// Watch applies faults to the subscription only; the values come from the wrapped backend.
func (w watcher) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	var free <-chan struct{}
	_, err := w.b.spoil(ctx, Watch, key, "", func() (err error) {
		free, err = w.inner.Watch(ctx, key)
		return err
	})
	if err != nil {
		return nil, err
	}
	return free, nil
}

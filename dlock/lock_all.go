package dlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// LockAll waits until it has the locks of all keys, and returns them as one: all or nothing.
// Keys are sorted and duplicates dropped. They are taken one after the other in that order, so
// that callers with the same keys cannot block each other for ever, and the first ones are held
// and renewed while the others are waited for. If one is lost meanwhile, LockAll begins again.
//
// ctx bounds the waiting, and opts are for each lock. Without keys the error is ErrInvalid;
// otherwise it is the error of Client.Lock for the key that failed, and all other locks have
// been released. Callers that take the same locks in another order, by Lock within Lock, can
// still deadlock: give ctx a deadline then.
func LockAll(ctx context.Context, l Locker, keys []string, opts ...LockOption) (*Leases, error) {
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	if len(keys) == 0 {
		return nil, fmt.Errorf("dlock: lock all: %w", driver.Invalid("keys", "are none"))
	}
	for {
		ls := &Leases{done: make(chan struct{})}
		err := ls.take(ctx, l, keys, opts)
		if err == nil {
			return ls, nil
		}
		lostOne := errors.Is(ls.Err(), ErrLost)
		ls.discard()
		if !lostOne || ctx.Err() != nil {
			return nil, err
		}
	}
}

// Leases are the locks of several keys, held together: the first loss ends all of them. Their
// methods are safe for concurrent use.
type Leases struct {
	mu       sync.Mutex
	leases   []*Lease // in the order of their keys
	unwatch  []func()
	err      error
	done     chan struct{}
	unlocked bool
}

// take takes the locks in order, each under the contexts of the leases before it.
func (ls *Leases) take(ctx context.Context, l Locker, keys []string, opts []LockOption) error {
	for _, key := range keys {
		lease, err := l.Lock(ctx, key, opts...)
		if err != nil {
			return err
		}
		ls.add(lease)
		var cancel context.CancelFunc
		ctx, cancel = lease.Context(ctx)
		defer cancel()
	}
	return ls.Err()
}

// add watches a lease for its end.
func (ls *Leases) add(l *Lease) {
	ctx, cancel := l.Context(context.Background())
	stop := context.AfterFunc(ctx, func() { _ = ls.Err() })
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.leases = append(ls.leases, l)
	ls.unwatch = append(ls.unwatch, func() { stop(); cancel() })
}

// Err returns nil while all the locks are valid; then an error that names the lock that ended
// first and says why: ErrLost, ErrMaxHold or ErrReleased. It looks at the clock, as Lease.Err
// does.
func (ls *Leases) Err() error {
	ls.mu.Lock()
	if ls.err != nil {
		defer ls.mu.Unlock()
		return ls.err
	}
	var first error
	for _, l := range ls.leases {
		if err := l.Err(); err != nil {
			first = fmt.Errorf("%s: %w", quoteKey(l.key), err)
			break
		}
	}
	if first == nil {
		ls.mu.Unlock()
		return nil
	}
	ls.err = first
	close(ls.done)
	leases := ls.leases
	ls.mu.Unlock()
	if errors.Is(first, ErrLost) {
		for _, l := range leases {
			l.finish(lost("the lock taken together with it was lost: %v", first))
		}
	}
	return first
}

// Done returns a channel that is closed when the first of the locks is over, or Unlock was
// called. Each lease's own Done is closed then; their locks stay until Unlock, or until their
// TTL ends.
func (ls *Leases) Done() <-chan struct{} { return ls.done }

// Deadline returns when the first of the leases ends unless it is renewed, and false if all of
// them end only with their sessions. Done is closed earlier.
func (ls *Leases) Deadline() (earliest time.Time, ok bool) {
	for _, l := range ls.leases {
		if t, has := l.Deadline(); has && (!ok || t.Before(earliest)) {
			earliest, ok = t, true
		}
	}
	return earliest, ok
}

// Keys returns the keys, sorted and each once.
func (ls *Leases) Keys() []string {
	keys := make([]string, len(ls.leases))
	for i, l := range ls.leases {
		keys[i] = l.Key()
	}
	return keys
}

// Fence returns the fencing token of key's lock: see Lease.Fence. It is zero for any other key.
func (ls *Leases) Fence(key string) uint64 {
	for _, l := range ls.leases {
		if l.Key() == key {
			return l.Fence()
		}
	}
	return 0
}

// Context returns a copy of parent that is cancelled when the first of the locks is over. Its
// own Err looks at the clock, and LeaseFor finds the lease of each key in it. Call cancel when
// it is no longer needed; that releases nothing.
func (ls *Leases) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx := parent
	var cancels []context.CancelFunc
	for _, l := range ls.leases {
		var cancel context.CancelFunc
		ctx, cancel = l.Context(ctx)
		cancels = append(cancels, cancel)
	}
	return leasesContext{ctx, ls}, func() {
		for _, cancel := range cancels {
			cancel()
		}
	}
}

// leasesContext is a context that ends with the first of some leases.
type leasesContext struct {
	context.Context
	leases *Leases
}

// Err returns the context's error, and ends it first if a lease is over by the clock.
func (c leasesContext) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	_ = c.leases.Err() // ends the contexts of a lease that is over
	return c.Context.Err()
}

// Unlock ends the leases and releases their locks, at the same time. It works after the
// cancellation of any context and blocks for the releases, which the driver bounds to some
// seconds. A second call returns nil.
//
// ErrLost names the lock that was lost first: work done since then was not protected. The error
// also joins the errors of releases that failed: see Lease.Unlock.
func (ls *Leases) Unlock() error { return ls.end((*Lease).Unlock) }

// discard releases leases that the caller does not get.
func (ls *Leases) discard() {
	_ = ls.end(func(l *Lease) error { l.discard(); return nil })
}

func (ls *Leases) end(release func(*Lease) error) error {
	before := ls.Err()
	ls.mu.Lock()
	if ls.unlocked {
		ls.mu.Unlock()
		return nil
	}
	ls.unlocked = true
	if ls.err == nil {
		ls.err = ErrReleased
		close(ls.done)
	}
	for _, stop := range ls.unwatch {
		stop()
	}
	ls.mu.Unlock()

	errs := make([]error, len(ls.leases))
	var wg sync.WaitGroup
	for i, l := range ls.leases {
		wg.Go(func() { errs[i] = release(l) })
	}
	wg.Wait()
	end := before
	if end != nil {
		end = fmt.Errorf("dlock: unlock all: %w", end)
	}
	for _, err := range errs {
		switch {
		case err == nil || before != nil && (errors.Is(err, ErrLost) || errors.Is(err, ErrClosed)): // reported already
		case end == nil:
			end = err
		default:
			end = fmt.Errorf("%w; %w", end, err)
		}
	}
	return end
}

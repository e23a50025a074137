package dlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Both returns a Locker for changing from one backend to another while the program runs: its
// leases hold the lock of the key on both. First every instance changes from old to Both(old,
// new); when all have, every instance changes from that to new. In each of the two rollouts any
// two instances have one backend in common, and so exclude each other. A single rollout from
// old to new would let two instances hold the lock.
//
// Every instance takes the lock on old first and then on new, and releases them in reverse
// order. A lease is over when either lock is; its Deadline is the earlier one, and renewals go
// to both. The defaults of options are old's, but for the TTL, which is the shorter one and is
// used on both; WithTTL does not reach a backend that has no TTL.
//
// Lease.Fence is the larger of both tokens, and zero if either backend has none. Lock waits for
// as long as the tokens differ, so that the other backend's later ones are larger, if they follow
// its servers' clock. They may not, for up to a second or two, if a counter is ahead of its
// clock (one that was set back; etcd's on slow servers) or if a quorum's client has a slow clock:
// then an instance that uses this backend alone may get a smaller one. If the tokens are more
// than 5 s apart the error is ErrUnavailable and says so.
//
// The Locker needs no Close. The caller still owns old and new; closing either of them ends the
// leases.
func Both(old, new Locker) Locker {
	if old == nil || new == nil {
		return &both{err: driver.Invalid("locker", "is nil")}
	}
	b := &pair{old: old, new: new, oldInfo: infoOf(old), newInfo: infoOf(new)}
	cfg := config{}
	cfg.reset()
	if c := clientOf(old); c != nil {
		cfg.lockConfig = c.lockConfig
	}
	cfg.ttl, cfg.ttlSet = cmp.Or(shorter(ttlOf(old), ttlOf(new)), DefaultTTL), false
	c, err := newClient(b, cfg, []Option{WithLogger(nil)}) // the clients of old and new log
	return &both{c: c, err: err}
}

// both is the Locker that Both returns: a client whose backend is a pair.
type both struct {
	c   *Client
	err error
}

func (b *both) Lock(ctx context.Context, key string, opts ...LockOption) (*Lease, error) {
	if b.err != nil {
		return nil, &Error{Op: "lock", Key: key, Err: b.err}
	}
	return b.c.Lock(minHoldBelow(ctx, b.c, &opts), key, opts...)
}

func (b *both) TryLock(ctx context.Context, key string, opts ...LockOption) (*Lease, error) {
	if b.err != nil {
		return nil, &Error{Op: "trylock", Key: key, Err: b.err}
	}
	return b.c.TryLock(minHoldBelow(ctx, b.c, &opts), key, opts...)
}

type minHoldKey struct{}

// minHoldBelow passes WithMinHold on to old and new, each of which keeps its own lock.
func minHoldBelow(ctx context.Context, c *Client, opts *[]LockOption) context.Context {
	cfg := c.lockConfig
	for _, o := range *opts {
		if o != nil {
			o.setLock(&cfg)
		}
	}
	if cfg.minHold <= 0 || cfg.checkLock() != nil {
		return ctx
	}
	*opts = append(append([]LockOption(nil), *opts...), WithMinHold(0))
	return context.WithValue(ctx, minHoldKey{}, cfg.minHold)
}

// clientOf returns the *Client behind a Locker, or nil if the Locker is of another type.
func clientOf(l Locker) *Client {
	switch l := l.(type) {
	case *Client:
		return l
	case *both:
		return l.c
	}
	return nil
}

// infoOf describes a Locker's backend. It assumes that an unknown Locker has every feature: the
// Locker itself refuses a request that it cannot honour.
func infoOf(l Locker) driver.Info {
	if c := clientOf(l); c != nil {
		return c.info
	}
	return driver.Info{
		Name:     "a locker",
		Features: driver.FeatureShared | driver.FeatureFencing | driver.FeatureOrdered,
		MinTTL:   driver.MinTTL,
		MaxTTL:   24 * time.Hour,
	}
}

func ttlOf(l Locker) time.Duration {
	if c := clientOf(l); c != nil {
		return c.TTL()
	}
	return 0
}

// shorter returns the smaller duration of those that are not zero.
func shorter(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return a + b
	}
	return min(a, b)
}

const oldSide, newSide = "old backend", "new backend"

// pair is the backend that takes each lock from two lockers.
type pair struct {
	old, new         Locker
	oldInfo, newInfo driver.Info
}

var _ driver.Backend = (*pair)(nil)

// Info has the features that both backends have.
func (p *pair) Info() driver.Info {
	a, b := p.oldInfo, p.newInfo
	const inBoth = driver.FeatureShared | driver.FeatureFencing | driver.FeatureOrdered
	return driver.Info{
		Name:     a.Name + " and " + b.Name,
		Features: a.Features&b.Features&inBoth | (a.Features|b.Features)&driver.FeatureSession | driver.FeatureQueueing,
		MinTTL:   max(a.MinTTL, b.MinTTL),
		MaxTTL:   shorter(a.MaxTTL, b.MaxTTL),
	}
}

// Close does nothing: the caller owns both lockers.
func (p *pair) Close() error { return nil }

// Acquire takes the lock on old, and then on new while it holds the first.
func (p *pair) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	old, err := p.take(ctx, oldSide, p.old, p.oldInfo, r)
	if err != nil {
		return nil, err
	}
	oldAt := time.Now()
	both, cancel := old.Context(ctx)
	defer cancel()
	l, err := p.takeNew(both, r, old, oldAt)
	if err == nil {
		return l, nil
	}
	over := old.Err()
	old.discard()
	if over != nil && ctx.Err() == nil {
		// The outcome is unknown and no loss: no lease was returned.
		return nil, fmt.Errorf("the lock on the old backend ended during the wait for the lock on the new one: %v", over) //nolint:errorlint // see above
	}
	return nil, err
}

// takeNew takes the second lock, under the context of the first lease.
func (p *pair) takeNew(ctx context.Context, r *driver.Request, old *Lease, oldAt time.Time) (driver.Lease, error) {
	new, err := p.take(ctx, newSide, p.new, p.newInfo, r)
	if err != nil {
		return nil, err
	}
	both, cancel := new.Context(ctx)
	defer cancel()
	l := &pairLease{old: old, new: new, lost: make(chan struct{})}
	l.fence, err = agreeOnToken(both, old.Fence(), oldAt, new.Fence(), time.Now())
	if err != nil {
		new.discard()
		return nil, err
	}
	l.watch()
	old.leaveRenewing() // the lease of both renews it
	new.leaveRenewing()
	return l, nil
}

// take takes the lock from one locker. The lease renews itself until both locks are held.
func (p *pair) take(ctx context.Context, side string, from Locker, info driver.Info, r *driver.Request) (*Lease, error) {
	minHold, _ := ctx.Value(minHoldKey{}).(time.Duration)
	opts := []LockOption{WithMode(r.Mode), WithRenewal(true), WithMaxHold(0), WithMinHold(minHold), noSlots}
	if info.MaxTTL != 0 {
		opts = append(opts, WithTTL(r.TTL))
	}
	lock := from.TryLock
	if r.Wait {
		lock = from.Lock
	}
	l, err := lock(ctx, r.Key, opts...)
	if err != nil {
		return nil, sideError(side, err)
	}
	return l, nil
}

// sideError names the backend, once, and leaves out the key and operation, which the caller's
// error names anyway.
func sideError(side string, err error) error {
	var e *Error
	switch {
	case !errors.As(err, &e) || e.Err == nil && e.ContextErr == nil:
		return fmt.Errorf("%s: %w", side, err)
	case e.ContextErr == nil:
		return fmt.Errorf("%s: %w", side, e.Err)
	case e.Err == nil:
		return e.ContextErr
	}
	return fmt.Errorf("%w: %s: %w", e.ContextErr, side, e.Err)
}

// tokensApart is how far apart the tokens of two backends may be. Usually they differ as much
// as the servers' clocks do, or as much as a counter is ahead of its clock.
const tokensApart = 5 * time.Second

// agreeOnToken returns the larger of two tokens, which arrived at aAt and bAt. It waits for
// the backend of the smaller token to get past the larger one.
func agreeOnToken(ctx context.Context, a uint64, aAt time.Time, b uint64, bAt time.Time) (uint64, error) {
	if a == 0 || b == 0 {
		return 0, nil
	}
	if a > b {
		a, aAt, b = b, bAt, a
	}
	gap := time.Duration(min(b-a, driver.MaxFence/1000)) * time.Microsecond
	if gap > tokensApart {
		return 0, &driver.RefusedError{
			RetryAfter: gap,
			Reason:     fmt.Sprintf("the tokens of the old and the new backend are %v apart: check the clocks of their servers", shortDuration(gap)),
		}
	}
	// A token is in microseconds of its server's clock. Wait for one microsecond more, and for
	// drift.
	t := time.NewTimer(time.Until(aAt.Add(gap + gap/100 + time.Microsecond)))
	defer t.Stop()
	select {
	case <-t.C:
		return b, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("waiting for a token that is larger on both backends: %w", ctx.Err())
	}
}

// pairLease is the lease of a pair: one lease on each backend.
type pairLease struct {
	old, new *Lease
	fence    uint64
	lost     chan struct{}
	end      sync.Once // closes lost
	unwatch  []func()
}

// watch closes the pair's Lost when either lease is over.
func (l *pairLease) watch() {
	for _, half := range []*Lease{l.old, l.new} {
		ctx, cancel := half.Context(context.Background())
		stop := context.AfterFunc(ctx, func() { l.end.Do(func() { close(l.lost) }) })
		l.unwatch = append(l.unwatch, func() { stop(); cancel() })
	}
}

// leaveRenewing ends the lease's own renewals.
func (l *Lease) leaveRenewing() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renews = false
	l.renewAt = 0
}

// Grant returns the earlier end and the larger token.
func (l *pairLease) Grant() driver.Grant {
	g := driver.Grant{Fence: l.fence, Lost: l.lost}
	for _, half := range []*Lease{l.old, l.new} {
		if t, ok := half.Deadline(); ok && (g.Expires.IsZero() || t.Before(g.Expires)) {
			g.Expires = t
		}
	}
	return g
}

// Renew renews both at the same time.
func (l *pairLease) Renew(ctx context.Context, _ *driver.Renewal) (driver.Grant, error) {
	var oldErr, newErr error
	var wg sync.WaitGroup
	wg.Go(func() { oldErr = l.old.Renew(ctx) })
	newErr = l.new.Renew(ctx)
	wg.Wait()
	err := cmp.Or(oldErr, newErr)
	side := oldSide
	if oldErr == nil || errors.Is(newErr, ErrLost) {
		err, side = newErr, newSide
	}
	switch {
	case err == nil:
		return l.Grant(), nil
	case errors.Is(err, ErrLost):
		return driver.Grant{}, fmt.Errorf("%w: %s", driver.ErrLost, side)
	}
	return driver.Grant{}, sideError(side, err)
}

// Release releases the lock on new and then the one on old, so that the next holder of old need
// not wait for new.
func (l *pairLease) Release(context.Context) error {
	for _, stop := range l.unwatch {
		stop()
	}
	l.end.Do(func() { close(l.lost) }) // ends the goroutine that watches it
	newErr, oldErr := l.new.Unlock(), l.old.Unlock()
	if newErr != nil && (oldErr == nil || errors.Is(oldErr, ErrLost)) {
		return sideError(newSide, newErr)
	}
	if oldErr != nil {
		return sideError(oldSide, oldErr)
	}
	return nil
}

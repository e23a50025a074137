package dlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/boot"
)

// A Lease is a lock that is held until Done is closed. It renews itself. Its methods are safe for
// concurrent use. Leases come from Lock and TryLock; the zero Lease is of no use.
type Lease struct {
	c      *Client
	held   driver.Lease
	ctx    context.Context // has the values of Lock's context, and never ends
	key    string
	slot   int
	fence  uint64
	ttl    time.Duration // zero: bound to a session
	margin time.Duration // from Done to the deadline

	granted boot.Instant
	tenure  *tenure      // nil: the lock is not passed on
	limit   boot.Instant // the end of WithMaxHold
	keep    boot.Instant // the end of WithMinHold

	mu       sync.Mutex
	lost     <-chan struct{} // the grant's; nil: none
	expires  boot.Instant
	renewAt  boot.Instant
	failure  error           // of the last renewal; nil if it succeeded
	err      error           // why the lease ended; nil: it has not
	life     context.Context // ends with the lease; made when somebody asks for it
	end      context.CancelCauseFunc
	renewing bool // the renewal has begun
	unlocked bool
	kept     bool // it has ended, and its lock is kept for WithMinHold
	passed   bool // it has ended, and its lock is another lease's

	// The client's mutex guards these.
	index  int32 // in the client's leases; -1: not there
	stepAt boot.Instant
}

// never is later than every instant.
const never boot.Instant = 1<<63 - 1

// newLease makes the lease of a grant that was asked for at an instant, by two clocks. It fails if
// the grant came too late, or the client was closed.
func (c *Client) newLease(ctx context.Context, r *request, held driver.Lease, at boot.Instant, start time.Time) (*Lease, error) {
	g := held.Grant()
	now := c.clock.Now() // at may be long ago, if the backend queued the request
	l := &Lease{
		c: c, held: held, ctx: context.WithoutCancel(ctx), key: r.name, slot: r.slot, fence: g.Fence, lost: g.Lost,
		granted: now, limit: never, expires: never, renewAt: never, index: -1,
	}
	if !g.Expires.IsZero() {
		l.ttl = r.TTL
		l.margin = cmp.Or(r.margin, max(5*time.Millisecond, l.ttl/50))
		l.expires = at.Add(g.Expires.Sub(start))
		l.renewAt = l.nextRenewal()
		if now >= l.endsAt() {
			return nil, fmt.Errorf("granted too late: it took %v of a TTL of %v (use a longer TTL)", time.Since(start).Round(time.Millisecond), r.TTL)
		}
	}
	if r.tokens != 0 {
		l.tenure = c.newTenure(l, r, g)
	}
	if r.maxHold != 0 {
		l.limit = now.Add(r.maxHold)
	}
	l.keep = now.Add(r.minHold)
	if r.minHold > l.ttl && c.keeps() {
		l.renewAt = now // tell the server at once, in case this process ends
	}
	return l, c.enlist(l)
}

// endsAt returns when the lease is over unless it is renewed.
func (l *Lease) endsAt() boot.Instant { return min(l.limit, l.expires.Add(-l.margin)) }

// Key returns the key, without the client's prefix.
func (l *Lease) Key() string { return l.key }

// Slot returns which slot of WithSlots the lease has: 0 to n−1, and 0 without WithSlots.
func (l *Lease) Slot() int { return l.slot }

// Fence returns the fencing token: larger than that of every lease of this key before
// it, and zero if the backend has none. Send it along with every write that the lock
// protects, and let the store refuse a token smaller than the largest it has seen. That, and
// not the lock, stops a holder that paused beyond its deadline.
func (l *Lease) Fence() uint64 { return l.fence }

// Deadline returns when the lease ends unless it is renewed, and false if it ends only with its
// session. Done is closed earlier.
func (l *Lease) Deadline() (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline()
}

func (l *Lease) deadline() (time.Time, bool) {
	if l.expires == never {
		return time.Time{}, false
	}
	return l.c.clock.Time(l.expires), true
}

// Done returns a channel that is closed when the lease is over: when it was lost, no
// later than Deadline less WithMargin, however a renewal hangs; and when it was
// released.
func (l *Lease) Done() <-chan struct{} { return l.lifetime().Done() }

// lifetime returns a context that ends with the lease.
func (l *Lease) lifetime() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.life == nil {
		l.life, l.end = context.WithCancelCause(context.Background())
		if l.err != nil {
			l.end(l.err)
		}
	}
	return l.life
}

// Err returns nil while the lease is valid; then an error that says why it is over:
// ErrLost, ErrMaxHold (which is ErrLost) or ErrReleased, to be found with errors.Is. It
// looks at the clock, and so knows before any timer does.
func (l *Lease) Err() error {
	now := l.c.clock.Fresh()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.look(now)
}

// look ends the lease if it is over by the clock, or by what the backend reports, and returns why it
// is over. l.mu is held.
func (l *Lease) look(now boot.Instant) error {
	switch {
	case l.err != nil:
	case l.gone():
		l.finish(lost("the backend reports that it is gone"))
	case now < l.endsAt():
	case now >= l.limit:
		l.finish(ErrMaxHold)
	case l.failure != nil:
		l.finish(lost("not renewed before its deadline: %v", l.failure))
	default:
		l.finish(lost("not renewed before its deadline (a renewal hangs, or this process or machine was stopped)"))
	}
	return l.err
}

// gone reports whether the backend reports that the lock is gone. l.mu is held.
func (l *Lease) gone() bool {
	select {
	case <-l.lost:
	default:
		return false
	}
	// A channel that many leases share is closed for one of them: the others have a new one.
	last := l.lost
	if l.lost = l.held.Grant().Lost; l.lost == last {
		return true
	}
	l.c.watch(last, l.lost)
	return l.gone()
}

// finish ends the lease. l.mu is held.
func (l *Lease) finish(err error) {
	l.err = err
	l.c.count.held.Add(-1)
	if !l.kept {
		l.c.drop(l)
	}
	if l.end != nil {
		l.end(err)
	}
	if errors.Is(err, ErrLost) {
		l.c.queues.over(l)
		l.c.tellLost(l, err)
	}
}

// Unlock ends the lease and releases the lock. It works after the cancellation of any context,
// so it can be deferred. It blocks for the backend's release, which the driver bounds to some
// seconds. A second call returns nil.
//
// ErrLost: the lease was over before, and work done since then was not protected. ErrClosed:
// the same, because the client was closed meanwhile. ErrUnavailable: the release may not have
// arrived; the lock then ends with its TTL. With WithMinHold the lock may stay until that time
// is over.
func (l *Lease) Unlock() error {
	closed := l.c.begin() != nil // Close ends the lease, or has ended it
	if !closed {
		defer l.c.calls.Done()
	}
	now := l.c.clock.Fresh()
	l.mu.Lock()
	if l.unlocked {
		l.mu.Unlock()
		return nil
	}
	l.unlocked = true
	err := l.look(now)
	release := !closed && !errors.Is(err, ErrReleased)
	pass := err == nil && !closed && l.passable(now)
	switch {
	case err == nil && closed:
		err = errClientClosed
	case err == nil:
		l.kept = l.keep > now
		l.finish(ErrReleased)
	}
	kept := l.kept
	l.mu.Unlock()
	switch {
	case !release:
	case kept:
		err = l.keepOn()
	default:
		err = cmp.Or(err, l.release(pass))
	}
	if err == nil {
		return nil
	}
	return l.notReleased(err)
}

// notReleased makes the error of a release.
func (l *Lease) notReleased(err error) *Error {
	return &Error{Op: "unlock", Key: l.key, Attempts: 1, Err: err}
}

// release gives the lock back; with pass to a waiter of this process, if there is one.
func (l *Lease) release(pass bool) error {
	c, ctx := l.c, l.ctx
	if c.hooks.Start != nil {
		l.guard(func() { ctx = c.hooks.Start(ctx, "unlock", l.key) })
	}
	start := time.Now()
	pass = pass && c.queues.pass(l)
	var err error
	if !pass {
		err = l.releaseHeld(ctx)
	}
	if c.hooks.Event != nil {
		e := Event{Op: "unlock", Key: l.key, Passed: pass, Err: err, Latency: time.Since(start)}
		if !errors.Is(l.Err(), ErrLost) { // otherwise the event of the loss has it
			e.Held = l.sinceGrant()
		}
		c.tell(ctx, l, e)
	}
	if err != nil && !errors.Is(err, ErrLost) && l.ttl != 0 {
		ends := fmt.Sprintf("its TTL of %v", l.ttl)
		if c.bySession() {
			ends = "its session, and not before its TTL" // a server may end sessions later
		}
		err = fmt.Errorf("%w (the lock ends with %s, if it was not released)", err, ends)
	}
	return err
}

// releaseHeld releases the lock at the server.
func (l *Lease) releaseHeld(ctx context.Context) error {
	err := l.held.Release(ctx)
	switch {
	case err == nil:
		l.c.count.released.Add(1)
	case !errors.Is(err, ErrLost):
		l.c.count.releaseFailed.Add(1)
	}
	l.c.queues.released(l)
	return err
}

// guard calls a hook. If the hook panics or ends the goroutine, the caller does not get, or release,
// the lease: guard releases it.
func (l *Lease) guard(hook func()) {
	done := false
	defer func() {
		if done {
			return
		}
		l.mu.Lock()
		if l.err == nil {
			l.finish(ErrReleased)
		}
		passed := l.passed
		l.mu.Unlock()
		if !passed {
			_ = l.held.Release(l.ctx) // if this fails the lock ends with its TTL
			l.c.queues.over(l)
		}
	}()
	hook()
	done = true
}

// sinceGrant is how long the lease has been held; more than zero.
func (l *Lease) sinceGrant() time.Duration { return max(l.c.clock.Now().Sub(l.granted), 1) }

// Raw calls f with the driver's lease, for the methods that a backend has beyond the contract.
// f must neither renew nor release it.
func (l *Lease) Raw(f func(driver.Lease) error) error { return f(l.held) }

// Context returns a copy of parent that is cancelled when the lease is over, with the
// lease's Err as its cause. Its own Err looks at the clock, as the lease's does.
// LeaseFor finds the lease in it. Call cancel when it is no longer needed; that does
// not release the lease.
func (l *Lease) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	life := l.lifetime()
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return &leaseContext{ctx, parent, l, cancel}, func() { stop(); cancel(nil) }
}

// leaseContext is a context that ends with a lease.
type leaseContext struct {
	context.Context
	parent context.Context
	lease  *Lease
	cancel context.CancelCauseFunc
}

// leaseKey is the context key of a lease: the lock's key.
type leaseKey string

// LeaseFor returns the lease of key whose Context ctx derives from, inside Do for example, so
// that functions deep in the program can read its Fence. It reports false if ctx derives from
// no lease of that key. key is as in Lease.Key. If two clients lock the same key, one inside
// the other, it returns the inner lease.
func LeaseFor(ctx context.Context, key string) (*Lease, bool) {
	l, ok := ctx.Value(leaseKey(key)).(*Lease)
	return l, ok
}

// Err returns the context's error, and ends it first if the lease, or one from which the context
// derives, is over by the clock.
func (c *leaseContext) Err() error {
	_ = c.parent.Err()
	if c.Context.Err() == nil {
		if err := c.lease.Err(); err != nil {
			c.cancel(err) // the goroutine that ended the lease may do so at the same time
		}
	}
	return c.Context.Err()
}

// Value returns the lease for its key.
func (c *leaseContext) Value(key any) any {
	if k, ok := key.(leaseKey); ok && string(k) == c.lease.key {
		return c.lease
	}
	return c.Context.Value(key)
}

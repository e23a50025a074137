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

// A Lease is a lock that is held until Done is closed. It renews itself. Its methods are safe for concurrent use; those of the zero
// Lease say that it was released.
type Lease struct {
	c       *Client
	held    driver.Lease
	ctx     context.Context // has the values of Lock's context, and no deadline
	key     string
	slot    int
	fence   uint64
	ttl     time.Duration // zero: bound to a session
	margin  time.Duration // from Done to the deadline
	granted boot.Instant
	limit   boot.Instant // the end of WithMaxHold; zero: none
	keep    boot.Instant // the end of WithMinHold; zero: none

	mu       sync.Mutex
	lost     <-chan struct{} // the grant's; nil: none
	expires  boot.Instant    // zero: bound to a session
	renewAt  boot.Instant    // zero: never
	warnAt   boot.Instant    // zero: never
	failure  error           // of the last renewal; nil if it succeeded
	err      error           // why the lease ended; nil: it has not
	done     chan struct{}
	contexts map[*leaseContext]context.CancelCauseFunc
	underWay int32 // renewals that were sent and not answered
	renewing bool  // the scheduler renews it now
	live     bool  // it was counted as held
	unlocked bool
	kept     bool // unlocked, and kept for its WithMinHold
	covered  bool // kept, and its TTL lasts until the end of WithMinHold

	index  int32 // in the scheduler's heap; -1: not there
	stepAt boot.Instant
}

func newLease(ctx context.Context, c *Client, r *request, held driver.Lease, at boot.Instant, start time.Time) *Lease {
	g := held.Grant()
	granted := c.clock.Now() // start may be long ago, if the backend queued the request
	l := &Lease{
		c:       c,
		held:    held,
		ctx:     values(ctx),
		key:     r.name,
		slot:    r.slot,
		fence:   g.Fence,
		lost:    g.Lost,
		granted: granted,
		index:   -1,
	}
	if !g.Expires.IsZero() {
		l.ttl = r.TTL
		l.expires = at.Add(g.Expires.Sub(start))
	}
	if l.ttl > 0 {
		l.margin = cmp.Or(r.margin, defaultMargin(l.ttl))
		l.renewAt = l.nextRenewal()
	}
	if r.maxHold > 0 {
		l.limit = granted.Add(r.maxHold)
		l.warnAt = granted.Add(r.maxHold / 5 * 4)
	}
	if r.minHold > 0 {
		l.keep = granted.Add(r.minHold)
		if r.minHold > l.ttl && c.keeps() {
			l.renewAt = max(granted, 1) // tell the server at once, in case this process ends
		}
	}
	return l
}

// values returns a context that has the values of ctx and never ends.
func values(ctx context.Context) context.Context {
	if ctx.Done() == nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// begin makes the lease valid. It reports false if that is too late.
func (l *Lease) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return false // Close came first
	}
	if l.expires != 0 && l.c.clock.Now() >= l.expires.Add(-l.margin) {
		l.err = lost("it was granted too late")
		return false
	}
	l.live = true
	l.c.count.held.Add(1)
	l.schedule()
	l.c.losses.add(l.lost)
	return true
}

// Key returns the key, without the client's prefix.
func (l *Lease) Key() string { return l.key }

// Fence returns the fencing token: larger than that of every lease of this key before
// it, and zero if the backend has none. Send it along with every write that the lock
// protects, and let the store refuse a token smaller than the largest it has seen. That, and
// not the lock, stops a holder that paused beyond its deadline.
func (l *Lease) Fence() uint64 { return l.fence }

// Deadline returns when the lease ends unless it is renewed, and false if it ends only with its
// session. Done is closed earlier.
func (l *Lease) Deadline() (time.Time, bool) {
	if l.c == nil {
		return time.Time{}, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.expires == 0 {
		return time.Time{}, false
	}
	return l.c.clock.Time(l.expires), true
}

// defaultMargin is the time from Done to the deadline of a lease: the holder stops before the
// lock can be granted to another.
func defaultMargin(ttl time.Duration) time.Duration { return max(5*time.Millisecond, ttl/50) }

// endsAt returns when the lease is over unless it is renewed; zero: never.
func (l *Lease) endsAt() boot.Instant {
	end := l.limit
	if l.expires != 0 {
		if done := l.expires.Add(-l.margin); end == 0 || done < end {
			end = done
		}
	}
	return end
}

// Done returns a channel that is closed when the lease is over: when it was lost, no
// later than Deadline less WithMargin, however a renewal hangs; and when it was
// released.
func (l *Lease) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done == nil {
		l.done = make(chan struct{})
		if l.c == nil || l.err != nil {
			close(l.done)
		}
	}
	return l.done
}

// Err returns nil while the lease is valid; then an error that says why it is over:
// ErrLost, ErrMaxHold (which is ErrLost) or ErrReleased, to be found with errors.Is. It
// looks at the clock, and so knows before any timer does.
func (l *Lease) Err() error {
	if l.c == nil {
		return ErrReleased
	}
	l.mu.Lock()
	cancels := l.look()
	err := l.err
	l.mu.Unlock()
	cancels.run()
	return err
}

// look ends the lease if it is over by the clock, or by what the backend reports.
func (l *Lease) look() ending {
	if over := l.reported(); l.err != nil {
		return over
	}
	end := l.endsAt()
	if end == 0 || l.c.clock.Fresh() < end {
		return ending{}
	}
	return l.over(end)
}

// over ends a lease whose time is over, and gives the reason.
func (l *Lease) over(end boot.Instant) ending {
	switch {
	case end == l.limit:
		return l.finishLocked(ErrMaxHold)
	case l.failure != nil:
		return l.finishLocked(lost("not renewed before its deadline: %v", l.failure))
	}
	return l.finishLocked(lost("not renewed before its deadline (a renewal hangs, or this process or machine was stopped)"))
}

// ending has the calls to make, outside the mutex, after a lease has ended.
type ending struct {
	l       *Lease
	err     error
	cancels map[*leaseContext]context.CancelCauseFunc
}

func (e ending) run() {
	for _, cancel := range e.cancels {
		cancel(e.err)
	}
	if errors.Is(e.err, ErrLost) {
		e.l.c.tellLost(e.l, e.err)
	}
}

// finish ends the lease, and reports whether it had not ended before.
func (l *Lease) finish(err error) bool {
	l.mu.Lock()
	over := l.finishLocked(err)
	l.mu.Unlock()
	over.run()
	return over.err != nil
}

func (l *Lease) finishLocked(err error) ending {
	if l.err != nil {
		return ending{}
	}
	l.err = err
	if l.done == nil {
		l.done = closedChannel
	} else {
		close(l.done)
	}
	if l.live {
		l.c.count.held.Add(-1)
	}
	l.c.sched.drop(l)
	l.c.losses.drop(l.lost)
	l.c.forget(l)
	e := ending{l: l, err: err, cancels: l.contexts}
	l.contexts = nil
	return e
}

var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// forget removes an ended lease from those that Close releases.
func (c *Client) forget(l *Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.leases, l)
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
	if l.c == nil {
		return nil
	}
	closed := l.c.begin() != nil // Close ends the lease, or has ended it
	if !closed {
		defer l.c.calls.Done()
	}
	l.mu.Lock()
	if l.unlocked {
		l.mu.Unlock()
		return nil
	}
	l.unlocked = true
	over := l.look()
	before := l.err
	switch {
	case before == nil && closed:
		before = errClientClosed
	case before == nil:
		over = l.finishLocked(ErrReleased)
	}
	l.mu.Unlock()
	over.run()

	var err error
	if !errors.Is(before, ErrReleased) && !closed {
		err = l.giveUp()
	}
	if before != nil {
		err = before
	}
	if err == nil {
		return nil
	}
	return &Error{Op: "unlock", Key: l.key, Attempts: 1, Err: err}
}

// giveUp releases the lock of a lease that has ended, or keeps it for WithMinHold.
func (l *Lease) giveUp() error {
	l.mu.Lock()
	keep := l.keep != 0 && l.keep > l.c.clock.Now() && !errors.Is(l.err, ErrLost)
	l.mu.Unlock()
	if keep {
		return l.keepOn()
	}
	return l.release()
}

// release gives the lock back.
func (l *Lease) release() error {
	c := l.c
	ctx := l.ctx
	if c.hooks.Start != nil {
		ctx = c.start(ctx, l)
	}
	var start time.Time
	if c.hooks.Event != nil {
		start = time.Now()
	}
	err := l.held.Release(ctx)
	switch {
	case err == nil:
		c.count.released.Add(1)
	case !errors.Is(err, ErrLost):
		c.count.releaseFailed.Add(1)
	}
	c.queues.released(slotKey(l.key, l.slot))
	if c.hooks.Event != nil {
		e := l.event("unlock", err)
		e.Latency = time.Since(start)
		l.mu.Lock()
		if !errors.Is(l.err, ErrLost) { // otherwise the event of the loss has it
			e.Held = l.sinceGrant()
		}
		l.mu.Unlock()
		c.hooks.Event(ctx, e)
	}
	if err != nil && !errors.Is(err, ErrLost) && l.ttl > 0 {
		ends := fmt.Sprintf("its TTL of %v", l.ttl)
		if c.bySession() {
			ends = "its session, and not before its TTL" // a server may end sessions later
		}
		err = fmt.Errorf("%w (the lock ends with %s, if it was not released)", err, ends)
	}
	return err
}

// start calls the hook before a release. The lock is released even if the hook panics.
func (c *Client) start(ctx context.Context, l *Lease) context.Context {
	done := false
	defer func() {
		if !done {
			_ = l.held.Release(l.ctx)
		}
	}()
	ctx = c.hooks.Start(ctx, "unlock", l.key)
	done = true
	return ctx
}

// unlockUnless is deferred around a hook: if the hook panics or ends the goroutine, no caller
// gets the lease, and it is released.
func (l *Lease) unlockUnless(done *bool) {
	if !*done {
		_ = l.Unlock()
	}
}

// Raw calls f with the driver's lease, for the methods that a backend has beyond the contract.
// f must neither renew nor release it.
func (l *Lease) Raw(f func(driver.Lease) error) error {
	if l.c == nil {
		return ErrReleased
	}
	return f(l.held)
}

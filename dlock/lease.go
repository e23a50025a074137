package dlock

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/boot"
)

// A Lease is a lock that is held, for as long as Done is open. It renews itself unless
// WithRenewal(false) said otherwise. Its methods are safe for concurrent use; those of
// the zero Lease say that it was released.
type Lease struct {
	c       *Client
	held    driver.Lease
	ctx     context.Context // the values of Lock's context, and nothing else of it
	key     string
	fence   uint64
	lost    <-chan struct{}
	ttl     time.Duration // zero: bound to a session
	renews  bool
	granted boot.Instant
	limit   boot.Instant // the end of WithMaxHold; zero: none
	keep    boot.Instant // the end of WithMinHold; zero: none

	mu       sync.Mutex
	expires  boot.Instant // zero: bound to a session
	renewAt  boot.Instant // zero: never
	warnAt   boot.Instant // zero: never
	renewing bool         // by the scheduler
	underWay int          // renewals that were sent and not answered
	failure  error        // of the last renewal; nil if it succeeded
	err      error        // why the lease ended; nil: it has not
	live     bool         // it was counted as held
	done     chan struct{}
	contexts map[*leaseContext]context.CancelCauseFunc
	unlocked bool
	kept     bool // unlocked, and kept for its WithMinHold
	covered  bool // kept, and the TTL keeps it until then without us

	index  int // in the scheduler's heap; -1: not there
	stepAt boot.Instant
}

func newLease(ctx context.Context, c *Client, r *request, held driver.Lease, at boot.Instant, start time.Time) *Lease {
	g := held.Grant()
	granted := c.clock.Now() // start may be long ago, if the backend queued the request
	l := &Lease{
		c:       c,
		held:    held,
		ctx:     values(ctx),
		key:     r.Key,
		fence:   g.Fence,
		lost:    g.Lost,
		granted: granted,
		index:   -1,
	}
	if !g.Expires.IsZero() {
		l.ttl = r.TTL
		l.expires = at.Add(g.Expires.Sub(start))
	}
	if r.renewal && l.ttl > 0 {
		l.renews = true
		l.renewAt = l.nextRenewal()
	}
	if r.maxHold > 0 {
		l.limit = granted.Add(r.maxHold)
		l.warnAt = granted.Add(r.maxHold / 5 * 4)
	}
	if r.minHold > 0 {
		l.keep = granted.Add(r.minHold)
		if r.minHold > l.ttl && c.keeps() {
			l.renewAt = max(granted, 1) // the server must know at once, should this process end
		}
	}
	return l
}

// nextRenewal is a third of the TTL after the last success, and half-way to the end for
// the shortest TTLs, of which the drift and the margin leave little.
func (l *Lease) nextRenewal() boot.Instant {
	from := l.expires.Add(driver.Drift(l.ttl) - l.ttl)
	return min(from.Add(l.ttl/3), from.Add(l.expires.Add(-margin(l.ttl)).Sub(from)/2))
}

// values returns a context with the values of ctx that never ends.
func values(ctx context.Context) context.Context {
	if ctx.Done() == nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// begin makes the lease live. It reports false if that is too late.
func (l *Lease) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return false // Close was quicker
	}
	if l.expires != 0 && l.c.clock.Now() >= l.expires.Add(-margin(l.ttl)) {
		l.err = lost("it was granted too late")
		return false
	}
	l.live = true
	l.c.count.held.Add(1)
	l.schedule()
	if l.lost != nil {
		l.c.losses.add(l.lost, l)
	}
	return true
}

// Key returns the key, without the client's prefix.
func (l *Lease) Key() string { return l.key }

// Fence returns the fencing token: larger than that of every lease of this key before
// it, and zero if the backend has none. Send it along with whatever the lock protects,
// and let the receiver refuse a token smaller than the largest it has seen: that, and
// not the lock, is what stops a holder that paused beyond its deadline.
func (l *Lease) Fence() uint64 { return l.fence }

// Deadline returns when the lease ends unless it is renewed, and false if it is bound to
// a session and to no clock. Done is closed before.
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

// margin is for how long before its deadline a lease is done: time to stop, before the
// lock can be granted to another.
func margin(ttl time.Duration) time.Duration { return max(5*time.Millisecond, ttl/50) }

// end returns when the lease is over unless it is renewed; zero: never.
func (l *Lease) end() boot.Instant {
	end := l.limit
	if l.expires != 0 {
		if done := l.expires.Add(-margin(l.ttl)); end == 0 || done < end {
			end = done
		}
	}
	return end
}

// Done returns a channel that is closed when the lease is over: when it was lost, no
// later than Deadline less max(5 ms, TTL/50), however a renewal hangs; and when it was
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

// look ends the lease if it is over by the clock.
func (l *Lease) look() ending {
	if l.err != nil {
		return ending{}
	}
	end := l.end()
	if end == 0 || l.c.clock.Fresh() < end {
		return ending{}
	}
	return l.over(end)
}

// over ends the lease, whose time has come, with the reason.
func (l *Lease) over(end boot.Instant) ending {
	switch {
	case end == l.limit:
		return l.finishLocked(ErrMaxHold)
	case l.failure != nil:
		return l.finishLocked(lost("not renewed before its deadline: %v", l.failure))
	case !l.renews:
		return l.finishLocked(lost("its TTL of %v is over (WithRenewal is off)", l.ttl))
	}
	return l.finishLocked(lost("not renewed before its deadline (a renewal hangs, or this process or machine was stopped)"))
}

// ending is what is left to do, outside the lease's mutex, when it has ended.
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
	if l.lost != nil {
		l.c.losses.drop(l.lost, l)
	}
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

// forget takes a lease that ended out of those that Close releases.
func (c *Client) forget(l *Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.leases, l)
}

// tellLost tells the log and the hook, on a goroutine of their own: a log that blocks
// must not hold up the end of another lease.
func (c *Client) tellLost(l *Lease, err error) {
	c.count.lost.Add(1)
	go func() {
		c.log.Warn("dlock: "+err.Error(), "key", l.key, "fence", l.fence)
		if c.hooks.Lost != nil {
			c.hooks.Lost(l.ctx, l.event("lost", err))
		}
	}()
}

func (l *Lease) event(op string, err error) Event {
	e := Event{Op: op, Key: l.key, Fence: l.fence, Waited: l.c.clock.Now().Sub(l.granted), Err: err}
	e.Deadline, _ = l.Deadline()
	if err == nil {
		e.Votes = l.held.Grant().Votes
	}
	return e
}

// schedule tells the scheduler when the next step is due.
func (l *Lease) schedule() {
	var next boot.Instant
	earliest := func(t boot.Instant) {
		if t != 0 && (next == 0 || t < next) {
			next = t
		}
	}
	if l.kept {
		earliest(l.keep)
	} else {
		earliest(l.end())
		earliest(l.warnAt)
	}
	if !l.renewing {
		earliest(l.renewAt)
	}
	if next != 0 {
		l.c.sched.put(l, next)
	}
}

// step does what is due, and blocks for nothing.
func (l *Lease) step(now boot.Instant) {
	l.mu.Lock()
	var over ending
	switch end := l.end(); {
	case l.kept && now >= l.keep:
		l.kept = false
		go l.releaseKept()
	case l.err != nil && !l.kept:
	case !l.kept && end != 0 && now >= end:
		over = l.over(end)
	default:
		if !l.kept {
			l.warn(now)
		}
		if l.renewAt != 0 && now >= l.renewAt && !l.renewing {
			l.renewing = true
			go l.renewOnce()
		}
		l.schedule()
	}
	l.mu.Unlock()
	over.run()
}

// recheck brings the next renewal forward to now: see scheduler.recheck.
func (l *Lease) recheck(now boot.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && l.renewAt > now {
		l.renewAt = now
		l.schedule()
	}
}

// warn says once that the maximum hold comes near.
func (l *Lease) warn(now boot.Instant) {
	if l.warnAt == 0 || now < l.warnAt {
		return
	}
	l.warnAt = 0
	go l.c.log.Warn("dlock: a lease nears its maximum hold; WithMaxHold sets another, 0 for none",
		"key", l.key, "held", shortDuration(now.Sub(l.granted)), "left", shortDuration(l.limit.Sub(now)))
}

// renewOnce renews the lease for the scheduler.
func (l *Lease) renewOnce() {
	// A third of the TTL, so that a renewal that hangs leaves time for another.
	ctx, cancel := context.WithTimeout(l.ctx, l.ttl/3)
	defer cancel()
	defer context.AfterFunc(l.c.life, cancel)()
	_ = l.renew(ctx)

	l.mu.Lock()
	l.renewing = false
	if l.err == nil || l.kept {
		l.schedule()
	}
	l.mu.Unlock()
}

// Renew extends the lease to its TTL from now. Leases do that by themselves; it is for
// WithRenewal(false). ctx bounds the call. ErrLost says that the lease is over; after
// ErrUnavailable it is valid until its Deadline, and Renew may be tried again. On a
// session backend without TTL it does nothing.
func (l *Lease) Renew(ctx context.Context) error {
	err := l.Err()
	if err == nil && l.ttl > 0 {
		err = l.renew(ctx)
	}
	if err == nil {
		return nil
	}
	e := &Error{Op: "renew", Key: l.key, Attempts: 1, Err: err}
	if ctx.Err() != nil && contextOnly(ctx, err) {
		e.Err, e.ContextErr = nil, ctx.Err()
	}
	return e
}

// renew makes one request.
func (l *Lease) renew(ctx context.Context) error {
	c := l.c
	if err := c.begin(); err != nil {
		return err
	}
	defer c.calls.Done()
	if c.hooks.Start != nil {
		ctx = c.hooks.Start(ctx, Op{Name: "renew", Key: l.key})
	}
	at := c.clock.Now()
	start := time.Now()
	r := l.send(at)
	g, err := l.held.Renew(ctx, r)
	failed := err != nil
	err = l.renewed(g, err, r, at, start)
	if failed && !errors.Is(err, ErrLost) {
		c.log.Warn("dlock: a renewal failed", "key", l.key, "err", err)
	}
	if c.hooks.Renewed != nil {
		e := l.event("renew", err)
		e.Latency, e.Votes = time.Since(start), g.Votes
		c.hooks.Renewed(ctx, e)
	}
	return err
}

// send counts a renewal and returns it.
func (l *Lease) send(now boot.Instant) *driver.Renewal {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.underWay++
	return l.renewal(now)
}

// renewal is the next renewal: for the lease's TTL; with what is left of WithMinHold, so
// that the lock is kept even if this process ends; and for nothing but that once the lease
// is over.
func (l *Lease) renewal(now boot.Instant) *driver.Renewal {
	r := &driver.Renewal{TTL: l.ttl}
	left := l.keep.Sub(now)
	switch {
	case l.keep == 0 || l.c.bySession():
	case l.c.keeps():
		if l.kept {
			r.TTL = 0
			left = max(left, time.Millisecond)
		}
		r.Keep = max(left, 0)
	case l.kept:
		r.TTL = min(max(left, l.c.info.MinTTL), l.c.info.MaxTTL)
	}
	return r
}

// renewed takes in the outcome of the renewal r that was sent at the instant at,
// which is also start. One that is confirmed after the lease was over never revives it.
func (l *Lease) renewed(g driver.Grant, err error, r *driver.Renewal, at boot.Instant, start time.Time) error {
	l.mu.Lock()
	over := l.look()
	defer func() { l.mu.Unlock(); over.run() }()
	l.underWay--
	if l.kept {
		return l.keptOn(err, r, at)
	}
	if l.err != nil {
		return l.err
	}
	l.failure = err
	switch {
	case err == nil:
		l.c.count.renewed.Add(1)
		if expires := at.Add(g.Expires.Sub(start)); expires > l.expires {
			l.expires = expires
		}
		l.renewAt = 0
		if l.renews {
			l.renewAt = l.nextRenewal()
		}
	case errors.Is(err, ErrLost):
		l.c.count.renewalFailed.Add(1)
		over = l.finishLocked(lost("%v", err))
		return l.err
	default:
		l.c.count.renewalFailed.Add(1)
		l.retry()
	}
	return err
}

// retry sets the next renewal after one of which the outcome is not known.
func (l *Lease) retry() {
	if l.renewAt != 0 {
		pause := max(l.ttl/20, time.Millisecond)
		l.renewAt = l.c.clock.Now().Add(pause/2 + mathrand.N(pause))
	}
}

// Unlock ends the lease and releases the lock. It works after the cancellation of any
// context, in a defer say, and blocks for the backend's release, which its driver bounds
// in seconds. A second call returns nil.
//
// ErrLost says that the lease was over before: whatever was done since then was not
// protected; ErrClosed says the same of a client that was closed meanwhile.
// ErrUnavailable says that the release may not have arrived; the lock then
// ends with its TTL. With WithMinHold the lock may stay until that is over.
func (l *Lease) Unlock() error {
	if l.c == nil {
		return nil
	}
	closed := l.c.begin() != nil // then Close ends the lease, or has ended it
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
	keep := l.keep > l.c.clock.Now() && !errors.Is(l.err, ErrLost)
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
	start := time.Now()
	err := l.held.Release(ctx)
	switch {
	case err == nil:
		c.count.released.Add(1)
	case !errors.Is(err, ErrLost):
		c.count.releaseFailed.Add(1)
	}
	c.queues.released(l.key)
	if c.hooks.Released != nil {
		e := l.event("unlock", err)
		e.Latency = time.Since(start)
		c.hooks.Released(ctx, e)
	}
	if err != nil && !errors.Is(err, ErrLost) && l.ttl > 0 {
		err = fmt.Errorf("%w (the lock ends with its TTL of %v, if it was not released)", err, l.ttl)
	}
	return err
}

// start calls the hook before a release, which comes even if the hook panics.
func (c *Client) start(ctx context.Context, l *Lease) context.Context {
	done := false
	defer func() {
		if !done {
			_ = l.held.Release(l.ctx)
		}
	}()
	ctx = c.hooks.Start(ctx, Op{Name: "unlock", Key: l.key})
	done = true
	return ctx
}

// unlockUnless is deferred around a hook: if it panics, or ends the goroutine, nobody gets
// the lease.
func (l *Lease) unlockUnless(done *bool) {
	if !*done {
		_ = l.Unlock()
	}
}

// bySession reports whether locks end with the process, whatever their TTL.
func (c *Client) bySession() bool { return c.info.Features.Has(driver.FeatureSession) }

// keeps reports whether the server can keep a lock beyond its lease and its process.
func (c *Client) keeps() bool {
	return c.info.Features.Has(driver.FeatureKeep) && !c.bySession()
}

// keepOn keeps the lock of a lease that was unlocked before its WithMinHold is over: the
// server keeps it for what is left, even if this process ends, and a timer releases it.
// What the server cannot cover is renewed until then.
func (l *Lease) keepOn() error {
	c := l.c
	l.mu.Lock()
	l.kept = true
	l.renewAt = 0
	l.mu.Unlock()
	c.mu.Lock()
	c.leases[l] = struct{}{}
	c.mu.Unlock()

	if l.ttl > 0 {
		at := c.clock.Now()
		r := l.send(at)
		_, err := l.held.Renew(l.ctx, r)
		l.mu.Lock()
		l.underWay--
		err = l.keptOn(err, r, at)
		l.mu.Unlock()
		if errors.Is(err, ErrLost) {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kept {
		l.schedule()
	}
	return nil
}

// keptOn takes in the outcome of the renewal r, sent at the instant at, of a lock that is
// kept. Another that is still under way may set a shorter TTL after it, and so it is
// followed by one more.
func (l *Lease) keptOn(err error, r *driver.Renewal, at boot.Instant) error {
	switch {
	case errors.Is(err, ErrLost):
		l.kept = false // and gone: there is nothing to keep
		l.c.sched.drop(l)
		l.c.forget(l)
	case err == nil && l.underWay == 0 && !l.c.bySession() && at.Add(max(r.TTL, r.Keep)) >= l.keep:
		l.covered = true
		l.renewAt = 0
	default:
		l.renews = true
		l.renewAt = at.Add(l.ttl / 3)
		if err != nil {
			l.retry()
		}
	}
	return err
}

// releaseKept ends the keeping.
func (l *Lease) releaseKept() {
	if l.c.begin() != nil {
		return // Close does it
	}
	defer l.c.calls.Done()
	l.c.forget(l)
	if err := l.release(); err != nil && !errors.Is(err, ErrLost) {
		l.c.log.Warn("dlock: release after the minimum hold failed", "key", l.key, "err", err)
	}
}

// close ends the keeping of a lock for Close: it leaves the lock to the server, and waits
// first for as long as the lock would not last.
func (l *Lease) close() error {
	c := l.c
	switch {
	case c.bySession():
		l.sitOut(0)
		return l.release()
	case !c.keeps():
		l.sitOut(c.info.MaxTTL)
	}
	left := l.keep.Sub(c.clock.Fresh())
	l.mu.Lock()
	covered := l.covered
	l.kept = true
	r := l.renewal(c.clock.Now())
	l.mu.Unlock()
	switch {
	case left <= 0:
		return l.release()
	case covered:
		return nil
	}
	if _, err := l.held.Renew(l.ctx, r); err != nil {
		return fmt.Errorf("keep it for another %v: %w", shortDuration(left), err)
	}
	return nil
}

// sitOut waits until no more than rest is left of WithMinHold, and renews meanwhile.
func (l *Lease) sitOut(rest time.Duration) {
	for {
		left := l.keep.Sub(l.c.clock.Fresh()) - rest
		if left <= 0 {
			return
		}
		if l.ttl > 0 {
			left = min(left, l.ttl/3)
			_, _ = l.held.Renew(l.ctx, &driver.Renewal{TTL: l.ttl}) // tried again, and released in the end
		}
		time.Sleep(left)
	}
}

// Raw calls f with the driver's lease, for what a backend offers beyond the contract. f
// must neither renew nor release it.
func (l *Lease) Raw(f func(driver.Lease) error) error {
	if l.c == nil {
		return ErrReleased
	}
	return f(l.held)
}

// Context returns a copy of parent that is cancelled when the lease is over, with the
// lease's Err as its cause. Its own Err looks at the clock, as the lease's does.
// LeaseFrom finds the lease in it. Call cancel when it is no longer needed; that does
// not release the lease.
func (l *Lease) Context(parent context.Context) (context.Context, context.CancelFunc) {
	inner, cancel := context.WithCancelCause(parent)
	ctx := &leaseContext{Context: inner, lease: l, cancel: cancel}
	if l.c == nil {
		cancel(ErrReleased)
		return ctx, func() {}
	}
	l.mu.Lock()
	err := l.err
	if err == nil {
		if l.contexts == nil {
			l.contexts = map[*leaseContext]context.CancelCauseFunc{}
		}
		l.contexts[ctx] = cancel
	}
	l.mu.Unlock()
	if err != nil {
		cancel(err)
	}
	return ctx, func() {
		l.mu.Lock()
		delete(l.contexts, ctx)
		l.mu.Unlock()
		cancel(nil)
	}
}

// leaseContext is a context that ends with a lease.
type leaseContext struct {
	context.Context
	lease  *Lease
	cancel context.CancelCauseFunc
}

type leaseKey struct{}

// Err returns the context's error, and ends it first if the lease is over by the clock.
func (c *leaseContext) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	err := c.lease.Err()
	if err != nil {
		c.cancel(err) // it may be about to be, by whoever ended the lease
	}
	return c.Context.Err()
}

// Value returns the lease for its own key.
func (c *leaseContext) Value(key any) any {
	if key == (leaseKey{}) {
		return c.lease
	}
	return c.Context.Value(key)
}

package dlock

import (
	"context"
	"errors"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/boot"
)

// A tenure is one grant of the backend whose lock is passed on within this process (lock cohorting:
// Dice, Marathe, Shavit, PPoPP 2012). Its leases come one after the other: Unlock gives the lock to the
// first waiter of the key, and the last of them releases it at the backend. Each has a token of the
// grant's range. They share the driver's lease, which only the valid one of them renews.
type tenure struct {
	until       boot.Instant // from then on the lock is released
	last        uint64       // the last token of the range; zero: there are none
	ttl, margin time.Duration
	passes      uint32
	timer       *time.Timer // ends it in its queue, so that a waiter asks the backend
}

// leastPassOn is the shortest default of WithPassOn, passOnTimes the share of the time for which the
// lock is passed on that taking it at the backend may cost.
const (
	passOnDefault time.Duration = -1

	leastPassOn = 10 * time.Millisecond
	passOnTimes = 4
)

// WithPassOn sets for how long after its grant a lock is passed on within this client: max(10 ms,
// 4 × the time that the backend took for the grant) by default. Until then Unlock gives it to the
// call of Lock that has waited longest in this client, without a request to the backend. That lease
// has a larger token, and ends, renews and is lost like any other. Then Unlock releases it, and the
// client's next call asks behind the waiters of other clients. They wait longer by d at most, whoever
// came first. Zero turns it off: waiters of all clients are served in their order, where the backend
// has driver.FeatureOrdered.
//
// Only exclusive locks of one TTL and margin are passed on, with neither WithMinHold nor WithSlots,
// and with half of the TTL left or more. The backend needs driver.FeatureTokens, or gives no tokens
// at all. If no other call of this client waits for the key, or did within the last second, nothing
// changes.
func WithPassOn(d time.Duration) Option {
	return clientOption(func(c *config) {
		c.passOn = min(d, forever)
		if d < 0 {
			c.bad("WithPassOn", "%v must be zero (never) or more", d)
		}
	})
}

// passes reports whether the lock of a request may be passed on.
func (c *Client) passes(r *request) bool {
	f := c.info.Features
	return c.passOn != 0 && r.mode == driver.Exclusive && r.slots == 0 && r.minHold == 0 &&
		(f.Has(driver.FeatureTokens) || !f.Has(driver.FeatureFencing))
}

// tokens sets how many leases the first of q asks for: twice those of the last tenure, so that a key's
// counter rises by two for each lock at most and does not overtake the clock. qs.mu is held.
func (qs *queues) tokens(r *request, q *queue) {
	r.tokens = 0
	if h := qs.hot[r.name]; r.passes && (q.waiters.Len() > 0 || recent(h.wanted)) {
		r.tokens = min(2*(h.passes+1), driver.MaxTokens)
	}
}

// newTenure makes the tenure of a new lease; nil if it has one token only.
func (c *Client) newTenure(l *Lease, r *request, g driver.Grant) *tenure {
	t := &tenure{ttl: r.TTL, margin: r.margin}
	switch {
	case g.Tokens > 1:
		t.last, l.fence = g.Fence, g.Fence-uint64(g.Tokens)+1
	case c.info.Features.Has(driver.FeatureFencing):
		return nil
	}
	d := c.passOn
	if d == passOnDefault {
		d = leastPassOn
		if l.ttl != 0 { // otherwise nothing tells how much of the call was no waiting
			d = max(d, passOnTimes*l.granted.Sub(l.expires.Add(driver.Drift(l.ttl)-l.ttl)))
		}
	}
	t.until = l.granted.Add(d)
	return t
}

// passable reports whether the lock of a valid lease that is being unlocked may be passed on. A renewal
// that is under way would belong to two leases. l.mu is held.
func (l *Lease) passable(now boot.Instant) bool {
	t := l.tenure
	return t != nil && now < t.until && (t.last == 0 || l.fence < t.last) && !l.renewing && l.expires.Sub(now) >= l.ttl/2
}

// pass gives the lock of a lease that is over to the first waiter, and reports whether it has. The
// caller has counted a call of the backend; the waiter ends another, which is counted here.
func (qs *queues) pass(l *Lease) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	qs.mu.Lock()
	defer qs.mu.Unlock()
	l.c.calls.Add(1)
	if l.passed = qs.passLocked(l); !l.passed {
		l.c.calls.Done()
	}
	return l.passed
}

// passLocked is pass, without another call to count. qs.mu is held.
func (qs *queues) passLocked(l *Lease) bool {
	q := qs.byKey[l.key]
	if q == nil || q.tenure != l.tenure || q.waiters.Len() == 0 {
		return false
	}
	front := q.waiters.Front()
	w := front.Value.(*waiter)
	if t := l.tenure; !w.r.passes || w.r.TTL != t.ttl || w.r.margin != t.margin {
		return false // it is its turn, so nobody else is served before it
	}
	q.waiters.Remove(front)
	l.tenure.passes++
	w.turn <- l
	return true
}

// over ends the tenure of a lease, if it has one, that is lost or given up.
func (qs *queues) over(l *Lease) {
	if l.tenure == nil {
		return
	}
	qs.mu.Lock()
	defer qs.mu.Unlock()
	qs.end(l.key, l.tenure)
}

// end ends a tenure: the first waiter asks the backend. qs.mu is held.
func (qs *queues) end(key string, t *tenure) {
	q := qs.byKey[key]
	if q == nil || q.tenure != t {
		return
	}
	t.timer.Stop()
	qs.change(key, func(h *heat) { h.passes = t.passes })
	qs.next(key, q)
}

// errPassedLate means that the waiter's goroutine did not run for half of the TTL.
var errPassedLate = errors.New("passed on too late")

// inherit makes the lease that gets the lock of another one, which is over.
func (c *Client) inherit(ctx context.Context, r *request, from *Lease) (*Lease, error) {
	now := c.clock.Now()
	l := &Lease{
		c: c, held: from.held, ctx: context.WithoutCancel(ctx), key: r.name, fence: from.fence, ttl: from.ttl, margin: from.margin,
		granted: now, tenure: from.tenure, limit: never, lost: from.lost, expires: from.expires, renewAt: from.renewAt, index: -1,
	}
	if l.tenure.last != 0 {
		l.fence++
	}
	if r.maxHold != 0 {
		l.limit = now.Add(r.maxHold)
	}
	err := errPassedLate
	if now < l.endsAt() {
		err = c.enlist(l)
	}
	if err != nil {
		from.abandon()
		return nil, err
	}
	c.calls.Done()
	c.count.passed.Add(1)
	r.passed, r.verdict = true, nil
	return l, nil
}

// abandon releases the lock of a lease that was passed on to a call that does not take it.
func (l *Lease) abandon() {
	defer l.c.calls.Done()
	_ = l.releaseHeld(l.ctx) // if this fails the lock ends with its TTL
}

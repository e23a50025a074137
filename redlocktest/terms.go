package redlocktest

import (
	"context"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// terms are the parameters and times of the request for one grant. They give the earliest and
// the latest end of the lock, even on a slow machine.
type terms struct {
	sent, received time.Time // around the call
	ttl            time.Duration
	grace          time.Duration // a quorum's, instead of the harness'
	keep           time.Duration // of the last renewal
}

// termsOf returns the terms of a request that is sent now.
func termsOf(req *driver.Request) terms {
	t := terms{sent: time.Now(), ttl: req.TTL}
	if req.Quorum != nil {
		t.grace = req.Quorum.Grace
	}
	return t
}

// lease is a lease of the backend under test, and its terms.
type lease struct {
	driver.Lease
	first terms // of the grant

	mu    sync.Mutex
	terms terms // of the last success
}

// Renew extends the lease and keeps the terms.
func (l *lease) Renew(ctx context.Context, renewal *driver.Renewal) (driver.Grant, error) {
	sent, ttl, keep := time.Now(), renewal.TTL, renewal.Keep
	g, err := l.Lease.Renew(ctx, renewal)
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.terms.sent, l.terms.received, l.terms.ttl, l.terms.keep = sent, time.Now(), ttl, keep
	}
	return g, err
}

func (l *lease) last() terms {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.terms
}

// kept returns how long the backend keeps a lock with these terms.
func (r *run) kept(t terms) time.Duration { return max(t.ttl+max(t.grace, r.h.Grace), t.keep) }

// notKeptAt asserts that a lock is not kept for much longer than its TTL and the grace. It is
// called when an attempt that was sent at this time, after l was abandoned, was refused as
// held.
func (r *run) notKeptAt(sent time.Time, key string, l *lease) {
	t := l.last()
	if r.info.MaxTTL == 0 || t.ttl == 0 {
		return
	}
	kept := r.kept(t)
	end := t.received.Add(kept)
	if over, tolerance := sent.Sub(end), t.ttl/2+100*time.Millisecond; over > tolerance {
		r.suspect(renewing, "the TTL is %v and the grace %v, and key %q is still held %v after their end: the server must keep what was asked for, and no more",
			t.ttl, kept-t.ttl, short(key), over)
	}
}

// hint asserts that RetryAfter is the remaining time of the lock: at least the time from the
// answer to the lease's end, and at most the time from the request to that end plus the grace.
func (r *run) hint(he *driver.HeldError, asked, answered time.Time, l *lease) {
	t := l.last()
	if he.RetryAfter == 0 || t.ttl == 0 || he.ReservedForWaiter {
		return
	}
	kept := r.kept(t)
	least := t.sent.Add(t.ttl).Sub(answered) - driver.Drift(kept)
	most := t.received.Add(kept).Sub(asked) + driver.Drift(kept)
	if he.RetryAfter < least || he.RetryAfter > most {
		r.fatal(holderSeen, "RetryAfter is %v, and the lock stays for %v to %v: the TTL is %v, the grace %v, and the grant %v old",
			he.RetryAfter, max(0, least), most, t.ttl, kept-t.ttl, answered.Sub(t.sent))
	}
}

// since asserts that Since is when the lock was granted, whatever renewals came later, by the
// server's clock if the verdict has it, else by this machine's.
func (r *run) since(he *driver.HeldError, asked, answered time.Time, l *lease) {
	if he.Since.IsZero() {
		return
	}
	t, clock := l.first, "the server's clock"
	age, tolerance := he.Clock.Sub(he.Since), driver.FenceSlack+time.Second
	if he.Clock.IsZero() {
		clock = "this machine's clock"
		age, tolerance = time.Since(he.Since), 30*time.Second // the clocks may differ
	}
	if least, most := asked.Sub(t.received)-tolerance, answered.Sub(t.sent)+tolerance; age < least || age > most {
		r.fatal(holderSeen, "Since is %v, %v ago by %s, and the lock was granted %v ago", he.Since, age, clock, answered.Sub(t.sent).Round(time.Millisecond))
	}
}

package redlocktest

import (
	"errors"
	"time"

	"github.com/redlock-go/redlock/driver"
)

var expiryCases = []testCase{
	{name: "free", ttl: true, do: expiryFrees},
	{name: "renewal", ttl: true, do: renewalExtends},
	{name: "stale", ttl: true, do: staleAfterExpiry},
	{name: "renew-never-takes", ttl: true, do: renewNeverRecreates},
	{name: "expires", ttl: true, do: expiresInTime},
	{name: "waiter", ttl: true, do: expiryWakes},
	{name: "keep", ttl: true, needs: driver.FeatureKeep, do: keepsBeyondTheLease},
}

// expiryFrees: an abandoned lock comes free, and not before its lease's Expires.
func expiryFrees(r *run) {
	a, b := r.pair()
	key := r.key()
	old := r.grant(a, driver.Request{Key: key, TTL: r.short()})
	r.succeed(b, key, old, false)
}

// succeed acquires key after old, which nobody renews, and checks that it was not
// granted while old was valid.
func (r *run) succeed(b driver.Backend, key string, old driver.Lease, wait bool) driver.Lease {
	g := old.Grant()
	if g.Expires.IsZero() {
		r.skip("a grant of %s has no end to wait for", r.info.Name)
	}
	next, refusals := r.eventuallyRule(expires, b, driver.Request{Key: key, Wait: wait})
	if early := time.Until(g.Expires); early > 0 {
		r.fatal(expires, "the next owner was granted %v before the lease's Expires", early)
	}
	if refusals == 0 && !wait {
		r.stall("the lease was over before anybody else tried")
	}
	r.rises(g.Fence, next.Grant().Fence)
	return next
}

// rises checks that a later grant has the larger token, where there are tokens.
func (r *run) rises(before, after uint64) {
	if r.info.Features.Has(driver.FeatureFencing) && after <= before {
		r.fatal(tokens, "a later grant has token %d, and an earlier one %d", after, before)
	}
}

// renewalExtends keeps a lease by renewals for longer than the server would keep
// it without.
func renewalExtends(r *run) {
	a, b := r.pair()
	key := r.key()
	start := time.Now()
	ttl := r.short()
	l := r.grant(a, driver.Request{Key: key, TTL: ttl})
	fence := l.Grant().Fence
	for time.Since(start) < ttl+r.h.Grace+ttl/2 {
		if !r.pause(ttl / 4) {
			r.stall("the case's time was over")
		}
		before := l.Grant()
		g := r.renew(l, driver.Renewal{TTL: ttl})
		switch {
		case !g.Expires.After(before.Expires):
			r.fatal(renewing, "Expires is %v after a renewal, and was %v before", g.Expires, before.Expires)
		case !l.Grant().Expires.Equal(g.Expires):
			r.fatal(renewing, "Grant gives Expires %v, and the last renewal gave %v", l.Grant().Expires, g.Expires)
		case g.Fence != fence:
			r.fatal(renewing, "the token is %d after a renewal, and was %d before", g.Fence, fence)
		}
		r.refuse(b, driver.Request{Key: key}, l)
	}
	r.succeed(b, key, l, false)
}

// staleAfterExpiry: the owner that slept through its TTL is told, and does no harm.
func staleAfterExpiry(r *run) {
	a, b := r.pair()
	key := r.key()
	old := r.grant(a, driver.Request{Key: key, TTL: r.short()})
	next := r.succeed(b, key, old, false)
	r.lostQuietly(old)
	r.notFreed(a, key, next)
	r.dropped(old)
	r.notFreed(a, key, next)
	r.release(next)
}

// lostQuietly asserts ErrLost and nothing else; Release comes later.
func (r *run) lostQuietly(l driver.Lease) {
	for {
		_, err := l.Renew(r.ctx, &driver.Renewal{TTL: r.long()})
		switch v := r.saw(err); v {
		case lost:
			return
		case granted:
			r.fatal(renewing, "Renew succeeded for a lease that was over, while another owner has the key")
		case later, unknown:
		default:
			r.fatal(fourOutcomes, "Renew of a lease that is over gives %v: %v", v, err)
		}
		if !r.pause(poll) {
			r.fatal(renewing, "Renew never said that the lease is over; the last error: %v", err)
		}
	}
}

// renewNeverRecreates: a key that expired and that nobody has stays free.
func renewNeverRecreates(r *run) {
	a, b := r.pair()
	key := r.key()
	old := r.grant(a, driver.Request{Key: key, TTL: r.short()})
	r.release(r.succeed(b, key, old, false))
	_, err := old.Renew(r.ctx, &driver.Renewal{TTL: r.long()})
	if r.saw(err) == granted {
		r.record(renewing, "Renew succeeded after the lease had expired and another owner had the key")
	}
	l, err := r.try(b, driver.Request{Key: key})
	if r.saw(err) == held {
		r.fatal(renewing, "Renew of an expired lease took the key again: %v", err)
	}
	if err == nil {
		r.release(l)
	}
}

// expiresInTime checks the bound on Expires with a TTL whose drift is longer than
// a call takes.
func expiresInTime(r *run) {
	b, ttl := r.client(), r.long()
	l := r.grant(b, driver.Request{Key: r.key(), TTL: ttl})
	r.notLate(l.Grant(), ttl, "Acquire")
	if !time.Now().Before(l.Grant().Expires) {
		r.stall("a lease of %v was over when it was granted", ttl)
	}
	r.notLate(r.renew(l, driver.Renewal{TTL: ttl}), ttl, "Renew")
	r.release(l)
}

// notLate checks Expires right after the call that gave it: the call began before.
func (r *run) notLate(g driver.Grant, ttl time.Duration, call string) {
	if most := driver.Expires(time.Now(), ttl); g.Expires.After(most) {
		r.fatal(expires, "Expires after %s is %v later than the TTL of %v less the drift of %v allows",
			call, g.Expires.Sub(most), ttl, driver.Drift(ttl))
	}
}

// expiryWakes: who waits gets the lock of a holder that is gone, and not too early.
func expiryWakes(r *run) {
	a, b := r.pair()
	key := r.key()
	old := r.grant(a, driver.Request{Key: key, TTL: r.short()})
	next := r.succeed(b, key, old, true)
	r.lost(old)
	r.holds(a, key, next)
	r.release(next)
}

// keepsBeyondTheLease: with Renewal.Keep the server keeps the lock though its lease ends,
// and without a TTL no longer than that.
func keepsBeyondTheLease(r *run) {
	a, b := r.pair()
	key, ttl := r.key(), r.short()
	keep := 2*ttl + r.h.Grace
	l := r.grant(a, driver.Request{Key: key, TTL: ttl})
	start := time.Now()
	r.renew(l, driver.Renewal{TTL: ttl, Keep: keep})
	next := r.succeed(b, key, l, false)
	if early := keep - driver.Drift(keep) - time.Since(start); early > 0 {
		r.fatal(keeping, "the next owner was granted %v before Keep was over", early)
	}
	if _, err := next.Renew(r.ctx, &driver.Renewal{Keep: r.long()}); err != nil {
		r.fatal(keeping, "Renew with Keep and without TTL: %v", err)
	}
	_, err := r.try(a, driver.Request{Key: key})
	var he *driver.HeldError
	switch {
	case r.saw(err) != held:
		r.fatal(keeping, "another owner's attempt, of a lock that is kept, gives %v", err)
	case errors.As(err, &he) && he.RetryAfter > r.long()+time.Millisecond:
		r.record(keeping, "a lock that is kept for %v is free after %v: no grace is added without a TTL", r.long(), he.RetryAfter)
	}
	r.release(next)
}

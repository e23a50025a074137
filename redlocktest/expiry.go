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
	{name: "first-release", ttl: true, do: releaseFirst},
	{name: "revived", ttl: true, do: neverRevived},
	{name: "expires", ttl: true, do: expiresInTime},
	{name: "to-the-millisecond", ttl: true, do: expiryExact},
	{name: "odd-ttl", ttl: true, do: oddTTL},
	{name: "retry-after", ttl: true, do: retryAfter},
	{name: "renew-longer", ttl: true, do: renewLonger},
	{name: "renew-shorter", ttl: true, do: renewShorter},
	{name: "waiter", ttl: true, do: expiryWakes},
	{name: "keep", ttl: true, features: driver.FeatureKeep, do: keepsBeyondTheLease},
	{name: "watch", ttl: true, needs: []condition{watches}, do: watchExpiry},
	{name: "reader", ttl: true, features: driver.FeatureShared, do: readerExpires},
	{name: "readers-shorten", ttl: true, features: driver.FeatureShared, do: readersShorten},
	{name: "counter", features: driver.FeatureFencing | driver.FeatureQuorumNode, ttl: true, do: fenceOutlivesExpiry},
	{name: "instance", features: driver.FeatureQuorumNode, ttl: true, do: nodeInstanceExpired},
	{name: "quorum", features: driver.FeatureQuorumNode, ttl: true, do: nodeQuorum},
}

// expiryFrees checks that an abandoned lock becomes free, and not before its lease's Expires.
func expiryFrees(r *run) {
	_, b, key, old := r.holding(driver.Request{TTL: r.short()})
	r.succeed(b, key, old, false)
}

// succeed acquires key after the lease old, which is not renewed, and checks that it was not
// granted while old was valid.
func (r *run) succeed(b driver.Backend, key string, old *lease, wait bool) *lease {
	g := old.Grant()
	if g.Expires.IsZero() {
		r.pass("a grant of %s has no end to wait for", r.info.Name)
	}
	next, refusals := r.eventuallyRule(expires, b, driver.Request{Key: key, Wait: wait}, old)
	if early := time.Until(g.Expires); early > 0 {
		r.fatal(expires, "the next owner was granted %v before the lease's Expires", early)
	}
	if refusals == 0 && !wait {
		r.startOver("the lease was over before anybody else tried")
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

// rising returns a function that checks the tokens of leases, each of which came after the one before.
func (r *run) rising() func(*lease) {
	last := uint64(0)
	return func(l *lease) {
		fence := l.Grant().Fence
		r.rises(last, fence)
		last = fence
	}
}

// renewalExtends keeps a lease by renewals for longer than the server would keep it without
// them.
func renewalExtends(r *run) {
	start, ttl := time.Now(), r.short()
	_, b, key, l := r.holding(driver.Request{TTL: ttl})
	fence := l.Grant().Fence
	for time.Since(start) < ttl+r.h.Grace+ttl/2 {
		if !r.pause(ttl / 4) {
			r.startOver("the case's time was over")
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

// staleAfterExpiry checks that an owner that slept longer than its TTL learns of the loss, and
// does not disturb the next owner.
func staleAfterExpiry(r *run) {
	a, b, key, old := r.holding(driver.Request{TTL: r.short()})
	next := r.succeed(b, key, old, false)
	r.lostQuietly(old)
	r.notFreed(a, key, next)
	r.releaseEnded(old)
	r.notFreed(a, key, next)
	r.release(next)
}

// releaseFirst checks that Release, the first call of a lease after another owner got the lock,
// does not free that owner's lock.
func releaseFirst(r *run) {
	a, b := r.pair()
	r.together(2, func(i int) {
		key := r.key()
		old := r.grant(a, driver.Request{Key: key, TTL: r.short()})
		next := r.succeed([]driver.Backend{a, b}[i], key, old, false)
		r.releaseEnded(old)
		r.notFreed(b, key, next)
		r.release(next)
	})
}

// neverRevived checks that Renew does not take a free key for a lease that ended, though nobody
// had the key since.
func neverRevived(r *run) {
	_, b, key, old := r.holding(driver.Request{TTL: r.short()})
	if old.Grant().Expires.IsZero() {
		r.pass("a grant of %s has no end to wait for", r.info.Name)
	}
	t := old.last()
	r.pause(time.Until(t.received.Add(r.kept(t) + t.ttl/2 + 100*time.Millisecond)))
	if _, ok := b.(driver.Inspector); ok {
		for len(r.lookup(b, key).Holders) > 0 && r.pause(poll) {
		}
	}
	if r.renewEnded(old) == granted {
		r.suspect(renewing, "Renew took a free key again: the lease of %v had been over for %v", t.ttl, time.Since(t.received.Add(t.ttl)).Round(time.Millisecond))
	}
	r.free(b, key)
}

// expiresInTime checks the bound on Expires with a TTL whose drift is longer than
// a call takes.
func expiresInTime(r *run) {
	b, ttl := r.client(), r.long()
	l := r.grant(b, driver.Request{Key: r.key(), TTL: ttl})
	r.notLate(l.Grant(), ttl, "Acquire")
	if !time.Now().Before(l.Grant().Expires) {
		r.startOver("a lease of %v was over when it was granted", ttl)
	}
	r.notLate(r.renew(l, driver.Renewal{TTL: ttl}), ttl, "Renew")
	r.useful(l, ttl)
	r.release(l)
}

// useful asserts that a lease lasts for most of a TTL: Expires must not count from long before the
// request.
func (r *run) useful(l *lease, ttl time.Duration) {
	t := l.last()
	if least := t.sent.Add(ttl / 2); l.Grant().Expires.Before(least) {
		r.fatal(renewing, "the TTL is %v, and the lease ends %v after the request for it was sent", ttl, l.Grant().Expires.Sub(t.sent))
	}
}

// expiryExact lets several locks end at once and asks for them continuously, to find a lock
// that becomes free some milliseconds before its lease's Expires.
func expiryExact(r *run) {
	a, b := r.pair()
	r.together(8, func(int) {
		key := r.key()
		old := r.grant(a, driver.Request{Key: key, TTL: r.short()})
		end := old.Grant().Expires
		if end.IsZero() {
			return
		}
		r.pause(time.Until(end) - 15*time.Millisecond)
		for {
			sent := time.Now()
			next, err := r.try(b, driver.Request{Key: key})
			if early := time.Until(end); r.saw(err) == granted && early > 0 {
				r.fatal(expires, "the TTL is %v, and the next owner was granted %v before the lease's Expires", old.last().ttl, early)
			}
			if r.saw(err) == granted {
				r.release(next)
				return
			}
			if r.saw(err) == held {
				r.notKeptAt(sent, key, old)
			}
			if !r.pause(time.Millisecond) {
				r.fatal(expires, "key %q did not become free before the case's time was over", short(key))
			}
		}
	})
}

// oddTTL checks that a TTL that is no round number is neither rounded up nor down.
func oddTTL(r *run) {
	ttl := r.short()/time.Second*time.Second + 1990*time.Millisecond
	if r.h.Short {
		ttl -= 800 * time.Millisecond
	}
	if ttl > r.info.MaxTTL {
		r.pass("a TTL of %v is over the maximum", ttl)
	}
	_, b, key, old := r.holding(driver.Request{TTL: ttl})
	r.useful(old, ttl)
	r.succeed(b, key, old, false)
}

// retryAfter checks the hint RetryAfter with a TTL whose drift is only some milliseconds, so
// that the hint shows the TTL that the server got.
func retryAfter(r *run) {
	ttl := min(r.info.MaxTTL, max(r.info.MinTTL, 100*time.Millisecond*time.Duration(r.scale)))
	for range 10 { // the quickest answer is the most exact
		_, b, key, l := r.holding(driver.Request{TTL: ttl})
		r.hinted(b, key, l)
		r.renew(l, driver.Renewal{TTL: ttl})
		r.hinted(b, key, l)
		r.releaseEnded(l)
	}
}

// hinted asks for a held key, and checks the times in the verdict.
func (r *run) hinted(b driver.Backend, key string, l *lease) {
	for inDoubt := false; ; {
		asked := time.Now()
		next, err := r.try(b, driver.Request{Key: key})
		answered := time.Now()
		var he *driver.HeldError
		switch v := r.saw(err); {
		case v == granted && r.valid(l):
			r.fatal(exclusion, "key %q was granted while another's lease had %v to go", short(key), left(l))
		case v == granted:
			r.release(next)
			r.startOver("a lease of %v ended before anybody else tried", l.last().ttl)
		case v == held && inDoubt && !r.valid(l):
			r.startOver("a lease of %v ended before an attempt was answered, and the lock may be that attempt's", l.last().ttl)
		case v == unknown:
			inDoubt = true
		case v == held && errors.As(err, &he):
			r.hint(he, asked, answered, l)
			r.since(he, asked, answered, l)
			return
		}
		if !r.pause(poll) {
			r.fatal(fourOutcomes, "key %q is held, and no attempt said so: %v", short(key), err)
		}
	}
}

// renewLonger checks that a renewal may have a longer TTL than the lease. It extends the lease by
// that, or by the TTL of the grant.
func renewLonger(r *run) {
	ttl := r.short()
	_, b, key, l := r.holding(driver.Request{TTL: ttl})
	longer := min(3*ttl, r.info.MaxTTL)
	g := r.renew(l, driver.Renewal{TTL: longer})
	r.notLate(g, longer, "Renew")
	r.useful(l, ttl)
	if g.Expires.After(l.last().sent.Add(ttl)) {
		r.useful(l, longer)
		r.hinted(b, key, l)
	}
	r.succeed(b, key, l, false)
}

// renewShorter checks that a renewal may have a shorter TTL, and that the lock is then free sooner.
func renewShorter(r *run) {
	ttl := r.short()
	_, b, key, l := r.holding(driver.Request{})
	r.notLate(r.renew(l, driver.Renewal{TTL: ttl}), ttl, "Renew with a shorter TTL")
	r.succeed(b, key, l, false)
}

// notLate checks Expires right after the call that returned it: Expires counts from before the
// call.
func (r *run) notLate(g driver.Grant, ttl time.Duration, call string) {
	if most := driver.Expires(time.Now(), ttl); g.Expires.After(most) {
		r.fatal(expires, "Expires after %s is %v later than the TTL of %v less the drift of %v allows",
			call, g.Expires.Sub(most), ttl, driver.Drift(ttl))
	}
}

// expiryWakes checks that a waiter gets the lock of a dead holder, and not too early.
func expiryWakes(r *run) {
	a, b, key, old := r.holding(driver.Request{TTL: r.short()})
	next := r.succeed(b, key, old, true)
	r.lost(old)
	r.holds(a, key, next)
	r.release(next)
}

// keepsBeyondTheLease checks that with Renewal.Keep the server keeps the lock beyond its lease,
// and with a TTL of zero not longer than Keep.
func keepsBeyondTheLease(r *run) {
	ttl := r.short()
	keep := 2*ttl + r.h.Grace
	a, b, key, l := r.holding(driver.Request{TTL: ttl})
	start := time.Now()
	r.renew(l, driver.Renewal{TTL: ttl, Keep: keep})
	next := r.succeed(b, key, l, false)
	if early := keep - driver.Drift(keep) - time.Since(start); early > 0 {
		r.fatal(keeping, "the next owner was granted %v before Keep was over", early)
	}
	v, doubtful, err := r.settle(keeping, "Renew with Keep and without TTL", func() error {
		_, err := next.Renew(r.ctx, &driver.Renewal{Keep: r.long()})
		return err
	})
	switch {
	case v == lost && doubtful:
		r.startOver("a lease was over after a renewal whose outcome is unknown")
	case v != granted:
		r.fatal(keeping, "Renew with Keep and without TTL: %v", err)
	}
	for {
		_, err := r.try(a, driver.Request{Key: key})
		var he *driver.HeldError
		switch v := r.saw(err); {
		case v == unknown, v == later:
		case v != held:
			r.fatal(keeping, "another owner's attempt, of a lock that is kept, gives %v", err)
		case !errors.As(err, &he) || he.RetryAfter <= r.long()+time.Millisecond:
			r.release(next)
			return
		}
		if !r.pause(poll) { // a minority of nodes may not have heard of the renewal yet
			r.fatal(keeping, "a lock that is kept for %v, to which no grace is added without a TTL, gives %v", r.long(), err)
		}
	}
}

package redlocktest

import (
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

var verdictCases = []testCase{
	{name: "held", do: heldError},
	{name: "lost", do: lostAfterRelease},
	{name: "second-release", do: secondRelease},
	{name: "release-at-once", do: releaseAtOnce},
	{name: "concurrent-release", do: concurrentRelease},
	{name: "stale-release", do: staleRelease},
	{name: "stale-renew", do: staleRenew},
	{name: "renew-never-takes", do: renewNeverTakes},
}

// allowance is how far the server's clock may be from ours: more means that
// something else than a clock is wrong.
const allowance = 5 * time.Minute

// heldError checks the fields of a *HeldError.
func heldError(r *run) {
	a, b := r.pair()
	key, owner := r.key(), r.owner()
	l := r.grant(a, driver.Request{Key: key, Owner: owner})
	he := r.heldBy(b, driver.Request{Key: key}, l)
	err := r.refusal(b, driver.Request{Key: key}, l)
	for _, verdict := range []error{driver.ErrLost, driver.ErrRefused, driver.ErrInvalid, driver.ErrClosed} {
		if errors.Is(err, verdict) {
			r.record(fourOutcomes, "an error is ErrHeld and at once %q: %v", verdict, err)
		}
	}
	// A driver that tries more than once stores the owner with its attempt; one that
	// knows sessions alone may know the owner's label.
	if strings.Contains(he.Holder, ownerLabel) && !strings.Contains(he.Holder, owner) {
		r.record(holderSeen, "Holder is %q, and the holder is %q", he.Holder, owner)
	}
	if r.info.Features.Has(driver.FeatureQuorumNode) && !strings.Contains(he.Holder, owner) {
		r.record(holderSeen, "a node knows its owners, and Holder is %q where %q has the key", he.Holder, owner)
	}
	if most := 2 * (r.long() + r.h.Grace); he.RetryAfter < 0 || most > 0 && he.RetryAfter > most {
		r.record(holderSeen, "RetryAfter is %v, and the TTL %v", he.RetryAfter, r.long())
	}
	if !he.Since.IsZero() && (time.Since(he.Since) > allowance || time.Until(he.Since) > allowance) {
		r.record(holderSeen, "Since is %v, and the grant was just now, at %v", he.Since, time.Now())
	}
	if r.info.Features.Has(driver.FeatureQuorumNode) && (he.Server == "" || he.Clock.IsZero()) {
		r.record(nodes, "a *HeldError has Server %q and Clock %v", he.Server, he.Clock)
	}
	r.release(l)
}

func lostAfterRelease(r *run) {
	a, b := r.pair()
	key := r.key()
	l := r.grant(a, driver.Request{Key: key})
	r.release(l)
	r.lost(l)
	other := r.grant(b, driver.Request{Key: key})
	r.lost(l)
	r.holds(a, key, other)
	r.release(other)
}

func secondRelease(r *run) {
	b, key := r.client(), r.key()
	l := r.grant(b, driver.Request{Key: key})
	r.release(l)
	for range 3 {
		if err := l.Release(r.ctx); err != nil {
			r.fatal(releasing, "Release gives %v after a Release that returned nil", err)
		}
	}
	r.free(b, key)
}

// releaseAtOnce: nil says that the lock is free, and not that it will be.
func releaseAtOnce(r *run) {
	a, b := r.pair()
	key := r.key()
	for range 20 {
		l := r.grant(a, driver.Request{Key: key})
		r.release(l)
		r.release(r.again(b, key))
	}
}

func concurrentRelease(r *run) {
	b, key := r.client(), r.key()
	l := r.grant(b, driver.Request{Key: key})
	errs := make([]error, 8)
	r.together(len(errs), func(i int) { errs[i] = l.Release(r.ctx) })
	for _, err := range errs {
		if v := r.saw(err); v != granted && v != lost && v != unknown {
			r.record(releasing, "of eight Releases at once one gives %v: %v", v, err)
		}
	}
	r.dropped(l)
	r.free(b, key)
}

// staleRelease: an old lease's Release frees nothing of the next owner's.
func staleRelease(r *run) {
	a, b := r.pair()
	key := r.key()
	old := r.grant(a, driver.Request{Key: key})
	r.release(old)
	next := r.grant(b, driver.Request{Key: key})
	for range 3 {
		r.dropped(old)
	}
	r.notFreed(a, key, next)
	r.release(next)
	// The same within one client, whose books must not mix them up.
	next = r.grant(a, driver.Request{Key: key})
	r.dropped(old)
	r.notFreed(b, key, next)
	r.release(next)
}

// notFreed is holds with the rule on Release.
func (r *run) notFreed(b driver.Backend, key string, l driver.Lease) {
	_, err := r.try(b, driver.Request{Key: key})
	if r.saw(err) == granted && r.valid(l) {
		r.fatal(releasing, "the Release of a lease that was over freed the next owner's lock")
	}
	r.holds(b, key, l)
}

// staleRenew: an old lease's Renew neither succeeds nor disturbs the next owner.
func staleRenew(r *run) {
	a, b := r.pair()
	key := r.key()
	old := r.grant(a, driver.Request{Key: key})
	r.release(old)
	for _, c := range []driver.Backend{a, b} {
		next := r.grant(c, driver.Request{Key: key})
		r.lost(old)
		r.holds(a, key, next)
		r.release(next)
	}
}

// renewNeverTakes: the Renew of a lease that is over leaves a free key free.
func renewNeverTakes(r *run) {
	a, b := r.pair()
	key := r.key()
	old := r.grant(a, driver.Request{Key: key})
	r.release(old)
	_, err := old.Renew(r.ctx, &driver.Renewal{TTL: r.long()})
	if r.saw(err) == granted {
		r.record(renewing, "Renew succeeded after Release")
	}
	l, err := r.try(b, driver.Request{Key: key})
	if r.saw(err) == held {
		r.fatal(renewing, "Renew after Release took the key again: %v", err)
	}
	if err != nil {
		l = r.grant(b, driver.Request{Key: key})
	}
	r.holds(a, key, l)
	r.release(l)
}

// serial calls f from n goroutines, each rounds times, while it has key: f runs
// alone.
func (r *run) serial(clients []driver.Backend, key string, n, rounds int, f func(driver.Lease)) {
	var mu sync.Mutex // tells the race detector nothing, and us whether two are inside
	r.together(n, func(i int) {
		for range rounds {
			l := r.eventually(clients[i%len(clients)], driver.Request{Key: key, Wait: true})
			if !mu.TryLock() {
				if r.valid(l) {
					r.fatal(exclusion, "two owners have key %q at once", short(key))
				}
				r.stall("a lease ended before its owner could look")
			}
			f(l)
			mu.Unlock()
			r.release(l)
		}
	})
}

package redlocktest

import (
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

var verdictCases = []testCase{
	{name: "held", do: heldError},
	{name: "lost", do: lostAfterRelease},
	{name: "concurrent-release", do: concurrentRelease},
	{name: "concurrent-lease", do: concurrentLease},
	{name: "renew-beside-release", do: renewBesideRelease},
}

// allowance is how far the server's clock may be from this machine's: a larger difference is an
// error in the driver.
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
	// A driver that makes several attempts stores the owner and its attempt. A driver that
	// knows only sessions may know only the owner's label.
	if strings.Contains(he.Holder, ownerLabel) && !strings.Contains(he.Holder, owner) {
		r.record(holderSeen, "Holder is %q, and the holder is %q", he.Holder, owner)
	}
	if r.info.Features.Has(driver.FeatureQuorumNode) && !strings.Contains(he.Holder, owner) {
		r.record(holderSeen, "a node knows its owners, and Holder is %q where %q has the key", he.Holder, owner)
	}
	if he.RetryAfter < 0 {
		r.record(holderSeen, "RetryAfter is %v", he.RetryAfter)
	}
	r.hinted(b, key, l)
	if r.info.Features.Has(driver.FeatureQuorumNode) && (he.Server == "" || he.Clock.IsZero()) {
		r.record(nodes, "a *HeldError has Server %q and Clock %v", he.Server, he.Clock)
	}
	r.release(l)
}

// lostAfterRelease checks that a released lease can be released again, cannot be renewed, neither
// takes a free key nor disturbs the next owner.
func lostAfterRelease(r *run) {
	a, b, key, l := r.holding(driver.Request{})
	r.release(l)
	for range 3 {
		if err := l.Release(r.ctx); err != nil {
			r.fatal(releasing, "Release gives %v after a Release that returned nil", err)
		}
	}
	r.lost(l)
	for _, c := range []driver.Backend{a, b} { // also within one client, which must not confuse the leases
		next := r.grant(c, driver.Request{Key: key})
		for range 3 {
			r.releaseEnded(l)
		}
		r.notFreed(a, key, next)
		r.lost(l)
		r.holds(b, key, next)
		r.release(next)
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
	r.releaseEnded(l)
	r.free(b, key)
}

// notFreed is holds, with the rule on Release.
func (r *run) notFreed(b driver.Backend, key string, l *lease) {
	_, err := r.try(b, driver.Request{Key: key})
	if r.saw(err) == granted && r.valid(l) {
		r.fatal(releasing, "the Release of a lease that was over freed the next owner's lock")
	}
	r.holds(b, key, l)
}

// serial calls f in n goroutines, rounds times in each, and checks that f never runs twice at a
// time. Each call is under a lock that the function get waits for. It keeps the lock for a
// while, so that two owners at once would meet.
func (r *run) serial(n, rounds int, get func(i int) *lease, f func(*lease)) {
	var mu sync.Mutex // counts owners inside, invisibly to the race detector
	var inside *lease
	enter := func(l *lease) (other *lease) {
		mu.Lock()
		defer mu.Unlock()
		if inside == nil {
			inside = l
			return nil
		}
		return inside
	}
	leave := func(l *lease) {
		mu.Lock()
		defer mu.Unlock()
		if inside == l {
			inside = nil
		}
	}
	r.together(n, func(i int) {
		var l *lease
		defer func() {
			if l != nil { // the case has failed: the others need not wait for this lease's end
				leave(l)
				_ = l.Release(r.ctx)
			}
		}()
		for range r.rounds(rounds) {
			if r.over() {
				return
			}
			l = get(i)
			if other := enter(l); other != nil {
				if r.valid(l) && r.valid(other) {
					r.fatal(exclusion, "two owners are in the critical section at once, with tokens %d and %d", other.Grant().Fence, l.Grant().Fence)
				}
				r.startOver("a lease ended inside its critical section")
			}
			f(l)
			r.pause(rand.N(2 * time.Millisecond))
			leave(l)
			r.release(l)
			l = nil
		}
	})
}

// concurrentLease calls Grant continuously while others renew, and checks that it always
// returns a complete grant or renewal, and never an older one than before.
func concurrentLease(r *run) {
	l := r.grant(r.client(), driver.Request{Key: r.key()})
	fence := l.Grant().Fence
	renewed := make(chan struct{})
	r.together(6, func(i int) {
		if i == 0 {
			defer close(renewed)
			for range r.rounds(r.h.times(60)) {
				g := r.renew(l, driver.Renewal{})
				if now := l.Grant(); now.Expires.Before(g.Expires) {
					r.record(renewing, "Renew gave Expires %v, and Grant after it %v", g.Expires, now.Expires)
				}
			}
			return
		}
		var last time.Time
		for !over(renewed) && !r.over() {
			g := l.Grant()
			switch {
			case g.Fence != fence:
				r.fatal(renewing, "during renewals Grant gives token %d, and the lease has %d", g.Fence, fence)
			case g.Expires.Before(last):
				r.fatal(renewing, "during renewals Expires goes back from %v to %v", last, g.Expires)
			}
			last = g.Expires
			r.pause(50 * time.Microsecond)
		}
	})
	r.release(l)
}

// renewBesideRelease calls both at once, and checks that the key is free afterwards, and that a
// renewal after the Release fails.
func renewBesideRelease(r *run) {
	a, b := r.pair()
	took := r.howLong(a)
	for range r.rounds(r.h.times(30)) {
		key := r.key()
		l := r.grant(a, driver.Request{Key: key})
		r.together(3, func(i int) {
			if i == 0 {
				r.pause(rand.N(2 * took))
				r.release(l)
				return
			}
			for range 3 {
				switch _, err := l.Renew(r.ctx, &driver.Renewal{TTL: r.long()}); r.saw(err) {
				case granted, lost, unknown, later:
				default:
					r.fatal(renewing, "Renew beside a Release gives %v: %v", r.saw(err), err)
				}
			}
		})
		if _, err := l.Renew(r.ctx, &driver.Renewal{TTL: r.long()}); r.saw(err) == granted {
			r.fatal(renewing, "Renew succeeds after a Release that returned nil")
		}
		r.release(r.takes(renewing, b, key, "a Renew beside a Release took the key again, which nobody holds"))
	}
}

package redlocktest

import (
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

var fenceCases = []testCase{
	{name: "none", without: driver.FeatureFencing, do: noFence},
	{name: "rises", features: driver.FeatureFencing, do: fenceRises},
	{name: "rises-concurrently", features: driver.FeatureFencing, do: fenceRisesConcurrently},
	{name: "comparable", features: driver.FeatureFencing, do: fenceComparable},
	{name: "clock", features: driver.FeatureFencing, needs: []condition{clocked}, do: fenceClock},
}

func noFence(r *run) {
	l := r.grant(r.client(), driver.Request{Key: r.key()})
	if g := l.Grant(); g.Fence != 0 {
		r.record(tokens, "Fencing is not among the features %v, and a grant has token %d", r.info.Features, g.Fence)
	}
	r.release(l)
}

func fenceRises(r *run) {
	clients := r.clients(3)
	key, last := r.key(), uint64(0)
	for i := range r.h.times(30) {
		l := r.grant(clients[i%len(clients)], driver.Request{Key: key})
		r.rises(last, l.Grant().Fence)
		last = l.Grant().Fence
		r.renew(l, driver.Renewal{})
		if g := l.Grant(); g.Fence != last {
			r.fatal(tokens, "the token of one lease changed from %d to %d", last, g.Fence)
		}
		r.release(l)
	}
}

// fenceRisesConcurrently checks that among owners that race for a key no token comes twice, and
// that a token is smaller than the token of any attempt that began after it was returned.
func fenceRisesConcurrently(r *run) {
	clients, key := r.clients(4), r.key()
	var mu sync.Mutex
	last, seen := uint64(0), map[uint64]bool{}
	r.together(12, func(i int) {
		for range 5 {
			mu.Lock()
			before := last
			mu.Unlock()
			l := r.eventually(clients[i%len(clients)], driver.Request{Key: key, Wait: true})
			fence := l.Grant().Fence
			r.rises(before, fence)
			mu.Lock()
			last = max(last, fence)
			again := seen[fence]
			seen[fence] = true
			mu.Unlock()
			if again {
				r.fatal(tokens, "token %d was given twice", fence)
			}
			r.release(l)
		}
	})
}

func fenceComparable(r *run) {
	least := uint64(time.Now().Add(-allowance).UnixMicro())
	for range 3 {
		l := r.grant(r.client(), driver.Request{Key: r.key()})
		switch fence := l.Grant().Fence; {
		case fence < least:
			r.fatal(tokens, "the first token of a key is %d, less than the Unix time in microseconds, even %v ago: %d", fence, allowance, least)
		case fence > driver.MaxFence:
			r.fatal(tokens, "a token is %d, more than %d", fence, uint64(driver.MaxFence))
		}
		r.release(l)
	}
}

// fenceClock checks that tokens follow the servers' clock and not a client's clock, which may
// be wrong by an hour: a store would refuse all tokens after one from a client that is ahead,
// and the tokens of a client that is behind.
func fenceClock(r *run) {
	sound := r.client()
	for _, ahead := range []time.Duration{time.Hour, -time.Hour} {
		b, err := r.h.OpenWithClock(ahead)
		if err != nil {
			r.fatal(nothingShown, "the harness could not open a client with a clock of its own: %v", err)
		}
		r.keep(b)
		key := r.key()
		l := r.grant(b, driver.Request{Key: key})
		r.tokenOfServer(l, ahead)
		r.release(l)
		next := r.grant(sound, driver.Request{Key: key})
		r.rises(l.Grant().Fence, next.Grant().Fence)
		r.release(next)
	}
}

// tokenOfServer checks that the token of a client whose clock is wrong is near the Unix time.
func (r *run) tokenOfServer(l *lease, ahead time.Duration) {
	if !r.info.Features.Has(driver.FeatureFencing) {
		return
	}
	fence := l.Grant().Fence
	if off := time.Until(time.UnixMicro(int64(fence))); off > allowance || off < -allowance {
		r.fatal(tokens, "a client whose clock is %v ahead was given the token %d, which is %v ahead of now: tokens must go by the servers' clock",
			ahead, fence, off.Round(time.Second))
	}
}

// fenceOutlivesExpiry checks that a key's counter outlives a lock that ends by its TTL. The
// request's FenceFloor is in the past, so that a lost counter would show as a smaller token.
func fenceOutlivesExpiry(r *run) {
	a, b := r.pair()
	key := r.key()
	floor := r.serverClock() + slack*9/10
	old := r.grant(a, driver.Request{Key: key, TTL: r.short(), FenceFloor: floor})
	for {
		next, err := r.try(b, driver.Request{Key: key, FenceFloor: 1})
		if r.saw(err) == granted {
			r.rises(old.Grant().Fence, next.Grant().Fence)
			r.release(next)
			return
		}
		if !r.pause(poll) {
			r.fatal(expires, "key %q did not become free before the case's time was over: %v", short(key), err)
		}
	}
}

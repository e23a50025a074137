package redlocktest

import (
	"time"

	"github.com/redlock-go/redlock/driver"
)

var fenceCases = []testCase{
	{name: "rises", features: driver.FeatureFencing, do: fenceRises},
	{name: "clock", features: driver.FeatureFencing, needs: []condition{clocked}, do: fenceClock},
}

func fenceRises(r *run) {
	clients := r.clients(3)
	key, rises := r.key(), r.rising()
	for i := range r.h.times(30) {
		l := r.grant(clients[i%len(clients)], driver.Request{Key: key})
		rises(l)
		fence := l.Grant().Fence
		if i == 0 {
			r.comparable(fence)
		}
		r.renew(l, driver.Renewal{})
		if g := l.Grant(); g.Fence != fence {
			r.fatal(tokens, "the token of one lease changed from %d to %d", fence, g.Fence)
		}
		r.release(l)
	}
}

// comparable asserts that the first token of a key is about the Unix time in microseconds, or more.
func (r *run) comparable(fence uint64) {
	switch least := uint64(time.Now().Add(-allowance).UnixMicro()); {
	case fence < least:
		r.fatal(tokens, "the first token of a key is %d, less than the Unix time in microseconds, even %v ago: %d", fence, allowance, least)
	case fence > driver.MaxFence:
		r.fatal(tokens, "a token is %d, more than %d", fence, uint64(driver.MaxFence))
	}
}

// fenceClock checks that tokens follow the servers' clock and not a client's clock, which may
// be wrong by an hour: a store would refuse all tokens after one from a client that is ahead,
// and the tokens of a client that is behind.
func fenceClock(r *run) {
	sound := r.client()
	for _, ahead := range []time.Duration{time.Hour, -time.Hour} {
		b, err := r.h.OpenWithClock(ahead)
		r.must(err, "open a client with a clock of its own")
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

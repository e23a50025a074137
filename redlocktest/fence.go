package redlocktest

import (
	"time"

	"github.com/redlock-go/redlock/driver"
)

var fenceCases = []testCase{
	{name: "rises", features: driver.FeatureFencing, do: fenceRises},
	{name: "ranges", features: driver.FeatureTokens, do: fenceRanges},
	{name: "range-expires", features: driver.FeatureTokens, ttl: true, do: rangeExpires},
	{name: "clock", features: driver.FeatureFencing, needs: []condition{clocked}, do: fenceClock},
}

func fenceRises(r *run) {
	clients := r.clients(3)
	key, rises := r.key(), r.rising()
	for i := range r.rounds(r.h.times(30)) {
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

// proposals returns two proposals for a backend that takes them, and zeros for others: one far ahead
// of the clock and one of the past. With the second after the first tokens rise by the counter, and
// not by the clock.
func (r *run) proposals() (ahead, past uint64) {
	if !r.info.Features.Has(driver.FeatureQuorumNode) {
		return 0, 0
	}
	return r.serverClock() + slack*9/10, 1
}

// fenceRanges checks that ranges of any lengths, and single tokens between them, rise and never
// overlap.
func fenceRanges(r *run) {
	clients := r.clients(3)
	key, next := r.key(), r.ranges()
	floor, past := r.proposals()
	for i := range r.rounds(r.h.times(30)) {
		n := []uint32{driver.MaxTokens, 1, 2, 0, 1000, 3, 1, 64}[i%8]
		l := r.grant(clients[i%len(clients)], driver.Request{Key: key, Tokens: n, FenceFloor: floor})
		floor = past
		next(l, n)
		before := l.Grant()
		r.renew(l, driver.Renewal{})
		if g := l.Grant(); g.Fence != before.Fence || g.Tokens != before.Tokens {
			r.fatal(ranges, "a range of %d tokens that ends with %d has, after a renewal, %d tokens and ends with %d", before.Tokens, before.Fence, g.Tokens, g.Fence)
		}
		if 0 < i && i < 4 {
			r.showsRange(clients[(i+1)%len(clients)], key, before)
		}
		r.release(l)
	}
}

// ranges returns a function that checks the range of a lease, for which n tokens were asked, against
// the range before it.
func (r *run) ranges() func(l *lease, n uint32) {
	last := uint64(0)
	return func(l *lease, n uint32) {
		g := l.Grant()
		count := uint64(max(g.Tokens, 1))
		switch {
		case count > uint64(max(n, 1)):
			r.fatal(ranges, "%d tokens were asked for, and %d given", n, count)
		case count < uint64(n) && r.info.Features.Has(driver.FeatureQuorumNode):
			r.fatal(ranges, "%d tokens were asked for, and a node of a quorum gave %d, where other nodes give all", n, count)
		case last == 0:
			r.comparable(g.Fence)
		case g.Fence-count+1 <= last:
			r.fatal(ranges, "a range of %d tokens ends with %d, and an earlier grant has the token %d", count, g.Fence, last)
		}
		last = g.Fence
	}
}

// showsRange checks that Lookup tells the range of the holder.
func (r *run) showsRange(b driver.Backend, key string, g driver.Grant) {
	if _, ok := b.(driver.Inspector); !ok {
		return
	}
	s := r.lookup(b, key)
	if len(s.Holders) != 1 || s.Holders[0].Fence != 0 && (s.Holders[0].Fence != g.Fence || max(s.Holders[0].Tokens, 1) != max(g.Tokens, 1)) {
		r.misstated(s, "the holder of key %q has %d tokens that end with %d, and its state is %+v", key, g.Tokens, g.Fence, s)
	}
}

// rangeExpires checks that a range counts as used when its holder is gone, whichever of its tokens
// the holder gave out.
func rangeExpires(r *run) {
	a, b := r.pair()
	key, next := r.key(), r.ranges()
	floor, past := r.proposals()
	req := driver.Request{Key: key, TTL: r.short(), Tokens: 5000, FenceFloor: floor}
	next(r.grant(a, req), req.Tokens)
	one := r.eventually(b, driver.Request{Key: key, FenceFloor: past})
	next(one, 1)
	r.release(one)
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

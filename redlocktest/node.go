package redlocktest

import (
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
)

var nodeCases = []testCase{
	{name: "clock", features: driver.FeatureQuorumNode, do: nodeClock},
	{name: "floor", features: driver.FeatureQuorumNode, do: nodeFloor},
	{name: "join", features: driver.FeatureQuorumNode, do: nodeJoin},
	{name: "join-own", features: driver.FeatureQuorumNode, do: nodeJoinOwn},
	{name: "raise", features: driver.FeatureQuorumNode, do: nodeRaise},
	{name: "instance", features: driver.FeatureQuorumNode, do: nodeInstance},
}

// nodeClock checks that grants and refusals have the server's clock, without which a vote does
// not count, and its identity, without which a server that is listed twice would count twice.
func nodeClock(r *run) {
	_, b, key, l := r.holding(driver.Request{})
	for _, g := range []driver.Grant{l.Grant(), r.renew(l, driver.Renewal{})} {
		switch off := time.Since(g.Clock); {
		case g.Clock.IsZero(), g.Server == "":
			r.fatal(nodes, "a grant has Clock %v and Server %q", g.Clock, g.Server)
		case off > allowance, off < -allowance:
			r.fatal(nodes, "the server's clock is %v, and ours %v", g.Clock, time.Now())
		}
	}
	he := r.heldBy(b, driver.Request{Key: key}, l)
	if he.Clock.IsZero() || he.Server != l.Grant().Server {
		r.record(nodes, "a *HeldError has Clock %v and Server %q, and the grant Server %q", he.Clock, he.Server, l.Grant().Server)
	}
	r.release(l)
	next := r.grant(b, driver.Request{Key: key})
	if next.Grant().Clock.Before(l.Grant().Clock.Add(-driver.FenceSlack)) {
		r.record(nodes, "the server's clock went from %v to %v", l.Grant().Clock, next.Grant().Clock)
	}
	r.release(next)
}

// micro returns the server's clock of a grant, in the unit of tokens.
func micro(g driver.Grant) uint64 { return uint64(g.Clock.UnixMicro()) }

const slack = uint64(driver.FenceSlack / time.Microsecond)

// serverClock asks for the server's time by taking a key.
func (r *run) serverClock() uint64 {
	l := r.grant(r.client(), driver.Request{Key: r.key()})
	r.release(l)
	return micro(l.Grant())
}

func nodeFloor(r *run) {
	key := r.key()
	floor := r.serverClock() + slack/2
	l := r.grant(r.client(), driver.Request{Key: key, FenceFloor: floor})
	if fence := l.Grant().Fence; fence < floor {
		r.fatal(floors, "the floor is %d, %d ahead of the server's clock, and the token %d", floor, slack/2, fence)
	}
	r.release(l)
	// A floor below the counter does not lower it.
	next := r.grant(r.client(), driver.Request{Key: key, FenceFloor: 1})
	r.rises(l.Grant().Fence, next.Grant().Fence)
	r.release(next)
	// One client's wrong clock does not push the counters ahead.
	for _, ahead := range []uint64{uint64(time.Hour / time.Microsecond), driver.MaxFence} {
		floor := min(r.serverClock()+ahead, driver.MaxFence)
		l := r.grant(r.client(), driver.Request{Key: r.key(), FenceFloor: floor})
		const rounding = 10_000 // the server's clock may have a resolution of milliseconds
		if g := l.Grant(); g.Fence > micro(g)+slack+rounding {
			r.fatal(floors, "the floor is %d, and the token %d, %v ahead of the server's clock", floor, g.Fence,
				time.Duration(g.Fence-micro(g))*time.Microsecond)
		}
		r.release(l)
	}
}

// nodeJoin takes keys at a given token, above the counter and equal to it, and checks that a key is
// not taken at a token below the counter, nor from its holder.
func nodeJoin(r *run) {
	a, b := r.pair()
	key := r.key()
	at := r.serverClock() + slack/2
	l := r.grant(b, driver.Request{Key: key, ExactFence: at})
	if fence := l.Grant().Fence; fence != at {
		r.fatal(joins, "joined at %d, and the token is %d", at, fence)
	}
	r.release(l)
	l = r.grant(b, driver.Request{Key: key, ExactFence: at}) // the counter is not above it
	if fence := l.Grant().Fence; fence != at {
		r.fatal(joins, "joined at the counter, %d, and the token is %d", at, fence)
	}
	r.release(l)
	l = r.grant(b, driver.Request{Key: key, FenceFloor: 1})
	r.rises(at, l.Grant().Fence)
	r.release(l)
	at = l.Grant().Fence - 1
	joined, err := r.try(b, driver.Request{Key: key, ExactFence: at})
	switch v := r.saw(err); v {
	case granted:
		r.fatal(joins, "the counter is %d, and a request with ExactFence %d was granted with token %d", at+1, at, joined.Grant().Fence)
	case refused, later:
	case unknown:
		r.startOver("a request with ExactFence gave %v", err)
	default:
		r.fatal(joins, "the counter is %d, and a request with ExactFence %d gives %v, not ErrRefused: %v", at+1, at, v, err)
	}
	r.nothingStored(b, key)
	l = r.grant(a, driver.Request{Key: key})
	r.refuse(b, driver.Request{Key: key, ExactFence: l.Grant().Fence + slack/4}, l)
	r.holds(b, key, l)
	r.release(l)
}

// nodeJoinOwn checks that a request with ExactFence by an attempt that has the key returns its
// token, and the same lock.
func nodeJoinOwn(r *run) {
	a, b := r.pair()
	key, owner := r.key(), r.owner()+"/1"
	l := r.grant(a, driver.Request{Key: key, Owner: owner})
	at := l.Grant().Fence
	again, err := r.try(a, driver.Request{Key: key, Owner: owner, ExactFence: at + 1000})
	if v := r.saw(err); v != granted {
		r.fatal(joins, "the attempt that has the key asks for another ExactFence, and that gives %v: %v", v, err)
	}
	if fence := again.Grant().Fence; fence != at {
		r.fatal(joins, "the attempt that has the key at %d asks for another ExactFence, and gets token %d", at, fence)
	}
	r.holds(b, key, again)
	r.release(again)
	r.lost(l)
	r.free(b, key)
}

// counter returns the key's counter: with the lowest floor a new token is one more than the
// counter.
func (r *run) counter(key string) uint64 {
	l := r.grant(r.client(), driver.Request{Key: key, FenceFloor: 1})
	r.release(l)
	return l.Grant().Fence - 1
}

// nodeRaise checks that a renewal raises the key's counter, and that of a lease that is over does not.
func nodeRaise(r *run) {
	b, key := r.client(), r.key()
	l := r.grant(b, driver.Request{Key: key})
	own := l.Grant().Fence
	for _, raise := range []uint64{own + slack/4, own - 1} { // the second one lowers nothing
		if g := r.renew(l, driver.Renewal{MinFence: raise}); g.Fence != own {
			r.fatal(raising, "a renewal with MinFence %d made the lease's own token %d of %d", raise, g.Fence, own)
		}
	}
	r.release(l)
	next := r.grant(b, driver.Request{Key: key, FenceFloor: 1})
	fence := next.Grant().Fence
	if fence <= own+slack/4 {
		r.fatal(raising, "a renewal raised the counter to %d, and the next token is %d", own+slack/4, fence)
	}
	r.release(next)
	raise := fence + slack/4
	_, err := l.Renew(r.ctx, &driver.Renewal{TTL: r.long(), MinFence: raise})
	if r.saw(err) == granted {
		r.fatal(renewing, "Renew succeeded after Release")
	}
	if c := r.counter(key); c >= raise {
		r.fatal(raising, "the renewal of a lease that is over raised the counter to %d", c)
	}
}

// nodeInstance checks that a late release or renewal of attempt 1 does not affect attempt 2 of
// the same owner.
func nodeInstance(r *run) {
	a, b := r.pair()
	key, owner := r.key(), r.owner()
	first := r.grant(a, driver.Request{Key: key, Owner: owner + "/1"})
	r.release(first)
	second := r.grant(b, driver.Request{Key: key, Owner: owner + "/2"})
	r.lostQuietly(first)
	r.releaseEnded(first)
	r.notFreed(b, key, second)
	r.release(second)
	r.free(a, key)
}

// nodeInstanceExpired checks that an older acquisition cannot renew or release a younger one,
// even with the same owner and attempt.
func nodeInstanceExpired(r *run) {
	a, b := r.pair()
	key, owner := r.key(), r.owner()+"/1"
	first := r.grant(a, driver.Request{Key: key, Owner: owner, TTL: r.short()})
	r.release(r.succeed(b, key, first, false))
	second := r.grant(b, driver.Request{Key: key, Owner: owner})
	if _, err := first.Renew(r.ctx, &driver.Renewal{TTL: r.long()}); r.saw(err) == granted {
		r.fatal(nodes, "the lease with token %d was renewed through the acquisition with token %d of the same owner",
			first.Grant().Fence, second.Grant().Fence)
	}
	r.releaseEnded(first)
	r.notFreed(a, key, second)
	r.release(second)
}

// nodeQuorum checks that a node keeps the key for the grace in the quorum's terms.
func nodeQuorum(r *run) {
	ttl := r.short()
	grace := ttl / 2
	_, b, key, l := r.holding(driver.Request{TTL: ttl, Quorum: &quorum.Info{Terms: quorum.Terms{N: 3, Grace: grace}}})
	start := time.Now()
	r.renew(l, driver.Renewal{TTL: ttl})
	next := r.succeed(b, key, l, false)
	if took, least := time.Since(start), ttl+grace-driver.Drift(ttl+grace); took < least {
		r.fatal(nodes, "the TTL is %v and the grace %v, and the key came free after %v", ttl, grace, took)
	}
	r.release(next)
}

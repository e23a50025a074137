package driver

import (
	"context"
	"time"
)

// This file has the computations that are the same in every driver.

// MinTTL is the shortest TTL that a backend may accept. The drift would leave little of a
// shorter one.
const MinTTL = 10 * time.Millisecond

// Drift is the part of a TTL by which a lease ends early, because clocks run at different rates
// and expiry has a granularity: TTL/100 + 2 ms (the Redlock page's drift).
func Drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// ContextErr is ctx.Err, but also sees a deadline that has passed before the context's timer
// fired: a client library that looks at the clock returns right at the deadline.
func ContextErr(ctx context.Context) error {
	err := ctx.Err()
	if deadline, ok := ctx.Deadline(); err == nil && ok && !time.Now().Before(deadline) {
		err = context.DeadlineExceeded
	}
	return err
}

// Expires returns the end of a lease that was asked for at start: start + TTL −
// drift. start is read before the first byte was sent, or, after a native wait,
// before the round trip that confirmed the grant.
func Expires(start time.Time, ttl time.Duration) time.Time {
	return start.Add(ttl - Drift(ttl))
}

// FenceSlack is how far a proposed token may be ahead of the server's clock, so that one
// wrong clock cannot push all later tokens ahead.
const FenceSlack = 500 * time.Millisecond

// FenceLag is how far a proposed token may be behind the server's clock. Otherwise a late
// client could propose a token that a server gave long ago and has forgotten. A smaller lag
// would make the nodes of a quorum answer different tokens to a bid on a slow link, which costs
// the bid a second round trip.
const FenceLag = 2 * time.Second

// MaxFence is the largest token: it fits a float64 exactly, as Lua and JSON need.
const MaxFence = 1<<53 - 1

// NextFence returns the token of a new grant: max(counter+1, floor), in microseconds of Unix
// time. It first clamps floor to now − FenceLag and now + FenceSlack; floor 0 stands for now.
// So tokens rise strictly per key even if the clock falls, and tokens of different backends can
// be compared (rule 8). For a range of n tokens pass counter + n − 1: the result is its last token.
func NextFence(counter, floor uint64, now time.Time) uint64 {
	us := now.UnixMicro()
	if us < 0 {
		us = 0
	}
	if floor == 0 {
		floor = uint64(us)
	}
	floor = min(floor, uint64(us)+uint64(FenceSlack/time.Microsecond))
	floor = max(floor, uint64(max(us-int64(FenceLag/time.Microsecond), 0)))
	return min(max(counter+1, floor), MaxFence)
}

// Check returns an *InvalidError if req cannot be honoured by a backend of this
// Info whose keys get this prefix. Call it first in Acquire, before any I/O.
func (i Info) Check(prefix string, req *Request) error {
	switch {
	case req.Key == "":
		return Invalid("key", "is empty")
	case len(prefix)+len(req.Key) > MaxKey:
		if prefix == "" {
			return Invalid("key", "has %d bytes, the limit is %d", len(req.Key), MaxKey)
		}
		return Invalid("key", "has %d bytes with its prefix, the limit is %d", len(prefix)+len(req.Key), MaxKey)
	case req.Owner == "":
		return Invalid("owner", "is empty")
	case req.Mode > Shared:
		return Invalid("mode", "%d is unknown", req.Mode)
	case req.Mode == Shared && !i.Features.Has(FeatureShared):
		return Invalid("mode", "%s has no shared mode", i.Name)
	case req.Tokens > 1 && !i.Features.Has(FeatureTokens):
		return Invalid("tokens", "%s gives one for each grant", i.Name)
	case req.Tokens > MaxTokens:
		return Invalid("tokens", "%d are over the maximum of %d", req.Tokens, MaxTokens)
	case (req.ExactFence != 0 || req.Quorum != nil) && !i.Features.Has(FeatureQuorumNode):
		return Invalid("request", "%s cannot be a node of a quorum", i.Name)
	}
	return i.checkTTL(req.TTL)
}

// CheckRenewal returns an *InvalidError if the backend cannot honour r.
func (i Info) CheckRenewal(r *Renewal) error {
	switch {
	case r.Keep < 0:
		return Invalid("Keep", "must be 0 or more, not %v", r.Keep)
	case r.Keep > 0 && !i.Features.Has(FeatureKeep):
		return Invalid("Keep", "%s keeps no lock beyond its lease", i.Name)
	case r.Keep > 0 && r.TTL == 0:
		return nil
	}
	return i.checkTTL(r.TTL)
}

// checkTTL returns an *InvalidError if ttl is out of the backend's bounds.
func (i Info) checkTTL(ttl time.Duration) error {
	switch {
	case i.MaxTTL == 0 && ttl != 0:
		return Invalid("TTL", "%s has none: the lock lives with its session", i.Name)
	case ttl < i.MinTTL:
		return Invalid("TTL", "%v is under the minimum of %s, %v", ttl, i.Name, i.MinTTL)
	case ttl > i.MaxTTL:
		return Invalid("TTL", "%v is over the maximum of %s, %v", ttl, i.Name, i.MaxTTL)
	}
	return nil
}

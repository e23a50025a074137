package redlock

import (
	"cmp"
	"slices"
	"time"

	"github.com/redlock-go/redlock/driver/boot"
	"github.com/redlock-go/redlock/driver/quorum"
)

// This file has all rules on time that exclusion (G1) needs, as pure functions, and the proof
// that they suffice.
//
// # The world
//
// R is true time. W_i is the wall clock of node i, and TIME_i its reading in an answer. The
// assumptions are: at any instant fewer than q nodes have a wrong clock, in whatever way; the
// clocks of the others are within ε of R; every client's boot-time clock runs at the rate of R
// within a fraction d; and no clock goes ahead and comes back between two bids or renewals
// under one prefix, unless by at most β.
//
// # The rule
//
// A bid or a renewal is judged by the answers of its own counted nodes alone. With E, the
// least Excuse among them:
//
//	hold    Expires = start + TTL − d·TTL − 2 ms − max(0, M − min TIME_i − E),
//	        with M = max[TIME_i − (1−d)(sent_i − start)]
//	return  not before max TIME_i − E ≤ min[TIME_i + (1−d)(now − received_i)]
//	keep    a node keeps the key for TTL + G, with G ≥ 2E + 2ε + β
//	vote    a node that may have forgotten leases votes again when its clock says
//	        max(TIME, others) + Q, with Q ≥ Γ(1+d) + E + 2ε; others is the upper median
//	        of what the other nodes' clocks can say at most, and at least the (q−1)-th
//	        smallest of that
//
// # Why it suffices
//
// Of any q nodes one has a good clock. Let a holder have counted the nodes C, and a bidder
// the nodes D; they share a node X. Its answer to the holder said W_X, and that to the bidder
// W'_X.
//
//  1. R(deadline) ≤ W_X + TTL + E + ε. A good node g of C answered TIME_g ≥ R(start) +
//     (1−d)(sent_g − start) − ε, so R(start) ≤ M + ε. Until the deadline at most
//     (1+d)(TTL − d·TTL) − max(0, M − min TIME − E) ≤ TTL − (M − min TIME − E) passes. Together
//     R(deadline) ≤ min TIME + E + ε + TTL, and min TIME ≤ W_X.
//  2. R(return) ≥ W'_X − E − ε. A good node g of D answered TIME_g ≤ R + ε before received_g,
//     so R(return) ≥ TIME_g − ε + (1−d)(now − received_g) ≥ max TIME − E − ε.
//  3. X gave the key to the bidder, so it had ended there: W'_X + β ≥ W_X + TTL + G.
//
// So R(return) ≥ W_X + TTL + G − β − E − ε ≥ W_X + TTL + E + ε ≥ R(deadline). E of either bid
// is at most that of X, and so G of X is enough although other nodes may have other terms.
//
// If X has forgotten the key instead, at the instant F: every lease that it forgot ends by
// F + Γ, since R(start) ≤ F. X counts others from a handshake of a process that began after
// F. If its own clock is good, TIME ≥ F − ε; otherwise at most q−2 other clocks are wrong,
// and so one of the q−1 smallest bounds is at least F − ε. By 2 a bidder that counts X
// returns no earlier than F − ε + Q − E − ε ≥ F + Γ.

// reading has the clock of a node from its answers to one bid or renewal.
type reading struct {
	earliest, latest time.Duration // TIME since 1970: of one answer, or of two
	sent             boot.Instant  // before the first of them
	received         boot.Instant  // after the last
	excuse           time.Duration // of the node's terms
	drift            int32         // of the node's terms, in percent
	known            bool
}

// and combines the readings of two answers of one node.
func (r reading) and(s reading) reading {
	switch {
	case !r.known:
		return s
	case !s.known:
		return r
	}
	return reading{
		earliest: min(r.earliest, s.earliest), latest: max(r.latest, s.latest),
		sent: min(r.sent, s.sent), received: max(r.received, s.received),
		excuse: min(r.excuse, s.excuse), drift: max(r.drift, s.drift), known: true,
	}
}

// rounding is how much too early a node may end a key because of the granularity of its clocks:
// Redis ends keys at whole milliseconds, by the clock at the start of a script.
const rounding = 10 * time.Millisecond

// derive returns the terms of n nodes whose good clocks are within allowance of each other, 2ε;
// drift is in percent. Clocks may differ by three times the allowance, so that a slightly wrong
// clock costs no majority. The high-water mark of a node's clock lags by half of the allowance,
// so β is one and a half times the allowance.
func derive(n int, guard, allowance time.Duration, drift int) quorum.Terms {
	guard, allowance = guard.Truncate(time.Microsecond), allowance.Truncate(2*time.Microsecond)
	excuse, setBack := 3*allowance, allowance+allowance/2
	return quorum.Terms{
		N:          n,
		Guard:      guard,
		Excuse:     excuse,
		Allowance:  allowance,
		Quarantine: guard + percent(guard, drift).Round(time.Microsecond) + excuse + allowance + rounding,
		Grace:      2*excuse + allowance + setBack + rounding,
		Drift:      drift,
	}
}

// percent returns this many percent of d, rounded up.
func percent(d time.Duration, n int) time.Duration { return (d*time.Duration(n) + 99) / 100 }

// least returns the least true time that passes while a boot-time clock counts d.
func least(d time.Duration, drift int) time.Duration { return d - percent(d, drift) }

// excused returns the difference of clocks that a bid with these answers excuses, and the drift
// that it assumes: the larger one of the client's own and the nodes' terms.
func excused(answers []reading, drift int) (time.Duration, int) {
	excuse := answers[0].excuse
	for _, a := range answers {
		excuse, drift = min(excuse, a.excuse), max(drift, int(a.drift))
	}
	return excuse, drift
}

// hold returns the end of a lease that was requested at start, by the rule "hold".
func hold(start boot.Instant, ttl time.Duration, answers []reading, drift int) boot.Instant {
	excuse, drift := excused(answers, drift)
	earliest, begun := answers[0].earliest, answers[0].latest-least(answers[0].sent.Sub(start), drift) // begun is M
	for _, a := range answers[1:] {
		earliest, begun = min(earliest, a.earliest), max(begun, a.latest-least(a.sent.Sub(start), drift))
	}
	return start.Add(validity(ttl, drift) - max(0, begun-earliest-excuse))
}

// validity is the page's validity time, TTL minus drift: the length of a lease if all clocks
// agree.
func validity(ttl time.Duration, drift int) time.Duration {
	return ttl - percent(ttl, drift) - 2*time.Millisecond
}

// returnAt returns the instant from which a lease may be returned, by the rule "return".
func returnAt(answers []reading, drift int) boot.Instant {
	excuse, drift := excused(answers, drift)
	latest, at := answers[0].latest, answers[0].received
	for _, a := range answers {
		latest = max(latest, a.latest)
	}
	for _, a := range answers {
		at = max(at, a.received)
		if apart := latest - excuse - a.earliest; apart > 0 {
			own := time.Duration(100 - drift)
			at = max(at, a.received.Add((apart+own)/own*100))
		}
	}
	return at
}

// judge returns the end of a lease and the instant from which it may be returned. It uses the q
// answers with the longest time between the two, because any majority is enough. There are at
// least q answers; it sorts them.
func judge(start boot.Instant, ttl time.Duration, answers []reading, q, drift int) (expires, from boot.Instant) {
	slices.SortFunc(answers, func(a, b reading) int { return cmp.Compare(a.latest, b.latest) })
	for i := range answers[q-1:] {
		some := answers[i : i+q]
		e, f := hold(start, ttl, some, drift), returnAt(some, drift)
		if i == 0 || e.Sub(f) > expires.Sub(from) {
			expires, from = e, f
		}
	}
	return expires, from
}

// othersAtMost returns others of the rule "vote" from the bounds of the known clocks, which it
// sorts; zero where fewer than q−1 are known. The rule only needs the (q−1)-th smallest. If
// more clocks are known, the upper median also protects if a majority started with clocks that
// are behind, which the assumption excludes.
func othersAtMost(bounds []time.Duration, q int) time.Duration {
	if q < 2 || len(bounds) < q-1 {
		return 0
	}
	slices.Sort(bounds)
	return bounds[max(q-2, len(bounds)/2)]
}

// offset is how far the node's clock is ahead of the client's boot-time clock: mid, plus or
// minus half of the round trip.
func (r *reading) offset() (mid, half time.Duration) {
	half = r.received.Sub(r.sent) / 2
	return r.latest - time.Duration(r.sent) - half, half
}

package redlock

import (
	"fmt"
	"slices"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/boot"
	"github.com/redlock-go/redlock/driver/quorum"
)

// read reads the clock in an answer to a request that was under way from sent to received. The
// node's terms are nil if it remembers none.
func (b *Backend) read(clock time.Time, terms *quorum.Terms, sent moment, received boot.Instant) reading {
	if clock.IsZero() {
		return reading{}
	}
	if terms == nil {
		terms = &b.terms
	}
	at := time.Duration(clock.UnixNano())
	return reading{earliest: at, latest: at, sent: sent.at, received: received, excuse: terms.Excuse, drift: int32(terms.Drift), known: true}
}

// moment is an instant of the boot-time clock, and how often the wall clock had jumped by then.
// If it jumps between two moments, more time may have passed than the boot-time clock shows.
type moment struct {
	at    boot.Instant
	jumps int64
}

func (b *Backend) now() moment { return moment{b.clock.Now(), b.clock.Jumps()} }

// offsetLife is how long an offset may be used to propose tokens. Clocks drift apart by 1.2 s
// in this time, at 1 %. A node clamps proposals that are more than driver.FenceLag behind its
// own clock.
const offsetLife = 2 * time.Minute

// learn stores the node's clock and terms from an answer, for the proposal of tokens and for
// the quarantines of the other nodes. jumps is how often the client's wall clock had jumped when
// the request was sent. learn reports once if the node has other terms than this client's
// options.
func (b *Backend) learn(n *node, r reading, terms *quorum.Terms, jumps int64) {
	if !r.known {
		return
	}
	n.clockMu.Lock()
	n.clock, n.jumps = r, jumps
	was := n.terms
	if terms != nil {
		n.terms, n.termsAt, n.remembers = *terms, r.sent, true
	}
	is := n.terms
	n.clockMu.Unlock()
	if is != was && is != b.terms {
		b.notify(driver.Notice{Kind: quorum.NoticeTerms, Node: n.name, Detail: fmt.Sprintf("the node holds all clients to its own terms, %s, and this client has %s (change the nodes' terms with dlock bootstrap --changed, or this client's options)", shown(terms), shown(&b.terms))})
	}
}

// remembered returns the node's last known terms. Terms that permit more apply only after every
// lease granted under these has ended, that is, after their quarantine at the earliest. Until
// then these terms are sufficient.
func (n *node) remembered(now moment) (quorum.Terms, bool) {
	n.clockMu.Lock()
	defer n.clockMu.Unlock()
	return n.terms, n.remembers && n.jumps == now.jumps && now.at.Sub(n.termsAt) <= n.terms.Quarantine
}

// heard returns the last known offset of the node's clock; false if there is none, or only one
// from before a pause of this machine that its boot-time clock may not have counted.
func (n *node) heard(jumps int64) (reading, bool) {
	n.clockMu.Lock()
	defer n.clockMu.Unlock()
	return n.clock, n.clock.known && n.jumps == jumps
}

// floor is the token that is proposed to all nodes, p: the median of their clocks, as their
// answers showed them, carried forward on the local boot-time clock. All nodes get the same
// proposal, and so answer the same token. The client's wall clock is not used: a slow one would
// propose a token below those that a node without its memory has forgotten. Zero if fewer than
// a majority of the clocks are known: then each node uses its own clock.
func (b *Backend) floor(now boot.Instant) uint64 {
	var buf [MaxNodes]time.Duration
	offsets := buf[:0]
	jumps := b.clock.Jumps()
	for _, n := range b.nodes {
		if r, ok := n.heard(jumps); ok && now.Sub(r.received) <= offsetLife {
			mid, _ := r.offset()
			offsets = append(offsets, mid)
		}
	}
	if len(offsets) < b.q {
		return 0
	}
	return uint64(max((median(offsets)+time.Duration(now))/time.Microsecond, 0))
}

// median returns the lower median, and sorts its argument.
func median(offsets []time.Duration) time.Duration {
	slices.Sort(offsets)
	return offsets[(len(offsets)-1)/2]
}

// othersNow is the latest time that the clocks of the nodes other than n may show now, by the rule
// "vote" of terms.go. It is zero while too few clocks are known for a majority with this node,
// or while the other nodes' terms are unknown: then n begins no quarantine.
func (b *Backend) othersNow(n *node) time.Time {
	now := b.clock.Fresh()
	if _, known := b.proposal(n, now); !known {
		b.met.Store(false) // then the next call asks all nodes
		return time.Time{}
	}
	var buf [MaxNodes]time.Duration
	bounds, jumps := buf[:0], b.clock.Jumps()
	for _, other := range b.nodes {
		if r, ok := other.heard(jumps); ok && other != n {
			passed := now.Sub(r.sent)
			bounds = append(bounds, r.latest+passed+percent(passed, max(int(r.drift), b.terms.Drift)))
		}
	}
	if at := othersAtMost(bounds, b.q); at != 0 {
		return time.Unix(0, int64(at))
	}
	return time.Time{}
}

// proposal returns the terms that n takes if it remembers none: those of the others, if
// enough of them remember terms to make a majority with this node; else the client's own, if
// all nodes were asked just now and none remembered any. False: neither.
func (b *Backend) proposal(n *node, now boot.Instant) (quorum.Terms, bool) {
	if b.q == 1 {
		return b.terms, true
	}
	known, t, at := 0, b.terms, moment{now, b.clock.Jumps()}
	for _, other := range b.nodes {
		if other == n {
			continue
		}
		theirs, ok := other.remembered(at)
		switch {
		case !ok:
			continue
		case known == 0:
			t = theirs
		default:
			t = t.Merge(theirs)
		}
		known++
	}
	if known < b.q-1 {
		blank := b.blank.Load()
		return b.terms, blank != 0 && now.Sub(boot.Instant(blank)) <= blankLife
	}
	t.N = b.terms.N
	return t, true
}

// blankLife is how long the observation that the nodes remember nothing may be used.
const blankLife = 5 * time.Second

// quorum returns the description of the quorum for one node. Requests share it while it stays
// the same.
func (b *Backend) quorum(n *node, now boot.Instant, since uint64) *quorum.Info {
	t := b.terms
	if b.opts.Guard > 0 {
		t, _ = b.proposal(n, now)
	}
	if q := n.described.Load(); q != nil && *q.Proposal() == t && q.WaitingSince == since {
		return q
	}
	q := &quorum.Info{Terms: b.terms, OtherClocks: func() time.Time { return b.othersNow(n) }, WaitingSince: since}
	if t != b.terms {
		theirs := t
		q.Remembered = &theirs
	}
	n.described.Store(q)
	return q
}

// identify notes the server process behind the node. When it changes, identify compares it with
// those of the other nodes, because a server that is listed twice would vote twice.
func (b *Backend) identify(n *node, server string) {
	if known := n.server.Load(); server == "" || known != nil && *known == server {
		return
	}
	b.servers.Lock()
	defer b.servers.Unlock()
	kept := server // a copy, so that the parameter usually stays on the stack
	n.server.Store(&kept)
	b.duplicate.Store(b.findDuplicate())
}

func (b *Backend) findDuplicate() *driver.RefusedError {
	for i, n := range b.nodes {
		s := n.server.Load()
		for _, other := range b.nodes[:i] {
			if o := other.server.Load(); s != nil && o != nil && *s == *o {
				return &driver.RefusedError{Reason: fmt.Sprintf("nodes %s and %s are the same server, which would vote twice: list it once", other.name, n.name)}
			}
		}
	}
	return nil
}

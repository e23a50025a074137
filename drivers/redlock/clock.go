package redlock

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/boot"
)

// read reads the clock in an answer to a request that was under way from sent to received. The
// node's terms are nil if it remembers none.
func (b *Backend) read(clock time.Time, terms *driver.Terms, sent moment, received boot.Instant) reading {
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
func (n *node) learn(r reading, terms *driver.Terms, jumps int64) {
	if r.known && n.note(r, terms, jumps) {
		n.b.event(driver.Notice{Kind: driver.NoticeTerms, Node: n.name, Detail: fmt.Sprintf("the node holds all clients to its own terms: %s (set the terms of all nodes with dlock bootstrap --terms, or change this client's options)", difference(terms, &n.b.terms))})
	}
}

// note reports whether the node's terms are new, and differ from those in this client's options.
func (n *node) note(r reading, terms *driver.Terms, jumps int64) bool {
	n.clockMu.Lock()
	defer n.clockMu.Unlock()
	n.clock, n.jumps = r, jumps
	if terms == nil {
		return false
	}
	was := n.terms
	n.terms, n.termsAt, n.remembers = *terms, r.sent, true
	return *terms != was && *terms != n.b.terms
}

// remembered returns the node's last known terms. Terms that permit more apply only after every
// lease granted under these has ended, that is, after their quarantine at the earliest. Until
// then these terms are sufficient.
func (n *node) remembered(now boot.Instant) (driver.Terms, bool) {
	n.clockMu.Lock()
	defer n.clockMu.Unlock()
	return n.terms, n.remembers && n.jumps == n.b.clock.Jumps() && now.Sub(n.termsAt) <= n.terms.Quarantine
}

// heard returns the last known offset of the node's clock; false if there is none, or only one
// from before a pause of this machine that its boot-time clock may not have counted.
func (n *node) heard() (reading, bool) {
	n.clockMu.Lock()
	defer n.clockMu.Unlock()
	return n.clock, n.clock.known && n.jumps == n.b.clock.Jumps()
}

// floor is the token that is proposed to all nodes, p: the median of their clocks, as their
// answers showed them, carried forward on the local boot-time clock. All nodes get the same
// proposal, and so answer the same token. The client's wall clock is not used: a slow one would
// propose a token below those that a node without its memory has forgotten. Zero if fewer than
// a majority of the clocks are known: then each node uses its own clock.
func (b *Backend) floor(now boot.Instant) uint64 {
	var buf [MaxNodes]time.Duration
	offsets := buf[:0]
	for _, n := range b.nodes {
		if r, ok := n.heard(); ok && now.Sub(r.received) <= offsetLife {
			mid, _ := r.offset()
			offsets = append(offsets, mid)
		}
	}
	if len(offsets) < b.q {
		return 0
	}
	slices.Sort(offsets)
	us := (offsets[(len(offsets)-1)/2] + time.Duration(now)) / time.Microsecond
	return uint64(max(us, 0))
}

// othersNow is the latest time that the clocks of the other nodes may show now, by the rule
// "vote" of terms.go. It is zero while too few clocks are known for a majority with this node,
// or while the other nodes' terms are unknown: then the node begins no quarantine.
func (n *node) othersNow() time.Time {
	b, now := n.b, n.b.clock.Fresh()
	if _, known := n.proposal(now); !known {
		b.met.Store(false) // then the next call asks all nodes
		return time.Time{}
	}
	var buf [MaxNodes]time.Duration
	bounds := buf[:0]
	for _, other := range b.nodes {
		if r, ok := other.heard(); ok && other != n {
			passed := now.Sub(r.sent)
			bounds = append(bounds, r.latest+passed+percent(passed, max(int(r.drift), b.terms.Drift)))
		}
	}
	if at := othersAtMost(bounds, b.q); at != 0 {
		return time.Unix(0, int64(at))
	}
	return time.Time{}
}

// proposal returns the terms that this node takes if it remembers none: those of the others, if
// enough of them remember terms to make a majority with this node; else the client's own, if
// all nodes were asked just now and none remembered any. False: neither.
func (n *node) proposal(now boot.Instant) (driver.Terms, bool) {
	b := n.b
	if b.q == 1 {
		return b.terms, true
	}
	known, t := 0, b.terms
	for _, other := range b.nodes {
		if other == n {
			continue
		}
		theirs, ok := other.remembered(now)
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

// difference names the options by which the node's terms differ from this client's.
func difference(node, own *driver.Terms) string {
	var said []string
	say := func(option string, differ bool, its, ours any) {
		if differ {
			said = append(said, fmt.Sprintf("%s %v, and this client has %v", option, its, ours))
		}
	}
	say("restart_guard", node.Guard != own.Guard, node.Guard, own.Guard)
	say("clock_allowance", node.Allowance != own.Allowance, node.Allowance, own.Allowance)
	say("drift_percent", node.Drift != own.Drift, node.Drift, own.Drift)
	if len(said) == 0 {
		return "they are being changed"
	}
	return strings.Join(said, "; ")
}

// blame notes, in the votes of the nodes that are in judged and not in agreed, how far their
// clocks are off, and returns a notice for each node that is off since its last vote. l.mu is
// held.
func (l *lease) blame(judged, agreed set) (notices []driver.Notice) {
	if judged == agreed {
		return nil
	}
	for i := range l.requests {
		g := &l.requests[i]
		switch {
		case !judged.has(i):
		case agreed.has(i):
			g.n.skewed.Store(false)
		case !l.bid.parts[i].clock.known:
			g.err = errClockUnknown
		default:
			g.err = l.skew(i, judged)
			if !g.n.skewed.Swap(true) {
				err := g.err
				notices = append(notices, driver.Notice{Kind: driver.NoticeClockSkew, Node: g.n.name, Key: l.req.Key, Err: err, Detail: err.Error()})
			}
		}
	}
	return notices
}

var errClockUnknown = errors.New("it does not send its clock, and so does not count")

// skew returns how far node i's clock differs from the median of the others.
func (l *lease) skew(i int, of set) error {
	var others []time.Duration
	for j := range l.requests {
		if j != i && of.has(j) && l.bid.parts[j].clock.known {
			others = append(others, l.bid.mid(j))
		}
	}
	slices.Sort(others)
	off := l.bid.mid(i)
	if len(others) > 0 {
		off -= others[(len(others)-1)/2]
	}
	way := "ahead of"
	if off < 0 {
		off, way = -off, "behind"
	}
	return fmt.Errorf("its clock is %v %s the others (allowed is %v)", off.Round(time.Millisecond), way, l.bid.parts[i].clock.excuse)
}

// since returns since when this client waits for key; zero: it does not wait.
func (b *Backend) since(key string) uint64 {
	b.waits.mu.Lock()
	defer b.waits.mu.Unlock()
	e := b.waits.byKey[key]
	if e == nil {
		return 0
	}
	if e.since == 0 {
		e.since = b.floor(b.clock.Now())
	}
	return e.since
}

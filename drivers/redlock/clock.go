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

// read reads the clock of an answer to a request that was under way from sent to received;
// the node's terms are nil where it remembers none.
func (b *Backend) read(clock time.Time, terms *driver.Terms, sent moment, received boot.Instant) reading {
	if clock.IsZero() {
		return reading{}
	}
	if terms == nil {
		terms = &b.terms
	}
	at := time.Duration(clock.UnixNano())
	return reading{earliest: at, latest: at, sent: sent.at, received: received, jumps: sent.jumps, excuse: terms.Excuse, drift: terms.Drift, known: true}
}

// moment is when something began: what the boot-time clock said, and how often the wall clock had
// jumped. Where it jumps between two moments more time may have passed than that clock shows.
type moment struct {
	at    boot.Instant
	jumps int64
}

func (b *Backend) now() moment { return moment{b.clock.Now(), b.clock.Jumps()} }

// offset is by how much the node's clock is ahead of the client's boot-time clock: mid, give
// or take half of the round trip.
func (r *reading) offset() (mid, half time.Duration) {
	half = r.received.Sub(r.sent) / 2
	return r.latest - time.Duration(r.sent) - half, half
}

// offsetLife is for how long an offset serves to propose tokens. By then it is off by as much
// as clocks drift in it: at 1 %, 1.2 s. A node refuses to fall further behind its own
// clock than driver.FenceLag.
const offsetLife = 2 * time.Minute

// learn keeps what an answer says of the node's clock and of its terms: for the proposal of
// tokens, and for the quarantines of the others. It says once if the node holds its clients to
// other terms than those of this client's options.
func (n *node) learn(r reading, terms *driver.Terms) {
	if r.known && n.note(r, terms) {
		n.b.event(driver.Notice{Kind: driver.NoticeTerms, Node: n.name, Detail: fmt.Sprintf("the node holds all clients to its own terms: %s (set the terms of all nodes with dlock bootstrap --terms, or change this client's options)", difference(terms, &n.b.terms))})
	}
}

// note reports whether the node's terms are news, and not those of this client's options.
func (n *node) note(r reading, terms *driver.Terms) bool {
	n.clockMu.Lock()
	defer n.clockMu.Unlock()
	n.clock, n.jumps = r, r.jumps
	if terms == nil {
		return false
	}
	was := n.terms
	n.terms, n.termsAt, n.remembers = *terms, r.sent, true
	return *terms != was && *terms != n.b.terms
}

// remembered returns the node's terms as of not long ago. Terms that permit more than these
// come into force only when everything has ended that was granted under these, and so
// after their quarantine at the earliest: so long these are enough.
func (n *node) remembered(now boot.Instant) (driver.Terms, bool) {
	n.clockMu.Lock()
	defer n.clockMu.Unlock()
	return n.terms, n.remembers && n.jumps == n.b.clock.Jumps() && now.Sub(n.termsAt) <= n.terms.Quarantine
}

// heard returns what is known of the node's clock; false: nothing, or only from before a
// pause of this machine that its boot-time clock may not have counted.
func (n *node) heard() (reading, bool) {
	n.clockMu.Lock()
	defer n.clockMu.Unlock()
	return n.clock, n.clock.known && n.jumps == n.b.clock.Jumps()
}

// floor is the token that is proposed to all nodes, p: the median of their
// clocks, as their answers showed them, carried forward on the local boot-time
// clock. All nodes get the same, and so answer the same. The wall clock of the client
// has no part in it: a slow one would propose a token under those that a node
// without its memory has forgotten. Zero where fewer than a majority of the clocks were
// heard of late: then each node goes by its own.
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

// othersNow is what the clocks of the other nodes say now, at most, by the rule "vote" of
// terms.go. Zero while fewer are known than make a majority with this node, or while it is
// not known which terms they remember: by its own clock alone it begins no quarantine.
func (n *node) othersNow() time.Time {
	b, now := n.b, n.b.clock.Fresh()
	if _, known := n.proposal(now); !known {
		b.met.Store(false) // the next call asks all nodes
		return time.Time{}
	}
	var buf [MaxNodes]time.Duration
	bounds := buf[:0]
	for _, other := range b.nodes {
		if r, ok := other.heard(); ok && other != n {
			passed := now.Sub(r.sent)
			bounds = append(bounds, r.latest+passed+percent(passed, max(r.drift, b.terms.Drift)))
		}
	}
	if at := othersAtMost(bounds, b.q); at != 0 {
		return time.Unix(0, int64(at))
	}
	return time.Time{}
}

// proposal returns the terms that this node is to take if it remembers none: those of the
// others, where as many as make a majority with it remember; else the client's own, if all
// nodes were asked just now and none remembered any. False: neither.
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

// blankLife is for how long nodes are taken for those that were seen to remember nothing.
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

// blame marks the nodes of judged that are not in agreed with what is wrong with their
// clocks, for the votes. l.mu is held.
func (l *lease) blame(judged, agreed set) {
	if judged == agreed {
		return
	}
	for i := range l.requests {
		g := &l.requests[i]
		switch {
		case !judged.has(i):
		case agreed.has(i):
			g.n.skewed.Store(false)
		case !l.bid.parts[i].clock.known:
			g.vote.Err = errClockUnknown
		default:
			g.vote.Err = l.skew(i, judged)
			if !g.n.skewed.Swap(true) {
				err := g.vote.Err
				l.b.event(driver.Notice{Kind: driver.NoticeClockSkew, Node: g.n.name, Key: l.req.Key, Err: err, Detail: err.Error()})
			}
		}
	}
}

var errClockUnknown = errors.New("it does not tell its clock, and so does not count")

// skew says by how much node i's clock differs from the median of the others.
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

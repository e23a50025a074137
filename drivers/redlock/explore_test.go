package redlock

import (
	"cmp"
	"flag"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/redlock-go/redlock/driver/boot"
)

// This file runs the code of bid.go in every order of events: two or three bids for one key,
// three nodes, and a network. Equal states are merged. A scenario bounds how often each kind of
// event may happen. Within these bounds it leaves out only second rounds that split again.

var exploreLong = flag.Bool("redlock.explore", false, "explore more states of each scenario: minutes, and gigabytes of memory")

const (
	exNodes  = 3
	exBids   = 3
	exOwners = 4
	exStrays = 4
	exTick   = time.Second
	exTTL    = 4 * exTick
	exAllow  = 230 * time.Millisecond // the grace is then about two ticks
)

// scenario bounds the events.
type scenario struct {
	name     string
	bids     int
	readers  set // the bids that share the key; the others are writers
	renewals int // renewals of each lease
	counters [exNodes]uint64
	proposal [exBids]uint64
	clocks   [exNodes]uint64 // what a node proposes to itself if a bid proposes nothing
	tokens   [exBids]uint64  // how many each bid asks for; zero: one
	faults   faults
	ticks    int  // how much time passes; zero: none, so a caller's time may end at any moment
	patience int  // the node timeout, in ticks; zero: one
	rounds   int  // most rounds of a split vote
	after    bool // a bid begins only when the one before it has had its result
	keeps    bool // a holder does not release
	prompt   bool // no time passes while a message is in transit

	lease bool // it begins when the first bid has its lease, on all nodes
	gone  set  // but these have lost it, and it knows
	tardy set  // and these have not got its request
	cut   set  // nodes that do not get the first bid's requests once it has its lease
	first bool // only the first lease is renewed
	odd   oddity
}

// oddity is a rule of a node, or of its driver, that differs from the real one: see
// TestEveryRuleIsNeeded and TestALeaseIsHealed.
type oddity uint8

const (
	none          oddity = iota
	keepsVote            // no vote is given back
	backTwice            // so is a vote that was asked for twice, and by each copy of the release
	aboveTwice           // the same, only where a lease gives one back
	joinAny              // a join does not look at the counter
	joinOld              // a join ignores a counter that is old by the node's own clock
	joinRaise            // a join raises the counter to the clock
	joinKept             // a join is refused where the key is kept for a waiter
	joinBeside           // a writer joins where readers have the key
	joinShared           // a reader joins beside readers whatever the counter
	joinCounter          // a reader joins beside readers only if the counter is not above its token
	anyReader            // a renewal or raise asks only that readers have the key
	readerAsAsked        // a reader beside others takes the token that it proposed
	backBeside           // a reader gives its vote back though others have had the key with it
	backKept             // no reader gives its vote back if there was another

	// One place that has the first token of a range instead of its last.
	firstProposed // only the first token of the range must be above the counter to take the proposal
	firstCounted  // a grant raises the counter to it
	firstAnswered // the node answers it
	firstRaised   // it is written back
)

// least returns the first token of a range of bid k that ends at fence.
func (s *scenario) least(k int, fence uint64) uint64 { return fence - max(s.tokens[k], 1) + 1 }

// faults says how often each fault may still happen.
type faults struct {
	expire  int8 // a key ends early
	lose    int8 // a message is lost
	again   int8 // a request arrives twice
	slow    int8 // a call ends without an answer
	hurry   int8 // a caller's time ends early
	forget  int8 // a node restarts without its memory
	restart int8 // a node restarts with its memory: messages in transit to it are lost
	step    int8 // the clock of the last node is set, and stays wrong
	lapse   int8 // one of several readers ends early at a node
	reserve int8 // a release reserves the key for a bid that waits
	waits   int8 // this many bids wait in the queue
	crash   int8 // a bidder ends without a release
	late    int8 // a release arrives late
}

// exNode is a node: it has only the state that the scripts use.
type exNode struct {
	holds   [exOwners]exHold // one writer, or readers; those that are there come first, in order
	votes   bool             // every reader since the key was free was a vote that was given back, or may be
	kept    int8             // the bid for which the key is reserved
	mute    bool             // in quarantine
	base    uint64           // the counter when the first of the readers came
	counter uint64
	offset  time.Duration
}

// exHold is one owner at a node.
type exHold struct {
	bid, attempt int8 // zero: none
	fence        uint64
	until        time.Duration // by the node's clock
}

// find returns the owner that has the node with this attempt, or nil.
func (n *exNode) find(bid, attempt int8) *exHold {
	for j := range n.holds {
		if h := &n.holds[j]; h.bid == bid && h.attempt == attempt && bid != 0 {
			return h
		}
	}
	return nil
}

// has reports whether any attempt of bid k has the node.
func (n *exNode) has(k int) bool {
	return slices.ContainsFunc(n.holds[:], func(h exHold) bool { return h.bid == int8(k+1) })
}

// tidy sorts the owners, so that equal states merge.
func (n *exNode) tidy() {
	slices.SortFunc(n.holds[:], func(a, b exHold) int {
		if (a.bid == 0) != (b.bid == 0) {
			return int(b.bid) - int(a.bid)
		}
		return cmp.Or(cmp.Compare(a.bid, b.bid), cmp.Compare(a.attempt, b.attempt))
	})
	if n.holds[0].bid == 0 {
		n.base, n.votes = 0, false
	}
}

// clear frees the node.
func (n *exNode) clear() {
	n.holds, n.kept = [exOwners]exHold{}, 0
	n.tidy()
}

// exPacket is a request in transit, or its answer.
type exPacket struct {
	state        exState
	call         call
	attempt      int8
	answer       answer
	owner        int8
	fence, least uint64
	before       uint64 // the counter before the grant, and 1; 0: unknown, or the vote is not given back
	confirmed    uint64 // when the lease was last confirmed
	silent       bool
	time         time.Duration
	sent, until  boot.Instant
}

type exState uint8

const (
	exNone exState = iota
	exGoing
	exComing
	exSilent // lost
)

// exStray is a request whose answer no bid awaits any more, or the release that undoes it.
type exStray struct {
	bid, node int8
	packet    exPacket
}

type exBid struct {
	status   exStatus
	told     set  // nodes that answered that another bid has the key
	waits    bool // in the queue
	renewals int8
	before   uint64 // the largest returned token when the call began…
	writers  uint64 // …and of a writer
	attempts [exNodes]int8
	fences   [exNodes]uint64
	befores  [exNodes]uint64 // the counters before the grants, and 1; 0: unknown
	twice    [exNodes]int8   // the attempt that was asked for twice
	parts    [exNodes]part   // of the bid
	asked    uint64          // when the renewal began
	sure     uint64          // when the last confirmed renewal began
	bid      bid             // its parts, the last field, are not part of the state
}

type exStatus uint8

const (
	exIdle exStatus = iota
	exBidding
	exHolds
	exRenews
	exLost // not released yet
	exDone
)

type exWorld struct {
	now      boot.Instant
	nodes    [exNodes]exNode
	wires    [exBids][exNodes]exPacket
	strays   [exStrays]exStray
	faults   faults
	returned uint64         // the largest token…
	writers  uint64         // …and of a writer
	grants   [exBids]uint64 // the last token of each range
	taken    set            // nodes that another bid got beside the lease with which the scenario begins, or that voted above it
	bids     [exBids]exBid
	last     verdict // the latest verdict, for the chart only; not part of the state, which ends with bids
}

// move is one event.
type move struct {
	kind exMove
	bid  int8
	node int8
}

type exMove uint8

const (
	mBegin exMove = iota
	mLook
	mOver
	mRenew
	mRelease
	mDeliver
	mAnswer
	mLoseRequest
	mLoseAnswer
	mCopy
	mSilence
	mStray
	mDropStray
	mExpire
	mForget
	mRestart
	mSpeak
	mTick
	mStep
	mEarly
	mCrash
	mLapse
)

// explorer explores one scenario with one machine.
type explorer struct {
	s       scenario
	step    machine
	grace   time.Duration
	excuse  time.Duration
	problem string
	healed  int // joins of the first lease to the nodes that are taken
}

func (x *explorer) start() exWorld {
	t := derive(exNodes, 30*time.Second, exAllow, 1)
	x.grace, x.excuse = t.Grace, t.Excuse
	w := exWorld{faults: x.s.faults}
	for i := range w.nodes {
		w.nodes[i].counter = x.s.counters[i]
	}
	for k := range x.s.bids {
		w.bids[k].bid = bid{q: exNodes/2 + 1, drift: 1, ttl: exTTL, timeout: x.timeout()}
		w.bids[k].waits = k > 0 && k <= int(x.s.faults.waits)
	}
	w.faults.waits = 0
	if x.s.lease {
		x.apply(&w, move{kind: mBegin})
		for i := range exNodes {
			if !x.s.tardy.has(i) {
				x.apply(&w, move{mDeliver, 0, int8(i)})
				x.apply(&w, move{mAnswer, 0, int8(i)})
			}
		}
		x.apply(&w, move{kind: mLook})
		for i := range exNodes {
			if x.s.gone.has(i) {
				w.nodes[i].clear()
				w.bids[0].parts[i].state = free
			}
		}
	}
	return w
}

func (x *explorer) timeout() time.Duration { return time.Duration(max(x.s.patience, 1)) * exTick }

// own gives the bids of a copied state their own parts.
func (x *explorer) own(w *exWorld) {
	for k := range x.s.bids {
		w.bids[k].bid.parts = w.bids[k].parts[:]
	}
}

// moves lists the events that may happen next.
func (x *explorer) moves(w *exWorld, buf []move) []move {
	x.own(w)
	out := buf[:0]
	add := func(k exMove, b, n int) { out = append(out, move{k, int8(b), int8(n)}) }
	timed := x.s.ticks > 0
	busy := false
	for k := range x.s.bids {
		c := &w.bids[k]
		switch c.status {
		case exIdle:
			if k == 0 || w.bids[k-1].status != exIdle && (!x.s.after || w.bids[k-1].status > exBidding) { // bids are alike, so they begin in order
				add(mBegin, k, 0)
			}
		case exBidding, exRenews:
			busy = true
			b := &c.bid
			switch {
			case b.certain(), timed && w.now >= b.due, !timed && (b.stage == pausing || b.stage == leading || b.stage == sitting):
				add(mLook, k, 0)
			case !timed && w.faults.hurry > 0:
				add(mOver, k, 0)
			}
		case exHolds:
			if c.renewals < int8(x.s.renewals) && (k == 0 || !x.s.first) {
				add(mRenew, k, 0)
			}
			if !x.s.keeps {
				add(mRelease, k, 0)
			}
		case exLost:
			add(mRelease, k, 0)
		}
		for i := range exNodes {
			p := &w.wires[k][i]
			switch p.state {
			case exGoing:
				add(mDeliver, k, i)
				if w.faults.lose > 0 {
					add(mLoseRequest, k, i)
				}
				if w.faults.again > 0 && x.room(w) {
					add(mCopy, k, i)
				}
			case exComing:
				add(mAnswer, k, i)
				if w.faults.lose > 0 {
					add(mLoseAnswer, k, i)
				}
			}
			if p.state == exGoing && p.call == release && w.faults.late > 0 && x.room(w) {
				add(mSilence, k, i)
			} else if p.state != exNone && (timed && w.now >= p.until || !timed && (p.state == exSilent || w.faults.slow > 0)) && x.room(w) {
				add(mSilence, k, i)
			}
		}
	}
	for j := range w.strays {
		if s := &w.strays[j]; s.packet.state != exNone && x.free(w, j) {
			add(mStray, 0, j)
			if s.packet.call != release {
				add(mDropStray, 0, j)
			}
		} else if s.packet.state != exNone && w.faults.late > 0 {
			add(mEarly, 0, j)
		}
	}
	for k := range x.s.bids {
		if w.faults.crash > 0 && k > 0 && w.bids[k].status == exBidding {
			add(mCrash, k, 0)
		}
	}
	for i := range w.nodes {
		n := &w.nodes[i]
		if w.faults.expire > 0 && (n.holds[0].bid != 0 || n.kept != 0) {
			add(mExpire, 0, i)
		}
		for k := range x.s.bids {
			if w.faults.lapse > 0 && n.holds[1].bid != 0 && n.has(k) {
				add(mLapse, k, i)
			}
		}
		if w.faults.forget > 0 && n.counter > 0 {
			add(mForget, 0, i)
		}
		if n.mute && x.quiet(w) {
			add(mSpeak, 0, i)
		}
		if w.faults.restart > 0 && x.toward(w, i) {
			add(mRestart, 0, i)
		}
	}
	if timed && w.now < boot.Instant(x.s.ticks)*boot.Instant(exTick) && !(x.s.prompt && (x.toward(w, 0) || x.toward(w, 1) || x.toward(w, 2))) {
		add(mTick, 0, 0)
		if w.faults.step > 0 {
			add(mStep, 0, 0)
			add(mStep, 0, 1)
		}
	}
	if len(out) == 0 && busy && !x.cut(w) && !timed {
		x.fail("a caller waits for ever")
	}
	return out
}

// quiet reports whether every lease that a node may have forgotten has ended.
func (x *explorer) quiet(w *exWorld) bool {
	for k := range x.s.bids {
		if s := w.bids[k].status; s != exIdle && s != exDone {
			return false
		}
	}
	for j := range w.strays {
		if w.strays[j].packet.state != exNone {
			return false
		}
	}
	return true
}

func (x *explorer) toward(w *exWorld, i int) bool {
	for k := range x.s.bids {
		if s := w.wires[k][i].state; s == exGoing || s == exComing {
			return true
		}
	}
	return false
}

func (x *explorer) room(w *exWorld) bool {
	n := 0
	for j := range w.strays {
		if w.strays[j].packet.state == exNone {
			n++
		}
	}
	return n >= 2
}

// free reports whether a stray may arrive. The second undoing of an attempt arrives only after
// all its requests.
func (x *explorer) free(w *exWorld, j int) bool {
	s := &w.strays[j]
	if s.packet.call != release || s.packet.fence != 0 {
		return true
	}
	for i := range w.strays {
		o := &w.strays[i]
		if i != j && o.packet.state != exNone && o.bid == s.bid && o.node == s.node && o.packet.attempt == s.packet.attempt && o.packet.call != release {
			return false
		}
	}
	return true
}

// cut reports whether the scenario ends in this state.
func (x *explorer) cut(w *exWorld) bool {
	for k := range x.s.bids {
		if int(w.bids[k].bid.round) > x.s.rounds {
			return true
		}
	}
	return false
}

func (x *explorer) fail(format string, args ...any) {
	if x.problem == "" {
		x.problem = fmt.Sprintf(format, args...)
	}
}

// apply makes a move.
func (x *explorer) apply(w *exWorld, m move) {
	k, i := int(m.bid), int(m.node)
	x.own(w)
	c := &w.bids[k]
	switch m.kind {
	case mBegin:
		c.status, c.before, c.writers = exBidding, w.returned, w.writers
		x.feed(w, k, event{kind: begins})
	case mLook:
		x.feed(w, k, event{kind: looks})
	case mOver:
		w.faults.hurry--
		c.bid.due = w.now
		x.feed(w, k, event{kind: looks})
	case mRenew:
		c.renewals++
		c.status, c.before, c.writers, c.asked = exRenews, w.returned, w.writers, uint64(w.now)
		x.feed(w, k, event{kind: renews, ttl: exTTL, timeout: x.timeout()})
	case mRelease:
		c.status = exDone
		x.feed(w, k, event{kind: releases})
	case mDeliver:
		p := &w.wires[k][i]
		x.arrive(w, k, i, p)
		p.state = exComing
		if p.answer == held || p.answer == reserved {
			c.told.add(i)
		}
	case mAnswer:
		x.answered(w, k, i)
	case mLoseRequest, mLoseAnswer:
		w.faults.lose--
		w.wires[k][i].state = exSilent
	case mCopy:
		w.faults.again--
		p := w.wires[k][i]
		if p.call == release && !x.backs(c) {
			p.before = 0 // it is the repetition
		}
		if p.call == acquire {
			c.twice[i] = p.attempt
		}
		x.stray(w, k, i, p)
	case mEarly:
		s := w.strays[i]
		x.arrive(w, int(s.bid), int(s.node), &s.packet)
	case mCrash:
		w.faults.crash--
		for i := range exNodes {
			p := w.wires[k][i]
			w.wires[k][i] = exPacket{}
			if p.state == exGoing && p.call != release && x.room(w) {
				x.stray(w, k, i, p)
			}
		}
		*c = exBid{status: exDone}
		c.bid.phase = over
	case mSilence:
		p := w.wires[k][i]
		if p.call == release && p.state == exGoing && w.faults.late > 0 {
			w.faults.late--
		} else if x.s.ticks == 0 && p.state != exSilent {
			w.faults.slow--
		}
		x.silence(w, k, i)
	case mStray:
		s := &w.strays[i]
		x.arrive(w, int(s.bid), int(s.node), &s.packet)
		*s = exStray{}
		x.pack(w)
	case mDropStray:
		w.strays[i] = exStray{}
		x.pack(w)
	case mExpire:
		w.faults.expire--
		w.nodes[i].clear()
	case mLapse:
		w.faults.lapse--
		n := &w.nodes[i]
		x.remove(n, func(h *exHold) bool { return h.bid == int8(k+1) })
	case mForget:
		w.faults.forget--
		w.nodes[i] = exNode{mute: true, offset: w.nodes[i].offset}
		x.cutOff(w, i)
	case mRestart:
		w.faults.restart--
		x.cutOff(w, i)
	case mSpeak:
		w.nodes[i].mute = false
		w.nodes[i].counter = x.till(w) // after its quarantine it votes again, with larger tokens
	case mTick:
		w.now += boot.Instant(exTick)
		for j := range w.nodes {
			x.end(w, j)
		}
	case mStep:
		w.faults.step--
		d := []time.Duration{3 * exTick, -3 * exTick}[i]
		w.nodes[exNodes-1].offset += d
		x.end(w, exNodes-1)
	}
}

func (x *explorer) till(w *exWorld) uint64 {
	most := w.returned
	for i := range w.nodes {
		most = max(most, w.nodes[i].counter)
	}
	for k := range x.s.bids {
		most = max(most, w.bids[k].bid.fence, x.s.proposal[k])
	}
	return most
}

// end frees a key whose TTL has passed.
func (x *explorer) end(w *exWorld, i int) {
	n := &w.nodes[i]
	x.remove(n, func(h *exHold) bool { return h.until <= time.Duration(w.now)+n.offset })
}

// remove ends owners of a node. A reader that ends like this may have been a lease.
func (x *explorer) remove(n *exNode, ends func(*exHold) bool) {
	for j := range n.holds {
		if h := &n.holds[j]; h.bid != 0 && ends(h) {
			*h, n.votes = exHold{}, false
		}
	}
	n.tidy()
}

// cutOff loses all messages between the bids and a node.
func (x *explorer) cutOff(w *exWorld, i int) {
	for k := range x.s.bids {
		if p := &w.wires[k][i]; p.state == exGoing || p.state == exComing {
			p.state = exSilent
		}
	}
}

// pack moves the strays to the front, so that equal states merge.
func (x *explorer) pack(w *exWorld) {
	j := 0
	for i := range w.strays {
		if w.strays[i].packet.state != exNone {
			w.strays[j], w.strays[i] = w.strays[i], w.strays[j]
			if i != j {
				w.strays[i] = exStray{}
			}
			j++
		}
	}
}

func (x *explorer) stray(w *exWorld, k, i int, p exPacket) {
	for j := range w.strays {
		if w.strays[j].packet.state == exNone {
			p.state = exGoing
			w.strays[j] = exStray{int8(k), int8(i), p}
			return
		}
	}
}

// silence ends a call without an answer. Its request may still arrive, and the node's driver
// undoes it (rule 2 of the contract).
func (x *explorer) silence(w *exWorld, k, i int) {
	p := w.wires[k][i]
	w.wires[k][i] = exPacket{}
	if p.state == exGoing && (p.call != release || x.s.faults.late > 0) {
		x.stray(w, k, i, p)
	}
	if p.call == acquire || p.call == join {
		x.stray(w, k, i, exPacket{call: release, attempt: p.attempt, until: w.now + 1<<50})
	}
	x.feed(w, k, event{kind: answered, node: i, answer: silence})
}

func (x *explorer) answered(w *exWorld, k, i int) {
	p := w.wires[k][i]
	w.wires[k][i] = exPacket{}
	e := event{kind: answered, node: i, answer: p.answer, fence: p.fence}
	if x.s.odd == firstAnswered {
		e.fence = x.s.least(k, p.fence)
	}
	if p.answer == silence { // refused as too late
		x.feed(w, k, e)
		return
	}
	c := &w.bids[k]
	switch {
	case p.owner == 0:
	case p.owner == int8(k+1):
		e.owner = ourselves
	case p.owner == exReaders:
		e.owner = readers
	default:
		e.owner = somebody + owner(p.owner)
	}
	if p.answer == reserved {
		e.owner = firstWaiter
	}
	if p.answer == granted && (p.call == acquire || p.call == join) {
		c.attempts[i], c.fences[i], c.befores[i] = p.attempt, p.fence, p.before
	}
	if p.call != release {
		e.clock = reading{earliest: p.time, latest: p.time, sent: p.sent, received: w.now, excuse: x.excuse, drift: 1, known: true}
	}
	x.feed(w, k, e)
}

// arrive lets a node handle a request. The packet becomes the answer.
func (x *explorer) arrive(w *exWorld, k, i int, p *exPacket) {
	n := &w.nodes[i]
	me, now := int8(k+1), time.Duration(w.now)+n.offset
	p.time, p.owner = now, 0
	if x.s.ticks > 0 && w.now > p.until {
		p.answer = silence
		return
	}
	mine, reads := n.find(me, p.attempt), x.s.readers.has(k)
	first := &n.holds[0]
	beside := first.bid != 0 && x.s.readers.has(int(first.bid-1)) // readers have the key
	switch p.call {
	case acquire, join:
		switch {
		case n.mute:
			p.answer = deferred
			return
		case n.kept != 0 && n.kept != me && (p.call == acquire || x.s.odd == joinKept):
			p.answer = reserved
			return
		case mine != nil:
			p.answer, p.fence, p.before = granted, mine.fence, 0
			return
		case beside && !reads && (p.call == acquire || x.s.odd != joinBeside), n.holds[exOwners-1].bid != 0:
			p.answer, p.owner = held, exReaders
			return
		case first.bid != 0 && !beside:
			p.answer, p.owner = held, first.bid
			return
		case p.call == join && !x.joins(n, p, now, beside && reads):
			p.answer = deferred
			return
		}
		x.grant(w, k, i, p, now, beside)
	case raise, raiseLate, renew:
		if x.s.odd == anyReader && beside && reads && mine == nil {
			n.counter, p.answer = max(n.counter, p.least), granted
			return
		}
		if mine == nil || mine.fence != p.fence {
			p.answer = gone
			return
		}
		n.counter, n.votes = max(n.counter, p.least), false
		mine.until = now + exTTL + x.grace
		p.answer = granted
	case release:
		p.answer = granted
		if mine != nil && (p.fence == 0 || mine.fence == p.fence) {
			x.release(w, n, mine, p, reads)
		}
	}
}

// exReaders is the owner that a node names if readers have the key.
const exReaders = -1

// grant lets a bid have the node.
func (x *explorer) grant(w *exWorld, k, i int, p *exPacket, now time.Duration, beside bool) {
	n := &w.nodes[i]
	if k > 0 && x.s.lease {
		w.taken.add(i)
	}
	if !beside {
		n.base, n.votes = n.counter, true
	}
	p.before = n.base + 1
	fence := max(n.counter+max(x.s.tokens[k], 1), p.least)
	switch {
	case x.s.odd == firstProposed:
		fence = max(n.counter+1, p.least)
	case p.call == join:
		fence, n.votes = p.least, false
		if k == 0 && w.taken.has(i) {
			x.healed++
		}
	case beside && x.s.odd == readerAsAsked:
		fence = p.least
	}
	if beside && x.s.odd == backBeside {
		p.before = n.counter + 1
	}
	if x.s.odd == firstCounted {
		n.counter = max(n.counter, x.s.least(k, fence))
	} else {
		n.counter = max(n.counter, fence)
	}
	if p.call == join && x.s.odd == joinRaise {
		n.counter = max(n.counter, x.till(w))
	}
	n.kept = 0
	n.holds[exOwners-1] = exHold{int8(k + 1), p.attempt, fence, now + exTTL + x.grace}
	n.tidy()
	if !x.s.readers.has(k) {
		n.base, n.votes = 0, false
	}
	p.answer, p.fence = granted, fence
}

// joins reports whether the counter lets a lease join. Beside readers only what the counter was
// before them counts: they may have raised it, and no writer has had the node since.
func (x *explorer) joins(n *exNode, p *exPacket, now time.Duration, beside bool) bool {
	counter := n.counter
	switch {
	case beside && x.s.odd == joinShared:
		return true
	case beside && x.s.odd != joinCounter:
		counter = n.base
	}
	return counter <= p.least || x.void(counter, p, now)
}

// release frees a node of one owner. A vote that is given back takes the counter back if nobody
// else has had the node since; with readers, if all of them since the key was free give theirs back.
func (x *explorer) release(w *exWorld, n *exNode, mine *exHold, p *exPacket, reads bool) {
	fence := mine.fence
	*mine = exHold{}
	alone := n.holds == [exOwners]exHold{}
	switch {
	case !reads, x.s.odd == backBeside:
		if p.before != 0 && n.counter == fence {
			n.counter = p.before - 1
		}
	case p.before == 0 || x.s.odd == backKept && !alone:
		n.votes = false
	case alone && n.votes:
		n.counter = n.base
	}
	n.tidy()
	for j := range x.s.bids {
		if alone && !p.silent && w.bids[j].waits && w.bids[j].status <= exBidding && w.faults.reserve > 0 {
			n.kept = int8(j + 1)
		}
	}
}

// void reports whether a join may ignore a counter above its token: the bid that left it had
// ended before the lease was last confirmed.
func (x *explorer) void(counter uint64, p *exPacket, now time.Duration) bool {
	ends := counter + uint64(exTTL+x.grace)
	switch x.s.odd {
	case joinAny:
		return true
	case joinOld:
		return ends < uint64(max(now, 0))
	}
	return x.s.ticks > 0 && ends < p.confirmed
}

// feed gives a bid an event, makes the calls that it asks for, and checks its verdict.
func (x *explorer) feed(w *exWorld, k int, e event) {
	c := &w.bids[k]
	e.now, e.until = w.now, 1<<60
	out := x.step(&c.bid, &e)
	if out.pause > 0 {
		c.bid.due = w.now
	}
	for i, call := range out.calls[:exNodes] {
		if call == idle {
			continue
		}
		p := exPacket{state: exGoing, call: call, sent: w.now, until: w.now.Add(c.bid.timeout), attempt: int8(c.bid.attempt)}
		switch call {
		case acquire:
			if p.least, p.until = x.s.proposal[k], out.until; p.least == 0 {
				p.least = x.s.clocks[i]
			}
			if x.s.ticks > 0 {
				p.least = uint64(w.now) // the nodes' clocks agree with the client's
			}
		case join:
			p.least, p.until, p.confirmed = c.bid.fence, out.until, max(c.sure, c.bid.fence)
		default:
			p.attempt, p.fence, p.least = c.attempts[i], c.fences[i], c.bid.fence
			if x.s.odd == firstRaised {
				p.least = x.s.least(k, c.bid.fence)
			}
		}
		if call == release && out.back.has(i) && x.s.odd != keepsVote && (c.twice[i] != p.attempt || x.backs(c)) {
			p.before, p.silent = c.befores[i], c.bid.silent
		}
		if k == 0 && call == release && c.bid.phase == holding {
			w.taken.add(i)
		}
		if k == 0 && x.s.cut.has(i) && x.s.lease && c.bid.granted {
			p.state = exSilent
		}
		if w.wires[k][i].state != exNone {
			x.fail("two calls at a time to node %d", i)
		}
		w.wires[k][i] = p
	}
	for i := range exNodes {
		g, n := &c.parts[i], &w.nodes[i]
		// A reader may be there twice, until the node's driver has undone the attempt with the unknown outcome.
		if g.state == free && g.call == idle && x.s.faults.again == 0 && !x.s.readers.has(k) && n.has(k) {
			x.fail("G4: node %d counts as free, and has the lock of bid %c", i, 'A'+k)
		}
	}
	x.judge(w, k, &out)
	w.last = out.verdict
	if c.status == exDone || c.status == exHolds { // clears fields without further effect, so that states merge
		x.forget(w, k)
	}
}

// backs reports whether a bid gives votes back that were asked for twice.
func (x *explorer) backs(c *exBid) bool {
	return x.s.odd == backTwice || x.s.odd == aboveTwice && c.bid.granted
}

func (x *explorer) forget(w *exWorld, k int) {
	c := &w.bids[k]
	c.told, c.before, c.writers = 0, 0, 0
	if c.status == exDone {
		b := &c.bid
		b.due, b.start, b.voted, b.took, b.seen, b.tries = 0, 0, 0, 0, 0, 0
		for i := range exNodes {
			if g := &c.parts[i]; g.call == idle && g.state == free {
				*g = part{}
				for _, s := range []*set{&b.stale, &b.suspect, &b.joined, &b.asked, &b.acks} {
					s.drop(i)
				}
				c.attempts[i], c.fences[i], c.befores[i], c.twice[i] = 0, 0, 0, 0
			}
		}
	}
}

// judge checks a verdict against the promises.
func (x *explorer) judge(w *exWorld, k int, out *actions) {
	c := &w.bids[k]
	mine := 0
	for i := range w.nodes {
		if h := w.nodes[i].find(int8(k+1), c.attempts[i]); h != nil && h.fence == c.fences[i] && c.parts[i].state == counted {
			mine++
		}
	}
	switch v := out.verdict; v {
	case open:
		return
	case won:
		first := x.s.least(k, c.bid.fence)
		if first <= c.before {
			x.fail("G2: token %d was granted after %d had been returned", first, c.before)
		}
		for j, t := range w.grants {
			if j != k && t != 0 && first <= t && x.s.least(j, t) <= c.bid.fence && !x.share(j, k) {
				x.fail("G2: token %d was granted twice", max(first, x.s.least(j, t)))
			}
		}
		w.grants[k] = c.bid.fence
		w.returned = max(w.returned, c.bid.fence)
		if !x.s.readers.has(k) {
			w.writers = max(w.writers, c.bid.fence)
		}
		c.sure = c.bid.fence
		c.status = exHolds
		x.exclusive(w, k)
	case extended:
		before := c.before
		if x.s.readers.has(k) {
			before = c.writers
		}
		if before > c.bid.fence {
			x.fail("G3: the lease of token %d was renewed after %d had been returned", c.bid.fence, before)
		}
		c.sure = c.asked
		c.status = exHolds
		x.exclusive(w, k)
	case lost, lostNow:
		if c.status == exRenews && mine >= c.bid.q && x.s.ticks == 0 {
			x.fail("honesty: reported as lost, but %d nodes carry the lease", mine)
		}
		c.status = exLost
	case heldBy:
		if c.told.len() < c.bid.enough() {
			x.fail("honesty: reported as held, but only %d nodes said so", c.told.len())
		}
		c.status = exDone
	case overdue, unconfirmed, interrupted:
		if c.status == exRenews {
			c.status = exHolds
			return
		}
		c.status = exDone
	default:
		c.status = exDone
	}
}

// share reports whether two bids may have the key together.
func (x *explorer) share(j, k int) bool { return x.s.readers.has(j) && x.s.readers.has(k) }

// exclusive checks G1. A scenario without time can check it only if no key ends early.
func (x *explorer) exclusive(w *exWorld, k int) {
	c := &w.bids[k]
	timed := x.s.ticks > 0
	if timed && w.now >= c.bid.expires {
		x.fail("G1: a lease was returned %v after its end", w.now.Sub(c.bid.expires))
	}
	if x.s.faults.expire+x.s.faults.lapse > 0 && (!timed || x.s.lease) {
		return
	}
	for j := range x.s.bids {
		o := &w.bids[j]
		if j == k || x.share(j, k) || o.status != exHolds && o.status != exRenews {
			continue
		}
		if !timed || w.now < o.bid.expires {
			x.fail("G1: token %d is valid, and token %d was granted beside it", o.bid.fence, c.bid.fence)
		}
	}
}

// clean checks G4, in a state in which no further event is possible.
func (x *explorer) clean(w *exWorld) {
	if x.s.faults.lose > 0 || x.s.faults.restart > 0 || x.s.faults.slow > 0 || x.s.faults.again > 0 || x.s.faults.late > 0 || x.s.faults.crash > 0 || x.s.ticks > 0 || x.cut(w) {
		return
	}
	for k := range x.s.bids {
		if w.bids[k].status != exDone {
			return
		}
	}
	for i := range w.nodes {
		if n := &w.nodes[i]; n.holds[0].bid != 0 {
			x.fail("G4: node %d is left to bid %c", i, 'A'+n.holds[0].bid-1)
		}
	}
}

var exSeed = maphash.MakeSeed()

// found is the outcome of an exploration.
type found struct {
	states, edges, depth int
	problem              string
	path                 []move
	took                 time.Duration
	healed               int
	last                 exWorld // of a replayed path
	cut                  bool    // the bound on states was reached
}

// explore visits all states, in order of their distance from the start.
func explore(s scenario, step machine, most int) found {
	x := &explorer{s: s, step: step}
	began := time.Now()
	type visit struct {
		parent int32
		move   uint8
	}
	visits := []visit{{parent: -1}}
	seen := map[uint64]struct{}{}
	first := x.start()
	size := x.size()
	frontier, numbers := x.store(nil, &first), []int32{0}
	var spare []byte
	var from, w exWorld
	var buf []move
	f := found{}
	end := func(at int32, path ...move) found {
		for v := at; x.problem != "" && v > 0; v = visits[v].parent {
			path = append(path, move{kind: exMove(visits[v].move), bid: -1})
		}
		f.problem, f.states, f.took, f.healed = x.problem, len(visits), time.Since(began), x.healed
		f.path = x.rebuild(first, path)
		return f
	}
	for ; len(frontier) > 0; f.depth++ {
		next, nextNumbers := spare[:0], []int32(nil)
		for at, number := range numbers {
			x.load(frontier[at*size:], &from)
			buf = x.moves(&from, buf)
			if len(buf) == 0 {
				x.clean(&from)
			}
			if x.problem != "" {
				return end(number)
			}
			for i, m := range buf {
				w = from
				x.apply(&w, m)
				f.edges++
				if x.problem != "" {
					return end(number, m)
				}
				if x.cut(&w) {
					continue
				}
				n := len(next)
				if cap(next) < n+size {
					next = slices.Grow(next, n+64*size) // append adds a quarter, and copies the most
				}
				next = x.store(next, &w)
				h := maphash.Bytes(exSeed, next[n:])
				if _, known := seen[h]; known {
					next = next[:n]
					continue
				}
				seen[h] = struct{}{}
				nextNumbers = append(nextNumbers, int32(len(visits)))
				visits = append(visits, visit{number, uint8(i)})
			}
			if most > 0 && len(visits) > most {
				f.cut = true
				return end(0)
			}
		}
		spare, frontier, numbers = frontier, next, nextNumbers
	}
	return end(0)
}

// rebuild turns a path, given as the moves' numbers from last to first, into moves.
func (x *explorer) rebuild(w exWorld, back []move) []move {
	var path []move
	for i := len(back) - 1; i >= 0; i-- {
		m := back[i]
		if m.bid < 0 {
			m = x.moves(&w, nil)[m.kind]
		}
		path = append(path, m)
		x.apply(&w, m)
	}
	return path
}

// memory calls f with the memory of a state, without the parts of bids and nodes that the
// scenario does not have.
func (x *explorer) memory(w *exWorld, f func([]byte)) {
	raw := func(p unsafe.Pointer, n uintptr) { f(unsafe.Slice((*byte)(p), n)) }
	raw(unsafe.Pointer(w), unsafe.Offsetof(w.wires))
	raw(unsafe.Pointer(&w.wires), uintptr(x.s.bids)*unsafe.Sizeof(w.wires[0]))
	raw(unsafe.Pointer(&w.strays), unsafe.Offsetof(w.bids)-unsafe.Offsetof(w.strays))
	for k := range x.s.bids {
		raw(unsafe.Pointer(&w.bids[k]), unsafe.Offsetof(exBid{}.bid)+unsafe.Offsetof(bid{}.parts))
	}
}

// store appends a state to a list, and load reads it from there.
func (x *explorer) store(list []byte, w *exWorld) []byte {
	x.memory(w, func(b []byte) { list = append(list, b...) })
	return list
}

func (x *explorer) load(list []byte, w *exWorld) {
	x.memory(w, func(b []byte) { list = list[copy(b, list):] })
}

func (x *explorer) size() (n int) {
	x.memory(new(exWorld), func(b []byte) { n += len(b) })
	return n
}

// encode writes a path as words of a move, a bid and a node, and replay follows it.
func encode(path []move) string {
	var words []string
	for _, m := range path {
		words = append(words, fmt.Sprintf("%c%c%d", 'a'+m.kind, 'A'+m.bid, m.node))
	}
	return strings.Join(words, " ")
}

func replay(s scenario, step machine, known string) (f found) {
	x := &explorer{s: s, step: step}
	w := x.start()
	for _, word := range strings.Fields(known) {
		m := move{exMove(word[0] - 'a'), int8(word[1] - 'A'), int8(word[2] - '0')}
		if !slices.Contains(x.moves(&w, nil), m) {
			x.problem = fmt.Sprintf("move %d, %s, is not possible", len(f.path), word)
			break
		}
		f.path = append(f.path, m)
		x.apply(&w, m)
	}
	if x.problem == "" && len(x.moves(&w, nil)) == 0 {
		x.clean(&w)
	}
	f.problem, f.states, f.last = x.problem, len(f.path), w
	return f
}

// chart lists a path, one move a line.
func chart(s scenario, step machine, path []move) string {
	x := &explorer{s: s, step: step}
	w := x.start()
	var out strings.Builder
	for _, m := range path {
		k, i := int(m.bid), int(m.node)
		p := &w.wires[k][min(i, exNodes-1)]
		if m.kind == mStray || m.kind == mEarly || m.kind == mDropStray {
			t := w.strays[i]
			k, i, p = int(t.bid), int(t.node), &t.packet
		}
		call := *p
		w.last = open
		x.apply(&w, m)
		fmt.Fprintf(&out, "bid %c, node %d, %s: %s", 'A'+k, i, exCalls[call.call], exMoves[m.kind])
		if m.kind == mDeliver || m.kind == mAnswer || m.kind == mStray {
			fmt.Fprintf(&out, " (%s, token %d, counter %d)", exAnswers[p.answer], p.fence, w.nodes[min(i, exNodes-1)].counter)
		}
		if w.last != open {
			fmt.Fprintf(&out, " %s %d", strings.ToUpper(exVerdicts[w.last]), w.bids[k].bid.fence)
		}
		out.WriteByte('\n')
	}
	return out.String()
}

var (
	exCalls    = [...]string{"-", "acquire", "join", "raise", "raise", "renew", "release"}
	exAnswers  = [...]string{"no answer", "granted", "held", "reserved", "refused for now", "refused", "invalid", "not yours", "unasked"}
	exVerdicts = [...]string{"", "granted", "renewed", "interrupted", "invalid", "twice", "held", "denied", "denied for now", "clocks apart", "too late", "stopped", "not written back", "unknown", "lost", "lost", "renewal too late", "renewal unconfirmed"}
	exMoves    = [...]string{"begins", "looks", "its time is over", "renews", "releases", "arrives", "is answered", "the request is lost", "the answer is lost", "arrives twice", "no answer in time", "arrives late", "a late request is dropped", "its key ends early", "restarts without its memory", "restarts with its memory", "its quarantine ends", "time passes", "its clock is set", "overtakes", "crashes", "one reader ends early"}
)

// Every run explores these scenarios. (A restart without memory stands for the whole restart
// guard: the node is mute until all leases that it may have forgotten have ended.)
var (
	alike     = [exBids]uint64{10, 10, 10}
	differ    = [exNodes]uint64{11, 10, 12}
	ranges    = [exBids]uint64{2, 4, 3}
	ahead     = [exNodes]uint64{11, 11, 13}
	scenarios = []scenario{
		{name: "two bids", bids: 2, rounds: 1, proposal: alike},
		{name: "counters differ", bids: 2, counters: differ, proposal: alike, tokens: ranges},
		{name: "a renewal", bids: 2, proposal: alike, renewals: 1},
		{name: "a key ends early", bids: 2, counters: differ, proposal: alike, tokens: ranges, renewals: 1, faults: faults{expire: 1}},
		{name: "a message is lost", bids: 2, proposal: alike, faults: faults{lose: 1}},
		{name: "a request arrives twice", bids: 2, proposal: alike, tokens: ranges, faults: faults{again: 1}},
		{name: "a node is slow", bids: 2, counters: differ, proposal: alike, tokens: ranges, faults: faults{slow: 1}},
		{name: "a client's time is over early", bids: 2, proposal: alike, faults: faults{hurry: 1}},
		{name: "a node forgets", bids: 2, counters: differ, proposal: alike, tokens: ranges, renewals: 1, faults: faults{forget: 1}},
		{name: "a node restarts", bids: 2, proposal: alike, faults: faults{restart: 1}},
		{name: "a bid waits in the queue", bids: 2, proposal: alike, tokens: ranges, faults: faults{reserve: 1, waits: 1}},
		{name: "three bids", bids: 3, counters: differ, proposal: alike, tokens: ranges, keeps: true},
		{name: "three bids in turn, and a key ends early", bids: 3, proposal: alike, after: true, keeps: true, faults: faults{expire: 1}},
		{name: "three bids in turn, and a node forgets", bids: 3, counters: differ, proposal: alike, tokens: ranges, after: true, keeps: true, faults: faults{forget: 1}},
		{name: "three bids in turn, and a node is slow", bids: 3, counters: differ, proposal: alike, tokens: ranges, after: true, keeps: true, faults: faults{slow: 1}},
		{name: "three bids, releases and a renewal", bids: 3, counters: differ, proposal: alike, tokens: ranges, renewals: 1},
		{name: "time passes", bids: 2, ticks: 7, prompt: true, keeps: true},
		{name: "a clock is set", bids: 2, ticks: 7, after: true, prompt: true, keeps: true, faults: faults{step: 1, lose: 1}},
		{name: "time passes, and messages take time", bids: 2, ticks: 5, patience: 4},
		{name: "a clock is set, and messages take time", bids: 2, ticks: 5, patience: 4, faults: faults{step: 1}},

		{name: "a writer, then two readers", bids: 3, readers: 0b110, rounds: 1, counters: differ, proposal: alike},
		{name: "two readers, then a writer", bids: 3, readers: 0b011, rounds: 1, proposal: [exBids]uint64{10, 12, 9}},
		{name: "a writer between readers, and a renewal", bids: 3, readers: 0b101, rounds: 1, counters: differ, proposal: alike, renewals: 1},
		{name: "readers, and a key ends early", bids: 3, readers: 0b011, rounds: 1, proposal: [exBids]uint64{12, 10, 10}, renewals: 1, faults: faults{expire: 1}},
		{name: "readers, one of which ends early", bids: 3, readers: 0b011, rounds: 1, counters: differ, proposal: alike, renewals: 1, faults: faults{lapse: 1}},
		{name: "readers, and a message is lost", bids: 3, readers: 0b110, rounds: 1, proposal: alike, faults: faults{lose: 1}},
		{name: "readers, and a request arrives twice", bids: 3, readers: 0b101, rounds: 1, proposal: alike, faults: faults{again: 1}},
		{name: "readers, and a node is slow", bids: 3, readers: 0b011, rounds: 1, counters: differ, proposal: alike, faults: faults{slow: 1}},
		{name: "readers, and a node forgets", bids: 3, readers: 0b011, rounds: 1, counters: differ, proposal: alike, renewals: 1, faults: faults{forget: 1}},
		{name: "readers, and one crashes", bids: 3, readers: 0b011, rounds: 1, proposal: alike, faults: faults{crash: 1, expire: 1}},
		{name: "readers, of whom one waits", bids: 3, readers: 0b110, rounds: 1, proposal: alike, faults: faults{reserve: 1, waits: 1}},
		{name: "readers, and time passes", bids: 3, readers: 0b011, rounds: 1, ticks: 7, prompt: true, keeps: true},
		{name: "readers, and a clock is set", bids: 3, readers: 0b101, rounds: 1, ticks: 7, after: true, prompt: true, keeps: true, faults: faults{step: 1, lose: 1}},
	}
)

// bounded is how many states of a scenario a run visits, the nearest first.
func (s *scenario) bounded() int {
	switch {
	case *exploreLong && s.bids > 2: // these take ten gigabytes of memory
		return 2500000
	case *exploreLong:
		return 20000000
	case Race:
		return 1000
	case testing.Short():
		return 3000
	}
	return Amount(10000, 65000)
}

// In every order of events the machine keeps its promises: order and freshness of tokens (G2,
// G3), exclusion (G1), clean-up (G4), and true verdicts.
func TestEveryOrderOfEvents(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			f := explore(s, (*bid).step, s.bounded())
			t.Logf("%d states (all: %v), %d moves, depth %d, %v", f.states, !f.cut, f.edges, f.depth, f.took.Round(time.Millisecond))
			if f.problem != "" {
				t.Errorf("%s\n%s", f.problem, chart(s, (*bid).step, f.path))
			}
			if s.readers == 0 {
				return
			}
			// The states of three bids that a search by distance reaches are early ones.
			if f = walk(s, (*bid).step, 1, walks()); f.problem != "" {
				t.Errorf("%s, by %s\n%s", f.problem, encode(f.path), chart(s, (*bid).step, f.path))
			}
			t.Logf("%d random moves", f.edges)
		})
	}
}

// If any rule of the machine or of healing is taken out, a promise breaks in some order of events,
// which breaks none with the rule. The test prints the shortest.
func TestEveryRuleIsNeeded(t *testing.T) {
	late := scenario{bids: 2, keeps: true, counters: differ, proposal: alike, renewals: 1, faults: faults{expire: 2}}
	soon := late
	soon.after, soon.renewals = true, 0
	split := scenario{bids: 2, keeps: true, counters: [exNodes]uint64{12, 10, 12}, proposal: alike, rounds: 1, faults: faults{lose: 1, expire: 1}}
	rival := func(differ func(*scenario)) scenario {
		s := scenario{lease: true, gone: 1 << 2, keeps: true, bids: 3, renewals: 2, proposal: [exBids]uint64{10, 14, 12}, faults: faults{expire: 3, again: 2}}
		differ(&s)
		return s
	}
	beside := func(readers set, odd oddity) scenario {
		return rival(func(s *scenario) { s.readers, s.odd = readers, odd })
	}
	above := func(odd oddity) scenario {
		return scenario{lease: true, tardy: 1 << 2, clocks: ahead, keeps: true, bids: 2, renewals: 2, proposal: [exBids]uint64{0, 12}, odd: odd, faults: faults{expire: 2, again: 2}}
	}
	ranged := func(odd oddity) scenario {
		s := soon
		s.tokens, s.odd = ranges, odd
		return s
	}
	clock := scenario{bids: 2, after: true, keeps: true, prompt: true, ticks: 4, faults: faults{step: 1, lose: 1}}
	for _, c := range []struct {
		rule     string
		without  mutation
		scenario scenario
		promise  string
		known    string // a path on which it breaks, if the shortest takes long to find
	}{
		{"majority", minority, scenario{bids: 2, keeps: true, counters: [exNodes]uint64{11, 12, 13}, proposal: alike}, "G1", ""},
		{"maximum, and write back", noWriteBack, soon, "G2", ""},
		{"write back: this acquisition's", ackUnowned, soon, "G2", ""},
		{"late", adoptAbove, late, "G3", "aA0 fA0 gA0 aB0 fB1 fB2 gB2 nA0 fB0 gB0 bB0 dB0 nA2 fA2 gA2 fB2 gB2 bB0 gB1 fB1 fA1 gA1 bA0 dA0 fA1 gA1 fA2 gA2 bA0"},
		{"late, during the write-back", countLate, soon, "G2", ""},
		{"join: not before the grant", joinEarly, split, "G2", "aA0 fA0 gA0 hA1 kA1 aB0 fB0 gB0 fB1 gB1 fB2 fA2 gA2 bA0 fA0 gA0 bA0 bA0 fA0 gA0 bA0 gB2 bB0 fB1 gB1 bB0 nA2 fA2 gA2 bA0"},
		{"carriers", extendOwn, late, "G3", "aA0 fA0 gA0 fA1 gA1 aB0 fB2 fA2 gA2 bA0 fA1 gA1 bA0 gB2 nA0 fB0 gB0 bB0 dA0 fA1 gA1 nA2 fA2 gA2 bA0"},
		{"attempt", oneAttempt, scenario{bids: 2, proposal: alike, rounds: 1, keeps: true, faults: faults{slow: 2}}, "G1", "aA0 fA0 gA0 fA1 kA1 aB0 fB2 fA2 gA2 bA0 fA0 gA0 bA0 bA0 fA0 kA0 bA0 fA2 gA2 bA0 fA0 gA0 fA1 gA1 bA0 lA0 fB1 gB1 lA0 fB0 gB0 bB0"},
		{"order", releaseEarly, scenario{bids: 2, proposal: alike}, "G4", ""},
		{"give back: no lease", backLease, rival(func(s *scenario) { s.keeps, s.renewals, s.faults.again = false, 1, 0 }), "G2", "nA0 nA1 aB0 fB1 gB1 fB0 gB0 bB0 eB0 aC0 fB1 fC2 gC2 fC1 gC1 bC0"},
		{"give back: a vote that was asked for once", 0, rival(func(s *scenario) { s.odd = backTwice }), "G3", "aB0 jB2 fB2 fB0 fB1 gB0 gB1 gB2 bB0 jB2 fB2 aC0 fC2 nA1 fC1 gC2 gC1 bC0 nA2 lA0 lA0 dA0 fA0 gA0 fA2 gA2 fA1 gA1 bA0 dA0 fA0 gA0 fA2 gA2 bA0"},
		{"give back: a vote above a lease that was asked for once", 0, above(aboveTwice), "G3", "jA2 fA2 gA2 jA2 fA2 gA2 aB0 fB2 gB2 nA1 fB1 gB1 bB0 nA2 lA0 lA0 dA0 fA0 gA0 fA1 gA1 fA2 gA2 bA0 dA0 fA0 gA0 fA2 gA2 bA0"},
		{"join: not below the counter", 0, rival(func(s *scenario) { s.odd = joinAny }), "G3", "nA0 aB0 fB2 gB2 fB0 nA2 gB0 dA0 bB0 fA2 fA1 fA0 gA1 gA2 gA0 bA0 dA0 fA2 fA1 gA1 gA2 bA0"},
		{"join: confirmed since the counter", 0, scenario{bids: 2, lease: true, gone: 1 << 2, cut: 1 << 1, keeps: true, ticks: 17, patience: 4, renewals: 6, odd: joinOld}, "G3", "rA0 rA0 rA0 dA0 fA0 gA0 rA0 rA0 aB0 fB2 gB2 rA0 fB1 gB1 bB0 rA0 bA0 dA0 fA0 gA0 fA2 gA2 rA0 rA0 rA0 kA1 bA0 rA0 dA0 fA0 gA0 fA2 gA2 rA0 rA0 rA0 rA0 bA0 dA0 fA0 gA0 fA2 gA2 bA0"},
		{"a range's last token is proposed", 0, ranged(firstProposed), "G2", ""},
		{"a range's last token is counted", 0, ranged(firstCounted), "G2", ""},
		{"a range's last token is in the maximum", 0, ranged(firstAnswered), "G2", ""},
		{"a range's last token is written back", 0, ranged(firstRaised), "G2", ""},
		{"readers: a writer joins nowhere beside them", 0, beside(0b101, joinBeside), "G3", "nA1 aB0 aC0 fB1 nA1 fC1 gC1 fB0 gB1 fB2 gB2 gB0 bB0 dB0 fB1 fB2 fB0 gB2 gB0 gB1 fC0 bB0 gC0 bC0 dB0 fB0 fB2 gB2 gB0 bB0"},
		{"readers: one joins above the writers before them", 0, beside(0b011, joinShared), "G3", "aB0 aC0 nA0 fC2 fC0 dA0 nA2 fA0 gC2 gA0 gC0 fA1 fB2 gA1 fA2 gA2 bC0 bA0 dA0 fA1 gA1 fA2 gA2 bA0"},
		{"readers: a renewal asks for its own", 0, beside(0b011, anyReader), "G3", "nA0 aB0 aC0 fC0 nA0 fC2 fB0 gC0 gC2 bC0 dA0 fA1 fA0 gA0 gA1 bA0"},
		{"readers: each gets a larger token", 0, beside(0b110, readerAsAsked), "G2", "nA1 aB0 fB2 fB1 gB1 gB2 bB0 aC0 fC2 gC2 fC1 gC1 bC0"},
		{"readers: all give their votes back, or none", 0, scenario{bids: 3, readers: 0b011, counters: [exNodes]uint64{9, 11, 13}, proposal: [exBids]uint64{10, 14, 10}, faults: faults{hurry: 2, expire: 1}, odd: backBeside}, "G2", "aA0 aB0 fA0 gA0 fB0 gB0 fA1 gA1 fA2 gA2 nA1 bA0 fA0 gA0 bA0 cB0 fB0 fA1 gA1 eA0 fA0 fA2 aC0 fC0 gC0 fC1 gC1 bC0 cC0 fC0 gC0 bC0"},
		{"step 5", keepLosers, scenario{bids: 2, proposal: alike}, "G4", ""},
		{"step 3: time is left", noValidity, scenario{bids: 1, ticks: 5, patience: 4}, "G1", ""},
		{"hold, return, and clocks that agree", noClockCheck, clock, "G1", ""},
	} {
		t.Run(c.rule, func(t *testing.T) {
			step := mutant(c.without)
			f := replay(c.scenario, step, c.known)
			if *searchFlag || !strings.HasPrefix(f.problem, c.promise) {
				f = explore(c.scenario, step, 4000000)
			}
			if f.problem == "" {
				t.Fatalf("taken out, and nothing broke in %d states (all: %v)", f.states, !f.cut)
			}
			t.Logf("%s, after %d states, by %s\n%s", f.problem, f.states, encode(f.path), chart(c.scenario, step, f.path))
			if !strings.HasPrefix(f.problem, c.promise) {
				t.Errorf("it breaks %s, want %s", f.problem, c.promise)
			}
			c.scenario.odd = none
			if f := follow(c.scenario, (*bid).step, f.path); f.problem != "" {
				t.Errorf("with the rule it breaks %s", f.problem)
			}
		})
	}
}

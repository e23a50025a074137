package redlock

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"github.com/redlock-go/redlock/driver/boot"
)

// A bid is the whole algorithm of the quorum: one request for a lock, the lease that comes of
// it, its renewals and its release. It is a plain value: step takes an event and returns what
// the host has to do (lease.go). It does no I/O, starts nothing, locks nothing and reads no
// clock, and it holds nothing that cannot be compared, so that tests explore every order of
// events (explore_test.go).
//
// # The steps of the Redlock page
//
//	1  the current time                          start
//	2  all nodes, the same key, small timeouts   ask
//	3  a majority, and time is left              outcome, look
//	4  the validity time is what is left         extent, by the rules "hold" and "return" of terms.go
//	5  if it failed, all nodes are released      giveUp
//
// # The rules of the token
//
//	maximum     the token is the largest of the agreeing nodes' tokens                 choose
//	write back  q nodes confirm it, each as this acquisition's, at the token or above    lifted
//	late        a node that was not in the maximum confirms nothing, and counts only
//	            at the token itself, or once it was raised to it                          adopt
//	join        a node that lost the lease counts again only at exactly this token       extend
//	carriers    a renewal is confirmed by nodes that carried the lease before it          acked
//	attempt     no two requests to one node have one owner                               attempt
//	order       a node is released behind what is under way to it, and not beside it     follow
//
// Why they suffice: with q confirmations there is a majority that this bid owned while its
// counters were at the token or above. Every later majority has one of those nodes, and so
// gets a larger token.
type bid struct {
	n, q    int
	drift   int // in percent
	first   int // the key's first node
	ttl     time.Duration
	timeout time.Duration

	phase   phase
	stage   stage
	due     boot.Instant  // when the time of the stage is over
	leeway  time.Duration // by how much that may move, while this process does not run
	attempt int           // the last one
	start   boot.Instant  // of the vote, or of the renewal
	expires boot.Instant
	fence   uint64
	raised  bool          // the token was written back
	raising set           // to these nodes
	renewal int           // the number of the last renewal
	round   int           // of a split vote; zero: the first vote
	firsts  int           // how many first nodes were tried in this round
	tries   int           // the owner of the first node asked the rest so often
	alone   int           // the first node that was asked last
	asked   boot.Instant  // when the last request for votes was sent
	took    time.Duration // by the round before
	seen    owner         // who had most nodes, then who had the first one

	parts [MaxNodes]part
}

// part is what a bid has to do with one node. At most one call to it is under way.
type part struct {
	state   state
	call    call
	awaited bool   // the outcome may depend on the answer that is under way
	stale   bool   // the call is of an earlier round
	suspect bool   // it did not answer in an earlier round
	joined  bool   // it was asked to join
	said    answer // what it answered last, unless it granted
	owner   owner  // who has it, as it said
	tries   int    // to release it
	renewal int    // that the call under way is of
	ack     int    // the renewal that it confirmed last
	fence   uint64
	clock   reading // of the grant, or of the last renewal
}

type phase uint8

const (
	voting   phase = iota
	yielding       // the vote was split: what it got is released, and the next round comes
	holding        // it is a lease
	over           // whatever a node still has of it is released
)

// stage is what the caller waits for.
type stage uint8

const (
	resting   stage = iota
	electing        // the votes
	asking          // the first node's vote
	draining        // what a split vote got is released
	pausing         // until the next round
	leading         // until the owner of the first node asks the rest again
	lingering       // the votes of stragglers, since a second trip must be made anyway
	raising         // the token is written back
	sitting         // the rule "return"
	quieting        // nothing is under way, before the last renewal
	renewing        // the answers to a renewal
)

// state is what a node has of the bid.
type state uint8

const (
	free    state = iota // nothing, for certain
	unsure               // it may have something; the node's driver sees to that
	leaving              // it granted, and is being released, or that failed
	owned                // it granted, but is not counted: nothing depends on it
	counted              // it is among the nodes that carry the lease
)

// call is a request to a node.
type call uint8

const (
	idle    call = iota
	acquire      // a vote
	join         // the key at exactly the lease's token
	raise        // the token is written back, during the grant
	lift         // the same, for a straggler
	renew
	release
)

// answer is what a node said.
type answer uint8

const (
	silence  answer = iota // nothing, or nothing that proves anything
	granted                // or done
	held                   // somebody has it
	reserved               // it is kept for who waits first
	deferred               // refused for a while
	refused                // refused, as it is configured
	misuse                 // the request is invalid
	gone                   // it is not this acquisition's, or not any longer
	unasked                // the request was not sent
)

// owner is who has a node, numbered by the host. All attempts of a request are one owner.
type owner uint16

const (
	nobody     owner = iota
	ourselves        // an earlier attempt of this request
	nextInLine       // whoever waits first
	somebody         // the first number of the others
)

// event is what happens to a bid.
type event struct {
	kind eventKind
	now  boot.Instant

	// Of what a caller does.
	until                    boot.Instant  // the caller's deadline
	stalled                  time.Duration // for how long this process did not run since the last look
	ttl                      time.Duration
	timeout                  time.Duration // of a node
	tripped                  set           // nodes whose breaker is open
	ended, jumped, duplicate bool          // the caller's context ended; the machine was stopped; a node votes twice

	// Of an answer.
	node   int
	answer answer
	owner  owner
	fence  uint64
	clock  reading
	last   bool // it is not tried again
}

type eventKind uint8

const (
	begins   eventKind = iota // Acquire
	looks                     // what the caller waits for is certain, or its time is over
	answered                  // a call ended
	probed                    // nobody is to wait for the answer of this call
	renews                    // Renew
	releases                  // Release
)

// actions are what a bid wants.
type actions struct {
	calls   [MaxNodes]call // to start
	until   boot.Instant   // the end of those that are awaited, and of joins
	most    boot.Instant   // and the latest one, if this process does not run meanwhile
	delay   time.Duration  // before a call to release is started
	pause   time.Duration  // the stage ends after a random while, of about so much at most
	judged  set            // nodes whose clocks were compared
	healed  bool           // a node joined
	split   bool           // the first vote was split
	left    bool           // a release failed for the last time
	verdict verdict        // the caller's
}

// verdict is how a call of the user ends.
type verdict uint8

const (
	open        verdict = iota // not yet
	won                        // granted
	extended                   // renewed
	interrupted                // the caller's context or the backend ended first
	invalid                    // misuse
	twice                      // a server votes twice
	heldBy                     // one other owner has it
	denied                     // enough nodes refuse, for good
	denyNow                    // or for a while
	apart                      // the clocks of no majority agree
	uneven                     // the rule "return" leaves nothing
	late                       // the nodes took too long
	stopped                    // the machine may have been stopped
	unwritten                  // the token could not be written back
	unproved                   // no majority, and the answers prove nothing
	lost                       // the lease is over
	lostNow                    // and that was just found out
	overdue                    // the renewal took too long
	unconfirmed                // no majority confirmed the renewal
)

const (
	rounds       = 16 // until a split is given up
	patience     = 3  // rounds in which a first node that others have is waited for
	leadTries    = 8  // of the owner of the first node to get the rest
	releaseTries = 4
)

// set is a set of nodes, by their index.
type set uint16

func (s set) has(i int) bool { return s&(1<<i) != 0 }
func (s *set) add(i int)     { *s |= 1 << i }
func (s set) len() int       { return bits.OnesCount16(uint16(s)) }

// step takes an event and returns what is to be done.
func (b *bid) step(e *event) (out actions) {
	switch e.kind {
	case begins:
		b.start = e.now // step 1
		b.expires = b.start.Add(validity(b.ttl, b.drift))
		b.elect(b.all(), e, &out) // step 2
	case looks:
		b.prolong(e)
		if b.certain() || e.now >= b.due || e.ended {
			b.look(e, &out)
		}
	case answered:
		b.answer(e, &out)
	case probed:
		b.parts[e.node].awaited = false
	case renews:
		b.renew(e, &out)
	case releases:
		b.end(&out)
	}
	switch out.verdict {
	case open:
	case won, extended:
		b.stage = resting
	default:
		b.stage = resting
		if b.phase == voting || b.phase == yielding {
			b.end(&out) // step 5
		}
	}
	return out
}

// await begins a stage that waits for nodes: it lasts for d, and no longer than the caller's
// time.
func (b *bid) await(s stage, d time.Duration, e *event, out *actions) {
	b.stage, b.leeway = s, (mostTimeouts-1)*d
	b.due = min(e.now.Add(d), e.until)
	out.until, out.most = b.due, min(e.now.Add(mostTimeouts*d), e.until)
}

// prolong moves the end of a stage that waits for nodes by as long as this process did not run:
// that is not theirs.
func (b *bid) prolong(e *event) {
	switch b.stage {
	case electing, asking, draining, lingering, raising, quieting, renewing:
		d := max(min(e.stalled, b.leeway, e.until.Sub(b.due)), 0)
		b.due, b.leeway = b.due.Add(d), b.leeway-d
	}
}

// asks reports whether the stage ends with the calls that began with it.
func (b *bid) asks() bool {
	return b.stage == electing || b.stage == asking || b.stage == raising || b.stage == renewing
}

// certain reports whether what the caller waits for is certain, whatever may still come.
func (b *bid) certain() bool {
	switch b.stage {
	case electing:
		return b.voted()
	case asking, lingering:
		return b.pending() == 0
	case draining:
		return b.drained()
	case raising:
		return b.written()
	case quieting:
		return b.quiet()
	case renewing:
		return b.renewed()
	}
	return false
}

// look does what follows when the caller has waited enough.
func (b *bid) look(e *event, out *actions) {
	if e.ended && !b.certain() {
		switch b.stage {
		case draining, lingering, quieting: // short
		case renewing:
			b.confirm(e, out)
			return
		default:
			out.verdict = interrupted
			return
		}
	}
	switch b.stage {
	case electing:
		b.outcome(e, out)
	case asking:
		b.firstVote(e, out)
	case draining:
		b.stage = pausing
		out.pause = mostPause(b.took, b.round)
	case pausing:
		b.nextRound(e, out)
	case leading:
		b.elect(b.remaining(), e, out)
	case lingering:
		b.choose(e, out)
	case raising:
		if b.in(counted).len() < b.q {
			out.verdict = unwritten
			return
		}
		b.extent(e, out)
	case sitting:
		b.grant(e, out)
	case quieting:
		b.extend(0, e, out)
	case renewing:
		b.confirm(e, out)
	}
}

// The vote.

// elect asks nodes for their votes, all at once. What is certain at the q-th grant, or when a
// majority is out of reach, is the outcome.
func (b *bid) elect(of set, e *event, out *actions) {
	b.ask(electing, of, e, out)
}

// ask is step 2. Each time it has an owner that was never used (rule "attempt"): what is still
// under way for an earlier one, a late release above all, cannot touch what this one gets.
func (b *bid) ask(s stage, of set, e *event, out *actions) {
	b.attempt++
	b.asked = e.now
	b.await(s, b.timeout, e, out)
	for i := range b.n {
		if g := &b.parts[i]; of.has(i) && g.call == idle {
			g.said, g.owner, g.joined = silence, nobody, false
			g.awaited = true
			b.send(i, acquire, out)
		}
	}
}

func (b *bid) send(i int, c call, out *actions) {
	b.parts[i].call = c
	out.calls[i] = c
}

// voted reports whether the outcome of the vote is certain.
func (b *bid) voted() bool {
	agreed, pending := b.agreeing(b.in(owned)).len(), b.pending()
	switch {
	case agreed >= b.q, pending == 0:
		return true
	case agreed+pending >= b.q:
		return false
	}
	// Out of reach. Where the missing answers can still tell who has the lock, or that the
	// nodes refuse, they are worth their time: a bidder that does not know would bid again.
	t, enough := b.tally(), b.enough()
	open := func(n, enough int) bool { return 0 < n && n < enough && n+pending >= enough }
	return !open(t.most(), b.q) && !open(t.most(), enough) && !open(t.rivals, enough) && !open(t.denied(), enough)
}

// outcome is step 3, the majority. A node that has not answered by now failed.
func (b *bid) outcome(e *event, out *actions) {
	got := b.in(owned)
	agreed := b.agreeing(got)
	pending := b.pending()
	if e.now >= b.due {
		pending = 0
	}
	t := b.tally()
	switch {
	case agreed.len() >= b.q:
		out.judged = got
		if e.duplicate {
			out.verdict = twice
			return
		}
		if _, same := b.alike(agreed); same || b.pending() == 0 {
			b.choose(e, out)
			return
		}
		// A second trip must be made anyway, and a node whose token is not in the maximum could
		// not carry the lease: the stragglers have as long as the vote took.
		b.await(lingering, min(max(e.now.Sub(b.start), time.Millisecond), b.timeout), e, out)
	case t.misuse > 0:
		out.verdict = invalid
	case t.most() >= b.q:
		out.verdict = heldBy
	case got.len() >= b.q:
		out.judged, out.verdict = got, apart
	case got.len()+t.heldBy+pending >= b.q:
		b.split(e, out)
	default:
		out.verdict = b.proved(&t)
	}
}

// proved is what the answers prove if no majority can be had: one other owner, or refusals, on
// so many nodes that too few are left.
func (b *bid) proved(t *tally) verdict {
	switch enough := b.enough(); {
	case t.most() >= enough:
		return heldBy
	case t.refused >= enough:
		return denied
	case t.denied() >= enough:
		return denyNow
	}
	return unproved
}

// choose is the rule "maximum". If q nodes answered the same token, which is so as a rule, since
// all got the same proposal, they count and no more must be done. Otherwise the token is the
// largest of the agreeing nodes', and it is written back to those that are under it.
func (b *bid) choose(e *event, out *actions) {
	agreed := b.agreeing(b.in(owned))
	token, same := b.alike(agreed)
	b.fence, b.raising = token, 0
	for i := range b.n {
		switch g := &b.parts[i]; {
		case !agreed.has(i):
		case g.fence == token:
			g.state = counted
		case !same:
			b.raising.add(i)
		}
	}
	if b.in(counted).len() >= b.q {
		b.extent(e, out)
		return
	}
	b.raised = true
	b.await(raising, b.timeout, e, out)
	for i := range b.n {
		if b.raising.has(i) {
			b.parts[i].awaited = true
			b.send(i, raise, out)
		}
	}
}

// alike returns the token that q of these nodes answered; false: there is none, and it is
// their largest.
func (b *bid) alike(agreed set) (token uint64, same bool) {
	for i := range b.n {
		if !agreed.has(i) {
			continue
		}
		n := 0
		for j := range b.n {
			if agreed.has(j) && b.parts[j].fence == b.parts[i].fence {
				n++
			}
		}
		if n >= b.q {
			return b.parts[i].fence, true
		}
		token = max(token, b.parts[i].fence)
	}
	return token, false
}

// written reports whether the outcome of the write-back is certain.
func (b *bid) written() bool {
	n, pending := b.in(counted).len(), 0
	for i := range b.n {
		if g := &b.parts[i]; g.call == raise && g.awaited {
			pending++
		}
	}
	return n >= b.q || n+pending < b.q
}

// extent is step 4: when the lease ends, and from when it may be returned. To wait for that
// takes time only where the ways to the nodes are uneven, or their clocks apart, by more than
// is excused.
func (b *bid) extent(e *event, out *actions) {
	expires, from := b.judge(b.in(counted), b.start)
	b.expires = expires
	switch {
	case from <= e.now:
		b.grant(e, out)
	case from >= expires:
		out.verdict = uneven
	default:
		b.stage, b.due = sitting, from
	}
}

// grant is the second half of step 3, and the last act: is the lease still valid?
func (b *bid) grant(e *event, out *actions) {
	switch {
	case e.now >= b.expires:
		out.verdict = late
	case e.jumped:
		out.verdict = stopped
	default:
		b.phase, out.verdict = holding, won
		for i := range b.n {
			b.follow(i, out)
		}
	}
}

// A split vote. When contenders each got some nodes, and none a majority, to try again at the
// same time would split the vote again (of ten contenders on five nodes, in nine rounds of
// ten). So each releases all, waits for a random while, and asks first a single node, which
// the key chooses: whoever gets it has no rival but newcomers, and asks the others. The rest
// are soon able to name the holder.

// split begins that, or, if the owner of the first node met newcomers, asks the rest again:
// they give up what they got unless they got a majority.
func (b *bid) split(e *event, out *actions) {
	if b.tries > 0 && b.tries < leadTries {
		b.tries++
		b.stage = leading
		out.pause = mostPause(e.now.Sub(b.asked)/2, 1)
		return
	}
	if b.round == 0 {
		out.split = true
		b.seen = b.favourite()
	}
	b.yield(e, out)
}

// yield releases what a split vote got.
func (b *bid) yield(e *event, out *actions) {
	if b.round == rounds {
		t := b.tally()
		out.verdict = b.proved(&t)
		return
	}
	b.phase, b.took = yielding, e.now.Sub(b.start)
	b.await(draining, b.timeout, e, out)
	for i := range b.n {
		b.follow(i, out)
	}
}

// mostPause bounds a random pause: longer in each round. took is how long the last one was,
// which is the measure of the network and of the crowd.
func mostPause(took time.Duration, round int) time.Duration {
	return min(max(took, 100*time.Microsecond), leastTimeout) * time.Duration(min(max(round, 1), 8))
}

// drained reports whether a split vote is off every node that answers.
func (b *bid) drained() bool {
	for i := range b.n {
		if g := &b.parts[i]; g.call != idle && !g.suspect && !g.stale {
			return false
		}
	}
	return true
}

// nextRound bids anew. Nodes that have not answered are suspect, in this request for good.
func (b *bid) nextRound(e *event, out *actions) {
	b.round++
	b.phase, b.firsts, b.tries = voting, 0, 0
	b.start = e.now
	b.expires = b.start.Add(validity(b.ttl, b.drift))
	for i := range b.n {
		g := &b.parts[i]
		busy := g.call != idle
		g.suspect = g.suspect || busy || g.state != free
		g.stale, g.awaited = busy, false
		if !busy {
			g.state, g.said, g.owner = free, silence, nobody
		}
	}
	b.askFirst(e, out)
}

// askFirst asks the key's first node alone, and the next where that does not answer.
func (b *bid) askFirst(e *event, out *actions) {
	i, ok := b.firstNode(e.tripped)
	if !ok || b.firsts == b.n {
		b.elect(b.all(), e, out)
		return
	}
	b.firsts++
	b.alone = i
	var alone set
	alone.add(i)
	b.ask(asking, alone, e, out)
}

func (b *bid) firstNode(tripped set) (int, bool) {
	for k := range b.n {
		i := (b.first + k) % b.n
		if g := &b.parts[i]; !g.suspect && g.call == idle && !tripped.has(i) {
			return i, true
		}
	}
	return 0, false
}

// firstVote follows from the first node's answer. Who has not got it leaves the rest alone,
// unless its holder is the one that was seen last time, and so may have them by now.
func (b *bid) firstVote(e *event, out *actions) {
	g := &b.parts[b.alone]
	g.suspect = g.state != owned && g.owner == nobody
	switch {
	case g.state == owned:
		b.tries = 1
		b.elect(b.remaining(), e, out)
	case g.suspect:
		b.askFirst(e, out)
	case g.owner == b.seen, b.round > patience:
		b.elect(b.remaining(), e, out)
	default:
		b.seen = g.owner
		b.yield(e, out)
	}
}

// Answers.

// answer notes what a call to a node brought, and does what follows from it.
func (b *bid) answer(e *event, out *actions) {
	g := &b.parts[e.node]
	c := g.call
	g.call, g.awaited = idle, false
	switch c {
	case acquire, join:
		b.vote(g, e)
	case raise:
		b.lifted(g, e)
	case lift:
		if e.answer != granted {
			b.free(e.node, out)
			return
		}
		g.state = counted
	case renew:
		switch e.answer {
		case granted:
			g.ack, g.clock = g.renewal, e.clock
		case gone:
			g.state = free // the next renewal asks it to join
		}
	case release:
		b.released(e, out)
		return
	}
	b.follow(e.node, out)
}

// vote notes a node's vote.
func (b *bid) vote(g *part, e *event) {
	if !g.stale {
		g.said, g.owner = e.answer, e.owner
	}
	switch e.answer {
	case granted:
		g.state, g.fence, g.clock = owned, e.fence, e.clock
	case silence, gone:
		g.state = unsure
	case unasked:
	default:
		g.state = free
	}
}

// lifted is the rule "write back": the node confirms only if this very acquisition still owns
// it.
func (b *bid) lifted(g *part, e *event) {
	switch e.answer {
	case granted:
		g.state = counted
		g.clock = g.clock.and(e.clock) // the key is kept from here, and was free there
	case gone:
		g.state = free
	}
}

// follow does what is due on a node where nothing is under way: a straggler is adopted by the
// lease, or released if there is none (rule "order").
func (b *bid) follow(i int, out *actions) {
	switch g := &b.parts[i]; {
	case g.call != idle:
		return
	case g.state < leaving:
	case b.phase == over, b.phase == yielding, g.stale:
		b.free(i, out)
		return
	case b.phase == holding && g.state == owned:
		b.adopt(i, out)
		return
	}
	b.parts[i].stale = false
}

// adopt lets a node that has granted enter the counted ones, where that is sound; it is
// released otherwise. A node at the token itself counts at once, one under it once it is
// raised (rule "late"). One above it must not count: later majorities could not see there that
// this token was granted. And a node that joined must be at exactly the token that was asked
// for (rule "join").
func (b *bid) adopt(i int, out *actions) {
	g := &b.parts[i]
	with := b.in(counted)
	with.add(i)
	switch {
	case !b.agreeing(with).has(i):
		out.judged = with
	case g.fence == b.fence:
		g.state = counted
		out.healed = g.joined
		return
	case g.fence < b.fence && !g.joined:
		b.send(i, lift, out)
		return
	}
	b.free(i, out)
}

// The renewal.

// renew extends the lease on the nodes that carry it.
func (b *bid) renew(e *event, out *actions) {
	switch {
	case b.phase != holding:
		out.verdict = lost
	case e.ttl == 0 && !b.quiet():
		b.await(quieting, b.timeout, e, out) // no node is to keep what it granted late for longer
	default:
		if e.ttl > 0 {
			b.timeout = e.timeout
		}
		b.extend(e.ttl, e, out)
	}
}

// quiet reports whether nothing is under way.
func (b *bid) quiet() bool {
	for i := range b.n {
		if b.parts[i].call != idle {
			return false
		}
	}
	return true
}

// extend asks the counted nodes to renew. The others are asked to join at exactly the lease's
// token, unless the holder is done: they count from the next renewal on. No renewal takes the
// lock again.
func (b *bid) extend(ttl time.Duration, e *event, out *actions) {
	b.renewal++
	b.start, b.ttl = e.now, ttl
	b.await(renewing, b.timeout, e, out)
	joins := false
	for i := range b.n {
		switch g := &b.parts[i]; {
		case g.call != idle:
		case g.state == counted:
			g.renewal, g.awaited = b.renewal, true
			b.send(i, renew, out)
		case g.state == leaving: // a release that failed: once more
			b.free(i, out)
		case ttl > 0:
			g.said, g.owner, g.joined, joins = silence, nobody, true, true
			b.send(i, join, out)
		}
	}
	if joins {
		b.attempt++
	}
}

// acked returns the nodes that confirmed the renewal that is under way (rule "carriers"): a
// node that joined in it is none of them.
func (b *bid) acked() set {
	var s set
	for i := range b.n {
		if g := &b.parts[i]; g.state == counted && g.ack == b.renewal {
			s.add(i)
		}
	}
	return b.agreeing(s)
}

// renewed reports whether the outcome of the renewal is certain.
func (b *bid) renewed() bool {
	acks, pending := b.acked().len(), 0
	for i := range b.n {
		if g := &b.parts[i]; g.call == renew && g.awaited {
			pending++
		}
	}
	return b.phase != holding || acks >= b.q || acks+pending < b.q
}

// confirm reads the answers to a renewal.
func (b *bid) confirm(e *event, out *actions) {
	acks := b.acked()
	expires := b.start
	if acks.len() >= b.q {
		expires, _ = b.judge(acks, b.start)
	}
	switch {
	case b.phase != holding:
		out.verdict = lost
	case acks.len() >= b.q && e.jumped:
		out.verdict = stopped
	case acks.len() >= b.q && (b.ttl == 0 || e.now < expires):
		b.expires, out.verdict = expires, extended
	case b.in(counted).len() < b.q:
		b.phase = over // what is left is Release's: until this returns, the deadline counts
		out.verdict = lostNow
	case e.ended:
		out.verdict = interrupted
	case acks.len() >= b.q:
		out.verdict = overdue
	default:
		out.verdict = unconfirmed
	}
}

// The release.

// end makes the bid one that is over: every node is released, each behind what is under way
// to it (step 5).
func (b *bid) end(out *actions) {
	b.phase = over
	for i := range b.n {
		b.follow(i, out)
	}
}

// free releases one node.
func (b *bid) free(i int, out *actions) {
	b.parts[i].state, b.parts[i].tries = leaving, 1
	b.send(i, release, out)
}

// released notes how a release ended: it is tried a few times. What it cannot free ends with
// the TTL.
func (b *bid) released(e *event, out *actions) {
	switch g := &b.parts[e.node]; {
	case e.answer == granted:
		g.state, g.stale = free, false
	case g.tries < releaseTries && !e.last:
		out.delay = b.timeout << g.tries / 8
		g.tries++
		b.send(e.node, release, out)
	default:
		g.stale, out.left = false, true
	}
}

// cleared counts the nodes that have nothing of this bid, and get nothing; certain: enough of
// them do, or cannot.
func (b *bid) cleared() (n int, certain bool) {
	pending := 0
	for i := range b.n {
		switch g := &b.parts[i]; {
		case g.call != idle:
			pending++
		case g.state == free:
			n++
		}
	}
	return n, n >= b.q || n+pending < b.q
}

// Sets of nodes.

// in returns the nodes in a state.
func (b *bid) in(st state) set {
	var s set
	for i := range b.n {
		if b.parts[i].state == st {
			s.add(i)
		}
	}
	return s
}

// all returns the nodes to ask: all, but for those that did not answer in an earlier round, if
// there is a majority without them.
func (b *bid) all() set {
	var every, live set
	for i := range b.n {
		every.add(i)
		if !b.parts[i].suspect {
			live.add(i)
		}
	}
	if live.len() >= b.q {
		return live
	}
	return every
}

// remaining returns the nodes of all that have not granted.
func (b *bid) remaining() set { return b.all() &^ b.in(owned) }

// pending counts the answers that are awaited.
func (b *bid) pending() int {
	n := 0
	for i := range b.n {
		if g := &b.parts[i]; g.call != idle && g.awaited {
			n++
		}
	}
	return n
}

// enough is on how many nodes another owner rules a majority out.
func (b *bid) enough() int { return b.n - b.q + 1 }

// tally is what the nodes that did not grant said.
type tally struct {
	heldBy   int   // nodes that somebody else has, or is kept for
	rivals   int   // of which so many one owner has
	rival    owner // that one
	kept     int   // of which so many are kept for the next in line there, whoever that is
	deferred int   // nodes that refuse for a while
	refused  int   // and those that refuse as they are configured
	misuse   int
}

// most counts the rival's nodes, and those that are kept: who is next there has most of the
// others as a rule, or will.
func (t *tally) most() int   { return t.rivals + t.kept }
func (t *tally) denied() int { return t.refused + t.deferred }

// silent reports whether a node's answer does not count in the tally: there is none, or it granted.
func (g *part) silent() bool { return g.call != idle || g.state >= leaving }

// tally counts the answers. A node that has an earlier attempt of this very request, whose
// release is still under way, is no rival's.
func (b *bid) tally() tally {
	var t tally
	for i := range b.n {
		g := &b.parts[i]
		if g.silent() {
			continue
		}
		switch g.said {
		case held:
			t.heldBy++
			if n := b.heldBy(g.owner); n > t.rivals {
				t.rivals, t.rival = n, g.owner
			}
		case reserved:
			t.heldBy++
			t.kept++
		case deferred:
			t.deferred++
		case refused:
			t.refused++
		case misuse:
			t.misuse++
		}
	}
	return t
}

// heldBy counts the nodes of one owner.
func (b *bid) heldBy(o owner) int {
	if o <= ourselves {
		return 0
	}
	n := 0
	for i := range b.n {
		if g := &b.parts[i]; !g.silent() && g.said == held && g.owner == o {
			n++
		}
	}
	return n
}

// favourite returns the owner that was seen on most nodes.
func (b *bid) favourite() owner {
	switch t := b.tally(); {
	case t.rivals > 0:
		return t.rival
	case t.kept > 0:
		return nextInLine
	}
	return nobody
}

// Clocks.

// judge applies the rules of terms.go to the answers of these nodes, which are q at least: the
// end of a lease that was asked for at start, and from when it may be returned.
func (b *bid) judge(of set, start boot.Instant) (expires, from boot.Instant) {
	var buf [MaxNodes]reading
	answers := buf[:0]
	for i := range b.n {
		if of.has(i) {
			answers = append(answers, b.parts[i].clock)
		}
	}
	return judge(start, b.ttl, answers, b.q, b.drift)
}

// agreeing returns the largest set of those nodes whose clocks may agree pairwise: within
// what their terms excuse and what the round trips leave uncertain. It finds the clock that
// is wrong, and names it; what a lease may rest on is for the rules of terms.go. An unknown
// clock agrees with nothing.
func (b *bid) agreeing(of set) set {
	var buf [MaxNodes]int
	order := buf[:0]
	all := true
	for i := range b.n {
		if !of.has(i) || !b.parts[i].clock.known {
			continue
		}
		for _, j := range order {
			all = all && b.agree(i, j)
		}
		order = append(order, i)
	}
	if all {
		return members(order)
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(b.mid(i), b.mid(j)) })
	var best []int
	for from := range order {
		to := from + 1
		for to < len(order) && b.agreesWithAll(order[to], order[from:to]) {
			to++
		}
		if to-from > len(best) {
			best = order[from:to]
		}
	}
	return members(best)
}

func members(order []int) set {
	var s set
	for _, i := range order {
		s.add(i)
	}
	return s
}

func (b *bid) agreesWithAll(i int, others []int) bool {
	for _, j := range others {
		if !b.agree(i, j) {
			return false
		}
	}
	return true
}

// mid is by how much node i's clock is ahead of the client's.
func (b *bid) mid(i int) time.Duration {
	mid, _ := b.parts[i].clock.offset()
	return mid
}

func (b *bid) agree(i, j int) bool {
	x, y := &b.parts[i].clock, &b.parts[j].clock
	midX, halfX := x.offset()
	midY, halfY := y.offset()
	return (midX - midY).Abs() <= min(x.excuse, y.excuse)+halfX+halfY
}

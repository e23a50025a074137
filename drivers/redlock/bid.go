package redlock

import (
	"math/bits"
	"time"

	"github.com/redlock-go/redlock/driver/boot"
)

// MaxNodes is the greatest number of nodes. More would cost requests and gain nothing: nine
// nodes survive the loss of any four.
const MaxNodes = 9

// leastTimeout is the shortest default of Options.NodeTimeout. It is long, so that this process may
// stand still for a moment: no majority waits for it.
const leastTimeout = 250 * time.Millisecond

// A bid is the whole algorithm of the quorum: one request for a lock, the resulting lease, its
// renewals and its release. It is a plain value: step takes an event and returns the actions
// for the host (lease.go). It does no I/O, starts no goroutine, takes no mutex and reads no
// clock. Its fields can be copied and compared, so that tests explore every order of events
// (explore_test.go).
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
//	write back  q nodes confirm it, each as this acquisition's, at the token or above    raised
//	late        a node that was not in the maximum confirms nothing, and counts only
//	            at the token itself, or once it was raised to it                          adopt
//	join        a node that lost the lease counts again only at exactly this token       extend
//	carriers    a renewal is confirmed by nodes that carried the lease before it          acked
//	attempt     no two requests to one node have one owner                               attempt
//	give back   a bid that was not granted gives its votes back, a lease one above it      free
//	order       a node is released behind what is under way to it, and not beside it     follow
//
// Why they suffice: after q confirmations there is a majority that this bid owned while the
// nodes' counters were at the token or above. Every later majority has one of those nodes, and
// so gets a larger token. A bid may ask for a range of tokens: then the token is the last one of
// the range, and the range as a whole is above the node's counter in each answer.
//
// Giving a vote back lowers the node's counter to what it was before the vote, if the lock is
// still this attempt's. Then no other bid owned the node since the vote, so no lease was
// confirmed there meanwhile, and this bid counts the vote for none: it asks again, or joins, only as
// another attempt. So the counter is still at the token of every lease that was confirmed there, and
// a lease that has lost the node, or got it too late, can join it. A vote above the bid's own token
// was never counted: a node counts at the token itself, or below it.
//
// Readers share the nodes that they own, and a node answers a reader for itself. They are one owner
// to a writer. What is different at a node that readers have is in the node: see .github/DESIGN.md.
type bid struct {
	q       int
	ttl     time.Duration
	timeout time.Duration
	drift   int8 // in percent
	first   int8 // the key's first node

	phase   phase
	stage   stage
	granted bool         // it was returned as a lease
	silent  bool         // another owner has the lock: its votes are released without a word to waiters
	tries   int8         // how often the owner of the first node asked the other nodes
	raising set          // the nodes to which a token was written back
	awaited set          // the outcome may depend on the answers to the calls under way to these
	stale   set          // the calls to these are of an earlier round
	suspect set          // these did not answer in an earlier round
	joined  set          // these were asked to join
	asked   set          // these were asked for the last renewal…
	acks    set          // …and have confirmed it
	seen    owner        // the owner of most nodes, then the owner of the first node
	round   int8         // the round of a split vote; zero: the first vote
	alone   int8         // the first node that was asked last
	attempt int32        // the latest number, see ask
	due     boot.Instant // when the stage ends
	start   boot.Instant // of the vote, or of the renewal
	expires boot.Instant
	fence   uint64
	voted   boot.Instant  // when the last request for votes was sent
	took    time.Duration // the round before

	parts []part // one a node
}

// part is the state of a bid at one node. At most one call to the node is under way.
type part struct {
	state state
	call  call
	said  answer // its last answer, unless it granted
	owner owner  // the owner that it named
	fence uint64
	clock reading // of the grant, or of the last renewal
}

type phase uint8

const (
	voting   phase = iota
	yielding       // the vote was split: release all nodes, then begin the next round
	holding        // it is a lease
	over           // release it on every node that still has it
)

// stage says what the caller waits for.
type stage uint8

const (
	resting   stage = iota
	electing        // the votes
	asking          // the first node's vote
	draining        // the releases after a split vote
	pausing         // until the next round
	leading         // the pause before the owner of the first node asks the others again
	lingering       // the votes of stragglers, because a second round trip is needed anyway
	raising         // the token is written back
	sitting         // the rule "return"
	quieting        // the end of all calls, before the last renewal
	renewing        // the answers to a renewal
)

// state says what a node has of the bid.
type state uint8

const (
	free    state = iota // certainly nothing
	unsure               // unknown; the node's driver cleans up
	leaving              // it granted, and is being released, or the release failed
	owned                // it granted, but is not counted
	counted              // it is one of the nodes that carry the lease
)

// call is a request to a node.
type call uint8

const (
	idle      call = iota
	acquire        // a vote
	join           // the key at exactly the lease's token
	raise          // write the token back, during the grant
	raiseLate      // write the token back to a straggler
	renew
	release
)

// answer is a node's answer.
type answer uint8

const (
	silence  answer = iota // no answer, or one that proves nothing
	granted                // granted, or done
	held                   // another owner has it
	reserved               // it is kept for the first waiter
	deferred               // refused for a while
	refused                // refused until its configuration changes
	misuse                 // the request is invalid
	gone                   // this acquisition does not have it, or has lost it
	unasked                // the request was not sent
)

// owner identifies the owner of a node, as a number that the host assigns. All attempts of a
// request are one owner.
type owner uint16

const (
	nobody      owner = iota
	ourselves         // an earlier attempt of this request
	firstWaiter       // the first waiter, whoever it is
	readers           // those who share the lock, whoever they are
	somebody          // the first number of the others
)

// event is an input of a bid.
type event struct {
	kind eventKind
	now  boot.Instant

	// Fields of an event from the caller or its host.
	until                    boot.Instant // the caller's deadline
	ttl                      time.Duration
	timeout                  time.Duration // of a node
	tripped, late            set           // nodes whose breaker is open; whose last request timed out
	ended, jumped, duplicate bool          // the caller's context ended; the machine was stopped; a node votes twice

	// Fields of an event from a node's answer.
	node   int
	answer answer
	owner  owner
	fence  uint64
	clock  reading
}

type eventKind uint8

const (
	begins   eventKind = iota // Acquire
	looks                     // the outcome of the stage is certain, or its time is over
	answered                  // a call ended
	renews                    // Renew
	releases                  // Release
)

// actions are the outputs of a bid.
type actions struct {
	calls   [MaxNodes]call // to start
	until   boot.Instant   // the end of the calls that the stage waits for, and of joins
	pause   time.Duration  // the stage ends after a random pause, of about this length at most
	wrong   set            // nodes that do not count because of their clocks
	back    set            // the releases that also give the vote back
	verdict verdict        // the caller's
}

// verdict is the outcome of a user's call.
type verdict uint8

const (
	open        verdict = iota // not yet
	won                        // granted
	extended                   // renewed
	interrupted                // the caller's context or the backend ended first
	invalid                    // misuse
	twice                      // a server votes twice
	heldBy                     // one other owner has it
	denied                     // enough nodes refuse permanently
	denyNow                    // enough nodes refuse temporarily
	apart                      // the clocks, or the delays, leave no time
	late                       // the nodes took too long
	stopped                    // the machine may have been stopped
	unwritten                  // the token could not be written back
	unproved                   // no majority, and the answers prove nothing
	lost                       // the lease is over
	lostNow                    // the lease is over, and this call found out
	overdue                    // the renewal took too long
	unconfirmed                // no majority confirmed the renewal
)

const (
	rounds    = 16 // rounds until a split vote is given up
	patience  = 3  // rounds in which a bid waits for a first node that another owner has
	leadTries = 8  // tries of the owner of the first node to get the others
)

// set is a set of nodes, by their index.
type set uint16

func (s set) has(i int) bool { return s&(1<<i) != 0 }
func (s *set) add(i int)     { *s |= 1 << i }
func (s *set) drop(i int)    { *s &^= 1 << i }
func (s set) len() int       { return bits.OnesCount16(uint16(s)) }

// step takes an event and returns actions.
func (b *bid) step(e *event) (out actions) {
	switch e.kind {
	case begins:
		b.start = e.now                   // step 1
		b.ask(electing, b.all(), e, &out) // step 2
	case looks:
		if b.certain() || e.now >= b.due || e.ended {
			b.look(e, &out)
		}
	case answered:
		b.answer(e, &out)
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
		b.silent = out.verdict == heldBy
		if b.phase == voting || b.phase == yielding {
			b.end(&out) // step 5
		}
	}
	return out
}

// await begins a stage that waits for nodes: it lasts for d, or until the caller's deadline if
// that is earlier.
func (b *bid) await(s stage, d time.Duration, e *event, out *actions) {
	b.stage, b.due = s, min(e.now.Add(d), e.until)
	out.until = b.due
}

// certain reports whether no further answer can change the outcome of the stage.
func (b *bid) certain() bool {
	switch b.stage {
	case electing:
		return b.elected()
	case asking, lingering:
		return b.awaited == 0
	case draining:
		return b.drained()
	case raising:
		return b.written()
	case quieting:
		return b.busy() == 0
	case renewing:
		return b.renewed()
	}
	return false
}

// look acts when the stage is over.
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
		// A node whose release is under way could not be asked. So unlike late votes, releases have the node timeout.
		b.awaited = 0
		if end := min(b.start.Add(b.took+b.timeout), e.until); e.now < end && !e.ended && !b.drained() {
			b.await(draining, end.Sub(e.now), e, out)
			return
		}
		b.stage = pausing
		out.pause = mostPause(b.took, b.round)
	case pausing:
		b.nextRound(e, out)
	case leading:
		b.ask(electing, b.remaining(), e, out)
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

// ask is step 2: it asks nodes for their votes, all at once. The outcome is certain at the q-th
// grant, or when no majority is possible. Each time it uses a new owner (rule "attempt"), so that
// a request that is still under way for an earlier owner, such as a late release, cannot affect
// this one. Nobody waits for a node whose last request timed out, unless the others are no majority:
// a split vote that waits holds up others.
func (b *bid) ask(s stage, of set, e *event, out *actions) {
	b.attempt++
	b.voted = e.now
	b.await(s, b.timeout, e, out)
	of &^= b.busy()
	b.awaited |= of
	if len(b.parts)-e.late.len() >= b.q {
		b.awaited &^= of & e.late
	}
	for i := range b.parts {
		if of.has(i) {
			b.parts[i].said, b.parts[i].owner = silence, nobody
			b.send(i, acquire, out)
		}
	}
}

func (b *bid) send(i int, c call, out *actions) {
	b.parts[i].call = c
	out.calls[i] = c
}

// elected reports whether the outcome of the vote is certain.
func (b *bid) elected() bool {
	agreed, pending := b.agreeing(b.in(owned)).len(), b.awaited.len()
	switch {
	case agreed >= b.q, pending == 0:
		return true
	case agreed+pending >= b.q:
		return false
	}
	// No majority is possible. Wait while a missing answer could still show another holder or a
	// refusal: without one, the bidder would bid again.
	t, enough := b.tally(), b.enough()
	open := func(n, enough int) bool { return 0 < n && n < enough && n+pending >= enough }
	return !open(b.in(owned).len(), b.q) && !open(t.most(), b.q) && !open(t.most(), enough) && !open(t.rivals, enough) && !open(t.denied(), enough)
}

// outcome is step 3, the majority. A node without an answer by now counts as failed.
func (b *bid) outcome(e *event, out *actions) {
	got := b.in(owned)
	agreed := b.agreeing(got)
	pending := b.awaited.len()
	if e.now >= b.due {
		pending = 0
	}
	if agreed.len() >= b.q {
		if e.duplicate {
			out.verdict = twice
		} else if _, same := b.alike(agreed); same || b.awaited == 0 {
			b.choose(e, out)
		} else {
			// A second round trip is needed anyway, and a node whose token is not in the maximum
			// could not carry the lease. So wait for stragglers as long as the vote took.
			b.await(lingering, min(max(e.now.Sub(b.start), time.Millisecond), b.timeout), e, out)
		}
		return
	}
	switch t := b.tally(); {
	case t.misuse > 0:
		out.verdict = invalid
	case t.most() >= b.q && b.same(&t):
		out.verdict = heldBy
	case got.len() >= b.q:
		out.wrong, out.verdict = got&^agreed, apart
	case got.len()+t.heldBy+pending >= b.q:
		b.split(e, out)
	default:
		out.verdict = b.proved(&t)
	}
}

// proved returns what the answers prove without a majority: another owner, or refusals, on so
// many nodes that no majority is left.
func (b *bid) proved(t *tally) verdict {
	switch enough := b.enough(); {
	case t.most() >= enough && b.same(t):
		return heldBy
	case t.refused >= enough:
		return denied
	case t.denied() >= enough:
		return denyNow
	}
	return unproved
}

// same reports whether the rival may be the same on all its nodes. Readers may not: each of several that
// have just released the lock may still be on a node of its own. So they count only if they are there
// in the next round as well.
func (b *bid) same(t *tally) bool { return t.rival != readers || b.round > 0 }

// choose is the rule "maximum". Usually q nodes answer the same token, because all got the same
// proposal: then these count, and no write-back is needed. Otherwise the token is the largest
// of the agreeing nodes' tokens, and it is written back to the nodes with a smaller one.
func (b *bid) choose(e *event, out *actions) {
	got := b.in(owned)
	agreed := b.agreeing(got)
	out.wrong = got &^ agreed
	token, same := b.alike(agreed)
	b.fence, b.raising = token, 0
	for i := range b.parts {
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
	b.await(raising, b.timeout, e, out)
	b.awaited |= b.raising
	for i := range b.parts {
		if b.raising.has(i) {
			b.send(i, raise, out)
		}
	}
}

// alike returns the token that q of these nodes answered; if there is none, their largest token
// and false.
func (b *bid) alike(agreed set) (token uint64, same bool) {
	for i := range b.parts {
		if !agreed.has(i) {
			continue
		}
		fence := b.parts[i].fence
		if alike := agreed & b.which(func(g *part) bool { return g.fence == fence }); alike.len() >= b.q {
			return fence, true
		}
		token = max(token, fence)
	}
	return token, false
}

// written reports whether the outcome of the write-back is certain.
func (b *bid) written() bool {
	n := b.in(counted).len()
	pending := (b.raising & b.awaited).len()
	return n >= b.q || n+pending < b.q
}

// extent is step 4: it decides when the lease ends, and the earliest time to return it. That time
// is in the future only if the delays to the nodes, or their clocks, differ by more than is excused.
func (b *bid) extent(e *event, out *actions) {
	expires, from := b.judge(b.in(counted), b.start)
	b.expires = expires
	switch {
	case from <= e.now:
		b.grant(e, out)
	case from >= expires:
		out.verdict = apart
	default:
		b.stage, b.due = sitting, from
	}
}

// grant is the second half of step 3, and the last action: is the lease still valid?
func (b *bid) grant(e *event, out *actions) {
	switch {
	case e.now >= b.expires:
		out.verdict = late
	case e.jumped:
		out.verdict = stopped
	default:
		b.phase, b.granted, out.verdict = holding, true, won
		b.followAll(out)
	}
}

// A split vote: several contenders got some nodes, and none a majority. If all tried again at
// once they would split the vote again (ten contenders on five nodes do so in nine rounds of
// ten). So each releases its nodes, waits for a random pause, and then asks a single node
// first, which the key determines. The contender that gets it has only newcomers as rivals, and
// asks the other nodes. The other contenders soon learn who the holder is.

// split begins this procedure. If the owner of the first node met newcomers, it asks the other
// nodes again: newcomers release their nodes unless they got a majority.
func (b *bid) split(e *event, out *actions) {
	if b.tries > 0 && b.tries < leadTries {
		b.tries++
		b.stage = leading
		out.pause = mostPause(e.now.Sub(b.voted)/2, 1)
		return
	}
	if b.round == 0 {
		b.seen = b.favourite()
	}
	b.yield(e, out)
}

// yield releases the nodes that a split vote got.
func (b *bid) yield(e *event, out *actions) {
	if b.round == rounds {
		t := b.tally()
		out.verdict = b.proved(&t)
		return
	}
	b.phase, b.took = yielding, e.now.Sub(b.start)
	wait := b.timeout
	if b.seen == readers { // they usually refuse the next round, too, whatever a late node says
		wait = min(max(4*b.took, 2*time.Millisecond), wait)
	}
	b.await(draining, wait, e, out)
	b.followAll(out)
}

// mostPause bounds a random pause: longer in each round. took is the length of the last round,
// which depends on the network and the number of contenders.
func mostPause(took time.Duration, round int8) time.Duration {
	return min(max(took, 100*time.Microsecond), 50*time.Millisecond) * time.Duration(min(max(round, 1), 8))
}

// drained reports whether every node that answers has released a split vote.
func (b *bid) drained() bool {
	return (b.with(release)|b.awaited)&^(b.suspect|b.stale) == 0
}

// nextRound bids again. Nodes that have not answered count as suspect for the rest of this request.
func (b *bid) nextRound(e *event, out *actions) {
	b.round++
	b.phase, b.tries = voting, 0
	b.start = e.now
	busy := b.busy()
	b.suspect |= busy | b.every()&^b.in(free)
	b.stale, b.awaited = busy, 0
	for i := range b.parts {
		b.parts[i].said, b.parts[i].owner = silence, nobody
	}
	b.askFirst(e, out)
}

// askFirst asks only the key's first node, or the next one if that does not answer.
func (b *bid) askFirst(e *event, out *actions) {
	able := b.every() &^ (b.suspect | e.tripped) // suspect has all that are busy
	for k := range b.parts {
		if i := (int(b.first) + k) % len(b.parts); able.has(i) {
			b.alone = int8(i)
			b.ask(asking, 1<<i, e, out)
			return
		}
	}
	b.ask(electing, b.remaining(), e, out)
}

// firstVote handles the first node's answer. A bid that did not get it does not ask the other
// nodes, unless the first node's owner is the one seen last time, which may have a majority by
// now.
func (b *bid) firstVote(e *event, out *actions) {
	g := &b.parts[b.alone]
	switch {
	case g.state == owned:
		b.tries = 1
		b.ask(electing, b.remaining(), e, out)
	case g.owner == nobody:
		b.suspect.add(int(b.alone))
		b.askFirst(e, out)
	case g.owner == b.seen, b.round > patience:
		b.ask(electing, b.remaining(), e, out)
	default:
		b.seen = g.owner
		b.yield(e, out)
	}
}

// Answers.

// answer records the result of a call to a node, and acts on it.
func (b *bid) answer(e *event, out *actions) {
	g := &b.parts[e.node]
	c := g.call
	g.call = idle
	b.awaited.drop(e.node)
	switch c {
	case acquire, join:
		b.vote(g, e)
	case raise:
		b.raised(g, e)
	case raiseLate:
		if e.answer != granted {
			b.free(e.node, out)
			return
		}
		g.state = counted
	case renew:
		switch e.answer {
		case granted:
			g.clock = e.clock
			b.acks |= b.asked & (1 << e.node)
		case gone:
			g.state = free // the next renewal asks it to join
		}
	case release: // a lock that it could not free ends with its TTL
		b.stale.drop(e.node)
		if e.answer == granted {
			g.state = free
		}
		return
	}
	b.follow(e.node, out)
}

// vote records a node's vote.
func (b *bid) vote(g *part, e *event) {
	if !b.stale.has(e.node) {
		g.said, g.owner = e.answer, e.owner
	}
	switch e.answer {
	case granted:
		g.state, g.fence, g.clock = owned, e.fence, e.clock
	case unasked:
	case held, reserved:
		switch {
		case g.state == leaving && e.owner != ourselves: // the earlier attempt has lost it
			g.state = free
		case g.state == free && e.owner == ourselves: // an earlier attempt has it
			g.state = unsure
		}
	case silence, gone:
		if g.state != leaving { // what a failed release has left is released again
			g.state = unsure
		}
	}
}

// raised is the rule "write back": the node confirms only if this acquisition still owns it.
func (b *bid) raised(g *part, e *event) {
	switch e.answer {
	case granted:
		g.state = counted
		g.clock = g.clock.and(e.clock) // the node keeps the key from now on; it was free before
	case gone:
		g.state = free
	}
}

// follow acts on a node without a call under way: the lease adopts a straggler, or it is
// released if there is no lease (rule "order").
func (b *bid) follow(i int, out *actions) {
	switch g := &b.parts[i]; {
	case g.call != idle:
		return
	case g.state < leaving:
	case b.phase == over, b.phase == yielding, b.stale.has(i):
		b.free(i, out)
		return
	case b.phase == holding && g.state == owned:
		b.adopt(i, out)
		return
	}
	b.stale.drop(i)
}

func (b *bid) followAll(out *actions) {
	for i := range b.parts {
		b.follow(i, out)
	}
}

// adopt adds a node that has granted to the counted ones if that is sound, and releases it
// otherwise. A node at the token itself counts at once, and a node below the token after it was
// raised to it (rule "late"). A node above the token must not count: later majorities could not
// observe this token there. A node that joined must have exactly the token of the request (rule
// "join").
func (b *bid) adopt(i int, out *actions) {
	g := &b.parts[i]
	switch {
	case !b.agreeing(b.in(counted) | 1<<i).has(i):
		out.wrong.add(i)
	case g.fence == b.fence:
		g.state = counted
		return
	case g.fence < b.fence && !b.joined.has(i):
		b.send(i, raiseLate, out)
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
	case e.ttl == 0 && b.busy() != 0:
		b.await(quieting, b.timeout, e, out) // no node may keep a late grant for longer
	default:
		if e.ttl > 0 {
			b.timeout = e.timeout
		}
		b.extend(e.ttl, e, out)
	}
}

// extend asks the counted nodes to renew. It asks the other nodes to join at exactly the
// lease's token, unless the holder has finished: they count from the next renewal on. No
// renewal takes the lock again.
func (b *bid) extend(ttl time.Duration, e *event, out *actions) {
	b.start, b.ttl = e.now, ttl
	b.await(renewing, b.timeout, e, out)
	b.asked, b.acks = 0, 0
	joins := false
	for i := range b.parts {
		g := &b.parts[i]
		switch {
		case g.call != idle:
		case g.state == counted:
			b.asked.add(i)
			b.awaited.add(i)
			b.send(i, renew, out)
		case g.state == leaving: // its release failed: try again
			b.free(i, out)
		case ttl > 0:
			g.said, g.owner, joins = silence, nobody, true
			b.joined.add(i)
			b.send(i, join, out)
		}
	}
	if joins {
		b.attempt++
	}
}

// acked returns the nodes that confirmed the renewal under way (rule "carriers"), without nodes
// that joined in it.
func (b *bid) acked() set {
	return b.agreeing(b.in(counted) & b.acks)
}

// renewed reports whether the outcome of the renewal is certain.
func (b *bid) renewed() bool {
	acks := b.acked().len()
	pending := (b.with(renew) & b.awaited).len()
	return b.phase != holding || acks >= b.q || acks+pending < b.q
}

// confirm evaluates the answers to a renewal.
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
		b.phase = over // Release frees the rest; until then the old deadline counts
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

// end ends the bid: it releases every node, each after the call under way to it (step 5).
func (b *bid) end(out *actions) {
	b.phase = over
	b.followAll(out)
}

// free releases one node, and gives a vote back that was never counted (rule "give back").
func (b *bid) free(i int, out *actions) {
	b.parts[i].state = leaving
	if !b.granted || b.parts[i].fence > b.fence {
		out.back.add(i)
	}
	b.send(i, release, out)
}

// cleared counts the nodes that certainly have nothing of this bid and will get nothing more.
// certain says that further answers cannot change the outcome of the release.
func (b *bid) cleared() (n int, certain bool) {
	busy := b.busy()
	n = (b.in(free) &^ busy).len()
	return n, n >= b.q || n+busy.len() < b.q
}

// Sets of nodes.

// which returns the nodes of which this is true.
func (b *bid) which(is func(*part) bool) set {
	var s set
	for i := range b.parts {
		if is(&b.parts[i]) {
			s.add(i)
		}
	}
	return s
}

// in returns the nodes in a state.
func (b *bid) in(st state) set {
	return b.which(func(g *part) bool { return g.state == st })
}

// with returns the nodes with such a call under way, and busy those with any.
func (b *bid) with(c call) set { return b.which(func(g *part) bool { return g.call == c }) }
func (b *bid) busy() set       { return b.every() &^ b.with(idle) }

func (b *bid) every() set { return 1<<len(b.parts) - 1 }

// all returns the nodes to ask: all nodes, without those that did not answer in an earlier
// round if the others are a majority.
func (b *bid) all() set {
	if live := b.every() &^ b.suspect; live.len() >= b.q {
		return live
	}
	return b.every()
}

// remaining returns the nodes among those to ask that have not granted.
func (b *bid) remaining() set { return b.all() &^ b.in(owned) }

// enough is the number of nodes with which another owner leaves no majority.
func (b *bid) enough() int { return len(b.parts) - b.q + 1 }

// tally sums up the answers of the nodes that did not grant.
type tally struct {
	heldBy   int   // nodes that another owner has, or that are kept for a waiter
	rivals   int   // how many of them the rival has
	rival    owner // the owner with the most nodes
	kept     int   // how many of them are kept for their first waiter
	deferred int   // nodes that refuse for a while
	refused  int   // nodes that refuse permanently
	misuse   int
}

// most counts the rival's nodes and the nodes kept for a waiter, because that waiter usually
// has most of the others, or will get them.
func (t *tally) most() int   { return t.rivals + t.kept }
func (t *tally) denied() int { return t.refused + t.deferred }

// silent reports whether a node does not count in the tally: it has not answered, or it granted.
func (g *part) silent() bool { return g.call != idle || g.state >= leaving }

// tally counts the answers. A node with an earlier attempt of this request, whose release is
// still under way, does not count as a rival's.
func (b *bid) tally() tally {
	var t tally
	for i := range b.parts {
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
	return b.which(func(g *part) bool { return !g.silent() && g.said == held && g.owner == o }).len()
}

// favourite returns the owner that was seen on most nodes.
func (b *bid) favourite() owner {
	switch t := b.tally(); {
	case t.rivals > 0:
		return t.rival
	case t.kept > 0:
		return firstWaiter
	}
	return nobody
}

// Clocks.

// judge applies the rules of terms.go to the answers of these nodes, at least q: it returns the
// end of a lease that was requested at start, and from when it may be returned.
func (b *bid) judge(of set, start boot.Instant) (expires, from boot.Instant) {
	var buf [MaxNodes]reading
	answers := buf[:0]
	for i := range b.parts {
		if of.has(i) {
			answers = append(answers, b.parts[i].clock)
		}
	}
	return judge(start, b.ttl, answers, b.q, int(b.drift))
}

// agreeing returns the largest set of those nodes whose clocks agree with that of one of them. It
// only finds and names a wrong clock; the rules of terms.go decide about a lease.
func (b *bid) agreeing(of set) (best set) {
	for i := range b.parts {
		if near := of & b.which(func(g *part) bool { return of.has(i) && b.parts[i].agrees(g) }); near.len() > best.len() {
			best = near
		}
		if best == of {
			break
		}
	}
	return best
}

// agrees reports whether two clocks may agree, given the difference that their terms excuse and
// the uncertainty of the round trips. An unknown clock agrees with no other.
func (g *part) agrees(o *part) bool {
	mid, half := g.clock.offset()
	midO, halfO := o.clock.offset()
	return g.clock.known && o.clock.known && (mid-midO).Abs() <= min(g.clock.excuse, o.clock.excuse)+half+halfO
}

// mid returns how far node i's clock is ahead of the client's.
func (b *bid) mid(i int) time.Duration {
	mid, _ := b.parts[i].clock.offset()
	return mid
}

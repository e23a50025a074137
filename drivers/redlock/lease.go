package redlock

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/boot"
)

// lease is one bid for a lock, from the first request to the last release: a leg for
// each node, and what they add up to.
type lease struct {
	b       *Backend
	ctx     context.Context // the caller's values without its end
	caller  context.Context // for tests alone: see releaseOnCaller
	req     driver.Request
	ttl     time.Duration
	timeout time.Duration

	renewing sync.Mutex // one renewal at a time

	mu        sync.Mutex
	phase     phase
	requests  []nodeRequest
	waiters   []*waiter
	attempts  int // used up
	start     boot.Instant
	jumps     int64 // of the client's clock, at start
	expires   boot.Instant
	fence     uint64
	confirmed uint64 // the nodes' time when the last renewal began that succeeded; 0: none did
	raising   set    // nodes to which the token is written back
	raised    bool   // it took the second trip
	renewal   int    // the number of the renewal that is under way
	freed     bool   // a majority confirmed the release
}

type phase uint8

const (
	voting  phase = iota
	holding       // it is a lease
	over          // whatever a node still has of it is released
)

// leg is the lease's part on one node. While it is busy one worker has a call under
// way, and does what follows from it before anything else happens on this leg: so a
// release is always ordered behind its own acquire.
type nodeRequest struct {
	l      *lease
	n      *node
	req    driver.Request // of the call that is under way
	quorum driver.Quorum  // of the first
	round  *round         // its time
	busy   bool
	wait   bool // somebody counts on its answer
	state  state
	lease  driver.Lease
	fence  uint64
	clock  reading // of the grant, or of the last renewal
	ack    int     // the renewal that it confirmed, or joined in
	join   bool
	held   *driver.HeldError
	vote   driver.Vote

	suspect bool // did not answer in an earlier round of this request
}

type state uint8

const (
	free    state = iota // it has nothing of ours, for certain
	unsure               // it may have; the node's driver sees to that
	owned                // granted, but not counted: nothing depends on it
	counted              // among the nodes that carry the lease
)

// awaited reports whether the outcome may depend on an answer that is under way.
func (g *nodeRequest) awaited() bool { return g.busy && g.wait }

// wave bounds the requests that were sent together.
type round struct {
	ctx     context.Context
	cancel  context.CancelFunc
	began   time.Time
	end     time.Time
	ttl     time.Duration
	keep    time.Duration // of a renewal
	renewal int           // the number of the renewal, if it is one
	full    time.Duration // the node timeout, even where ctx ends before
	left    int           // guarded by the lease's mu
}

// waiter is a caller that waits for something to be certain.
type waiter struct {
	done func(*lease) bool
	wake chan struct{}
}

// newLease begins a bid. before is the bid of the same request that failed, if there
// was one: attempts are numbered on, and nodes that were away stay so.
func (b *Backend) newLease(ctx context.Context, req *driver.Request, before *lease) *lease {
	l := &lease{
		b:        b,
		ctx:      context.WithoutCancel(ctx),
		req:      *req,
		ttl:      req.TTL,
		timeout:  b.timeout(req.TTL),
		requests: make([]nodeRequest, len(b.nodes)),
		start:    b.clock.Now(),
		jumps:    b.clock.Jumps(),
	}
	if b.without(releaseOnCaller) {
		l.caller = ctx
	}
	l.expires = l.start.Add(validity(l.ttl, b.opts.DriftPercent)) // at most
	l.req.Wait = false
	l.req.FenceFloor = max(b.floor(l.start), req.FenceFloor)
	since := b.since(req.Key)
	for i := range l.requests {
		g := &l.requests[i]
		g.l, g.n, g.req, g.vote.Node = l, b.nodes[i], l.req, b.nodes[i].name
		g.quorum = b.quorum(g.n, l.start)
		g.quorum.WaitingSince = since
		g.req.Quorum = &g.quorum
		if before != nil {
			g.suspect = before.away(i)
		}
	}
	if before != nil {
		l.attempts = before.attempts
	}
	return l
}

// quorum is what one node is told of the quorum.
func (b *Backend) quorum(n *node, now boot.Instant) driver.Quorum {
	q := driver.Quorum{Terms: b.terms, OtherClocks: n.others}
	if b.opts.Guard > 0 {
		if t, _ := n.proposal(now); t != b.terms {
			theirs := t
			q.Remembered = &theirs
		}
	}
	return q
}

// away reports whether node i left the bid without an answer.
func (l *lease) away(i int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := &l.requests[i]
	return g.suspect || g.busy || g.state == unsure
}

// attempt returns an owner that was never used: whatever is still under way for an
// earlier one, a late release above all, cannot touch what this one gets.
func (l *lease) attempt() string {
	if !l.b.without(oneAttempt) || l.attempts == 0 {
		l.attempts++
	}
	return l.req.Owner + "/" + strconv.FormatInt(int64(l.attempts), 36)
}

// in returns the nodes in a state.
func (l *lease) in(st state) set {
	var s set
	for i := range l.requests {
		if l.requests[i].state == st {
			s.add(i)
		}
	}
	return s
}

// wave returns a new wave: the node timeout from now, or until ctx's deadline, but not
// until ctx is cancelled. A request whose answer nobody waits for any longer is not
// broken off; what it brings is released.
func (l *lease) round(ctx context.Context) *round {
	now := time.Now()
	end := now.Add(l.timeout)
	if d, ok := ctx.Deadline(); ok && d.Before(end) {
		end = d
	}
	w := &round{began: now, end: end, ttl: l.ttl, full: l.timeout}
	w.ctx, w.cancel = context.WithDeadline(l.ctx, end)
	return w
}

// spent ends a wave of which nothing is under way, once all of it was sent.
func (w *round) spent() {
	if w.left == 0 {
		w.cancel()
	}
}

// send starts a call on a leg that is not busy. wait says that its answer is counted
// on. l.mu is held.
func (l *lease) send(w *round, g *nodeRequest, do func(*nodeRequest), wait bool) {
	g.busy, g.wait, g.round = true, wait, w
	w.left++
	err := g.n.start(task{g, do})
	if err == nil {
		return
	}
	g.vote, g.held = driver.Vote{Node: g.n.name, Err: err}, nil
	l.done(g) // and not finish: the wave may be for others, to which it has yet to be sent
}

// finish ends the call on a leg. l.mu is held.
func (l *lease) finish(g *nodeRequest) { l.done(g).spent() }

// done is finish without the end of the wave.
func (l *lease) done(g *nodeRequest) *round {
	w := g.round
	g.busy, g.wait, g.round = false, false, nil
	w.left--
	l.signal()
	return w
}

func (l *lease) signal() {
	for _, w := range l.waiters {
		if w.done(l) {
			select {
			case w.wake <- struct{}{}:
			default:
			}
		}
	}
}

// await waits until done, the wave's end, ctx's, or the backend's. l.mu is held, but for
// the waiting.
func (l *lease) await(ctx context.Context, w *round, done func(*lease) bool) error {
	w.spent()
	if done(l) {
		return nil
	}
	me := l.enlist(done)
	l.mu.Unlock()
	var err error
	select {
	case <-me.wake:
	case <-w.ctx.Done():
	case <-ctx.Done():
		err = ctx.Err()
	case <-l.b.closed:
		err = driver.ErrClosed
	}
	l.mu.Lock()
	l.discharge(me)
	if err != nil && done(l) {
		return nil
	}
	return err
}

// wait is await for what nothing but time may interrupt.
func (l *lease) wait(most time.Duration, done func(*lease) bool) {
	if done(l) {
		return
	}
	me := l.enlist(done)
	l.mu.Unlock()
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-me.wake:
	case <-t.C:
	}
	l.mu.Lock()
	l.discharge(me)
}

func (l *lease) enlist(done func(*lease) bool) *waiter {
	me := &waiter{done: done, wake: make(chan struct{}, 1)}
	l.waiters = append(l.waiters, me)
	return me
}

func (l *lease) discharge(me *waiter) {
	l.waiters = slices.DeleteFunc(l.waiters, func(w *waiter) bool { return w == me })
}

// acquire is a worker's: it asks the node for its vote.
func (g *nodeRequest) acquire() {
	l := g.l
	ok, probe := g.n.admit()
	if !ok && !l.b.enough() {
		ok = true // without the skipped ones there is no majority
	}
	if !ok {
		l.mu.Lock()
		defer l.mu.Unlock()
		g.vote, g.held = driver.Vote{Node: g.n.name, Err: errSkipped}, nil
		l.finish(g)
		return
	}
	if probe {
		l.mu.Lock()
		g.wait = false
		l.signal()
		l.mu.Unlock()
	}
	if err := g.round.ctx.Err(); err != nil { // it stood in the queue for too long
		l.mu.Lock()
		defer l.mu.Unlock()
		g.vote, g.held = driver.Vote{Node: g.n.name, Err: err}, nil
		l.finish(g)
		return
	}
	began, sent := time.Now(), l.b.clock.Now()
	lease, err := g.n.backend.Acquire(g.round.ctx, &g.req)
	received := l.b.clock.Now()
	var grant driver.Grant
	var held *driver.HeldError
	if err == nil {
		grant = lease.Grant()
	} else {
		grant.Clock, grant.Server, held = told(err)
	}
	g.n.report(g.timedOut(err, began.Sub(g.round.began)+received.Sub(sent)))
	g.n.identify(grant.Server)
	clock := l.b.read(grant.Clock, grant.Terms, sent, received)
	g.n.learn(clock, grant.Terms)

	l.mu.Lock()
	defer l.mu.Unlock()
	g.vote = driver.Vote{Node: g.n.name, Granted: err == nil, Latency: received.Sub(sent), Err: err}
	g.held = held
	switch {
	case err == nil:
		g.state, g.lease, g.fence, g.clock = owned, lease, grant.Fence, clock
	case definite(err):
		g.state = free
	default:
		g.state = unsure
	}
	if l.phase == over && l.b.without(releaseEarly) {
		l.finish(g)
		return
	}
	l.proceed(g)
}

// told returns what an answer that is no grant says of its node.
func told(err error) (clock time.Time, server string, held *driver.HeldError) {
	var refused *driver.RefusedError
	switch {
	case errors.As(err, &held):
		return held.Clock, held.Server, held
	case errors.As(err, &refused):
		return refused.Clock, refused.Server, nil
	}
	return time.Time{}, "", nil
}

// definite reports whether an error of Acquire says that the node has nothing of ours.
func definite(err error) bool {
	return errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrRefused) || errors.Is(err, driver.ErrInvalid)
}

// timedOut reports whether a request took the node's whole time and brought no answer.
func (g *nodeRequest) timedOut(err error, took time.Duration) bool {
	full := g.round.full
	return err != nil && !definite(err) && !errors.Is(err, driver.ErrLost) && took >= full-full/8
}

// proceed does what follows from the answer on a leg, and ends the call: a straggler
// is adopted by the lease, or released if there is none. l.mu is held, but for the
// requests.
func (l *lease) proceed(g *nodeRequest) {
	if l.phase == holding && g.state == owned {
		l.adopt(g)
	}
	if l.phase == over && g.state >= owned {
		l.release(g)
	}
	l.finish(g)
}

// adopt is a worker's: see lease.adopt.
func (g *nodeRequest) adopt() {
	g.l.mu.Lock()
	defer g.l.mu.Unlock()
	g.l.proceed(g)
}

// adopt lets a node that has granted enter the counted ones, where that is sound; it
// is released otherwise. A node at the token itself counts at once, one under it
// once it is raised. One above it must not: its counter would let nobody
// later see that this lease's token was there. And one that joined must be at
// exactly the token that was asked for.
func (l *lease) adopt(g *nodeRequest) {
	with := l.in(counted)
	with.add(g.n.index)
	switch agreed := l.agreeing(with); {
	case !agreed.has(g.n.index):
		l.blame(with, agreed)
	case g.fence == l.fence, g.join && l.b.without(extendOwn):
		g.state = counted
		if g.join {
			l.b.count.heals.Add(1)
		}
		if g.join && l.b.without(extendOwn) {
			g.ack = g.round.renewal
		}
		return
	case g.fence < l.fence && !g.join:
		ttl, timeout := l.ttl, l.timeout
		l.mu.Unlock()
		ctx, cancel := context.WithTimeout(l.ctx, timeout)
		_, err := g.renew(ctx, &driver.Renewal{TTL: ttl, MinFence: l.fence})
		cancel()
		l.mu.Lock()
		if err == nil {
			g.state = counted
			return
		}
	}
	l.release(g)
}

// writeBack is a worker's: it raises the node to the token, during the grant.
func (g *nodeRequest) writeBack() {
	l := g.l
	clock, err := g.renew(g.round.ctx, &driver.Renewal{TTL: g.round.ttl, MinFence: l.fence})
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		g.clock = g.clock.and(clock) // the key is kept from here, and was free there
	}
	switch {
	case err == nil, errors.Is(err, driver.ErrLost) && l.b.without(ackUnowned):
		g.state = counted
	case errors.Is(err, driver.ErrLost):
		g.state, g.vote.Granted, g.vote.Err = free, false, err
	default:
		g.vote.Err = err
	}
	l.proceed(g)
}

// renew renews the node's lease.
func (g *nodeRequest) renew(ctx context.Context, r *driver.Renewal) (reading, error) {
	c := g.l.b.clock
	sent := c.Now()
	grant, err := g.lease.Renew(ctx, r)
	received := c.Now()
	g.n.report(g.timedOut(err, received.Sub(sent)))
	g.n.identify(grant.Server)
	clock := g.l.b.read(grant.Clock, grant.Terms, sent, received)
	g.n.learn(clock, grant.Terms)
	g.l.mu.Lock()
	defer g.l.mu.Unlock()
	g.vote.Latency = received.Sub(sent)
	return clock, err
}

// Grant returns the lease as of the last success.
func (l *lease) Grant() driver.Grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.grant()
}

func (l *lease) grant() driver.Grant {
	return driver.Grant{Expires: l.b.clock.Time(l.expires), Fence: l.fence, Clock: l.clock(), Votes: l.votes()}
}

// clock is the median of the counted nodes' clocks, now.
func (l *lease) clock() time.Time {
	var buf [MaxNodes]time.Duration
	mids := buf[:0]
	for i := range l.requests {
		if g := &l.requests[i]; g.state == counted && g.clock.known {
			mids = append(mids, l.mid(i))
		}
	}
	if len(mids) == 0 {
		return time.Time{}
	}
	slices.Sort(mids)
	return time.Unix(0, int64(mids[(len(mids)-1)/2]+time.Duration(l.b.clock.Now())))
}

// judge applies the rules of terms.go to the answers of these nodes, which are q at least:
// the end of a lease that was asked for at start, and from when it may be returned.
func (l *lease) judge(of set, start boot.Instant) (expires, from boot.Instant) {
	var buf [MaxNodes]reading
	answers := buf[:0]
	for i := range l.requests {
		if of.has(i) {
			answers = append(answers, l.requests[i].clock)
		}
	}
	expires, from = judge(start, l.ttl, answers, l.b.q, l.b.opts.DriftPercent)
	if l.b.without(noClockCheck) {
		return start.Add(validity(l.ttl, l.b.opts.DriftPercent)), start
	}
	return expires, from
}

// apart says by how much the clocks of these nodes differ, as seen through their links.
func (l *lease) apart(of set) time.Duration {
	var most time.Duration
	for i := range l.requests {
		for j := range i {
			if of.has(i) && of.has(j) {
				most = max(most, (l.mid(i) - l.mid(j)).Abs())
			}
		}
	}
	return most.Round(time.Millisecond)
}

// Renew extends the lease on the nodes that carry it; a majority of all nodes has to
// confirm that it is this acquisition's still. Nodes that do not carry it, since they
// were away or came back without it, are asked to join, at this lease's token: they
// count from the next renewal on. No renewal takes the lock again.
func (l *lease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	if err := l.b.info.CheckRenewal(r); err != nil {
		return driver.Grant{}, err
	}
	if r.MinFence != 0 {
		return driver.Grant{}, driver.Invalid("MinFence", "is for nodes, and this is a quorum")
	}
	if err := l.b.begin(ctx); err != nil {
		return driver.Grant{}, err
	}
	defer l.b.calls.Done()
	l.renewing.Lock() // the other renewal is bounded by the nodes' timeout
	defer l.renewing.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.phase != holding {
		return driver.Grant{}, driver.ErrLost
	}
	if r.TTL == 0 {
		l.wait(l.timeout, (*lease).idle) // no node is to keep what it granted late for longer
	}
	start := l.b.clock.Now()
	l.extend(r.TTL)
	err := l.await(ctx, l.sendRenewal(ctx, r.Keep), (*lease).renewed)
	return l.renewalOutcome(ctx, err, start)
}

// extend sets what the requests of a renewal say.
func (l *lease) extend(ttl time.Duration) {
	l.renewal++
	l.ttl = ttl
	if ttl > 0 {
		l.timeout = l.b.timeout(ttl)
	}
}

// sendRenewal asks the counted nodes to renew and the others to join, unless the holder
// is done.
func (l *lease) sendRenewal(ctx context.Context, keep time.Duration) *round {
	w := l.round(ctx)
	w.renewal, w.keep = l.renewal, keep
	attempt := ""
	for i := range l.requests {
		g := &l.requests[i]
		switch {
		case g.busy:
		case g.state == counted:
			l.send(w, g, (*nodeRequest).extend, true)
		case g.state == owned: // a release that failed: once more
			l.send(w, g, (*nodeRequest).drop, false)
		case l.ttl == 0:
		default:
			if attempt == "" {
				attempt = l.attempt()
			}
			g.join, g.held = true, nil
			q := l.b.quorum(g.n, l.b.clock.Now()) // a straggler may still read the first
			g.req.Owner, g.req.TTL, g.req.ExactFence, g.req.FenceFloor, g.req.Quorum = attempt, l.ttl, l.fence, l.confirmed, &q
			if l.b.without(extendOwn) {
				g.req.ExactFence = 0
			}
			l.send(w, g, (*nodeRequest).acquire, l.b.without(extendOwn))
		}
	}
	return w
}

// extend is a worker's: it renews one counted node.
func (g *nodeRequest) extend() {
	l := g.l
	w := g.round
	var clock reading
	err := w.ctx.Err()
	if err == nil {
		clock, err = g.renew(w.ctx, &driver.Renewal{TTL: w.ttl, Keep: w.keep, MinFence: l.fence})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	g.vote.Granted, g.vote.Err = err == nil, err
	switch {
	case err == nil:
		g.ack, g.clock = w.renewal, clock
	case errors.Is(err, driver.ErrLost):
		g.state = free // the next renewal asks it to join
	}
	l.proceed(g)
}

// acked returns the nodes that confirmed the renewal that is under way. A node
// that joined in it is none of them: an extension counts only nodes that carried the
// lease before.
func (l *lease) acked() set {
	var s set
	for i := range l.requests {
		if g := &l.requests[i]; g.state == counted && g.ack == l.renewal {
			s.add(i)
		}
	}
	return l.agreeing(s)
}

// renewed reports whether the outcome of the renewal is certain.
func (l *lease) renewed() bool {
	acks, pending := l.acked().len(), 0
	for i := range l.requests {
		if l.requests[i].awaited() {
			pending++
		}
	}
	return l.phase != holding || acks >= l.b.q || acks+pending < l.b.q
}

// renewalOutcome reads the answers to a renewal that began at start; err is why the
// waiting for them ended early.
func (l *lease) renewalOutcome(ctx context.Context, err error, start boot.Instant) (driver.Grant, error) {
	acks := l.acked()
	now, expires := l.b.clock.Fresh(), start
	if acks.len() >= l.b.q {
		expires, _ = l.judge(acks, start)
		if l.b.without(renewFromReply) {
			expires = now.Add(expires.Sub(start))
		}
	}
	switch {
	case l.phase != holding:
		return driver.Grant{}, driver.ErrLost
	case acks.len() >= l.b.q && (l.ttl == 0 || now < expires || l.b.without(noValidity)):
		l.expires, l.confirmed = expires, l.b.floor(start)
		l.b.count.renewals.Add(1)
		return l.grant(), nil
	case l.in(counted).len() < l.b.q:
		l.phase = over // what is left is Release's: until this returns, the deadline counts
		l.b.count.losses.Add(1)
		return driver.Grant{}, l.verdict(driver.ErrLost)
	case err != nil:
		return driver.Grant{}, err
	case ended(ctx) != nil:
		return driver.Grant{}, ended(ctx)
	case acks.len() >= l.b.q:
		return driver.Grant{}, l.unknown("the renewal took %v, and the nodes' clocks are %v apart: too much for a TTL of %v", now.Sub(start).Round(time.Microsecond), l.apart(acks), l.ttl)
	}
	return driver.Grant{}, l.unknown("a majority did not confirm the renewal")
}

// Release frees the lock on every node, and returns when a majority has confirmed that
// it is free of this lease; the others go on in the background. It is bounded by four
// node timeouts, and does not depend on ctx.
func (l *lease) Release(ctx context.Context) error {
	if l.isFreed() {
		return nil
	}
	if err := l.b.begin(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	defer l.b.calls.Done()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end()
	l.wait(releaseTries*l.timeout, (*lease).released)
	if n := l.clear(); n < l.b.q {
		l.b.count.failures.Add(1)
		return l.unknown("%d of %d nodes confirmed the release, %d needed", n, len(l.requests), l.b.q)
	}
	l.freed = true
	return nil
}

func (l *lease) isFreed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.freed
}

// released reports whether the outcome of the release is certain.
func (l *lease) released() bool {
	n, pending := l.clear(), 0
	for i := range l.requests {
		if l.requests[i].busy {
			pending++
		}
	}
	return n >= l.b.q || n+pending < l.b.q
}

// clear counts the nodes that have nothing of this bid, and get nothing.
func (l *lease) clear() int {
	n := 0
	for i := range l.requests {
		if g := &l.requests[i]; g.state == free && !g.busy {
			n++
		}
	}
	return n
}

// abandon gives the bid up: every node is released, in the background, each behind what
// is under way to it.
func (l *lease) abandon() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end()
}

// end makes the lease one that is over. l.mu is held.
func (l *lease) end() {
	l.phase = over
	var w *round
	for i := range l.requests {
		g := &l.requests[i]
		if g.busy || g.state < owned {
			continue // who is busy with it sees that it is over
		}
		if w == nil {
			w = l.round(l.ctx)
		}
		l.send(w, g, (*nodeRequest).drop, false)
	}
	if w != nil {
		w.spent()
	}
	l.signal()
}

// drain waits until a bid that was given up is off every node that answers.
func (l *lease) drain(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.round(l.ctx)
	defer w.cancel()
	w.left++                              // this call's
	_ = l.await(ctx, w, (*lease).drained) // what is left is the next round's rival
}

func (l *lease) drained() bool {
	for i := range l.requests {
		if g := &l.requests[i]; g.busy && !g.suspect {
			return false
		}
	}
	return true
}

// drop is a worker's: it releases one node.
func (g *nodeRequest) drop() {
	g.l.mu.Lock()
	defer g.l.mu.Unlock()
	if g.state >= owned {
		g.l.release(g)
	}
	g.l.finish(g)
}

const releaseTries = 4

// release frees a node of this lease, with a few tries, each on a context of its own.
// What it cannot free ends with the TTL. l.mu is held, but for the requests.
func (l *lease) release(g *nodeRequest) {
	for try := 1; ; try++ {
		timeout := l.timeout
		l.mu.Unlock()
		err := g.free(timeout)
		again := err != nil && try < releaseTries && !g.n.tripped.Load() && l.b.sleep(timeout<<try/8)
		l.mu.Lock()
		switch {
		case err == nil:
			g.state, g.vote.Granted = free, false
			return
		case !again:
			g.vote.Err = err
			l.b.count.unreleased.Add(1)
			return
		}
	}
}

// free makes one request to release; nil: the node has nothing of ours.
func (g *nodeRequest) free(timeout time.Duration) error {
	sent := time.Now()
	ctx := g.round.ctx // as a rule it was made just now, for this
	if left := g.round.end.Sub(sent); g.l.caller != nil || left < timeout-timeout/8 {
		values := g.l.ctx
		if g.l.caller != nil {
			values = g.l.caller
		}
		fresh, cancel := context.WithTimeout(values, timeout)
		defer cancel()
		ctx = fresh
	}
	err := g.lease.Release(ctx)
	if errors.Is(err, driver.ErrLost) {
		err = nil
	}
	took := time.Since(sent)
	g.n.report(err != nil && took >= timeout-timeout/8)
	return err
}

// sleep waits, and reports false if the backend was closed meanwhile.
func (b *Backend) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-b.closed:
		return false
	}
}

package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/boot"
)

// lease is the host of one bid: it does what the bid asks for, and feeds the answers back.
// The algorithm is in bid.go.
type lease struct {
	b   *Backend
	ctx context.Context // the caller's values without its end
	req driver.Request

	renewing sync.Mutex // one renewal at a time

	mu        sync.Mutex
	bid       bid
	event     event // that the bid gets
	requests  []nodeRequest
	lives     [2]life       // the first ones
	life      *life         // the last one
	begun     int           // so many lives have begun
	owners    []string      // by their number
	wake      chan struct{} // what the caller of Acquire or Renew waits for is certain
	freed     chan struct{} // closed when the outcome of the release is; nil: nobody waits
	attempt   int           // of which owner is
	owner     string        // of the requests of an attempt
	keep      time.Duration // of the renewal
	stalled   time.Duration // for how long this process did not run, since the caller called
	jumps     int64         // of the client's clock, at the start of the bid or of the last renewal
	floor     uint64        // the proposal for this round
	round     int           // the round that it is for
	confirmed uint64        // the nodes' time when the last renewal began that succeeded; 0: none did
	released  bool          // a majority confirmed the release
}

// nodeRequest is what is sent to one node, and what it said.
type nodeRequest struct {
	l       *lease
	n       *node
	call    call
	req     driver.Request
	quorum  driver.Quorum // of the vote
	renewal driver.Renewal
	asked   boot.Instant  // when it was sent
	until   boot.Instant  // when its time is over
	timeout time.Duration // the node timeout, even where until is earlier
	life    *life         // of the call
	lease   driver.Lease
	held    *driver.HeldError
	vote    driver.Vote
}

// Acquire makes one attempt to take the lock on a majority of the nodes. It is
// bounded by a few node timeouts, whatever ctx says, and does not wait for a holder;
// but a vote that several contenders split among them is settled here, so that one of
// them wins.
func (b *Backend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	if err := b.info.Check(b.opts.Prefix, req); err != nil {
		return nil, err
	}
	if err := b.checkTimeout(req.TTL); err != nil {
		return nil, err
	}
	if err := b.begin(ctx); err != nil {
		return nil, err
	}
	defer b.calls.Done()
	if err := b.meet(ctx, req.TTL); err != nil {
		return nil, b.failed(ctx, err)
	}
	l := b.newLease(ctx, req)
	if err := l.run(ctx, begins, 0); err != nil {
		return nil, b.failed(ctx, err)
	}
	b.waits.served(req.Key)
	b.count.granted(l)
	return l, nil
}

// begin counts a call in, so that Close can wait for what the call leaves to do.
func (b *Backend) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isClosed() {
		return driver.ErrClosed
	}
	b.calls.Add(1)
	return nil
}

// failed puts the context's end before a verdict that it brought about.
func (b *Backend) failed(ctx context.Context, err error) error {
	b.count.failures.Add(1)
	if end := ended(ctx); end != nil && !errors.Is(err, end) {
		return fmt.Errorf("%w: %w", end, err)
	}
	return err
}

// ended is ctx.Err, but knows of a deadline before the context's timer does: that of the
// nodes' time, which ends with it, may have been the first.
func ended(ctx context.Context) error {
	err := ctx.Err()
	if deadline, ok := ctx.Deadline(); err == nil && ok && !time.Now().Before(deadline) {
		err = context.DeadlineExceeded
	}
	return err
}

func (b *Backend) newLease(ctx context.Context, req *driver.Request) *lease {
	l := &lease{
		b:        b,
		ctx:      context.WithoutCancel(ctx),
		req:      *req,
		requests: make([]nodeRequest, len(b.nodes)),
		wake:     make(chan struct{}, 1),
		jumps:    b.clock.Jumps(),
		round:    -1,
		bid: bid{
			n: len(b.nodes), q: b.q, drift: b.opts.DriftPercent, first: firstNode(req.Key, len(b.nodes)),
			ttl: req.TTL, timeout: b.timeout(req.TTL),
		},
	}
	l.req.Wait = false
	for i := range l.requests {
		g := &l.requests[i]
		g.l, g.n, g.vote.Node = l, b.nodes[i], b.nodes[i].name
	}
	return l
}

// firstNode is the key's first node of n: the same in every process.
func firstNode(key string, n int) int {
	h := uint32(2166136261) // FNV-1a
	for i := 0; i < len(key); i++ {
		h = (h ^ uint32(key[i])) * 16777619
	}
	return int(h % uint32(n))
}

// run tells the bid what a caller wants, and waits for the verdict.
func (l *lease) run(ctx context.Context, kind eventKind, ttl time.Duration) error {
	const never = boot.Instant(1<<63 - 1)
	w := pause{until: never}
	if end, ok := ctx.Deadline(); ok {
		w.until = l.b.clock.Now().Add(time.Until(end))
	}
	var cause error
	for {
		out, said := l.decide(ctx, kind, ttl, &w, cause)
		l.perform(&out)
		if out.verdict != open {
			return said
		}
		if cause == nil {
			cause = l.wait(ctx, &w)
		}
		kind = looks
	}
}

// pause is what a caller waits for.
type pause struct {
	until   boot.Instant // the caller's deadline
	began   boot.Instant
	life    *life // that wakes the caller when it is to look again; nil: none
	most    time.Duration
	certain bool // there is nothing to wait for
	deaf    bool // the caller's end does not count
}

// decide makes one step of a caller. It looks at the clock last of all.
func (l *lease) decide(ctx context.Context, kind eventKind, ttl time.Duration, w *pause, cause error) (actions, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := &l.event
	*e = event{
		kind: kind, until: w.until, ttl: ttl, timeout: l.b.timeout(ttl),
		tripped: l.b.tripped(), duplicate: l.b.duplicate.Load() != nil, ended: cause != nil,
	}
	if kind == looks {
		e.now = l.b.clock.Fresh()
		e.stalled = max(e.now.Sub(w.began)-w.most, 0)
		l.stalled += e.stalled
	} else {
		l.stalled = 0
		e.now, l.jumps = l.b.nowAndJumps()
	}
	e.jumped = l.b.clock.Jumps() != l.jumps
	out := l.step(e)
	if out.pause > 0 {
		l.bid.due = e.now.Add(out.pause/4 + l.b.random(out.pause))
	}
	if out.verdict == extended {
		l.confirmed = l.b.floor(l.bid.start)
	}
	w.began, w.most = e.now, min(l.bid.due.Sub(e.now), l.bid.timeout/timeSlices)
	w.certain, w.deaf = l.bid.certain(), l.bid.stage == quieting
	w.life = nil
	if l.bid.asks() {
		w.life = l.life
	}
	return out, l.says(ctx, out.verdict, cause, e.now)
}

// nowAndJumps returns the time, and how often the clock had jumped then: a jump between the two
// is in neither.
func (b *Backend) nowAndJumps() (boot.Instant, int64) {
	for {
		jumps := b.clock.Jumps()
		now := b.clock.Fresh()
		if b.clock.Jumps() == jumps {
			return now, jumps
		}
	}
}

// wait returns when the bid is to look again. An error is why the caller waits no longer.
func (l *lease) wait(ctx context.Context, w *pause) error {
	if w.certain {
		return nil
	}
	var due <-chan time.Time
	if w.life == nil || w.life.Err() != nil {
		t := time.NewTimer(w.most)
		defer t.Stop()
		due = t.C
	}
	done, closed := ctx.Done(), l.b.closed
	if w.deaf {
		done, closed = nil, nil
	}
	select {
	case <-l.wake:
		return nil
	case <-due:
		settle()
		return nil
	case <-done:
		return ctx.Err()
	case <-closed:
		return driver.ErrClosed
	}
}

// step feeds an event to the bid, and prepares what it asks for. l.mu is held.
func (l *lease) step(e *event) actions {
	out := l.b.step(&l.bid, e)
	if out.judged != 0 {
		l.blame(out.judged, l.bid.agreeing(out.judged))
	}
	if out.healed {
		l.b.count.heals.Add(1)
	}
	if out.split {
		l.b.count.splits.Add(1)
	}
	for i := range l.requests {
		if out.calls[i] != idle {
			l.prepare(i, &out, e.now)
		}
	}
	if l.bid.certain() {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	if l.freed != nil {
		if _, certain := l.bid.cleared(); certain {
			close(l.freed)
			l.freed = nil
		}
	}
	return out
}

// prepare writes the request to a node, on which nothing is under way. l.mu is held.
func (l *lease) prepare(i int, out *actions, now boot.Instant) {
	g := &l.requests[i]
	g.call, g.timeout = out.calls[i], l.bid.timeout
	switch {
	case g.call < release && g.call != lift:
		g.begins(now, out.until, out.most)
	case out.delay == 0:
		g.beginsNow(now)
	}
	switch g.call {
	case acquire:
		if l.round != l.bid.round {
			l.propose()
		}
		g.req = l.req
		g.req.Owner, g.req.FenceFloor, g.req.Quorum = l.ofAttempt(), l.floor, &g.quorum
		g.held, g.vote = nil, driver.Vote{Node: g.n.name}
	case join:
		q := l.b.quorum(g.n, now) // a straggler may still read the first
		g.req = l.req
		g.req.Owner, g.req.TTL, g.req.ExactFence, g.req.FenceFloor, g.req.Quorum = l.ofAttempt(), l.bid.ttl, l.bid.fence, l.confirmed, &q
		g.held = nil
	case raise, lift:
		g.renewal = driver.Renewal{TTL: l.bid.ttl, MinFence: l.bid.fence}
	case renew:
		g.renewal = driver.Renewal{TTL: l.bid.ttl, Keep: l.keep, MinFence: l.bid.fence}
	}
}

// beginsNow gives the call a node timeout from now on. l.mu is held.
func (g *nodeRequest) beginsNow(now boot.Instant) {
	g.begins(now, now.Add(g.timeout), now.Add(mostTimeouts*g.timeout))
}

// begins gives the call a life, from now until then: that which began last, if that has as
// much time, or for a release a little less. l.mu is held.
func (g *nodeRequest) begins(now, until, most boot.Instant) {
	g.asked, g.until = now, until
	l := g.l
	less := time.Duration(0)
	if g.call == release {
		less = g.timeout / 8
	}
	if s := l.life; s != nil && s.due <= until && until.Sub(s.due) <= less && s.most <= most && most.Sub(s.most) <= less && s.join() {
		g.life = s
		return
	}
	if l.begun < len(l.lives) {
		l.life = &l.lives[l.begun]
		l.begun++
	} else {
		l.life = &life{}
	}
	g.life = l.life
	g.life.Context, g.life.clock, g.life.wake = l.ctx, l.b.clock, l.wake
	g.life.begin(now, until, most)
}

// propose sets what all nodes are told in this round. l.mu is held.
func (l *lease) propose() {
	l.round = l.bid.round
	l.floor = max(l.b.floor(l.bid.start), l.req.FenceFloor)
	since := l.b.since(l.req.Key)
	for i := range l.requests {
		if g := &l.requests[i]; !l.bid.parts[i].stale {
			g.quorum = l.b.quorum(g.n, l.bid.start)
			g.quorum.WaitingSince = since
		}
	}
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

// ofAttempt returns the owner of the attempt's requests. l.mu is held.
func (l *lease) ofAttempt() string {
	if l.attempt != l.bid.attempt {
		l.attempt = l.bid.attempt
		l.owner = l.req.Owner + "/" + strconv.FormatInt(int64(l.attempt), 36)
	}
	return l.owner
}

// number returns the number of who has a node. l.mu is held.
func (l *lease) number(h *driver.HeldError) owner {
	switch {
	case h == nil:
		return nobody
	case h.ReservedForWaiter:
		return nextInLine
	}
	name := request(h.Holder)
	switch name {
	case "":
		return nobody
	case l.req.Owner:
		return ourselves
	}
	i := slices.Index(l.owners, name)
	if i < 0 {
		i = len(l.owners)
		l.owners = append(l.owners, name)
	}
	return somebody + owner(i)
}

// perform starts the calls that a bid asked for.
func (l *lease) perform(out *actions) {
	for i, c := range out.calls {
		switch {
		case c == idle:
		case out.delay > 0:
			l.later(&l.requests[i], out.delay)
		default:
			l.requests[i].send()
		}
	}
}

// later sends a call after a while.
func (l *lease) later(g *nodeRequest, d time.Duration) {
	time.AfterFunc(d, func() {
		l.mu.Lock()
		g.beginsNow(l.b.clock.Now())
		l.mu.Unlock()
		g.send()
	})
}

// send hands the call to the node.
func (g *nodeRequest) send() {
	life := g.life
	if err := g.n.start(g); err != nil {
		life.leave()
		g.end(result{err: err, unasked: true})
	}
}

// result is what a call brought.
type result struct {
	lease    driver.Lease
	grant    driver.Grant
	err      error
	unasked  bool
	sent     moment
	received boot.Instant
}

// do makes the call, and waits for its end. It is a worker's.
func (g *nodeRequest) do() {
	l, clock := g.l, g.l.b.clock
	if g.call == release && clock.Now() > g.asked.Add(g.timeout/8) { // it stood in the queue, and must not fail for that
		g.life.leave()
		l.mu.Lock()
		g.beginsNow(clock.Now())
		l.mu.Unlock()
	}
	ctx := g.life
	defer ctx.leave()
	if g.call == acquire || g.call == join {
		if g.skipped() {
			return
		}
	}
	if err := ctx.Err(); err != nil {
		g.end(result{err: err, unasked: true})
		return
	}
	r := result{sent: l.b.now()}
	switch g.call {
	case acquire, join:
		r.lease, r.err = g.n.backend.Acquire(ctx, &g.req)
	case release:
		r.err = g.lease.Release(ctx)
	default:
		r.grant, r.err = g.lease.Renew(ctx, &g.renewal)
	}
	r.received = clock.Now()
	g.end(r)
}

// skipped asks the node's breaker; true: the call has ended.
func (g *nodeRequest) skipped() bool {
	ok, probe := g.n.admit()
	switch {
	case !ok && len(g.l.b.nodes)-g.l.b.tripped().len() >= g.l.b.q: // there is a majority without it
		g.end(result{err: errSkipped, unasked: true})
		return true
	case probe: // nobody waits for it
		g.l.feed(event{kind: probed, node: g.n.index})
	}
	return false
}

// end tells the bid how the call ended.
func (g *nodeRequest) end(r result) {
	l := g.l
	var clock reading
	if !r.unasked {
		clock = g.learn(&r)
	}
	l.mu.Lock()
	e := &l.event
	*e = event{kind: answered, now: l.b.clock.Now(), node: g.n.index, answer: granted, clock: clock}
	g.note(&r, e)
	out := l.step(e)
	if out.left {
		g.vote.Err = r.err
		l.b.count.unreleased.Add(1)
	}
	l.mu.Unlock()
	l.perform(&out)
}

// learn tells breaker, clocks and the comparison of servers what a call says of the node.
func (g *nodeRequest) learn(r *result) reading {
	n := g.n
	if r.lease != nil {
		r.grant = r.lease.Grant()
	}
	n.report(r.err != nil && !definite(r.err) && !errors.Is(r.err, driver.ErrLost) && g.life.ran() >= g.timeout-g.timeout/timeSlices)
	if g.call == release {
		return reading{}
	}
	if r.err != nil && (g.call == acquire || g.call == join) {
		r.grant.Clock, r.grant.Server = told(r.err)
	}
	n.identify(r.grant.Server)
	clock := n.b.read(r.grant.Clock, r.grant.Terms, r.sent, r.received)
	n.learn(clock, r.grant.Terms)
	return clock
}

// note keeps what an answer brought, and tells the bid what it means. l.mu is held.
func (g *nodeRequest) note(r *result, e *event) {
	e.answer, e.last = meaning(r.err), g.n.tripped.Load() || g.l.b.isClosed()
	if r.unasked {
		e.answer = unasked
	}
	switch c := g.call; c {
	case acquire, join:
		g.held = nil
		if !r.unasked {
			_ = errors.As(r.err, &g.held)
		}
		g.vote = driver.Vote{Node: g.n.name, Granted: r.err == nil, Latency: r.received.Sub(r.sent.at), Err: r.err}
		e.owner = g.l.number(g.held)
		if r.err == nil {
			g.lease, e.fence = r.lease, r.grant.Fence
		}
	case raise, lift, renew:
		if !r.unasked {
			g.vote.Latency = r.received.Sub(r.sent.at)
		}
		switch {
		case c == renew:
			g.vote.Granted, g.vote.Err = r.err == nil, r.err
		case c == raise && r.err != nil:
			g.vote.Err = r.err
		}
	case release:
		if e.answer == granted || e.answer == gone { // it has nothing of ours
			e.answer, g.vote.Granted = granted, false
		}
	}
}

// told returns what an answer that is no grant says of its node.
func told(err error) (clock time.Time, server string) {
	var held *driver.HeldError
	var refused *driver.RefusedError
	switch {
	case errors.As(err, &held):
		return held.Clock, held.Server
	case errors.As(err, &refused):
		return refused.Clock, refused.Server
	}
	return time.Time{}, ""
}

// meaning is what the end of a call says.
func meaning(err error) answer {
	if err == nil {
		return granted
	}
	var h *driver.HeldError
	var r *driver.RefusedError
	switch {
	case errors.As(err, &h) && h.ReservedForWaiter:
		return reserved
	case h != nil:
		return held
	case errors.Is(err, driver.ErrInvalid):
		return misuse
	case errors.As(err, &r) && r.RetryAfter == 0:
		return refused
	case r != nil:
		return deferred
	case errors.Is(err, driver.ErrLost):
		return gone
	}
	return silence
}

// definite reports whether an error of Acquire says that the node has nothing of ours.
func definite(err error) bool {
	return errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrRefused) || errors.Is(err, driver.ErrInvalid)
}

// feed gives the bid an event that no caller waits for.
func (l *lease) feed(e event) {
	l.mu.Lock()
	l.event, l.event.now = e, l.b.clock.Now()
	out := l.step(&l.event)
	l.mu.Unlock()
	l.perform(&out)
}

// Grant returns the lease as of the last success.
func (l *lease) Grant() driver.Grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return driver.Grant{Expires: l.b.clock.Time(l.bid.expires), Fence: l.bid.fence, Clock: l.clock(), Votes: l.votes()}
}

// clock is the median of the counted nodes' clocks, now.
func (l *lease) clock() time.Time {
	var buf [MaxNodes]time.Duration
	mids := buf[:0]
	for i := range l.requests {
		if g := &l.bid.parts[i]; g.state == counted && g.clock.known {
			mids = append(mids, l.bid.mid(i))
		}
	}
	if len(mids) == 0 {
		return time.Time{}
	}
	slices.Sort(mids)
	return time.Unix(0, int64(mids[(len(mids)-1)/2]+time.Duration(l.b.clock.Now())))
}

// Renew extends the lease on the nodes that carry it; a majority of all nodes has to
// confirm that it is this acquisition's still. Nodes that do not carry it, since they
// were away or came back without it, are asked to join, at this lease's token: they
// count from the next renewal on. No renewal takes the lock again.
func (l *lease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	if err := l.b.info.CheckRenewal(r); err != nil {
		return driver.Grant{}, err
	}
	if err := l.b.checkTimeout(r.TTL); r.TTL > 0 && err != nil {
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
	l.keep = r.Keep
	if err := l.run(ctx, renews, r.TTL); err != nil {
		return driver.Grant{}, err
	}
	l.b.count.renewals.Add(1)
	return l.Grant(), nil
}

// Release frees the lock on every node, and returns when a majority has confirmed that
// it is free of this lease; the others go on in the background. It is bounded by four
// node timeouts (see Options.NodeTimeout), and does not depend on ctx.
func (l *lease) Release(context.Context) error {
	if l.isReleased() {
		return nil
	}
	if err := l.b.begin(context.Background()); err != nil { // it is released whatever the caller's says
		return err
	}
	defer l.b.calls.Done()
	freed, timeout := l.beginRelease()
	l.b.await(freed, timeout/timeSlices, releaseTries*timeSlices)
	return l.endRelease()
}

func (l *lease) isReleased() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.released
}

// beginRelease returns what tells that the outcome is certain, and the node timeout.
func (l *lease) beginRelease() (<-chan struct{}, time.Duration) {
	l.mu.Lock()
	if l.freed == nil {
		l.freed = make(chan struct{})
	}
	freed := l.freed
	l.event = event{kind: releases, now: l.b.clock.Now()}
	out := l.step(&l.event)
	timeout := l.bid.timeout
	l.mu.Unlock()
	l.perform(&out)
	return freed, timeout
}

func (l *lease) endRelease() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n, _ := l.bid.cleared(); n < l.b.q {
		l.b.count.failures.Add(1)
		return l.unknown(l.b.clock.Now(), "%d of %d nodes confirmed the release, %d needed", n, len(l.requests), l.b.q)
	}
	l.released = true
	return nil
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

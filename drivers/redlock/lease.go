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
	"github.com/redlock-go/redlock/drivers/internal/async"
)

// lease is the host of one bid: it performs the bid's actions, and passes the answers back to
// it. The algorithm is in bid.go.
type lease struct {
	b   *Backend
	ctx context.Context // has the values of the caller's context, and no end
	req driver.Request

	renewing sync.Mutex // one renewal at a time

	mu        sync.Mutex
	bid       bid
	event     event // the event for the bid's next step
	requests  []nodeRequest
	lives     [2]life       // memory of the first lives
	life      *life         // the latest life
	begun     int           // how many lives have begun
	owners    []string      // by their number
	wake      chan struct{} // has a value when the outcome for the caller of Acquire or Renew is certain
	freeing   []*life       // one for each caller of Release: see beginRelease
	attempt   int           // the attempt that owner belongs to
	owner     string        // the owner in this attempt's requests
	keep      time.Duration // of the renewal
	stalled   time.Duration // how long this process did not run since the call began
	jumps     int64         // clock.Jumps at the start of the bid or of the last renewal
	floor     uint64        // the proposal for this round
	round     int           // the round of floor
	confirmed uint64        // the nodes' time at the start of the last successful renewal; 0: none
	released  bool          // a majority confirmed the release
}

// nodeRequest is a request to one node, and its answer.
type nodeRequest struct {
	l       *lease
	n       *node
	call    call
	req     driver.Request
	renewal *driver.Renewal
	asked   boot.Instant  // when the bid asked for it
	sent    moment        // when it was sent
	timeout time.Duration // the node timeout, even where the call must end earlier
	life    *life         // of the call
	lease   driver.Lease
	held    *driver.HeldError
	latency time.Duration // of the last vote or renewal
	err     error         // why the node did not grant or confirm
}

// Acquire makes one attempt to take the lock on a majority of the nodes. A few node timeouts
// bound it, even if ctx has no deadline, and it does not wait for a holder. If several
// contenders split the vote, it continues until one of them wins.
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
		return nil, failed(ctx, err)
	}
	l := b.newLease(ctx, req)
	if err := l.run(ctx, begins, 0); err != nil {
		return nil, failed(ctx, err)
	}
	b.waits.served(req.Key)
	if l.bid.raising == 0 { // no token was written back
		b.count.oneRoundTrip.Add(1)
	}
	return l, nil
}

// failed returns the context's error together with a verdict that the end of the context caused.
func failed(ctx context.Context, err error) error {
	if end := driver.ContextErr(ctx); end != nil && !errors.Is(err, end) {
		return fmt.Errorf("%w: %w", end, err)
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
		g.l, g.n = l, b.nodes[i]
	}
	return l
}

// firstNode returns the key's first node of n, which is the same in every process.
func firstNode(key string, n int) int {
	h := uint32(2166136261) // FNV-1a
	for i := 0; i < len(key); i++ {
		h = (h ^ uint32(key[i])) * 16777619
	}
	return int(h % uint32(n))
}

// run passes a caller's event to the bid, and waits for the verdict.
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

// pause says how long a caller waits, and for which events.
type pause struct {
	until   boot.Instant // the caller's deadline
	began   boot.Instant
	life    *life // its timer wakes the caller to look again; nil: none
	most    time.Duration
	certain bool // do not wait
	deaf    bool // ignore the end of the caller's context
}

// decide makes one step for a caller. Its last action is to look at the clock.
func (l *lease) decide(ctx context.Context, kind eventKind, ttl time.Duration, w *pause, cause error) (work, error) {
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

// nowAndJumps returns the time, and how often the clock had jumped by then.
func (b *Backend) nowAndJumps() (boot.Instant, int64) {
	for {
		jumps := b.clock.Jumps()
		now := b.clock.Fresh()
		if b.clock.Jumps() == jumps {
			return now, jumps
		}
	}
}

// wait returns when the bid must look again. An error says why the caller no longer waits.
func (l *lease) wait(ctx context.Context, w *pause) error {
	if w.certain {
		return nil
	}
	var due <-chan time.Time
	if w.life == nil || w.life.Err() != nil {
		t := time.NewTimer(max(w.most, soonest))
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

// work is what a step leaves to do without l.mu.
type work struct {
	actions
	notices []driver.Notice
}

// step passes an event to the bid, and prepares its actions. l.mu is held.
func (l *lease) step(e *event) work {
	out := work{actions: l.b.step(&l.bid, e)}
	if out.judged != 0 {
		out.notices = l.blame(out.judged, l.bid.agreeing(out.judged))
	}
	if out.healed {
		l.b.count.heals.Add(1)
	}
	if out.split {
		l.b.count.splits.Add(1)
	}
	for i := range l.requests {
		if out.calls[i] != idle {
			l.prepare(i, &out.actions, e.now)
		}
	}
	if l.bid.certain() {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	if l.freeing != nil {
		if _, certain := l.bid.cleared(); certain {
			for _, caller := range l.freeing {
				caller.leave()
			}
			l.freeing = nil
		}
	}
	return out
}

// prepare begins the life of the call to a node without one under way, and makes the request.
// l.mu is held.
func (l *lease) prepare(i int, out *actions, now boot.Instant) {
	g := &l.requests[i]
	g.call, g.timeout = out.calls[i], l.bid.timeout
	switch {
	case g.call < release && g.call != raiseLate:
		g.begins(now, out.until, out.most)
	case out.delay == 0:
		g.beginsNow(now)
	}
	l.fill(g, out, now)
}

// fill makes the request. l.mu is held.
func (l *lease) fill(g *nodeRequest, out *actions, now boot.Instant) {
	switch g.call {
	case acquire:
		if l.round != l.bid.round {
			l.propose()
		}
		proposed := g.req.Quorum
		g.req = l.req
		g.req.Owner, g.req.FenceFloor, g.req.Quorum = l.ofAttempt(), l.floor, proposed
		g.held, g.latency, g.err = nil, 0, nil
	case join:
		g.req = l.req
		g.req.Owner, g.req.TTL, g.req.ExactFence, g.req.FenceFloor, g.req.Quorum = l.ofAttempt(), l.bid.ttl, l.bid.fence, l.confirmed, l.b.quorum(g.n, now, 0)
		g.held = nil
	case raise, raiseLate:
		g.renewal = &driver.Renewal{TTL: l.bid.ttl, MinFence: l.bid.fence}
	case release:
		if v, ok := g.lease.(async.Vote); ok && out.back.has(g.n.index) {
			v.GiveBack(l.bid.silent)
		}
	case renew:
		g.renewal = &driver.Renewal{TTL: l.bid.ttl, Keep: l.keep, MinFence: l.bid.fence}
	}
}

// beginsNow gives the call a node timeout from now on. l.mu is held.
func (g *nodeRequest) beginsNow(now boot.Instant) {
	g.begins(now, now.Add(g.timeout), now.Add(mostTimeouts*g.timeout))
}

// begins gives the call a life from now until that instant: the latest life, if it lasts as
// long (for a release, nearly as long), or a new one. l.mu is held.
func (g *nodeRequest) begins(now, until, most boot.Instant) {
	g.asked = now
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

// propose sets the proposal to all nodes for this round. l.mu is held.
func (l *lease) propose() {
	l.round = l.bid.round
	l.floor = max(l.b.floor(l.bid.start), l.req.FenceFloor)
	since := l.b.waits.begun(l.req.Key, func() uint64 { return l.b.floor(l.b.clock.Now()) })
	for i := range l.requests {
		if g := &l.requests[i]; !l.bid.parts[i].stale {
			g.req.Quorum = l.b.quorum(g.n, l.bid.start, since)
		}
	}
}

// ofAttempt returns the owner of the attempt's requests. l.mu is held.
func (l *lease) ofAttempt() string {
	if l.attempt != l.bid.attempt {
		l.attempt = l.bid.attempt
		l.owner = l.req.Owner + "/" + strconv.FormatInt(int64(l.attempt), 36)
	}
	return l.owner
}

// number returns the number of a node's owner. l.mu is held.
func (l *lease) number(h *driver.HeldError) owner {
	switch {
	case h == nil:
		return nobody
	case h.ReservedForWaiter:
		return firstWaiter
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

// perform starts the calls in a bid's actions, and sends the notices.
func (l *lease) perform(out *work) {
	for i, c := range out.calls {
		switch {
		case c == idle:
		case out.delay > 0:
			l.later(&l.requests[i], out.delay)
		default:
			l.requests[i].send()
		}
	}
	for _, n := range out.notices {
		l.b.notify(n)
	}
}

// later sends a call after a pause. Close waits for a short pause, and cancels the call after a
// longer one.
func (l *lease) later(g *nodeRequest, d time.Duration) {
	counted := d < g.timeout/timeSlices && g.n.enter()
	time.AfterFunc(d, func() {
		l.mu.Lock()
		g.beginsNow(l.b.clock.Now())
		l.mu.Unlock()
		g.send()
		if counted {
			g.n.leave()
		}
	})
}

// send starts the call, if the node can start calls, and otherwise passes it to a worker.
func (g *nodeRequest) send() {
	if g.start() {
		return
	}
	life, err := g.life, driver.ErrClosed
	if g.n.enter() {
		if g.n.workers.Start(g) {
			return
		}
		g.n.leave()
		err = errBusy
	}
	life.leave()
	g.end(result{err: err, answer: unasked})
}

// result is the result of a call.
type result struct {
	lease    driver.Lease
	grant    driver.Grant
	err      error
	answer   answer            // see read
	held     *driver.HeldError // of a refusal
	received boot.Instant
}

// read finds what the result means, and the clock and the server in a refusal.
func (r *result) read() {
	if r.err == nil {
		r.answer = granted
		return
	}
	var refusal *driver.RefusedError
	var holder *driver.HeldError // not r.held, so that a result need not be on the heap
	switch {
	case errors.As(r.err, &holder):
		r.answer, r.held, r.grant.Clock, r.grant.Server = held, holder, holder.Clock, holder.Server
		if holder.ReservedForWaiter {
			r.answer = reserved
		}
	case errors.Is(r.err, driver.ErrInvalid):
		r.answer = misuse
	case errors.As(r.err, &refusal):
		r.answer, r.grant.Clock, r.grant.Server = refused, refusal.Clock, refusal.Server
		if refusal.RetryAfter > 0 {
			r.answer = deferred
		}
	case errors.Is(r.err, driver.ErrLost):
		r.answer = gone
	}
}

// start starts the call. If it returns false, a worker must make the call, or end it if its
// time is over. While the breaker is open only workers make calls, because they are few.
func (g *nodeRequest) start() (started bool) {
	n := g.n
	if n.async == nil || n.tripped.Load() || g.life.Err() != nil || !n.enter() {
		return false
	}
	defer func() {
		if !started {
			n.leave()
		}
	}()
	g.sent = g.l.b.now()
	if g.call == acquire || g.call == join {
		return n.async.StartAcquire(g.life, &g.req, g)
	}
	switch lease, ok := g.lease.(async.Lease); {
	case !ok:
		return false
	case g.call == release:
		return lease.StartRelease(g.life, g)
	default:
		return lease.StartRenew(g.life, g.renewal, g)
	}
}

// Acquired, Renewed and Released get the results of calls that were started: see package async.
func (g *nodeRequest) Acquired(l driver.Lease, err error) { g.done(result{lease: l, err: err}) }
func (g *nodeRequest) Renewed(r driver.Grant, err error)  { g.done(result{grant: r, err: err}) }
func (g *nodeRequest) Released(err error)                 { g.done(result{err: err}) }

// done ends a started call. It first starts the calls that follow from the answer, so that the
// count of calls never falls to zero in between.
func (g *nodeRequest) done(r result) {
	n, life := g.n, g.life
	r.received = life.clock.Now()
	g.end(r)
	life.leave()
	n.leave()
}

// Run makes the call, and waits for its end. A worker calls it.
func (g *nodeRequest) Run() {
	defer g.n.leave()
	l, clock := g.l, g.l.b.clock
	if g.call == release && clock.Now() > g.asked.Add(g.timeout/8) { // the time in the worker's queue must not make it fail
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
		g.end(result{err: err, answer: unasked})
		return
	}
	var r result
	g.sent = l.b.now()
	switch g.call {
	case acquire, join:
		r.lease, r.err = g.n.backend.Acquire(ctx, &g.req)
	case release:
		r.err = g.lease.Release(ctx)
	default:
		r.grant, r.err = g.lease.Renew(ctx, g.renewal)
	}
	r.received = clock.Now()
	g.end(r)
}

// skipped asks the node's breaker. True means that the call has ended.
func (g *nodeRequest) skipped() bool {
	ok, probe := g.n.admit()
	switch {
	case !ok && len(g.l.b.nodes)-g.l.b.tripped().len() >= g.l.b.q: // the other nodes are a majority
		g.end(result{err: errSkipped, answer: unasked})
		return true
	case probe: // nobody waits for it
		g.l.feed(event{kind: probed, node: g.n.index})
	}
	return false
}

// end passes the result of the call to the bid.
func (g *nodeRequest) end(r result) {
	l := g.l
	var clock reading
	if r.answer != unasked {
		r.read()
		clock = g.learn(&r)
	}
	l.mu.Lock()
	e := &l.event
	*e = event{kind: answered, now: l.b.clock.Now(), node: g.n.index, answer: r.answer, clock: clock}
	g.note(&r, e)
	out := l.step(e)
	if out.left {
		g.err = r.err
		l.b.count.unreleased.Add(1)
	}
	l.mu.Unlock()
	l.perform(&out)
}

// learn updates the breaker, the clock and the server's identity from a call's result.
func (g *nodeRequest) learn(r *result) reading {
	n := g.n
	if r.lease != nil {
		r.grant = r.lease.Grant()
	}
	n.report(r.answer == silence && g.life.ran() >= g.timeout-g.timeout/timeSlices)
	if g.call == release {
		return reading{}
	}
	b := g.l.b
	b.identify(n, r.grant.Server)
	clock := b.read(r.grant.Clock, r.grant.Terms, g.sent, r.received)
	b.learn(n, clock, r.grant.Terms, g.sent.jumps)
	return clock
}

// note stores an answer, and completes its event for the bid. l.mu is held.
func (g *nodeRequest) note(r *result, e *event) {
	e.last = g.n.tripped.Load() || g.l.b.isClosed() && !g.failedAtOnce(r)
	took := r.received.Sub(g.sent.at)
	if r.answer == unasked {
		took = 0
	}
	switch c := g.call; c {
	case acquire, join:
		g.held, g.latency, g.err = r.held, took, r.err
		e.owner = g.l.number(g.held)
		if r.err == nil {
			g.lease, e.fence = r.lease, r.grant.Fence
		}
	case raise, raiseLate, renew:
		if took > 0 {
			g.latency = took
		}
		if c == renew || c == raise && r.err != nil {
			g.err = r.err
		}
	case release:
		if e.answer == granted || e.answer == gone { // the node has nothing of this bid
			e.answer = granted
		}
	}
}

// failedAtOnce reports whether this was the first try of a release, and failed in less than a
// slice of its time: perhaps only its connection was cut. l.mu is held.
func (g *nodeRequest) failedAtOnce(r *result) bool {
	return g.call == release && r.answer != unasked && g.l.bid.parts[g.n.index].tries == 1 && g.life.ran() == 0
}

// feed passes to the bid an event for which no caller waits.
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

// clock returns the present median of the counted nodes' clocks.
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

// Renew extends the lease on the nodes that carry it; a majority of all nodes must confirm that
// this acquisition still has the lock. It asks nodes that do not carry the lease to join at its
// token; they count from the next renewal on. No renewal takes the lock again.
func (l *lease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	if err := l.b.info.CheckRenewal(r); err != nil {
		return driver.Grant{}, err
	}
	if err := l.b.checkTimeout(r.TTL); r.TTL > 0 && err != nil {
		return driver.Grant{}, err
	}
	if r.MinFence != 0 {
		return driver.Grant{}, driver.Invalid("MinFence", "is for nodes, and this backend is a quorum")
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
	return l.Grant(), nil
}

// Release frees the lock on every node, and returns when a majority has confirmed that
// it is free of this lease; the others go on in the background. It is bounded by four
// node timeouts (see Options.NodeTimeout), and does not depend on ctx.
func (l *lease) Release(context.Context) error {
	if l.isReleased() {
		return nil
	}
	if err := l.b.begin(context.Background()); err != nil { // release even if the caller's context has ended
		return err
	}
	defer l.b.calls.Done()
	<-l.beginRelease().Done()
	return l.endRelease()
}

func (l *lease) isReleased() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.released
}

// beginRelease returns a life that ends when the outcome is certain, or when its caller gives up.
func (l *lease) beginRelease() *life {
	l.mu.Lock()
	freeing := newLife(context.Background(), l.b.clock, releaseTries*l.bid.timeout)
	l.freeing = append(l.freeing, freeing)
	l.event = event{kind: releases, now: l.b.clock.Now()}
	out := l.step(&l.event)
	l.mu.Unlock()
	l.perform(&out)
	return freeing
}

func (l *lease) endRelease() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n, _ := l.bid.cleared(); n < l.b.q {
		return l.unknown(l.b.clock.Now(), "%d of %d nodes confirmed the release, %d needed", n, len(l.requests), l.b.q)
	}
	l.released = true
	return nil
}

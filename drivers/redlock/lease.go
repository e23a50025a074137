package redlock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/boot"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/async"
)

// lease is the host of one bid: it performs the bid's actions, and passes the answers back to
// it. The algorithm is in bid.go. A program may hold many leases, so what only a call needs is
// not in it.
type lease struct {
	b   *Backend
	ctx context.Context // has the values of the caller's context, and no end

	// Of the caller's request.
	key, owner string
	least      uint64 // the proposed token
	tokens     uint32
	mode       driver.Mode

	round    int8 // the round of floor; guarded by mu
	released bool // a majority confirmed the release; guarded by mu

	renewing sync.Mutex // one renewal at a time

	mu        sync.Mutex
	bid       bid
	requests  []nodeRequest
	until     boot.Instant  // the end of the latest calls
	owners    []string      // by their number
	wake      chan struct{} // has a value when the outcome for the caller of Acquire or Renew is certain; nil: nobody waits for it
	freed     chan struct{} // closed when the outcome of the release is certain; nil: nobody waits for it
	floor     uint64        // the proposal for this round
	keep      time.Duration // of the renewal
	jumps     int64         // clock.Jumps at the start of the bid or of the last renewal
	confirmed uint64        // the nodes' time at the start of the last successful renewal; 0: none
}

// nodeRequest is a request to one node, and its answer.
type nodeRequest struct {
	l       *lease
	index   int8 // of the node
	call    call
	jumps   int32 // clock.Jumps when it was sent
	sent    boot.Instant
	until   boot.Instant // when the call ends
	quorum  *quorum.Info // of this round
	lease   driver.Lease
	latency time.Duration // of the last vote or renewal
	err     error         // why the node did not grant or confirm
}

func (g *nodeRequest) node() *node { return g.l.b.nodes[g.index] }

// held returns the node's answer that another owner has the lock; nil if it gave another one.
func (g *nodeRequest) held() (h *driver.HeldError) {
	_ = errors.As(g.err, &h)
	return h
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
		key:      req.Key,
		owner:    req.Owner,
		least:    req.FenceFloor,
		tokens:   req.Tokens,
		mode:     req.Mode,
		requests: make([]nodeRequest, len(b.nodes)),
		jumps:    b.clock.Jumps(),
		round:    -1,
		bid: bid{
			q: b.q, drift: int8(b.opts.DriftPercent), first: firstNode(req.Key, len(b.nodes)),
			ttl: req.TTL, timeout: b.timeout(req.TTL), parts: make([]part, len(b.nodes)),
		},
	}
	if req.Mode == driver.Shared {
		l.tokens = 0 // a range is for who passes the lock on
	}
	for i := range l.requests {
		l.requests[i].l, l.requests[i].index = l, int8(i)
	}
	return l
}

// firstNode returns the key's first node of n, which is the same in every process.
func firstNode(key string, n int) int8 {
	h := uint32(2166136261) // FNV-1a
	for i := 0; i < len(key); i++ {
		h = (h ^ uint32(key[i])) * 16777619
	}
	return int8(h % uint32(n))
}

// run passes a caller's event to the bid, and waits for the verdict.
func (l *lease) run(ctx context.Context, kind eventKind, ttl time.Duration) error {
	until := boot.Instant(math.MaxInt64)
	if end, ok := ctx.Deadline(); ok {
		until = l.b.clock.Now().Add(time.Until(end))
	}
	var cause error
	wake := make(chan struct{}, 1)
	for {
		out, said := l.decide(ctx, kind, ttl, until, cause, wake)
		l.perform(&out)
		if out.verdict != open {
			return said
		}
		if cause == nil && out.wait != 0 {
			cause = l.wait(ctx, &out, wake)
		}
		kind = looks
	}
}

// decide makes one step for a caller. Its last action is to look at the clock.
func (l *lease) decide(ctx context.Context, kind eventKind, ttl time.Duration, until boot.Instant, cause error, wake chan struct{}) (work, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wake = wake
	e := &event{
		kind: kind, until: until, ttl: ttl, timeout: l.b.timeout(ttl),
		tripped: l.b.tripped(), late: l.b.late(), duplicate: l.b.duplicate.Load() != nil, ended: cause != nil,
	}
	if kind == looks {
		e.now = l.b.clock.Fresh()
	} else {
		e.now, l.jumps = l.b.nowAndJumps()
	}
	e.jumped = l.b.clock.Jumps() != l.jumps
	out := l.step(e)
	if out.pause > 0 {
		l.bid.due = e.now.Add(out.pause/4 + l.b.random(out.pause))
	}
	if out.verdict != open {
		l.wake = nil
	}
	if out.verdict == extended {
		l.confirmed = l.b.floor(l.bid.start)
	}
	if !l.bid.certain() {
		out.wait, out.deaf = max(l.bid.due.Sub(e.now), 1), l.bid.stage == quieting // in bubbles of synctest, timers that are due at once crash the race detector
	}
	return out, l.says(out.verdict, cause, e.now)
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
func (l *lease) wait(ctx context.Context, out *work, wake <-chan struct{}) error {
	t := time.NewTimer(out.wait)
	defer t.Stop()
	done, closed := ctx.Done(), l.b.closed
	if out.deaf {
		done, closed = nil, nil
	}
	select {
	case <-wake:
		return nil
	case <-t.C:
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
	req     *driver.Request // of the votes and joins; the quorum is that of each node
	renewal *driver.Renewal // of the renewals and raises, for nodes that only read it
	term    context.Context // of the latest call
	ends    boot.Instant    // when it ends
	sent    moment          // before the first call
	wait    time.Duration   // how long the caller waits for the stage to end
	deaf    bool            // also if the caller's context ends
}

// step passes an event to the bid, and prepares its actions. l.mu is held.
func (l *lease) step(e *event) work {
	var out work
	if l.b.step == nil {
		out.actions = l.bid.step(e)
	} else {
		other := *e
		out.actions = l.b.step(&l.bid, &other)
		*e = other
	}
	if out.wrong != 0 {
		out.notices = l.blame(out.wrong)
	}
	for i := range l.requests {
		g := &l.requests[i]
		if out.verdict == won && l.bid.parts[i].state == counted && g.node().skewed.Load() {
			g.node().skewed.Store(false)
		}
		if out.calls[i] != idle {
			l.prepare(g, &out, e.now)
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

// prepare makes the request to a node without a call under way. l.mu is held.
func (l *lease) prepare(g *nodeRequest, out *work, now boot.Instant) {
	until := out.until
	switch g.call = out.calls[g.index]; g.call {
	case acquire:
		if l.round != l.bid.round {
			l.propose()
		}
		if g.latency, g.err = 0, nil; out.req == nil {
			out.req = l.request(l.floor)
		}
	case join:
		if g.quorum = l.b.quorum(g.node(), now, 0); out.req == nil {
			out.req = l.request(l.confirmed)
			out.req.ExactFence = l.bid.fence
		}
	case release:
		until = now.Add(releaseTime(l.bid.timeout))
		if v, ok := g.lease.(async.Vote); ok && out.back.has(int(g.index)) {
			v.GiveBack(l.bid.silent)
		}
	case raiseLate:
		until = now.Add(l.bid.timeout)
		fallthrough
	default:
		if out.renewal == nil {
			out.renewal = &driver.Renewal{TTL: l.bid.ttl, MinFence: l.bid.fence}
			if g.call == renew {
				out.renewal.Keep = l.keep
			}
		}
	}
	// Calls that end at nearly the same time share a context.
	if later := until.Sub(l.until); l.until == 0 || later < 0 || later > l.bid.timeout/8 {
		l.until = until
	}
	g.until = l.until
}

// releaseTime is how long a release waits for a node, which repeats it afterwards.
func releaseTime(timeout time.Duration) time.Duration { return 2 * timeout }

// request makes the request of an attempt. l.mu is held.
func (l *lease) request(floor uint64) *driver.Request {
	owner := l.owner + "/" + strconv.FormatInt(int64(l.bid.attempt), 36)
	return &driver.Request{Key: l.key, Owner: owner, TTL: l.bid.ttl, Mode: l.mode, Tokens: l.tokens, FenceFloor: floor}
}

// propose sets the proposal to all nodes for this round. l.mu is held.
func (l *lease) propose() {
	l.round = l.bid.round
	l.floor = max(l.b.floor(l.bid.start), l.least)
	since := l.b.waits.begun(l.key, func() uint64 { return l.b.floor(l.b.clock.Now()) })
	for i := range l.requests {
		if g := &l.requests[i]; !l.bid.stale.has(i) {
			g.quorum = l.b.quorum(g.node(), l.bid.start, since)
		}
	}
}

// number returns the number of a node's owner. l.mu is held.
func (l *lease) number(h *driver.HeldError) owner {
	switch {
	case h == nil:
		return nobody
	case h.ReservedForWaiter:
		return firstWaiter
	case h.Mode == driver.Shared:
		return readers
	}
	name := requester(h.Holder)
	switch name {
	case "":
		return nobody
	case l.owner:
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
		if c != idle {
			l.requests[i].send(out)
		}
	}
	for _, n := range out.notices {
		l.b.notify(n)
	}
}

// send starts the call. A call that its node cannot start has a goroutine. The breaker of a node
// that keeps timing out refuses votes, unless the other nodes are no majority.
func (g *nodeRequest) send(w *work) {
	n, b := g.node(), g.l.b
	n.calls.Add()
	if (g.call == acquire || g.call == join) && n.tripped.Load() && len(b.nodes)-b.tripped().len() >= b.q && !n.probes() {
		g.done(result{err: errSkipped, answer: unasked})
		return
	}
	if w.sent == (moment{}) {
		w.sent = b.now()
	}
	g.sent, g.jumps = w.sent.at, int32(w.sent.jumps)
	if g.start(w) {
		return
	}
	var req driver.Request // a node that blocks needs its own
	if w.req != nil {
		req = *w.req
		req.Quorum = g.quorum
	}
	go g.run(&req, w.renewal)
}

// start starts the call, if the node can.
func (g *nodeRequest) start(w *work) bool {
	n := g.node()
	if n.async == nil {
		return false
	}
	if w.term == nil || w.ends != g.until {
		w.term, w.ends = async.Until(g.l.ctx, g.l.b.clock.Time(g.until)), g.until
	}
	if g.call == acquire || g.call == join {
		w.req.Quorum = g.quorum
		return n.async.StartAcquire(w.term, w.req, g)
	}
	switch lease, ok := g.lease.(async.Lease); {
	case !ok:
		return false
	case g.call == release:
		return lease.StartRelease(w.term, g)
	default:
		return lease.StartRenew(w.term, w.renewal, g)
	}
}

// run makes the call, and waits for its end.
func (g *nodeRequest) run(req *driver.Request, renewal *driver.Renewal) {
	ctx, cancel := context.WithDeadline(g.l.ctx, g.l.b.clock.Time(g.until))
	defer cancel()
	var r result
	switch g.call {
	case acquire, join:
		r.lease, r.err = g.node().backend.Acquire(ctx, req)
	case release:
		r.err = g.lease.Release(ctx)
	default:
		r.grant, r.err = g.lease.Renew(ctx, renewal)
	}
	g.done(r)
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
		r.answer, r.grant.Clock = refused, refusal.Clock
		if refusal.RetryAfter > 0 {
			r.answer = deferred
		}
	case errors.Is(r.err, driver.ErrLost):
		r.answer = gone
	}
}

// Acquired, Renewed and Released get the results of calls that were started: see package async.
func (g *nodeRequest) Acquired(l driver.Lease, err error) { g.done(result{lease: l, err: err}) }
func (g *nodeRequest) Renewed(r driver.Grant, err error)  { g.done(result{grant: r, err: err}) }
func (g *nodeRequest) Released(err error)                 { g.done(result{err: err}) }

// done passes the result of a call to the bid. It starts the calls that follow from the answer before
// the call has ended, so that the count of calls never falls to zero in between.
func (g *nodeRequest) done(r result) {
	l := g.l
	defer g.node().calls.Done()
	r.received = l.b.clock.Now()
	var clock reading
	if r.answer != unasked {
		r.read()
		clock = g.learn(&r)
	}
	l.mu.Lock()
	e := &event{kind: answered, now: r.received, node: int(g.index), answer: r.answer, clock: clock}
	g.note(&r, e)
	out := l.step(e)
	l.mu.Unlock()
	l.perform(&out)
}

// learn updates the breaker, the clock and the server's identity from a call's result.
func (g *nodeRequest) learn(r *result) reading {
	n, b := g.node(), g.l.b
	if r.lease != nil {
		r.grant = r.lease.Grant()
	}
	// The node's own call timeout may be shorter. A caller's deadline that is shorter tells nothing of the node.
	ended, late := false, false
	if r.answer == silence {
		g.l.mu.Lock()
		timeout := g.l.bid.timeout // a renewal may set it
		g.l.mu.Unlock()
		ended = errors.Is(r.err, context.DeadlineExceeded)
		late = r.received.Sub(g.sent) >= timeout*3/4 || ended && r.received < g.until
	}
	if late || !ended {
		n.report(late)
	}
	if g.call == release {
		return reading{}
	}
	b.identify(n, r.grant.Server)
	sent := moment{g.sent, int64(g.jumps)}
	clock := b.read(r.grant.Clock, r.grant.Terms, sent, r.received)
	b.learn(n, clock, r.grant.Terms, sent.jumps)
	return clock
}

// note stores an answer, and completes its event for the bid. l.mu is held.
func (g *nodeRequest) note(r *result, e *event) {
	took := r.received.Sub(g.sent)
	if r.answer == unasked {
		took = 0
	}
	switch c := g.call; c {
	case acquire, join:
		g.latency, g.err = took, r.err
		e.owner = g.l.number(r.held)
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
		if e.answer == gone { // the node has nothing of this bid
			e.answer = granted
		}
		if e.answer != granted { // its lock ends with its TTL
			g.err = r.err
		}
	}
}

// Grant returns the lease as of the last success.
func (l *lease) Grant() driver.Grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return driver.Grant{Expires: l.b.clock.Time(l.bid.expires), Fence: l.bid.fence, Tokens: l.tokens, Clock: l.clock(), Votes: l.votes()}
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
	return time.Unix(0, int64(median(mids)+time.Duration(l.b.clock.Now())))
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
// it is free of this lease; the others go on in the background. It is bounded by two
// node timeouts (see Options.NodeTimeout), and does not depend on ctx.
func (l *lease) Release(context.Context) error {
	if err := l.b.begin(context.Background()); err != nil { // release even if the caller's context has ended
		return err
	}
	defer l.b.calls.Done()
	l.mu.Lock()
	if l.released {
		l.mu.Unlock()
		return nil
	}
	if l.freed == nil {
		l.freed = make(chan struct{})
	}
	freed, timeout := l.freed, l.bid.timeout
	// Not after another lock of mu: an answer in between would find no release under way, and take
	// that for the outcome.
	out := l.step(&event{kind: releases, now: l.b.clock.Now()})
	l.mu.Unlock()
	l.perform(&out)
	_ = async.Await(async.Within(context.Background(), releaseTime(timeout)), freed)
	l.mu.Lock()
	defer l.mu.Unlock()
	n, _ := l.bid.cleared()
	if l.released = n >= l.b.q; !l.released {
		return l.unknown(l.b.clock.Now(), "%d of %d nodes confirmed the release, %d needed", n, len(l.requests), l.b.q)
	}
	return nil
}

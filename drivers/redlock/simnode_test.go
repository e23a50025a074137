package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
)

// network describes the delays and losses of packets.
type network struct {
	delay       time.Duration // the usual longest delay
	slow        float64       // probability of a delay up to ten times as long
	lose, twice float64       // probabilities
	lag         time.Duration // a copy arrives up to this much later; zero: one or two delays later
}

// simNode is one client's driver for one server.
type simNode struct {
	s       *simServer
	net     *network
	durable bool

	mu      sync.Mutex
	rng     *rand.Rand
	process *simProcess // the process that answered last; nil: none
	told    bool        // the server knows that the number of nodes changes
	place   string      // in the server's wait queue; empty: none

	machine *simMachine   // the client's machine; nil: one that never sleeps
	life    time.Duration // of counters, in addition to the TTL
}

// simProcess is a client's knowledge of a server process. The mu of its node guards it.
type simProcess struct {
	run   string
	terms quorum.Terms // the terms to which its scripts are bound
	ready bool         // the scripts may be called
}

var (
	_ driver.Backend = (*simNode)(nil)
	_ quorum.Admin   = (*simNode)(nil)
)

func (n *simNode) Info() driver.Info {
	return driver.Info{Name: "sim", Features: driver.FeatureQuorumNode | driver.FeatureFencing | driver.FeatureShared | driver.FeatureTokens, MinTTL: driver.MinTTL, MaxTTL: time.Hour}
}
func (n *simNode) Close() error   { return nil }
func (n *simNode) String() string { return fmt.Sprintf("sim-%d", n.s.id) }

// fate describes the transit of one request and its answer.
type fate struct {
	there, back     time.Duration
	lost, lostReply bool
	again           time.Duration // a duplicate arrives this much later; zero: none
}

func (n *simNode) fate() fate {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := fate{there: n.draw(), back: n.draw()}
	f.lost = n.rng.Float64() < n.net.lose
	f.lostReply = n.rng.Float64() < n.net.lose
	if n.rng.Float64() < n.net.twice {
		f.again = 2*n.draw() + time.Duration(n.rng.Int64N(int64(n.net.lag)+1))
	}
	return f
}

func (n *simNode) draw() time.Duration {
	d := n.net.delay
	if n.rng.Float64() < n.net.slow {
		d *= 10
	}
	return 1 + time.Duration(n.rng.Int64N(int64(d)+1))
}

// send sends the call of a script. The reply to one that arrives twice does not tell the counter
// before it, and the copy of a release gives nothing back.
func (n *simNode) send(ctx context.Context, c simCall, arrive func(simCall) simReply) simReply {
	again := c
	again.back = 0
	return n.deliver(ctx, func() simReply { return arrive(c) }, func() simReply { return arrive(again) })
}

// call sends any other request.
func (n *simNode) call(ctx context.Context, apply func() simReply) simReply {
	return n.deliver(ctx, apply, apply)
}

// deliver sends a request. A request that arrives takes effect even if nobody waits for its answer
// any longer, and in whichever process then runs.
func (n *simNode) deliver(ctx context.Context, apply, again func() simReply) simReply {
	n.machine.thaw()
	if err := ctx.Err(); err != nil {
		return simReply{err: err}
	}
	f := n.fate()
	n.s.mu.Lock()
	if p := time.Until(n.s.paused); p > f.there {
		f.there = p + 1
	}
	n.s.mu.Unlock()
	if f.lost {
		<-ctx.Done()
		return simReply{err: ctx.Err()}
	}
	if f.again > 0 {
		time.AfterFunc(f.there+f.again, func() { again() })
	}
	start := time.Now()
	if err := sleep(ctx, f.there); err != nil {
		time.AfterFunc(f.there-time.Since(start), func() { apply() })
		return simReply{err: err}
	}
	r := apply()
	if f.again > 0 {
		r.before = 0
	}
	if f.lostReply {
		<-ctx.Done()
		return simReply{err: ctx.Err()}
	}
	if err := sleep(ctx, f.back); err != nil {
		return simReply{err: err}
	}
	n.machine.thaw()
	return r
}

func sleep(ctx context.Context, d time.Duration) error {
	if end, ok := ctx.Deadline(); ok && ctx.Err() == nil && time.Until(end) > d && ctx.Done() != nil {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// notAfter returns the end of a request in the server's time, which a driver knows precisely.
func (n *simNode) notAfter(ctx context.Context) time.Time {
	end, ok := ctx.Deadline()
	if !ok {
		return time.Time{}
	}
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	return n.s.clock().Add(time.Until(end))
}

var errSimForgets = errors.New("it forgets its scripts again and again")

// run calls a script with EVALSHA. A handshake comes first if the process does not know the script,
// or if the client does not know that the process keeps the guard of q. It models router.run of
// redisnode.
func (n *simNode) run(ctx context.Context, op simOp, q *quorum.Info, c simCall) simReply {
	unsent := func(err error) simReply { return simReply{err: err, unsent: true} }
	if err := ctx.Err(); err != nil {
		return unsent(err)
	}
	script := func(t simText) simReply {
		notAfter := n.notAfter(ctx)
		r := n.send(ctx, c, func(c simCall) simReply {
			body := func() simReply {
				return map[simOp]func(simCall, *quorum.Terms) simReply{simAcquire: n.s.acquire, simJoin: n.s.join, simRenew: n.s.renew}[op](c, &t.terms)
			}
			if q.Guard <= 0 {
				return n.s.plain(notAfter, body)
			}
			return n.s.evalsha(t, notAfter, body)
		})
		if r.err == nil {
			r.terms = t.terms
		}
		return r
	}
	if q.Guard <= 0 {
		return script(simText{terms: q.Terms})
	}
	p, asked, again := n.known(), false, false
	hello := func() error {
		asked = true
		r := n.call(ctx, n.s.hello)
		if r.err == nil {
			p = n.serves(r.server)
		}
		return r.err
	}
	if p == nil {
		if err := hello(); err != nil {
			return unsent(err)
		}
	}
	for range 8 {
		if t, ok := n.serve(p, q); ok {
			if c.ttl > t.Guard {
				return unsent(&driver.RefusedError{Reason: "the TTL is over the guard"})
			}
			r := script(simText{p.run, t, op})
			switch {
			case r.err != nil, r.code == simDone:
				return r
			case r.code == simStale && r.none:
				n.adopt(p, *q.Proposal())
			case r.code != simQuarantined:
			case again || !n.overlong(p, q, r): // else another handshake may shorten the quarantine
				return simReply{err: refusedByGuard(r)}
			default:
				again = true
			}
		}
		if !asked {
			was := p
			if err := hello(); err != nil {
				return unsent(err)
			}
			if p != was {
				continue
			}
		}
		h := n.shakeArgs(p, op, q)
		if n.durable {
			h.mode = "durable"
		}
		var err error
		if p, _, err = n.handshake(ctx, p, h); err != nil {
			return unsent(err)
		}
	}
	return unsent(errSimForgets)
}

// serve returns the terms under which scripts may be called now, or false if a handshake must
// come first.
func (n *simNode) serve(p *simProcess, q *quorum.Info) (quorum.Terms, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return p.terms, p.ready && p.terms.N == q.N
}

// adopt uses these terms from now on.
func (n *simNode) adopt(p *simProcess, t quorum.Terms) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p.terms != t {
		p.terms, p.ready = t, false
	}
}

func refusedByGuard(r simReply) error {
	after := time.Duration(r.till-r.now) * time.Microsecond
	if r.till == simPending {
		after = 20 * time.Millisecond
	}
	return &driver.RefusedError{RetryAfter: after, Reason: "quarantined: " + r.why, Clock: r.clock}
}

func (n *simNode) known() *simProcess {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.process
}

// serves notes the process that answered.
func (n *simNode) serves(run string) *simProcess {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process == nil || n.process.run != run {
		n.process = &simProcess{run: run}
	}
	return n.process
}

// overlong reports whether a quarantine is so long that another handshake may shorten it.
func (n *simNode) overlong(p *simProcess, q *quorum.Info, r simReply) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if q.N > 1 && q.OtherClocks().IsZero() {
		return false
	}
	return r.till-r.now > int64((p.terms.Quarantine+p.terms.Allowance)/time.Microsecond)
}

// shakeArgs returns the arguments of a handshake.
func (n *simNode) shakeArgs(p *simProcess, op simOp, q *quorum.Info) simShake {
	n.mu.Lock()
	if p.terms.N != q.N {
		p.terms, p.ready = *q.Proposal(), false
	}
	h := simShake{text: simText{p.run, p.terms, op}, terms: *q.Proposal(), load: true, check: true}
	n.mu.Unlock()
	if q.N > 1 {
		h.others = -1
		if t := q.OtherClocks(); !t.IsZero() {
			h.others = t.UnixMicro()
		}
	}
	return h
}

// handshake makes a handshake, and waits for its answer.
func (n *simNode) handshake(ctx context.Context, p *simProcess, h simShake) (*simProcess, simCode, error) {
	h.load = !n.s.broken.apart
	r := n.call(ctx, func() simReply { return n.s.handshake(h) })
	if r.err == nil && !h.load {
		load := simShake{text: h.text, load: true}
		r.err = n.call(ctx, func() simReply { return n.s.handshake(load) }).err
	}
	if r.err != nil {
		return nil, 0, r.err
	}
	now := n.serves(r.server)
	switch {
	case r.code == simOtherQuorum:
		return nil, r.code, &driver.RefusedError{Reason: fmt.Sprintf("it is a node of a quorum of %d", r.terms.N)}
	case now != p:
	case r.code == simUnknown:
		return nil, r.code, refusedByGuard(r)
	case r.code == simOtherTerms:
		n.adopt(p, r.terms)
	case r.code == simDone: // the marker is there before the first vote, so that an emptied node never counts as new
		if err := n.call(ctx, func() simReply { n.s.mark(); return simReply{} }).err; err != nil {
			return nil, 0, err
		}
		n.adopt(p, r.terms)
		n.mu.Lock()
		p.ready = true
		n.mu.Unlock()
	}
	return now, r.code, nil
}

// Bootstrap models Bootstrap of redisnode's Node.
func (n *simNode) Bootstrap(ctx context.Context, b *quorum.Bootstrap) (*quorum.MemoryReport, error) {
	if b.Quorum.Guard <= 0 {
		return &quorum.MemoryReport{}, nil
	}
	if n.s.broken.once && b.Statement == quorum.StateChanged && !b.DryRun {
		if n.told = !n.told; !n.told {
			return &quorum.MemoryReport{}, nil
		}
	}
	r := n.call(ctx, func() simReply { return n.s.look() })
	if r.err != nil {
		return nil, r.err
	}
	if n.s.broken.hides && r.memory == quorum.MemoryKept {
		r.memory = quorum.MemoryNew
	}
	p := n.serves(r.server)
	now := &quorum.MemoryReport{Memory: r.memory, Clock: r.clock, Server: r.server}
	if r.memory == quorum.MemoryKept {
		now.Terms = &r.terms
	}
	if b.DryRun {
		return now, nil
	}
	seen, mode := now, map[quorum.Statement]string{quorum.StateNew: "bootstrap", quorum.StateChanged: "changed"}[b.Statement]
	if b.Statement == quorum.StateNew && b.Observed != nil {
		seen = b.Observed
	}
	if now.Memory == quorum.MemoryFlushed && seen.Memory < now.Memory {
		return nil, errSimChanged
	}
	n.s.mu.Lock()
	n.s.stated = time.Now().Add(time.Second)
	n.s.mu.Unlock()
	for range 3 {
		if b.Statement == quorum.StateChanged {
			if n.s.broken.alone {
				b.Quorum.Remembered = nil
			}
			n.adopt(p, *b.Quorum.Proposal())
		}
		h := n.shakeArgs(p, simAcquire, b.Quorum)
		h.mode, h.until = mode, seen.Clock.Add(5*time.Second).UnixMicro()
		if seen.Server != p.run {
			return nil, errSimChanged
		}
		answered, code, err := n.handshake(ctx, p, h)
		switch {
		case err != nil:
			return nil, err
		case answered != p || code == simChanged:
			return nil, errSimChanged
		case code != simOtherTerms || mode != "bootstrap":
			return now, nil
		}
	}
	return nil, errSimChanged
}

var errSimChanged = errors.New("it was restarted just now, or that took too long")

func (n *simNode) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if err := n.Info().Check("", r); err != nil {
		return nil, err
	}
	req, q, start := *r, *r.Quorum, time.Now()
	req.Quorum = &q
	op, c := simAcquire, simCall{me: r.Owner, ttl: r.TTL, token: r.FenceFloor, more: int64(max(r.Tokens, 1)) - 1, life: n.counterLife(r.TTL), reads: r.Mode == driver.Shared}
	if c.reads { // a reader gets one token
		c.more = 0
	}
	if r.ExactFence != 0 {
		op, c.token, c.seen = simJoin, r.ExactFence, max(r.FenceFloor, r.ExactFence)
	} else if q.WaitingSince != 0 {
		c.place = n.stand(r.Owner, q.WaitingSince, c.reads)
	}
	a := n.run(ctx, op, &q, c)
	if a.err == nil {
		n.leave(false)
		return &simLease{n: n, req: req, grant: grantOf(a, start, req.TTL, &q), before: a.before}, nil
	}
	if a.inDoubt() {
		rest := time.Duration(0)
		if end, ok := ctx.Deadline(); ok {
			rest = max(0, time.Until(end))
		}
		n.undo(req.Owner, rest)
	}
	return nil, a.err
}

// counterLife returns how long a counter outlives its last token, at least.
func (n *simNode) counterLife(ttl time.Duration) time.Duration { return n.life + ttl }

// simKept is how long a key is reserved for the next waiter.
const simKept = 30 * time.Millisecond

// stand returns the client's place in the wait queue.
func (n *simNode) stand(owner string, since uint64, reads bool) simPlace {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.place == "" {
		number := "0"
		if reads {
			number = "r0"
		}
		n.place = fmt.Sprintf("%s.%s.%d", requester(owner), number, simKept.Milliseconds())
	}
	return simPlace{n.place, since}
}

// leave gives up the place in the wait queue, if there is one. If tell is set it also tells the
// server.
func (n *simNode) leave(tell bool) {
	n.mu.Lock()
	place := n.place
	n.place = ""
	n.mu.Unlock()
	if place == "" || !tell {
		return
	}
	if f := n.fate(); !f.lost {
		time.AfterFunc(f.there, func() { n.s.release(simCall{}, place) })
	}
}

// undo releases an attempt with an unknown outcome, at once and again when none of its requests
// can arrive any longer, which is in rest (rule 2 of the contract).
func (n *simNode) undo(owner string, rest time.Duration) {
	free := func() { n.s.release(simCall{me: owner}, "") }
	for _, d := range []time.Duration{0, rest + time.Millisecond} {
		if f := n.fate(); !f.lost {
			time.AfterFunc(d+f.there, free)
		}
	}
}

func grantOf(a simReply, start time.Time, ttl time.Duration, q *quorum.Info) driver.Grant {
	g := driver.Grant{Expires: driver.Expires(start, ttl), Fence: a.fence, Clock: a.clock, Server: a.server}
	if q.Guard > 0 {
		g.Terms = &a.terms
	}
	return g
}

type simLease struct {
	n     *simNode
	req   driver.Request
	grant driver.Grant // the original grant

	before int64 // the counter before the grant, and 1; 0: unknown
	mu     sync.Mutex
	back   int64 // for the next release
	quiet  bool
}

func (l *simLease) GiveBack(silent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.back, l.quiet = l.before, silent
}

// releases returns the call of a release.
func (l *simLease) releases() simCall {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := simCall{me: l.req.Owner, token: l.grant.Fence, back: l.back, quiet: l.quiet}
	l.back, l.quiet = 0, false
	return c
}

func (l *simLease) Grant() driver.Grant { return l.grant }

func (l *simLease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	start := time.Now()
	a := l.n.run(ctx, simRenew, l.req.Quorum, simCall{me: l.req.Owner, ttl: r.TTL, token: l.grant.Fence, least: r.MinFence, life: l.n.counterLife(r.TTL), reads: l.req.Mode == driver.Shared})
	return grantOf(a, start, r.TTL, l.req.Quorum), a.err
}

// callerKey is the context key for the caller's own context, for the mutant that releases with
// it.
type callerKey struct{}

func (l *simLease) Release(ctx context.Context) error {
	if caller, ok := ctx.Value(callerKey{}).(context.Context); ok && l.n.s.broken.caller {
		end, _ := ctx.Deadline()
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(caller, end)
		defer cancel()
	}
	return l.n.send(ctx, l.releases(), func(c simCall) simReply { return l.n.s.release(c, "") }).err
}

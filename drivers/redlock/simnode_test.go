package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
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
	terms driver.Terms // the terms to which its scripts are bound
	ready bool         // the scripts may be called
	from  int64        // when other terms begin, by the server's clock; zero: no change is settled
}

var (
	_ driver.Backend    = (*simNode)(nil)
	_ driver.GuardAdmin = (*simNode)(nil)
)

func (n *simNode) Info() driver.Info {
	return driver.Info{Name: "sim", Features: driver.FeatureQuorumNode | driver.FeatureFencing, MinTTL: driver.MinTTL, MaxTTL: time.Hour}
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

// call sends a request. A request that arrives takes effect even if nobody waits for its answer
// any longer, and in whichever process then runs.
func (n *simNode) call(ctx context.Context, apply func() simReply) simReply {
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
		time.AfterFunc(f.there+f.again, func() { apply() })
	}
	start := time.Now()
	if err := sleep(ctx, f.there); err != nil {
		time.AfterFunc(f.there-time.Since(start), func() { apply() })
		return simReply{err: err}
	}
	r := apply()
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

// run calls a script with EVALSHA. It makes a handshake first if the process does not know the
// script, or if the client does not know that the process keeps the guard of q. It models
// router.run of redisnode.
func (n *simNode) run(ctx context.Context, op simOp, q *driver.Quorum, ttl time.Duration, body func(*driver.Terms) simReply) simReply {
	if q.Guard <= 0 {
		end := n.notAfter(ctx)
		return n.call(ctx, func() simReply { return n.s.plain(end, func() simReply { return body(&q.Terms) }) })
	}
	p, err := n.known(ctx)
	asked := p == nil
	if asked {
		p, err = n.ask(ctx)
	}
	recounted := false
	for range 8 {
		if err != nil {
			return simReply{err: err, unsent: true}
		}
		if t, ok := n.serve(p, q); ok {
			if ttl > t.Guard {
				return simReply{err: &driver.RefusedError{Reason: "the TTL is over the guard"}, unsent: true}
			}
			end, text := n.notAfter(ctx), simText{p.run, t, op}
			r := n.call(ctx, func() simReply { return n.s.evalsha(text, end, func() simReply { return body(&t) }) })
			r.terms = t
			switch {
			case r.err != nil || r.code == simDone:
				return r
			case r.code == simStale && r.none:
				n.adopt(p, *q.Proposal())
			case r.code != simQuarantined:
			case recounted || !n.overlong(p, q, r):
				return simReply{err: refusedByGuard(r)}
			default:
				recounted = true
			}
		}
		p, err = n.shake(ctx, p, op, q, asked)
		asked = true
	}
	return simReply{err: errors.New("it forgets its scripts again and again"), unsent: true}
}

// serve returns the terms under which scripts may be called now, or false if a handshake must
// come first.
func (n *simNode) serve(p *simProcess, q *driver.Quorum) (driver.Terms, bool) {
	n.s.mu.Lock()
	now := n.s.micros() // a driver knows a lower bound of it
	n.s.mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	return p.terms, p.ready && p.terms.N == q.N && (p.from == 0 || now <= p.from)
}

// adopt uses these terms from now on.
func (n *simNode) adopt(p *simProcess, t driver.Terms) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p.terms != t {
		p.terms, p.ready, p.from = t, false, 0
	}
}

func refusedByGuard(r simReply) error {
	after := time.Duration(r.till-r.now) * time.Microsecond
	if r.till == simPending {
		after = 20 * time.Millisecond
	}
	return &driver.RefusedError{RetryAfter: after, Reason: "quarantined: " + r.why, Clock: r.clock, Server: r.server}
}

func (n *simNode) known(ctx context.Context) (*simProcess, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.process, ctx.Err()
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

func (n *simNode) ask(ctx context.Context) (*simProcess, error) {
	r := n.call(ctx, n.s.hello)
	if r.err != nil {
		return nil, r.err
	}
	return n.serves(r.server), nil
}

// overlong reports whether a quarantine is so long that another handshake may shorten it.
func (n *simNode) overlong(p *simProcess, q *driver.Quorum, r simReply) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if q.N > 1 && q.OtherClocks().IsZero() {
		return false
	}
	return r.till-r.now > int64((p.terms.Quarantine+p.terms.Allowance)/time.Microsecond)
}

// shake makes the handshake that loads a script into p, and returns the process that answered.
// It models router.load of redisnode.
func (n *simNode) shake(ctx context.Context, p *simProcess, op simOp, q *driver.Quorum, asked bool) (*simProcess, error) {
	if !asked {
		if now, err := n.ask(ctx); err != nil || now != p {
			return now, err
		}
	}
	h := n.shakeArgs(p, op, q)
	if n.durable {
		h.mode = "durable"
	}
	now, _, err := n.handshake(ctx, p, h)
	return now, err
}

// shakeArgs returns the arguments of a handshake.
func (n *simNode) shakeArgs(p *simProcess, op simOp, q *driver.Quorum) simShake {
	n.mu.Lock()
	if p.terms.N != q.N {
		p.terms, p.ready, p.from = *q.Proposal(), false, 0
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
	case r.code == simDone:
		// The marker is set before the node votes for the first time, so that it never counts
		// as new after it was emptied.
		if err := n.call(ctx, func() simReply { n.s.mark(); return simReply{} }).err; err != nil {
			return nil, 0, err
		}
		n.adopt(p, r.terms)
		n.mu.Lock()
		p.ready, p.from = true, r.from
		n.mu.Unlock()
	}
	return now, r.code, nil
}

// Bootstrap models Bootstrap of redisnode's Node.
func (n *simNode) Bootstrap(ctx context.Context, b *driver.Bootstrap) (*driver.MemoryReport, error) {
	if b.Quorum.Guard <= 0 {
		return &driver.MemoryReport{}, nil
	}
	if n.s.broken.once && b.Statement == driver.StateNodes && !b.DryRun {
		if n.told = !n.told; !n.told {
			return &driver.MemoryReport{}, nil
		}
	}
	r := n.call(ctx, func() simReply { return n.s.look(b.Quorum.Proposal().Quarantine) })
	if r.err != nil {
		return nil, r.err
	}
	if n.s.broken.hides && r.memory == driver.MemoryKept {
		r.memory = driver.MemoryNew
	}
	p := n.serves(r.server)
	now := &driver.MemoryReport{Memory: r.memory, Clock: r.clock, Server: r.server}
	if r.memory == driver.MemoryKept {
		now.Terms = &r.terms
	}
	if b.DryRun {
		return now, nil
	}
	seen, mode := now, map[driver.Statement]string{
		driver.StateNew: "bootstrap", driver.StateNodes: "nodes", driver.StateTerms: "terms", driver.StateTermsSettled: "settled",
	}[b.Statement]
	if b.Statement == driver.StateNew && b.Observed != nil {
		seen = b.Observed
	}
	if now.Memory == driver.MemoryFlushed && seen.Memory < now.Memory {
		return nil, errSimChanged
	}
	n.s.mu.Lock()
	n.s.stated = time.Now().Add(time.Second)
	n.s.mu.Unlock()
	for range 3 {
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
	c := simCall{me: req.Owner, ttl: req.TTL, token: req.FenceFloor, life: n.counterLife(req.TTL)}
	op := simAcquire
	if req.ExactFence != 0 {
		op, c.token, c.seen = simJoin, req.ExactFence, max(req.FenceFloor, req.ExactFence)
	} else if q.WaitingSince != 0 {
		c.place = n.stand(req.Owner, q.WaitingSince)
	}
	a := n.run(ctx, op, &q, req.TTL, func(t *driver.Terms) simReply {
		if op == simJoin {
			return n.s.join(c, t)
		}
		return n.s.acquire(c, t)
	})
	if a.err == nil {
		n.leave(false)
		return &simLease{n: n, req: req, grant: grantOf(a, start, req.TTL, &q)}, nil
	}
	got := result{err: a.err}
	if got.read(); !a.unsent && (got.answer == silence || got.answer == gone) {
		n.undo(ctx, req.Owner)
	}
	return nil, a.err
}

// counterLife returns how long a counter outlives its last token, at least.
func (n *simNode) counterLife(ttl time.Duration) time.Duration { return n.life + ttl }

// simKept is how long a key is reserved for the next waiter.
const simKept = 30 * time.Millisecond

// stand returns the client's place in the wait queue.
func (n *simNode) stand(owner string, since uint64) simPlace {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.place == "" {
		n.place = fmt.Sprintf("%s.0.%d", request(owner), simKept.Milliseconds())
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
		time.AfterFunc(f.there, func() { n.s.release("", 0, place) })
	}
}

// undo releases an attempt with an unknown outcome, at once and again when none of its requests
// can arrive any longer (rule 2 of the contract).
func (n *simNode) undo(ctx context.Context, owner string) {
	free := func() { n.s.release(owner, 0, "") }
	rest := time.Duration(0)
	if end, ok := ctx.Deadline(); ok {
		rest = max(0, time.Until(end))
	}
	for _, d := range []time.Duration{0, rest + time.Millisecond} {
		if f := n.fate(); !f.lost {
			time.AfterFunc(d+f.there, free)
		}
	}
}

func grantOf(a simReply, start time.Time, ttl time.Duration, q *driver.Quorum) driver.Grant {
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
}

func (l *simLease) Grant() driver.Grant { return l.grant }

func (l *simLease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	start := time.Now()
	c := simCall{me: l.req.Owner, ttl: r.TTL, token: l.grant.Fence, least: r.MinFence, life: l.n.counterLife(r.TTL)}
	a := l.n.run(ctx, simRenew, l.req.Quorum, r.TTL, func(t *driver.Terms) simReply { return l.n.s.renew(c, t) })
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
	return l.n.call(ctx, func() simReply {
		return l.n.s.release(l.req.Owner, l.grant.Fence, "")
	}).err
}

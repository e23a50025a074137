package redisnode

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// An attempt is one Acquire: what it asks for, and what of it may have taken effect.
type attempt struct {
	node   *Node
	key    string
	owner  string
	value  string // as stored, if the token is the proposed one
	names  siblings
	place  string   // in the line of those who wait; empty: nobody does
	line   []string // what acquire says about the line, or join about the token
	quorum *driver.Quorum
	own    driver.Quorum // what quorum points to
	ttl    time.Duration

	ask      request
	span     *span
	floor    uint64 // the token that is proposed, or joined
	proposal string
	deadline time.Time

	again, tardy bool // it was tried once more: after a broken connection; after it came too late

	last inDoubtCall   // the call that was sent last
	late []inDoubtCall // those of which the outcome is not known

	ctx  context.Context // of an attempt that was started
	done func(driver.Lease, error)
}

func (n *Node) attempt(req *driver.Request) *attempt {
	t, _ := n.attempts.Get().(*attempt)
	if t == nil {
		t = new(attempt)
	}
	t.node, t.key, t.owner, t.ttl = n, req.Key, req.Owner, req.TTL
	t.quorum = n.copyQuorum(&t.own, req.Quorum)
	t.span = n.span(req.TTL, t.quorum)
	t.ask.op, t.floor = opAcquire, req.FenceFloor
	if req.ExactFence != 0 {
		t.ask.op, t.floor = opJoin, req.ExactFence
		t.line = []string{strconv.FormatUint(max(req.FenceFloor, req.ExactFence), 10)}
	}
	var lock string
	lock, t.value = t.names.of(n.names, req.Key, req.Owner, t.floor)
	t.proposal = t.value[len(req.Owner)+1:]
	t.ask.q, t.ask.ttl, t.ask.script = n.guard.of(t.quorum), req.TTL, t
	t.ask.keys = n.fenced(t.ask.room.keys[:0], lock, t.names.counter, req.Key, t.ask.q)
	return t
}

// free lets t be used again: nobody has it any more, and its calls are answered.
func (t *attempt) free() {
	if len(t.late) > 0 {
		return
	}
	n, wake := t.node, t.ask.first.wake
	*t = attempt{}
	t.ask.first.wake = wake
	n.attempts.Put(t)
}

// copyQuorum copies q to a place of one's own: leases, and what goes on in the background,
// outlive the caller's request.
func (n *Node) copyQuorum(to, q *driver.Quorum) *driver.Quorum {
	if q == nil {
		return nil
	}
	*to = *q
	if q.Remembered != nil {
		last := n.remembered.Load()
		if last == nil || *last != *q.Remembered { // they are the same for years
			terms := *q.Remembered
			last = &terms
			n.remembered.Store(last)
		}
		to.Remembered = last
	}
	return to
}

// fenced returns the KEYS of a script that may set the counter.
func (n *Node) fenced(keys []string, lock, counter, key string, q *driver.Quorum) []string {
	keys = append(keys, lock, counter, n.mark(key))
	if q != nil {
		keys = append(keys, n.guard.meta)
	}
	return keys
}

func (t *attempt) args(p *process, args []string) []string {
	t.last.process, t.last.notAfter = p, p.clock.at(t.deadline)
	return append(append(args, strconv.FormatInt(t.last.notAfter, 10), t.owner, t.span.px, t.proposal, t.span.life), t.line...)
}

// doubt returns the call that was sent last.
func (t *attempt) doubt() inDoubtCall {
	t.last.call = &t.ask.sent.Call
	return t.last
}

// An inDoubtCall is a call that may have taken effect, or may until its not-after.
type inDoubtCall struct {
	call     *Call
	process  *process
	notAfter int64 // by the process' clock, in µs
}

// uncertain reports whether something may have taken effect, or may yet.
func (t *attempt) uncertain() bool { return len(t.late) > 0 }

// acquire asks until there is a verdict: again after a refusal for lateness, which
// taught the server's clock, and once more after a broken connection, since the
// script is idempotent for one attempt.
func (t *attempt) acquire(ctx context.Context) (driver.Lease, error) {
	t.deadline, _ = ctx.Deadline()
	for {
		a, err := t.node.router.run(ctx, &t.ask)
		if l, verdict := t.heard(a, err, err != nil && ended(ctx)); !errors.Is(verdict, errAgain) {
			return t.end(ctx, l, verdict, err == nil)
		}
	}
}

// start is acquire for a caller that does not wait.
func (t *attempt) start(ctx context.Context, until time.Time, done func(driver.Lease, error)) bool {
	t.deadline, t.ctx, t.done = until, ctx, done
	t.ask.then = t
	if !t.node.router.start(ctx, &t.ask, until) {
		t.free()
		return false
	}
	return true
}

// answered is told what an attempt that was started brought.
func (t *attempt) answered(a *answer, err error) {
	ctx, until, done := t.ctx, t.deadline, t.done
	l, verdict := t.heard(a, err, err != nil && !time.Now().Before(until))
	if errors.Is(verdict, errAgain) {
		t.node.aside(func() { done(t.acquire(&bounded{context.WithoutCancel(ctx), until})) })
		return
	}
	done(t.end(ctx, l, verdict, err == nil))
}

// aside does what takes time for a caller that does not wait.
func (n *Node) aside(do func()) {
	n.work.add()
	n.wg.add()
	go func() {
		defer n.wg.done()
		defer n.work.done()
		do()
	}()
}

// end makes the result of an attempt, and frees it where the server has answered. What may
// have taken effect without a result is undone.
func (t *attempt) end(ctx context.Context, l *Lease, err error, answered bool) (driver.Lease, error) {
	n, key := t.node, t.key
	if err != nil && t.uncertain() {
		n.cleanUp(ctx, t)
	} else if answered {
		t.free()
	}
	if err != nil {
		return nil, n.explain(key, err)
	}
	return l, nil
}

// heard reads an answer, or the error instead; late says that the time is over by now. The error
// errAgain says to ask once more.
func (t *attempt) heard(a *answer, err error, late bool) (*Lease, error) {
	n := t.node
	if err != nil {
		if !n.unknown(err) {
			return nil, err
		}
		t.late = append(t.late, t.doubt())
		if t.again || late {
			return nil, err
		}
		t.again = true
		return nil, errAgain
	}
	switch code := a.code(); {
	case code == 1, code > 1 && a.Reply == nil: // at this instant, and as proposed
		n.waiters.served(t)
		if err := n.replicated(a); err != nil {
			t.late = append(t.late, t.doubt()) // it has the lock, which is given back
			return nil, err
		}
		return n.lease(t, a)
	case code == 0:
		e := held(a)
		n.waiters.waits(t, e.Clock, a.received.Sub(a.sent))
		e.PollAfter = n.waiters.pollAfter(t, a.process, e)
		if _, end := n.gap(a.process); end > 0 && e.PollAfter > end {
			e.PollAfter = end + mathrand.N(5*time.Millisecond)
		}
		return nil, e
	case code == -1:
		a.learn(1)
		if t.tardy {
			return nil, errTooLate
		}
		t.tardy = true
		return nil, errAgain
	case code == -2:
		counter, _ := number(a.Reply, 1)
		return nil, &driver.RefusedError{RetryAfter: time.Millisecond, Reason: fmt.Sprintf("the counter is at %d, above the token to join", counter)}
	}
	return nil, errGarbled
}

// errAgain says that a request has to be made once more.
var errAgain = errors.New("once more")

var (
	errTooLate = &driver.RefusedError{RetryAfter: 10 * time.Millisecond, Reason: "the request reached the server after its deadline, by the server's clock"}
	errGarbled = errors.New("the server answers in an unknown way")
)

// replicated returns an error unless as many replicas as are wanted have what the script
// wrote.
func (n *Node) replicated(a *answer) error {
	if a.Acked >= int64(n.cfg.WaitReplicas) {
		return nil
	}
	return &driver.RefusedError{RetryAfter: soon, Reason: fmt.Sprintf("%s: %d of %d replicas (wait_replicas) have confirmed the lock within %v", n.cfg.Addr, a.Acked, n.cfg.WaitReplicas, n.cfg.CallTimeout/2)}
}

// notAfter returns the local instant in microseconds of the process' clock.
func notAfter(p *process, t time.Time) string { return strconv.FormatInt(p.clock.at(t), 10) }

// lease makes a lease of a grant: {1, token, TIME}, or TIME alone where the token is the proposed
// one, or TIME if none was.
func (n *Node) lease(t *attempt, a *answer) (*Lease, error) {
	fence, clock := int64(t.floor), int64(0)
	if a.Reply == nil {
		if clock = a.Number; fence == 0 {
			fence = clock
		}
	} else if token, ok := number(a.Reply, 1); ok {
		fence = token
		clock, _ = number(a.Reply, 2)
	} else {
		fence = 0
	}
	if fence <= 0 {
		t.late = append(t.late, t.doubt())
		return nil, errGarbled
	}
	l := &Lease{node: n, key: t.key, owner: t.owner, value: t.value, names: t.names, late: t.late}
	if t.quorum != nil {
		l.own = t.own
		l.quorum = &l.own
	}
	if uint64(fence) != t.floor {
		l.value = t.owner + "|" + strconv.FormatInt(fence, 10)
	}
	l.grant = driver.Grant{
		Expires: driver.Expires(a.sent, t.ttl),
		Fence:   uint64(fence),
		Clock:   a.observe(clock),
		Server:  a.process.run,
		Terms:   a.terms(t.quorum),
	}
	return l, nil
}

// held makes the verdict of {0, value, PTTL, TIME}.
func held(a *answer) *driver.HeldError {
	value, _ := text(a.Reply, 1)
	pttl, _ := number(a.Reply, 2)
	e := &driver.HeldError{Clock: a.learn(3), Server: a.process.run}
	owner, fence := parse(value)
	e.Holder = owner
	if strings.HasPrefix(value, next) {
		e.Holder, e.ReservedForWaiter = "", true
	}
	if fence > 0 {
		e.Since = time.UnixMicro(int64(fence))
	}
	if pttl > 0 {
		e.RetryAfter = time.Duration(pttl) * time.Millisecond
	}
	return e
}

// parse splits the value of a lock of ours into owner and token. A foreign lock's
// value is its owner as a whole, and has no token.
func parse(value string) (owner string, fence uint64) {
	owner, token, found := strings.Cut(value, "|")
	if !found || owner == "" || token == "" || token[0] == '0' || strings.Trim(token, "0123456789") != "" {
		return value, 0
	}
	fence, err := strconv.ParseUint(token, 10, 64)
	if err != nil || fence > driver.MaxFence {
		return value, 0
	}
	return owner, fence
}

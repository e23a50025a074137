package redisnode

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/drivers/internal/redisnode/names"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
)

// An attempt is one Acquire: its request, and its calls that may have taken effect.
type attempt struct {
	node   *Node
	key    string
	owner  string
	value  string // the stored value, if the server takes the proposed token
	names  names.Siblings
	place  string   // place in the wait queue; empty: nobody waits
	more   []string // arguments of acquire about the queue, or of join about the token
	quorum *quorum.Info
	ttl    time.Duration

	ask      request
	span     *span
	floor    uint64 // the proposed token, or that of a join
	proposal string
	deadline time.Time

	again, tardy bool // already repeated after a broken connection; already repeated because it was late

	last inDoubtCall   // the last sent call
	late []inDoubtCall // calls with an unknown outcome

	term     async.Term // of a started attempt
	receiver async.Receiver
}

func (n *Node) attempt(req *driver.Request) *attempt {
	t, _ := n.attempts.Get().(*attempt)
	if t == nil {
		t = new(attempt)
	}
	t.node, t.key, t.owner, t.ttl = n, req.Key, req.Owner, req.TTL
	t.quorum = req.Quorum
	t.span = n.span(req.TTL, t.quorum)
	t.ask.op, t.floor = lua.Acquire, req.FenceFloor
	if req.ExactFence != 0 {
		t.ask.op, t.floor = lua.Join, req.ExactFence
		t.more = []string{strconv.FormatUint(max(req.FenceFloor, req.ExactFence), 10)}
	}
	var lock string
	lock, t.value = t.names.Of(n.names, req.Key, req.Owner, t.floor)
	t.proposal = t.value[len(req.Owner)+1:]
	t.ask.q, t.ask.ttl, t.ask.script = n.guard.of(t.quorum), req.TTL, t
	t.ask.keys = n.fenced(t.ask.room.keys[:0], lock, t.names.Counter, req.Key, t.ask.q)
	return t
}

// free returns t for reuse: nothing refers to it any more, and its calls are answered.
func (t *attempt) free() {
	if len(t.late) > 0 {
		return
	}
	n, wake := t.node, t.ask.first.wake
	*t = attempt{}
	t.ask.first.wake = wake
	n.attempts.Put(t)
}

func (t *attempt) args(p *process, args []string) []string {
	t.last.process, t.last.notAfter = p, p.clock.at(t.deadline)
	return append(append(args, strconv.FormatInt(t.last.notAfter, 10), t.owner, t.span.px, t.proposal, t.span.life), t.more...)
}

// inDoubt returns the last sent call, as an in-doubt call.
func (t *attempt) inDoubt() inDoubtCall {
	t.last.call, t.last.sent, t.last.proposed, t.last.life = &t.ask.sent.Call, t.ask.sent, int64(t.floor), t.span.lock
	if t.quorum != nil {
		t.last.life += t.quorum.Grace // which the script adds
	}
	return t.last
}

// uncertain reports whether a call may have taken effect, or may still do so.
func (t *attempt) uncertain() bool { return len(t.late) > 0 }

// acquire asks until it has a verdict. It asks again after a refusal as late, because that
// shows the server's clock, and once after a broken connection, because the script is
// idempotent for one attempt.
func (t *attempt) acquire(ctx context.Context) (driver.Lease, error) {
	t.deadline, _ = ctx.Deadline()
	for {
		a, err := t.node.router.run(ctx, &t.ask)
		if l, verdict := t.heard(a, err, err != nil && driver.ContextErr(ctx) != nil); !errors.Is(verdict, errAgain) {
			return t.end(ctx, l, verdict, err == nil)
		}
	}
}

// start is acquire without waiting.
func (t *attempt) start(term async.Term, until time.Time, r async.Receiver) bool {
	t.deadline, t.term, t.receiver = until, term, r
	t.ask.then = t
	if !t.node.router.start(term, &t.ask, until) {
		t.free()
		return false
	}
	return true
}

// answered gets the result of a started attempt.
func (t *attempt) answered(a *answer, err error) {
	term, until, receiver := t.term, t.deadline, t.receiver
	l, verdict := t.heard(a, err, err != nil && (term.Err() != nil || !time.Now().Before(until)))
	if errors.Is(verdict, errAgain) {
		t.node.aside(func() { receiver.Acquired(t.acquire(async.Until(term, until))) })
		return
	}
	receiver.Acquired(t.end(term, l, verdict, err == nil))
}

// end returns the result of an attempt, and frees it if the server has answered. Calls that may
// have taken effect without a grant are undone.
func (t *attempt) end(ctx context.Context, l *Lease, err error, answered bool) (driver.Lease, error) {
	n, key := t.node, t.key
	if err != nil && t.uncertain() {
		n.cleanUp(ctx, unsettled{t.key, t.owner, t.place, t.late, t.quorum != nil && t.ask.op == lua.Acquire})
	} else if answered {
		t.free()
	}
	if err != nil {
		return nil, n.explain(key, err)
	}
	return l, nil
}

// heard reads an answer, or the error instead of one; late says that the time is over. The
// error errAgain says that the attempt must ask again.
func (t *attempt) heard(a *answer, err error, late bool) (*Lease, error) {
	n := t.node
	if err != nil {
		if !n.unknown(err) {
			return nil, err
		}
		t.late = append(t.late, t.inDoubt())
		if t.again || late {
			return nil, err
		}
		t.again = true
		return nil, errAgain
	}
	switch code := a.code(); {
	case code == 1, code > 1 && a.Reply == nil: // granted at this time, with the proposed token
		n.queue.served(t.key, t.place)
		if err := n.replicated(a); err != nil {
			t.late = append(t.late, t.inDoubt()) // it has the lock, which is released
			return nil, err
		}
		return n.lease(t, a)
	case code == 0 && tells(a):
		e := held(a)
		n.queue.refused(t.key, t.place, e.Clock, a.received.Sub(a.sent))
		e.PollAfter = n.queue.pollAfter(t.key, t.place, a.process, e)
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
	t.late = append(t.late, t.inDoubt())
	return nil, errGarbled
}

// lease makes a lease of a grant: see lua/acquire.lua and lua/batch.lua.
func (n *Node) lease(t *attempt, a *answer) (*Lease, error) {
	fence, clock, before := a.voted(int64(t.floor))
	if fence <= 0 {
		t.late = append(t.late, t.inDoubt())
		return nil, errGarbled
	}
	l := &Lease{node: n, key: t.key, value: t.value, names: t.names, quorum: t.quorum, late: t.late, before: before}
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

// tells reports whether a refusal contains the value of the lock, as those of the scripts do.
func tells(a *answer) bool {
	_, ok := text(a.Reply, 1)
	return ok
}

// held makes the verdict from {0, value, PTTL, TIME}.
func held(a *answer) *driver.HeldError {
	value, _ := text(a.Reply, 1)
	pttl, told := number(a.Reply, 2)
	e := &driver.HeldError{Clock: a.learn(3), Server: a.process.run}
	owner, fence := names.Parse(value)
	e.Holder = owner
	if strings.HasPrefix(value, names.Next) {
		e.Holder, e.ReservedForWaiter = "", true
	}
	if fence > 0 {
		e.Since = time.UnixMicro(int64(fence))
	}
	if told && pttl >= 0 { // PTTL has whole milliseconds: zero is less than one
		e.RetryAfter = max(time.Duration(pttl)*time.Millisecond, time.Millisecond)
	}
	return e
}

// Acquire makes one attempt. It never blocks for the lock: Watch and HeldError's RetryAfter say
// when to ask again. It takes no longer than ctx and the call timeout allow, or half of the TTL
// if that is less.
func (n *Node) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	if err := n.check(req); err != nil {
		return nil, err
	}
	if n.closed.Load() {
		return nil, driver.ErrClosed
	}
	t := n.attempt(req)
	if req.ExactFence == 0 {
		n.holdBack(ctx, req.Key)
		n.stepBack(ctx, req.Key)
		t.takePlace()
	}
	return t.acquire(async.Within(ctx, n.timeout(req.TTL)))
}

// StartAcquire is Acquire without waiting: see package async.
func (n *Node) StartAcquire(term async.Term, req *driver.Request, r async.Receiver) bool {
	if n.closed.Load() || len(n.cfg.Prefix)+len(req.Key) > driver.MaxKey || n.checkOwn(req) != nil {
		return false
	}
	t := n.attempt(req)
	if req.ExactFence == 0 {
		if n.cfg.ForeignGap != 0 || n.queue.stepBack(req.Key) > 0 {
			return false
		}
		t.takePlace()
	}
	return t.start(term, latest(term, n.timeout(req.TTL)), r)
}

// takePlace gives the attempt its place in the queue, if a waiter watches the key.
func (t *attempt) takePlace() {
	place, since := t.node.queue.takePlace(t.key)
	if place == "" {
		return
	}
	if t.quorum != nil && t.quorum.WaitingSince > 0 {
		since = int64(t.quorum.WaitingSince) // the same on all nodes
	}
	t.place = place
	t.more = []string{place, queueLife, strconv.FormatInt(since, 10)}
	t.ask.keys = slices.Insert(t.ask.keys, 3, t.names.WaitQueue) // meta is the last
}

package redisnode

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/drivers/internal/redisnode/names"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
)

// An attempt is one Acquire: its request, and its calls that may have taken effect.
type attempt struct {
	operation
	owner  string
	texts  *names.Texts // its value is the stored one, if the server takes the proposed token
	shared bool
	place  string   // place in the wait queue; empty: nobody waits
	more   []string // arguments of acquire about the queue and a range, or of join about the token
	tokens uint32   // the length of the range; zero: one token
	quorum *quorum.Info
	ttl    time.Duration

	span  *span
	floor uint64 // the proposed token, or that of a join

	last inDoubtCall   // the last sent call
	late []inDoubtCall // calls with an unknown outcome

	lease    *Lease // the grant
	answered bool   // the server has answered the last call: it does not refer to t any more
}

// attempt prepares an Acquire. Unless it is nil, common has the texts that a quorum's nodes share.
func (n *Node) attempt(req *driver.Request, common *atomic.Value) *attempt {
	t := reused[attempt](&n.attempts)
	t.node, t.part, t.owner, t.ttl = n, t, req.Owner, req.TTL
	if req.Tokens > 1 && req.Mode == driver.Exclusive { // a reader gets one
		t.tokens, t.owner = req.Tokens, base.Ranged(req.Owner, req.Tokens)
		t.more = []string{"", "", "", strconv.FormatUint(uint64(req.Tokens), 10)}
	}
	t.quorum = req.Quorum
	t.span = n.span(req.TTL, t.quorum)
	t.ask.op, t.floor = lua.Acquire, req.FenceFloor
	if req.ExactFence != 0 {
		t.ask.op, t.floor = lua.Join, req.ExactFence
		t.more = []string{strconv.FormatUint(max(req.FenceFloor, req.ExactFence), 10)}
	}
	if t.shared = req.Mode == driver.Shared; t.shared && t.ask.op == lua.Join {
		t.ask.op = lua.JoinShared
	} else if t.shared {
		t.ask.op = lua.AcquireShared
		if t.more = []string{"", queueLife, "0"}; t.quorum != nil {
			t.more = append(t.more, "1")
		}
	}
	if common != nil {
		t.texts, _ = common.Load().(*names.Texts)
	}
	if t.texts == nil || !t.texts.Are(n.names, req.Key, t.owner, t.floor) {
		if t.texts = n.names.Texts(req.Key, t.owner, t.floor); common != nil {
			common.Store(t.texts)
		}
	}
	t.ask.q, t.ask.ttl, t.ask.script = n.guard.of(t.quorum), req.TTL, t
	t.ask.keys = n.fenced(t.ask.room.keys[:0], t.texts, t.ask.q)
	switch t.ask.op { // meta is the last
	case lua.AcquireShared:
		t.ask.keys = slices.Insert(t.ask.keys, 3, n.names.Readers(req.Key), t.texts.WaitQueue)
	case lua.JoinShared:
		t.ask.keys = slices.Insert(t.ask.keys, 3, n.names.Readers(req.Key))
	}
	return t
}

func (t *attempt) args(p *process, args []string) []string {
	t.last.process, t.last.notAfter = p, p.clock.at(t.deadline)
	args = append(args, strconv.FormatInt(t.last.notAfter, 10), t.owner, t.span.px, t.texts.Value[len(t.owner)+1:], t.span.life)
	if t.ask.op == lua.AcquireShared {
		args = append(args, flag(t.again || t.node.cfg.Repeats), t.node.tells(), t.node.waiterChannels)
	}
	return append(args, t.more...)
}

// doubt notes that the last sent call is in doubt.
func (t *attempt) doubt() {
	t.last.sent, t.last.proposed, t.last.life = t.ask.sent, int64(t.floor), t.span.lock
	if t.quorum != nil {
		t.last.life += t.quorum.Grace // which the script adds
	}
	t.late = append(t.late, t.last)
}

// tell gives a started attempt's receiver the result.
func (t *attempt) tell(err error) {
	receiver := t.receiver
	receiver.Acquired(t.end(t.term, err))
}

// end returns the result of an attempt, and frees it if the server has answered. Calls that may
// have taken effect without a grant are undone.
func (t *attempt) end(ctx context.Context, err error) (driver.Lease, error) {
	n, key, l := t.node, t.texts.Key, t.lease
	if len(t.late) > 0 {
		if err != nil {
			n.cleanUp(ctx, unsettled{key, t.owner + "|", t.shared, t.last.life, t.place, t.late, t.quorum != nil && (t.ask.op == lua.Acquire || t.ask.op == lua.AcquireShared)})
		}
	} else if t.answered {
		reuse(&t.node.attempts, t, &t.operation)
	}
	if err != nil {
		return nil, n.explain(key, err)
	}
	return l, nil
}

func (t *attempt) heard(a *answer, err error, late bool) error {
	n := t.node
	if t.answered = err == nil; err != nil {
		if reply := ServerError(""); t.shared && errors.As(err, &reply) && reply.forbids() && !strings.Contains(string(reply), "key") {
			return &driver.RefusedError{Reason: n.cfg.Addr + ": shared mode is not allowed (+zadd +zrem +zrange, beside the rights of any lock)", Err: reply}
		}
		if !n.unknown(err) {
			return err
		}
		t.doubt()
		return t.failed(err, late)
	}
	_, tells := text(a.Reply, 1) // the value of the lock, as the refusals of the scripts do
	switch code := a.code(); {
	case a.granted(): // at this time, with the proposed token
		n.queue.served(t.texts.Key, t.place)
		if err := n.replicated(a); err != nil {
			t.doubt() // it has the lock, which is released
			return err
		}
		return t.granted(a)
	case code == 0 && tells:
		e := held(a)
		n.queue.refused(t.texts.Key, t.place, e.Clock, a.received.Sub(a.sent))
		e.PollAfter = n.queue.pollAfter(t.texts.Key, t.place, a.process, e)
		if _, end := n.gap(a.process); end > 0 && e.PollAfter > end {
			e.PollAfter = end + mathrand.N(5*time.Millisecond)
		}
		return e
	case code == -1:
		a.learn(1)
		return t.tooLate()
	case code == -2:
		counter, _ := number(a.Reply, 1)
		return &driver.RefusedError{RetryAfter: time.Millisecond, Reason: fmt.Sprintf("the counter is at %d, above the token to join", counter)}
	}
	t.doubt()
	return errGarbled
}

// granted makes a lease of a grant: see lua/acquire.lua and lua/batch.lua.
func (t *attempt) granted(a *answer) error {
	fence, clock, before := a.voted(int64(t.floor))
	if fence <= 0 {
		t.doubt()
		return errGarbled
	}
	l := &Lease{
		node: t.node, texts: t.texts, value: t.texts.Value, shared: t.shared, quorum: t.quorum, before: before, tokens: t.tokens, fence: uint64(fence),
	}
	l.extend(a, a.observe(clock), t.ttl)
	if len(t.late) > 0 {
		l.inDoubt = &inDoubt{tries: t.late}
	}
	if uint64(fence) != t.floor {
		l.value = t.owner + "|" + strconv.FormatInt(fence, 10)
	}
	t.lease = l
	return nil
}

// held makes the verdict from {0, value, PTTL, TIME}.
func held(a *answer) *driver.HeldError {
	value, _ := text(a.Reply, 1)
	pttl, told := number(a.Reply, 2)
	e := &driver.HeldError{Clock: a.learn(3), Server: a.process.run}
	owner, _, fence := names.Parse(value)
	e.Holder = owner
	switch {
	case strings.HasPrefix(value, names.Next):
		e.Holder, e.ReservedForWaiter = "", true
	case value == names.Shared:
		e.Holder, e.Mode = "", driver.Shared
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
	t := n.attempt(req, nil)
	if req.ExactFence == 0 {
		n.holdBack(ctx, req.Key)
		t.takePlace()
	}
	return t.end(ctx, t.run(async.Within(ctx, n.timeout(req.TTL))))
}

// StartAcquire is Acquire without waiting: see package async.
func (n *Node) StartAcquire(term async.Term, req *driver.Request, r async.Receiver) bool {
	if n.closed.Load() || len(n.cfg.Prefix)+len(req.Key) > driver.MaxKey || n.checkOwn(req) != nil {
		return false
	}
	t := n.attempt(req, async.Common(term))
	if req.ExactFence == 0 {
		if n.cfg.ForeignGap != 0 {
			return false
		}
		t.takePlace()
	}
	if !t.start(term, n.timeout(req.TTL), r) {
		reuse(&t.node.attempts, t, &t.operation)
		return false
	}
	return true
}

// takePlace gives the attempt its place in the queue, if a waiter watches the key.
func (t *attempt) takePlace() {
	place, since := t.node.queue.takePlace(t.texts.Key, t.shared)
	if place == "" {
		return
	}
	if t.quorum != nil && t.quorum.WaitingSince > 0 {
		since = int64(t.quorum.WaitingSince) // the same on all nodes
	}
	t.place = place
	t.more = append([]string{place, queueLife, strconv.FormatInt(since, 10)}, t.more[min(3, len(t.more)):]...)
	if t.shared {
		return
	}
	t.ask.keys = slices.Insert(t.ask.keys, 3, t.texts.WaitQueue) // meta is the last
}

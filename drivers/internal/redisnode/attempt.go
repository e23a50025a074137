package redisnode

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/drivers/internal/redisnode/names"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
)

// An attempt is one Acquire.
type attempt struct {
	operation
	owner  string
	place  string   // place in the wait queue; empty: nobody waits
	more   []string // arguments of acquire about the queue and a range, or of join about the token
	tokens uint32   // the length of the range; zero: one token
	span   *span
	floor  uint64 // the proposed token, or that of a join: the texts' value is the stored one, if the server takes it

	late  []*Call // calls that may have taken effect, or may until their not-after
	lease *Lease  // the grant
}

// attempt prepares an Acquire. Unless it is nil, common has the texts that a quorum's nodes share.
func (n *Node) attempt(req *driver.Request, common *atomic.Value) *attempt {
	t := reused[attempt](&n.attempts)
	t.node, t.part, t.quorum, t.q, t.ttl = n, t, req.Quorum, n.guard.of(req.Quorum), req.TTL
	t.owner, t.floor, t.shared, t.span = req.Owner, req.FenceFloor, req.Mode == driver.Shared, n.span(req.TTL, req.Quorum)
	if req.Tokens > 1 && !t.shared { // a reader gets one
		t.tokens, t.owner = req.Tokens, base.Ranged(req.Owner, req.Tokens)
	}
	if req.ExactFence != 0 {
		if t.op, t.floor = lua.Join, req.ExactFence; t.shared {
			t.op = lua.JoinShared
		}
		t.more = []string{strconv.FormatUint(max(req.FenceFloor, req.ExactFence), 10)}
	} else {
		if t.op = lua.Acquire; t.shared {
			t.op = lua.AcquireShared
		}
		var since int64
		t.place, since = n.queue.takePlace(req.Key, t.shared)
		if t.place != "" && t.quorum != nil && t.quorum.WaitingSince > 0 {
			since = int64(t.quorum.WaitingSince) // the same on all nodes
		}
		if t.place != "" || t.shared || t.tokens > 0 || t.follows() {
			t.more = []string{t.place, queueLife, strconv.FormatInt(since, 10)}
		}
		if t.tokens > 0 {
			t.more = append(t.more, strconv.FormatUint(uint64(t.tokens), 10))
		}
		if t.shared && t.quorum != nil {
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
	t.fence(t.place != "" || t.op == lua.AcquireShared || t.follows())
	return t
}

// follows reports whether the token of a vote follows the node's own clock, because none is proposed, and there is no
// guard. Such tokens differ, so the vote may have to be given back. It is in no batch, and names the queue's
// key, so that the reply tells the counter before the grant, as with a guard.
func (t *attempt) follows() bool { return t.quorum != nil && t.q == nil && t.floor == 0 }

func (t *attempt) args(c *Call, args []string) []string {
	c.notAfter, c.proposed = c.process.clock.at(t.deadline), int64(t.floor)
	args = append(args, strconv.FormatInt(c.notAfter, 10), t.owner, t.span.px, t.texts.Value[len(t.owner)+1:], t.span.life)
	if t.op == lua.AcquireShared {
		again := "0"
		if t.again || t.node.cfg.Repeats {
			again = "1"
		}
		args = append(args, again, t.node.tells, t.node.waiterChannels)
	}
	return append(args, t.more...)
}

// doubt notes that the last sent call is in doubt.
func (t *attempt) doubt() { t.late = append(t.late, t.call) }

// tell gives a started attempt's receiver the result.
func (t *attempt) tell(err error) {
	receiver := t.receiver
	receiver.Acquired(t.end(t.term, err))
}

// end returns the result of an attempt, and frees it. Calls that may have taken effect without a grant
// are undone.
func (t *attempt) end(ctx context.Context, err error) (driver.Lease, error) {
	n, key, l := t.node, t.texts.Key, t.lease
	switch {
	case len(t.late) == 0:
		reuse(&n.attempts, t, &t.operation)
	case err != nil:
		n.cleanUp(ctx, unsettled{
			key: key, value: t.owner + "|", shared: t.shared, life: t.life(), place: t.place, late: t.late,
			vote: t.quorum != nil && (t.op == lua.Acquire || t.op == lua.AcquireShared),
		})
	}
	if err != nil {
		return nil, n.explain(key, err)
	}
	return l, nil
}

// life returns for how long the server keeps a lock of the attempt.
func (t *attempt) life() time.Duration {
	if t.quorum != nil {
		return t.span.lock + t.quorum.Grace // which the script adds
	}
	return t.span.lock
}

func (t *attempt) heard(c *Call, err error, late bool) error {
	n := t.node
	if err != nil {
		if reply := ServerError(""); t.shared && errors.As(err, &reply) && reply.forbids() && !strings.Contains(string(reply), "key") {
			return &driver.RefusedError{Reason: n.cfg.Addr + ": shared mode is not allowed (+zadd +zrem +zrange, beside the rights of any lock)", Err: reply}
		}
		if !n.unknown(err) {
			return err
		}
		t.doubt()
		return t.failed(err, late)
	}
	_, tells := text(c.Reply, 1) // the value of the lock, as the refusals of the scripts do
	switch code := c.code(); {
	case c.granted(): // at this time, with the proposed token
		if t.place != "" {
			n.queue.served(t.texts.Key, t.place)
		}
		if err := n.replicated(c); err != nil {
			t.doubt() // it has the lock, which is released
			return err
		}
		return t.granted(c)
	case code == 0 && tells:
		e := held(c)
		n.queue.refused(t.texts.Key, t.place, e.Clock, c.received.Sub(c.sent))
		e.PollAfter = n.queue.pollAfter(t.texts.Key, t.place, c.process, e)
		return e
	case code == -1:
		c.learn(1)
		return t.tooLate()
	case code == -2:
		counter, _ := number(c.Reply, 1)
		return &driver.RefusedError{RetryAfter: time.Millisecond, Reason: fmt.Sprintf("the counter is at %d, above the token to join", counter)}
	}
	t.doubt()
	return errGarbled
}

// granted makes a lease of a grant: see lua/acquire.lua and lua/batch.lua.
func (t *attempt) granted(c *Call) error {
	fence, clock, before := c.voted()
	if fence <= 0 {
		t.doubt()
		return errGarbled
	}
	l := &Lease{
		node: t.node, texts: t.texts, value: t.texts.Value, shared: t.shared, quorum: t.quorum, before: before, tokens: t.tokens, fence: uint64(fence),
	}
	l.extend(c, c.observe(clock), t.ttl)
	if len(t.late) > 0 {
		l.inDoubt = &inDoubt{tries: t.late, life: t.life()}
	}
	if uint64(fence) != t.floor {
		l.value = t.owner + "|" + strconv.FormatInt(fence, 10)
	}
	t.lease = l
	return nil
}

// held makes the verdict from {0, value, PTTL, TIME}.
func held(c *Call) *driver.HeldError {
	value, _ := text(c.Reply, 1)
	pttl, told := number(c.Reply, 2)
	e := &driver.HeldError{Clock: c.learn(3), Server: c.process.run}
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
	return t.end(ctx, t.run(async.Within(ctx, n.timeout(req.TTL))))
}

// StartAcquire is Acquire without waiting: see package async.
func (n *Node) StartAcquire(term async.Term, req *driver.Request, r async.Receiver) bool {
	if n.closed.Load() || len(n.cfg.Prefix)+len(req.Key) > driver.MaxKey || n.checkOwn(req) != nil {
		return false
	}
	t := n.attempt(req, async.Common(term))
	if !t.start(term, n.timeout(req.TTL), r) {
		reuse(&n.attempts, t, &t.operation)
		return false
	}
	return true
}

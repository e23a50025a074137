package redisnode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/names"
)

// An operation is a script to run until there is a verdict. It is asked again once after a broken
// connection, because the scripts are idempotent for one attempt, and once after a refusal as late,
// because that shows the server's clock.
type operation struct {
	node   *Node
	op     lua.Op
	part   part
	texts  *names.Texts // of the lock
	shared bool
	quorum *quorum.Info  // for a quorum's node
	q      *quorum.Info  // whose restart guard must be kept; nil: none
	ttl    time.Duration // must not be longer than the guard; zero: not requested
	keys   []string      // the first routes it; with a guard, the last is meta

	deadline     time.Time
	again, tardy bool // already repeated after a broken connection; already repeated because it was late
	once         bool // it is for the caller to repeat it after a broken connection
	recounted    bool // a quarantine was already computed anew

	call  *Call // the last sent call
	first Call  // the first sent call
	lost  bool  // one of its calls has no answer, and may still refer to it
	room  struct {
		keys [6]string
		args [6]string
	}

	term     async.Term // of a started operation
	receiver async.Receiver
}

// A part is what an operation is for: an attempt, a renewal, a release or a question.
type part interface {
	// args appends ARGV for a call to its process; it may be called several times.
	args(c *Call, to []string) []string
	// heard reads an answer, or the error instead of one; late says that the time is over. The
	// error errAgain says that the operation must ask again.
	heard(c *Call, err error, late bool) error
	// tell gives the receiver of a started operation the result.
	tell(err error)
}

// A question has ARGV that do not depend on the server process. Its answer is the operation's last call.
type question []string

func (q question) args(*Call, []string) []string          { return q }
func (q question) heard(_ *Call, err error, _ bool) error { return err }
func (q question) tell(error)                             {}

// ask asks a question about some keys.
func (n *Node) ask(ctx context.Context, op lua.Op, keys []string, args ...string) (*Call, error) {
	o := &operation{node: n, op: op, part: question(args), keys: keys}
	err := o.run(ctx)
	return o.call, err
}

// reused returns a T of the pool, or a new one.
func reused[T any](pool *sync.Pool) *T {
	if t, ok := pool.Get().(*T); ok {
		return t
	}
	return new(T)
}

// reuse returns t, whose operation is o, to the pool, unless a call may still refer to it.
func reuse[T any](pool *sync.Pool, t *T, o *operation) {
	if !o.lost {
		wake := o.first.wake
		*t = *new(T)
		o.first.wake = wake
		pool.Put(t)
	}
}

var (
	// errAgain says that an operation must ask again.
	errAgain = errors.New("once more")
	// errHandshake says that it must do so after a handshake.
	errHandshake = errors.New("a handshake must come first")
	// errTooLate refuses a request that was late twice.
	errTooLate = &driver.RefusedError{RetryAfter: 10 * time.Millisecond, Reason: "the request reached the server after its deadline, by the server's clock"}
)

// run asks until there is a verdict.
func (o *operation) run(ctx context.Context) error {
	o.deadline, _ = ctx.Deadline()
	for {
		err := o.send(ctx)
		if err = o.part.heard(o.call, err, err != nil && driver.ContextErr(ctx) != nil); !errors.Is(err, errAgain) {
			return err
		}
	}
}

// send alone decides how a script is called: with EVALSHA of the text that is bound to the
// process; or first with EVAL of this text and the argument 'handshake', if the process does
// not know the text, or is not known to keep the restart guard of the request.
func (o *operation) send(ctx context.Context) error {
	f := o.node.router
	p, asked, err := f.process(ctx, o.keys[0])
	const tries = 8 // gives up on a server that forgets its scripts at every step
	for i := 0; err == nil; i++ {
		if i == tries {
			return NotSent(fmt.Errorf("the server forgot its scripts %d times in a row", tries))
		}
		var c *Call
		if c, err = o.aim(p, time.Now()); err != nil {
			break
		}
		if c != nil {
			if err = o.answered(p.lane.do(ctx, c)); !errors.Is(err, errHandshake) {
				break
			}
		}
		p, err = f.load(ctx, p, o.op, o.q, o.keys[0], asked)
		asked = true
	}
	return err
}

// start is run without waiting: the receiver gets the result, no later than the end of the term, or
// after most. False means that nothing was done, because a handshake or another call must come first.
func (o *operation) start(term async.Term, most time.Duration, r async.Receiver) bool {
	now := time.Now()
	o.deadline, o.term, o.receiver = now.Add(most), term, r
	if t, ok := term.Deadline(); ok && t.Before(o.deadline) {
		o.deadline = t
	}
	p := o.node.router.slots[0].Load()
	if p == nil || o.node.cfg.Cluster {
		return false
	}
	c, err := o.aim(p, now)
	if c == nil || err != nil {
		return false
	}
	c.ctx, c.deadline, c.started = term, o.deadline, true
	_, err = p.lane.enter(c)
	return err == nil
}

// finished gets the end of a started operation's call.
func (o *operation) finished(err error) {
	if err = o.answered(err); !errors.Is(err, errHandshake) {
		err = o.part.heard(o.call, err, err != nil && (o.term.Err() != nil || !time.Now().Before(o.deadline)))
	}
	if errors.Is(err, errHandshake) || errors.Is(err, errAgain) {
		o.node.aside(func() { o.part.tell(o.run(async.Until(o.term, o.deadline))) })
		return
	}
	o.part.tell(err)
}

// aim makes a call to p; nil: a handshake must come first.
func (o *operation) aim(p *process, now time.Time) (*Call, error) {
	n, scripts, g := o.node, &p.bound, (*guarded)(nil)
	if o.q != nil {
		if g = p.serve(o.q); g == nil {
			return nil, nil
		}
		scripts = &g.bound
		n.router.review(p, g, o.q)
		if o.ttl > g.terms.Guard {
			return nil, n.guard.overGuard(o.ttl, &g.terms, o.q)
		}
	}
	c, room := &o.first, o.room.args[:0]
	if o.call != nil { // the first sent call may still be under way
		c, room = &Call{}, nil
	}
	o.call = c
	c.of, c.process, c.guard, c.Keys, c.SHA = o, p, g, o.keys, scripts.scripts[o.op].SHA
	c.Args = o.part.args(c, room)
	c.sent = now
	if n.cfg.WaitReplicas > 0 && o.op.Perishable() {
		c.Replicas, c.Patience = n.cfg.WaitReplicas, n.cfg.CallTimeout/2
	}
	if !n.cfg.Cluster && c.Replicas == 0 && (o.op == lua.Acquire && len(c.Args) == acquireArgs ||
		o.op == lua.Release && len(c.Args) == releaseArgs && !strings.HasSuffix(c.Args[1], "|")) {
		c.batch = scripts
	}
	return c, nil
}

// The numbers of ARGV of acquire and release without a place in the queue.
const acquireArgs, releaseArgs = 5, 3

// answered judges the end of the last call before its part does.
func (o *operation) answered(err error) error {
	if err != nil {
		o.lost = true
		if isCode(err, "NOSCRIPT") {
			return errHandshake
		}
		return err
	}
	c := o.call
	c.received = time.Now()
	if o.q == nil {
		return nil
	}
	switch code, _ := number(c.Reply, 0); code {
	case -3: // another process had the last handshake, or the server has forgotten it
		return errHandshake
	case -4: // it is still in quarantine
		if !o.recounted && c.process.overlong(c.Reply, o.q) {
			o.recounted = true
			return errHandshake
		}
		return o.node.guard.quarantine(c.process, c.Reply, c.learn(2))
	}
	return nil
}

// failed judges the error of a call without an answer whose outcome is unknown.
func (o *operation) failed(err error, late bool) error {
	if o.again || o.once || late {
		return err
	}
	o.again = true
	return errAgain
}

// tooLate judges a refusal as late.
func (o *operation) tooLate() error {
	if o.tardy {
		return errTooLate
	}
	o.tardy = true
	return errAgain
}

// fence sets the keys of a script that reads the key's counter: lock, counter, mark, the readers' and
// the queue's, if it needs them, and meta if there is a guard.
func (o *operation) fence(queue bool) {
	n, mark := o.node, o.node.serverMark
	if n.cfg.Cluster {
		mark = n.names.Mark(o.texts.Key, true)
	}
	keys := append(o.room.keys[:0], o.texts.Lock, o.texts.Counter, mark)
	if o.shared {
		keys = append(keys, n.names.Readers(o.texts.Key))
	}
	if queue {
		keys = append(keys, o.texts.WaitQueue)
	}
	if o.q != nil {
		keys = append(keys, n.guard.meta)
	}
	o.keys = keys
}

// over reports whether a call in doubt has ended, with an answer or without.
func (c *Call) over() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// cut reports whether a call in doubt ended because its connection ended, not by a timeout, after
// which the request may still arrive.
func (c *Call) cut() bool {
	var slow net.Error
	return c.over() && !isReply(c.Err) && !errors.Is(c.Err, context.DeadlineExceeded) && !errors.Is(c.Err, context.Canceled) &&
		!(errors.As(c.Err, &slow) && slow.Timeout())
}

// answered reports whether the server has answered a call in doubt by now.
func (n *Node) answered(c *Call) bool {
	return c.over() && (c.Err == nil || !n.unknown(c.Err))
}

// votes returns the last grant of these calls whose counter before is known. It is unknown as long
// as one of the calls is not answered, because it may be granted later.
func (n *Node) votes(calls []*Call) (fence, before int64) {
	before = unknown
	for _, c := range calls {
		if !n.answered(c) || n.cfg.Repeats {
			return 0, unknown
		}
		if c.Err != nil || !c.granted() {
			continue
		}
		if f, _, b := c.voted(); b != unknown {
			fence, before = f, b
		}
	}
	return fence, before
}

// replicated returns an error unless enough replicas have the script's writes.
func (n *Node) replicated(c *Call) error {
	if c.Acked >= int64(n.cfg.WaitReplicas) {
		return nil
	}
	return &driver.RefusedError{RetryAfter: soon, Reason: fmt.Sprintf("%s: %d of %d replicas (wait_replicas) have confirmed the lock within %v", n.cfg.Addr, c.Acked, n.cfg.WaitReplicas, n.cfg.CallTimeout/2)}
}

// aside runs do in the background: a clean-up, or a started call that needs something that takes
// time.
func (n *Node) aside(do func()) {
	n.work.Add()
	n.wg.Go(func() {
		defer n.work.Done()
		do()
	})
}

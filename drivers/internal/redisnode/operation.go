package redisnode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/names"
)

// An operation is one Acquire, Renew or Release. It is asked again once after a broken connection,
// because the scripts are idempotent for one attempt, and once after a refusal as late, because that
// shows the server's clock.
type operation struct {
	node     *Node
	ask      request
	deadline time.Time

	again, tardy bool // already repeated after a broken connection; already repeated because it was late
	once         bool // it is for the caller to repeat it after a broken connection

	term     async.Term // of a started operation
	receiver async.Receiver
	part     interface {
		// heard reads an answer, or the error instead of one; late says that the time is over. The
		// error errAgain says that the operation must ask again.
		heard(a *answer, err error, late bool) error
		// tell gives the receiver the result.
		tell(err error)
	}
}

// reused returns a T of the pool, or a new one.
func reused[T any](pool *sync.Pool) *T {
	if t, ok := pool.Get().(*T); ok {
		return t
	}
	return new(T)
}

// reuse returns t, whose operation is o, to the pool: nothing refers to it any more, and its calls are
// answered.
func reuse[T any](pool *sync.Pool, t *T, o *operation) {
	wake := o.ask.first.wake
	*t = *new(T)
	o.ask.first.wake = wake
	pool.Put(t)
}

var (
	// errAgain says that a request must be repeated.
	errAgain = errors.New("once more")
	// errTooLate refuses a request that was late twice.
	errTooLate = &driver.RefusedError{RetryAfter: 10 * time.Millisecond, Reason: "the request reached the server after its deadline, by the server's clock"}
)

// run asks until there is a verdict.
func (o *operation) run(ctx context.Context) error {
	o.deadline, _ = ctx.Deadline()
	for {
		a, err := o.node.router.run(ctx, &o.ask)
		if err = o.part.heard(a, err, err != nil && driver.ContextErr(ctx) != nil); !errors.Is(err, errAgain) {
			return err
		}
	}
}

// start is run without waiting. False means that nothing was done.
func (o *operation) start(term async.Term, most time.Duration, r async.Receiver) bool {
	until := time.Now().Add(most)
	if t, ok := term.Deadline(); ok && t.Before(until) {
		until = t
	}
	o.deadline, o.term, o.receiver, o.ask.then = until, term, r, o
	return o.node.router.start(term, &o.ask, until)
}

// answered gets the result of a started operation.
func (o *operation) answered(a *answer, err error) {
	err = o.part.heard(a, err, err != nil && (o.term.Err() != nil || !time.Now().Before(o.deadline)))
	if !errors.Is(err, errAgain) {
		o.part.tell(err)
		return
	}
	o.node.aside(func() { o.part.tell(o.run(async.Until(o.term, o.deadline))) })
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

// An inDoubtCall is a call that may have taken effect, or may until its not-after.
type inDoubtCall struct {
	sent     *answer
	proposed int64 // the token that it proposes
	process  *process
	notAfter int64         // by the server process's clock, in µs
	life     time.Duration // how long the server keeps a lock of it
}

// over reports whether the call has ended, with an answer or without.
func (d inDoubtCall) over() bool {
	select {
	case <-d.sent.done:
		return true
	default:
		return false
	}
}

// cut reports whether the call ended because its connection ended, not by a timeout, after
// which the request may still arrive.
func (d inDoubtCall) cut() bool {
	var slow net.Error
	return d.over() && !isReply(d.sent.Err) && !errors.Is(d.sent.Err, context.DeadlineExceeded) && !errors.Is(d.sent.Err, context.Canceled) &&
		!(errors.As(d.sent.Err, &slow) && slow.Timeout())
}

// answered reports whether the server has answered the call by now.
func (n *Node) answered(d inDoubtCall) bool {
	return d.over() && (d.sent.Err == nil || !n.unknown(d.sent.Err))
}

// unknown is a counter before a grant that is not known; zero: there was none.
const unknown = -1

// voted reads the grant of an acquire: see lua/acquire.lua and lua/batch.lua. fence is 0 if the
// reply is garbled.
func (a *answer) voted(proposed int64) (fence, clock, before int64) {
	if a.Reply == nil {
		switch {
		case proposed == 0:
			return a.Number, a.Number, unknown
		case a.inBatch:
			return proposed, a.Number, unknown
		case a.Number>>22 > 0:
			before = proposed - a.Number>>22
		}
		return proposed, proposed + a.Number&(1<<22-1) - 1<<19, before
	}
	fence, _ = number(a.Reply, 1)
	clock, _ = number(a.Reply, 2)
	digits, ok := text(a.Reply, 3)
	if ok && digits == "" {
		return fence, clock, 0
	}
	if n, err := strconv.ParseInt(digits, 10, 64); err == nil && n > 0 {
		return fence, clock, n
	}
	return fence, clock, unknown
}

// votes returns the last grant of these calls whose counter before is known. It is unknown as long
// as one of the calls is not answered, because it may be granted later.
func (n *Node) votes(calls []inDoubtCall) (fence, before int64) {
	before = unknown
	for _, d := range calls {
		if !n.answered(d) || n.cfg.Repeats {
			return 0, unknown
		}
		if d.sent.Err != nil || !d.sent.granted() {
			continue
		}
		if f, _, b := d.sent.voted(d.proposed); b != unknown {
			fence, before = f, b
		}
	}
	return fence, before
}

// granted reports whether an acquire was granted: 1, or a time, or a number that says with the proposed
// token.
func (a *answer) granted() bool { code := a.code(); return code == 1 || code > 1 && a.Reply == nil }

// replicated returns an error unless enough replicas have the script's writes.
func (n *Node) replicated(a *answer) error {
	if a.Acked >= int64(n.cfg.WaitReplicas) {
		return nil
	}
	return &driver.RefusedError{RetryAfter: soon, Reason: fmt.Sprintf("%s: %d of %d replicas (wait_replicas) have confirmed the lock within %v", n.cfg.Addr, a.Acked, n.cfg.WaitReplicas, n.cfg.CallTimeout/2)}
}

// fenced returns the KEYS of a script that may set the counter.
func (n *Node) fenced(keys []string, of *names.Texts, q *quorum.Info) []string {
	keys = append(keys, of.Lock, of.Counter, n.mark(of.Key))
	if q != nil {
		keys = append(keys, n.guard.meta)
	}
	return keys
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

// fixed is a list of ARGV that do not depend on the server process.
type fixed []string

func (f fixed) args(*process, []string) []string { return f }

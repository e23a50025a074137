package redisnode

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
)

// An answer is a script call with its result.
type answer struct {
	Call
	process  *process
	guard    *guarded // the guard to which the script was bound; nil: none
	sent     time.Time
	received time.Time

	batched
	request *request
}

// code returns the first number of the reply.
func (a *answer) code() int64 {
	if a.Reply == nil {
		return a.Number
	}
	if code, ok := number(a.Reply, 0); ok {
		return code
	}
	return garbled
}

// terms returns the terms with which a quorum's node answered; nil: it has none.
func (a *answer) terms(q *quorum.Info) *quorum.Terms {
	if q == nil || a.guard == nil {
		return nil
	}
	return &a.guard.terms
}

// learn takes the server's clock from the reply's i-th element.
func (a *answer) learn(i int) time.Time {
	us, _ := number(a.Reply, i)
	return a.observe(us)
}

// observe notes the server's clock in microseconds; zero: no clock.
func (a *answer) observe(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	a.process.clock.observe(us, a.sent, a.received)
	return time.UnixMicro(us)
}

// A request is a script to run.
type request struct {
	op   lua.Op
	q    *quorum.Info  // whose restart guard must be kept; nil: none
	ttl  time.Duration // must not be longer than the guard; zero: not requested
	keys []string      // the first routes it; with a guard, the last is meta

	script interface {
		// args appends ARGV, with the not-after by the process's clock; it may be called
		// several times.
		args(p *process, to []string) []string
	}
	then interface { // callback of a started request
		answered(a *answer, err error)
	}

	recounted bool // a quarantine was already computed anew

	sent  *answer // the last sent call
	first answer  // the first sent call
	room  struct {
		keys [5]string
		args [6]string
	}
}

// run alone decides how a script is called: with EVALSHA of the text that is bound to the
// process; or first with EVAL of this text and the argument 'handshake', if the process does
// not know the text, or is not known to keep the restart guard of the request.
func (f *router) run(ctx context.Context, r *request) (*answer, error) {
	p, asked, err := f.process(ctx, r.keys[0])
	if err != nil {
		return nil, err
	}
	const tries = 8 // gives up on a server that forgets its scripts at every step
	for range tries {
		a, err := f.aim(p, r)
		if err != nil {
			return nil, err
		}
		if a != nil {
			err := p.lane.do(ctx, &a.Call)
			if err = f.heard(r, a, err); !errors.Is(err, errHandshake) {
				return a, err
			}
		}
		if p, err = f.load(ctx, p, r.op, r.q, r.keys, asked); err != nil {
			return nil, err
		}
		asked = true
	}
	return nil, NotSent(fmt.Errorf("the server forgot its scripts %d times in a row", tries))
}

// start is run without waiting: r.then gets the result of run, no later than the end of the
// term, or until. It returns false, and has done nothing, if a handshake or another call must
// come first.
func (f *router) start(term async.Term, r *request, until time.Time) bool {
	p := f.slots[f.slot(r.keys[0])].Load()
	if p == nil || f.node.cfg.Cluster {
		return false
	}
	a, err := f.aim(p, r)
	if a == nil || err != nil {
		return false
	}
	return p.lane.start(&a.Call, term, until, a)
}

// finished gets the end of a call of a started request.
func (a *answer) finished(err error) {
	f, r := a.process.lane.node.router, a.request
	if err = f.heard(r, a, err); !errors.Is(err, errHandshake) {
		r.then.answered(a, err)
		return
	}
	ctx := async.Until(a.term, a.deadline)
	f.guard.wg.Go(func() { r.then.answered(f.run(ctx, r)) })
}

// aim makes the call of a request to p; nil: a handshake must come first.
func (f *router) aim(p *process, r *request) (*answer, error) {
	sha, g := p.scripts[r.op].SHA, (*guarded)(nil)
	if r.q != nil {
		if g = p.serve(r.q); g == nil {
			return nil, nil
		}
		sha = g.scripts[r.op].SHA
		f.review(p, g, r.q)
		if r.ttl > g.terms.Guard {
			return nil, f.guard.overGuard(r.ttl, &g.terms, r.q)
		}
	}
	a, room := &r.first, r.room.args[:0]
	if r.sent != nil { // the first sent call may still be under way
		a, room = &answer{}, nil
	}
	r.sent = a
	a.SHA, a.Keys, a.Args = sha, r.keys, r.script.args(p, room)
	a.process, a.guard, a.request, a.sent = p, g, r, time.Now()
	if r.op.Perishable() {
		a.Replicas, a.Patience = f.guard.cfg.WaitReplicas, f.guard.cfg.CallTimeout/2
	}
	if f.joins(a) {
		a.gathered = a
	}
	return a, nil
}

// errHandshake says that a script must be called again after a handshake.
var errHandshake = errors.New("a handshake must come first")

// heard reads the answer to a request.
func (f *router) heard(r *request, a *answer, err error) error {
	if err != nil {
		if isCode(err, "NOSCRIPT") {
			return errHandshake
		}
		return err
	}
	a.received = time.Now()
	if r.q == nil {
		return nil
	}
	switch code, _ := number(a.Reply, 0); code {
	case -3: // another process had the last handshake, or the server has forgotten it
		return errHandshake
	case -4: // it is still in quarantine
		if !r.recounted && a.process.overlong(a.Reply, r.q) {
			r.recounted = true
			return errHandshake
		}
		return f.guard.quarantine(a.process, a.Reply, a.learn(2))
	}
	return nil
}

// batched describes a call for a batch.
type batched struct {
	by       *batcher
	sha      string // of the batch script
	notAfter int64  // of an acquire
	alone    bool   // a batch has left the call alone
	inBatch  bool   // the reply is that of a batch
}

// joins prepares a call for a batch, and reports whether one can take it.
func (f *router) joins(a *answer) bool {
	if f.node.cfg.Cluster || a.Replicas > 0 {
		return false
	}
	p := a.process
	a.batched = batched{by: &p.batches, sha: p.scripts[lua.Batch].SHA}
	switch {
	case a.request.op == lua.Release && len(a.Args) == releaseArgs && !strings.HasSuffix(a.Args[1], "|"):
		return true
	case a.request.op == lua.Acquire && len(a.Args) == acquireArgs:
		a.notAfter, _ = strconv.ParseInt(a.Args[0], 10, 64)
		if a.guard != nil {
			a.by, a.sha = &a.guard.batches, a.guard.scripts[lua.Batch].SHA
		}
		return true
	}
	return false
}

// The numbers of ARGV of acquire and release without a place in the queue.
const acquireArgs, releaseArgs = 5, 3

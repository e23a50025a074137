package redisnode

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// A process is one server process, by its run_id: its scripts, its clock, and what
// is under way to it.
type process struct {
	run       string // "" where INFO is not allowed
	scripts   [ops]script
	batches   batcher
	guarded   atomic.Pointer[guarded] // nil before the first handshake for a restart guard
	clock     clock
	pipelines *pipelines
}

// A router knows which process serves which slot: one for a single instance, several
// in a Cluster.
type router struct {
	newPipelines func() *pipelines // to one process
	hello        *pipelines
	cluster      bool
	guard        *guard
	unknown      func(error) bool // see Node.unknown

	slots []atomic.Pointer[process] // one, or one per slot

	mu      sync.Mutex
	runs    map[string]*process
	flights map[flight]chan struct{} // closed when the one who asks is done
}

// A flight is a question that one caller asks for all: who serves a slot (ops), or
// to load a script there.
type flight struct {
	slot int
	op   op
}

// maxRuns bounds how many processes are remembered: more than shards there are.
const maxRuns = 1024

func newRouter(connect func() *pipelines, cluster bool, g *guard, unknown func(error) bool) *router {
	n := 1
	if cluster {
		n = Slots
	}
	return &router{
		newPipelines: connect, hello: connect(), cluster: cluster, guard: g, unknown: unknown,
		slots: make([]atomic.Pointer[process], n),
		runs:  map[string]*process{}, flights: map[flight]chan struct{}{},
	}
}

func (f *router) slot(key string) int {
	if !f.cluster {
		return 0
	}
	return Slot(key)
}

// known returns the process that served key last, or nil.
func (f *router) known(key string) *process { return f.slots[f.slot(key)].Load() }

// process returns the process that serves key, and asks it who it is on first
// contact: nothing is sent before its clock is known.
func (f *router) process(ctx context.Context, key string) (p *process, asked bool, err error) {
	slot := f.slot(key)
	for {
		if p := f.slots[slot].Load(); p != nil {
			return p, false, nil
		}
		if p := f.guess(slot); p != nil {
			return p, false, nil
		}
		done, err := f.enter(ctx, flight{slot, ops})
		if err != nil {
			return nil, false, err
		}
		if done != nil {
			defer done()
			p, err = f.ask(ctx, key)
			return p, true, err
		}
	}
}

// guess returns the process that serves the nearest known slots on both sides, if it is the
// same: nodes of a Cluster have ranges. A wrong guess is harmless, since another process does
// not know the texts of this one, and costs one call.
func (f *router) guess(slot int) *process {
	var below, above *process
	for i := slot - 1; i >= 0 && below == nil; i-- {
		below = f.slots[i].Load()
	}
	for i := slot + 1; i < len(f.slots) && above == nil; i++ {
		above = f.slots[i].Load()
	}
	if below != above || below == nil {
		return nil
	}
	f.slots[slot].CompareAndSwap(nil, below)
	return below
}

// enter begins a flight, which done ends; or, where another is under way, waits for
// its end and returns no done.
func (f *router) enter(ctx context.Context, k flight) (done func(), err error) {
	f.mu.Lock()
	other, busy := f.flights[k]
	if !busy {
		mine := make(chan struct{})
		f.flights[k] = mine
		f.mu.Unlock()
		return func() {
			f.mu.Lock()
			delete(f.flights, k)
			f.mu.Unlock()
			close(mine)
		}, nil
	}
	f.mu.Unlock()
	if err := await(ctx, other); err != nil {
		return nil, &notSent{err}
	}
	return nil, nil
}

// ask finds out which process serves key now.
func (f *router) ask(ctx context.Context, key string) (*process, error) {
	c := &Call{Text: luaHello, Keys: []string{key}}
	sent := time.Now()
	if err := f.hello.do(ctx, c); err != nil {
		return nil, before(err)
	}
	received := time.Now()
	run, ok := text(c.Reply, 0)
	us, fine := number(c.Reply, 1)
	if !ok || !fine || strings.ContainsAny(run, "'\\\n") {
		return nil, &notSent{errors.New("the server answers a handshake in an unknown way")}
	}
	if policy, _ := text(c.Reply, 2); policy != "" {
		f.guard.evicts(policy)
	}
	return f.serves(key, run, us, sent, received), nil
}

// serves notes that the process run serves key, and what its clock says.
func (f *router) serves(key, run string, us int64, sent, received time.Time) *process {
	f.mu.Lock()
	p := f.runs[run]
	if p == nil {
		if !f.cluster || len(f.runs) >= maxRuns {
			clear(f.runs) // processes that are gone
		}
		p = &process{run: run, scripts: bind(run), pipelines: f.newPipelines()}
		p.pipelines.batches = f
		f.runs[run] = p
	}
	f.mu.Unlock()
	p.clock.observe(us, sent, received)
	f.slots[f.slot(key)].Store(p)
	return p
}

// close lets nothing more be sent.
func (f *router) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hello.close()
	for _, p := range f.runs {
		p.pipelines.close()
	}
}

// An answer is a call of a script, and what came back.
type answer struct {
	Call
	process  *process
	guard    *guarded // that the script was bound to; nil: none
	sent     time.Time
	received time.Time

	router  *router  // of a request that was started
	request *request // that one
}

// code returns the first number of the reply.
func (a *answer) code() int64 {
	if a.Reply == nil {
		return a.Number
	}
	code, _ := number(a.Reply, 0)
	return code
}

// terms are those that a node of a quorum answers by; nil: it remembers none.
func (a *answer) terms(q *driver.Quorum) *driver.Terms {
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

// observe takes what the server's clock said, in microseconds; zero: nothing.
func (a *answer) observe(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	a.process.clock.observe(us, a.sent, a.received)
	return time.UnixMicro(us)
}

// A request is a script to run.
type request struct {
	op   op
	q    *driver.Quorum // whose restart guard has to be kept; nil: none
	ttl  time.Duration  // it must not be over the guard; zero: none is asked for
	keys []string       // the first routes it; where there is a guard, the last is meta

	script interface {
		// args appends ARGV, from the not-after that suits the process; it may be called several
		// times.
		args(p *process, to []string) []string
	}
	then interface { // of a request that was started
		answered(a *answer, err error)
	}

	recounted bool // a quarantine was counted anew

	sent  *answer // the call that was sent last
	first answer  // and the first
	room  struct {
		keys [4]string
		args [6]string
	}
}

// run is the one place that decides how a script is called: by EVALSHA of the text
// that is bound to the process, and by EVAL of that text with 'handshake' alone where
// the process does not know it, or where it is not known to keep the restart guard
// that the request asks for.
func (f *router) run(ctx context.Context, r *request) (*answer, error) {
	p, asked, err := f.process(ctx, r.keys[0])
	if err != nil {
		return nil, err
	}
	const tries = 8 // a server that forgets at every step is not worth more
	for range tries {
		a, err := f.aim(p, r)
		if err != nil {
			return nil, err
		}
		if a != nil {
			err := p.pipelines.do(ctx, &a.Call)
			if err = f.heard(r, a, err); !errors.Is(err, errHandshake) {
				return a, err
			}
		}
		if p, err = f.load(ctx, p, r, asked); err != nil {
			return nil, err
		}
		asked = true
	}
	return nil, &notSent{fmt.Errorf("the server forgot its scripts %d times in a row", tries)}
}

// start is run for a caller that does not wait: r.then gets what run would return, by the
// instant until. It reports false, and has done nothing, where something has to come first.
func (f *router) start(ctx context.Context, r *request, until time.Time) bool {
	p := f.slots[f.slot(r.keys[0])].Load()
	if p == nil || f.cluster {
		return false
	}
	a, err := f.aim(p, r)
	if a == nil || err != nil {
		return false
	}
	a.ctx, a.deadline = ctx, until
	a.router, a.request, a.then = f, r, a
	return p.pipelines.start(&a.Call)
}

// finished is told the end of a call of a request that was started.
func (a *answer) finished(err error) {
	f, r := a.router, a.request
	if err = f.heard(r, a, err); !errors.Is(err, errHandshake) {
		r.then.answered(a, err)
		return
	}
	ctx := &bounded{context.WithoutCancel(a.ctx), a.deadline}
	f.guard.wg.add()
	go func() {
		defer f.guard.wg.done()
		r.then.answered(f.run(ctx, r))
	}()
}

// aim makes the call of a request to p; nil: a handshake has to come first.
func (f *router) aim(p *process, r *request) (*answer, error) {
	sha, g := p.scripts[r.op].sha, (*guarded)(nil)
	if r.q != nil {
		if g = p.serve(r.q); g == nil {
			return nil, nil
		}
		sha = g.scripts[r.op].sha
		f.review(p, g, r.q)
		if r.ttl > g.terms.Guard {
			return nil, f.guard.overGuard(r.ttl, &g.terms, r.q)
		}
	}
	a, room := &r.first, r.room.args[:0]
	if r.sent != nil { // that one may still be under way
		a, room = &answer{}, nil
	}
	r.sent = a
	a.SHA, a.Keys, a.Args, a.Repeated = sha, r.keys, r.script.args(p, room), repeated[r.op]
	a.process, a.guard, a.sent = p, g, time.Now()
	if r.op.perishable() {
		a.Replicas, a.Patience = f.guard.cfg.WaitReplicas, f.guard.cfg.CallTimeout/2
	}
	a.inBatch = f.joins(r, a)
	return a, nil
}

// repeated are the ARGV that are the same in most calls: of an acquire PX and the counter's life, of a
// release the not-after, how waiters' channels begin, and who counts them.
var repeated = [ops]uint8{opAcquire: 1<<2 | 1<<4, opRelease: 1<<0 | 1<<4 | 1<<5}

// errShake says that a script has to be called again, after a handshake.
var errHandshake = errors.New("a handshake has to come first")

// heard reads the answer to a request.
func (f *router) heard(r *request, a *answer, err error) error {
	if err != nil {
		if isCode(err, "NOSCRIPT") {
			return errHandshake
		}
		return err
	}
	a.received = time.Now()
	switch {
	case r.q == nil:
	case a.stale():
		f.guard.recall(a.process, r.q, a)
		return errHandshake
	case a.quarantined() && (r.recounted || !a.process.overlong(a, r.q)):
		return f.guard.quarantine(a.process, a)
	case a.quarantined():
		r.recounted = true
		return errHandshake
	}
	return nil
}

// load loads a script into the process that has just said that it does not know it,
// and returns that process: another one, if the server was restarted.
//
// The question who serves comes first, so that a text reaches no process but
// its own, short of a restart between the two.
func (f *router) load(ctx context.Context, p *process, r *request, asked bool) (*process, error) {
	o, q, keys := r.op, r.q, r.keys
	slot := f.slot(keys[0])
	done, err := f.enter(ctx, flight{slot, o})
	if err != nil {
		return nil, err
	}
	if done == nil { // another caller has just done it
		return f.slots[slot].Load(), nil
	}
	defer done()
	if q != nil {
		if g := p.unmarked(q); g != nil {
			if err := f.guard.leaveMark(ctx); err != nil {
				return nil, err
			}
			g.ready.Store(true)
			return p, nil
		}
	}
	if !asked {
		now, err := f.ask(ctx, keys[0])
		if err != nil || now != p {
			return now, err
		}
	}
	c := &Call{Keys: keys}
	if q == nil {
		c.Text, c.Args = p.scripts[o].text, []string{"handshake"}
	} else {
		mode, what, err := f.guard.prepare(ctx, f, p, q)
		if err != nil {
			return nil, err
		}
		if what != "" {
			defer func() { f.guard.announceNew(c, what) }()
		}
		deadline, _ := ctx.Deadline()
		c.Text, c.Args = p.guard(f.guard.space, q.Proposal()).scripts[o].text, handshakeArgs(q, mode, p.clock.at(deadline))
		c.Behind = f.guard.handshakeKey
	}
	now, err := f.handshake(ctx, p, c, keys[0])
	if err != nil || q == nil || now != p {
		return now, err
	}
	return p, f.guard.readHandshake(ctx, p, q, c.Reply)
}

// handshake sends c and learns from its reply which process answered.
func (f *router) handshake(ctx context.Context, p *process, c *Call, key string) (*process, error) {
	sent := time.Now()
	if err := p.pipelines.do(ctx, c); err != nil {
		return nil, before(err)
	}
	run, _ := text(c.Reply, 1)
	us, ok := number(c.Reply, 2)
	if !ok || strings.ContainsAny(run, "'\\\n") {
		return nil, &notSent{errors.New("the server answers a handshake in an unknown way")}
	}
	return f.serves(key, run, us, sent, time.Now()), nil
}

// text and number read one element of a reply.
func text(reply []any, i int) (string, bool) {
	if i >= len(reply) {
		return "", false
	}
	s, ok := reply[i].(string)
	return s, ok
}

func number(reply []any, i int) (int64, bool) {
	if i >= len(reply) {
		return 0, false
	}
	n, ok := reply[i].(int64)
	return n, ok
}

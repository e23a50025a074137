package redlocktest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/redlock-go/redlock/driver"
)

var historyCases = []testCase{
	{name: "steady", do: func(r *run) { r.histories(time.Millisecond, nil) }},
	{name: "faults", needs: []condition{spoilable}, do: historyUnderFaults},
}

// kind is what a client called, or what may have happened by itself.
type kind int

const (
	acquireOp kind = iota
	renewOp
	releaseOp
	undoOp  // the clean-up of an attempt whose outcome is unknown; may never come
	loseOp  // the end of a lease by its TTL or with its session; may never come
	reapOp  // the server's notice that a session has ended; may never come
	breakOp // an operator's
	lookOp  // a look at who has the lock, which changes nothing
)

func (k kind) String() string {
	return [...]string{"acquire", "renew", "release", "undo", "lose", "reap", "break", "look"}[k]
}

// input is a call as the model sees it.
type input struct {
	kind  kind
	key   string
	who   int // the attempt: every one is an owner of its own
	owner string
	// rivals: another attempt was under way, which may be reported as held though it is
	// never granted; by a quorum also where it is itself refused in the end, which a quorum
	// must name.
	rivals bool
	// waits: it may take as long as others have the lock.
	waits bool
	// cut: a loss with a session, whose client may learn of it before the server does.
	cut bool
	// shared: it asks for the shared mode, of which the model knows nothing.
	shared bool
}

// output is its answer.
type output struct {
	verdict verdict
	fence   uint64
	holder  string // that a refusal names
	// reserved: the refusal says that nobody has the lock.
	reserved bool
	// expires is the end of the lease that a grant or a renewal gives; zero: its session's.
	expires int64
	// open is when the lease was last seen not to be lost, of the end of a lease that was.
	open int64
}

// lockState is the lock as the model sees it: who has it, and the largest token that
// is known to have been given.
type lockState struct {
	who   int // 0: nobody
	fence uint64
	// ghost: the session of the owner was cut, and the server has not noticed yet: nobody
	// has the lock, and nobody gets it.
	ghost bool
}

// lockModel is a lock with fencing tokens. What is unknown may have taken effect, at
// any time after the call.
func lockModel(fencing bool) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Partition: byKey,
		Init:      func() []interface{} { return []interface{}{lockState{}} },
		Step: func(state, in, out interface{}) []interface{} {
			var next []interface{}
			for _, s := range step(state.(lockState), in.(input), out.(output), fencing) {
				next = append(next, s)
			}
			return next
		},
		Equal: func(a, b interface{}) bool { return a.(lockState) == b.(lockState) },
		DescribeOperation: func(in, out interface{}) string {
			i, o := in.(input), out.(output)
			if o.fence != 0 {
				return fmt.Sprintf("%v by %d: token %d", i.kind, i.who, o.fence)
			}
			return fmt.Sprintf("%v by %d: %v", i.kind, i.who, o.verdict)
		},
		DescribeState: func(s interface{}) string {
			l := s.(lockState)
			if l.ghost {
				return fmt.Sprintf("what is left of %d, token %d", l.who, l.fence)
			}
			return fmt.Sprintf("owner %d, token %d", l.who, l.fence)
		},
	}
	return m.ToModel()
}

// step returns the states in which the lock may be after one call.
func step(s lockState, in input, out output, fencing bool) []lockState {
	freed := lockState{fence: s.fence}
	his := s.who == in.who // the server has it for this attempt
	mine := his && !s.ghost
	switch {
	case in.kind == acquireOp && out.verdict == granted:
		if s.who != 0 || fencing && out.fence <= s.fence {
			return nil
		}
		return []lockState{{who: in.who, fence: out.fence}}
	case in.kind == acquireOp && out.verdict == held:
		return only(s, s.who != 0 || in.rivals || out.reserved)
	case in.kind == acquireOp: // unknown
		if s.who != 0 {
			return []lockState{s}
		}
		return []lockState{s, {who: in.who, fence: s.fence}}
	case in.kind == renewOp && out.verdict == granted:
		return only(s, mine)
	case in.kind == renewOp: // lost
		return only(s, !mine)
	case out.verdict == lost: // of Release or Break: the lock is free of it on the server too
		return only(s, !his)
	case in.kind == releaseOp && out.verdict == granted && !his: // it was lost before: ErrLost is optional
		return []lockState{s}
	case in.kind == breakOp && out.verdict == granted && !his:
		return nil
	case (in.kind == releaseOp || in.kind == breakOp) && out.verdict == granted:
		return []lockState{freed}
	case in.kind == lookOp:
		return []lockState{s}
	case in.kind == loseOp && mine && in.cut:
		ghost := s
		ghost.ghost = true
		return []lockState{s, ghost, freed}
	case in.kind == loseOp && !mine, in.kind == reapOp && !(his && s.ghost):
		return []lockState{s}
	case his: // an unknown release, an undo, an end
		return []lockState{s, freed}
	}
	return []lockState{s}
}

func only(s lockState, legal bool) []lockState {
	if !legal {
		return nil
	}
	return []lockState{s}
}

// byKey takes a history apart: locks of different keys know nothing of each other.
func byKey(ops []porcupine.Operation) [][]porcupine.Operation {
	parts := map[string][]porcupine.Operation{}
	var keys []string
	for _, op := range ops {
		key := op.Input.(input).key
		if parts[key] == nil {
			keys = append(keys, key)
		}
		parts[key] = append(parts[key], op)
	}
	var all [][]porcupine.Operation
	for _, key := range keys {
		all = append(all, parts[key])
	}
	return all
}

// recorder keeps every call. A negative Return stands for the end of the history.
type recorder struct {
	start time.Time

	mu       sync.Mutex
	ops      []porcupine.Operation
	faults   []span
	attempts int
	refusals int
	losses   int    // leases whose release says that they were lost
	register uint64 // the largest token that a holder wrote with
	quorum   bool   // grants have votes
	// unanswered counts attempts whose outcome is unknown.
	unanswered int
	stale      []int // attempts whose write was refused though their lease was valid
}

func (h *recorder) now() int64 { return int64(time.Since(h.start)) }

func (h *recorder) attempt() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.attempts++
	return h.attempts
}

// A span is the time of a fault, and which client it is between, or all of them, and the
// servers.
type span struct {
	client     int
	begin, end int64
	// after: the fault is one of the next request after end.
	after bool
	// shortest is how long a call takes at least that the fault was in the way of.
	shortest time.Duration
}

// usual is how long most calls take that do not wait for the lock.
func (h *recorder) usual() time.Duration {
	var took []int64
	for _, op := range h.ops {
		if in := op.Input.(input); !in.waits && op.Return >= 0 {
			took = append(took, op.Return-op.Call)
		}
	}
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return time.Duration(took[len(took)/2])
}

// effective reports whether the record shows that a fault did something: it was in the way
// of a call of its client, which failed or was held up.
func (h *recorder) effective(f span) bool {
	longer := max(f.shortest, time.Millisecond+4*h.usual())
	return slices.ContainsFunc(h.ops, func(op porcupine.Operation) bool {
		in, v := op.Input.(input), op.Output.(output).verdict
		if f.client != allClients && f.client != op.ClientId || in.kind == undoOp || in.kind == loseOp || in.waits {
			return false
		}
		if f.after {
			return op.Call >= f.begin // whether its reply was lost the driver need not show
		}
		ret := op.Return
		if ret < 0 {
			ret = h.now()
		}
		if op.Call > f.end || ret < f.begin {
			return false
		}
		return v == unknown || v == lost || ret-op.Call >= int64(longer)
	})
}

const allClients = -1

// spoil injects a fault, which is over when inject returns, and keeps when that was.
func (h *recorder) spoil(f span, inject func()) {
	f.begin = h.now()
	inject()
	f.end = h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = append(h.faults, f)
}

// cuts returns what a fault may have done to leases that live with a session: any that
// was at work between the request for a lease and the end of its release may
// have cut the session. It may have cut none but that of its own client, and nothing cuts
// a session where there was no fault.
func (h *recorder) cuts() []porcupine.Operation {
	var all []porcupine.Operation
	for _, op := range h.ops {
		in := op.Input.(input)
		if in.kind != acquireOp || op.Output.(output).verdict != granted {
			continue
		}
		from, to := int64(-1), h.over(in.who)
		for _, f := range h.faults {
			if (f.client == op.ClientId || f.client == allClients) && f.end >= op.Call && f.begin <= to {
				if at := max(f.begin, op.Call); from < 0 || at < from {
					from = at
				}
			}
		}
		if from < 0 {
			continue
		}
		in.cut = true
		for _, in.kind = range []kind{loseOp, reapOp} {
			all = append(all, porcupine.Operation{ClientId: op.ClientId, Input: in, Call: from, Output: output{verdict: unknown}, Return: to})
		}
	}
	return all
}

// over is when an attempt's lease was over for certain.
func (h *recorder) over(who int) int64 {
	for _, op := range h.ops {
		if in, v := op.Input.(input), op.Output.(output).verdict; in.kind == releaseOp && in.who == who && (v == granted || v == lost) {
			return op.Return
		}
	}
	return h.now()
}

func (h *recorder) add(client int, in input, call, ret int64, out output) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if out.verdict == unknown || in.kind == undoOp || in.kind == loseOp {
		ret = -1
	}
	if in.kind == acquireOp && out.verdict == held {
		h.refusals++
	}
	if in.kind == acquireOp && out.verdict == unknown {
		h.unanswered++
	}
	if in.kind == releaseOp && out.verdict == lost {
		h.losses++
	}
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: ret})
}

// votes notes that the backend is a quorum.
func (h *recorder) votes(all []driver.Vote) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.quorum = h.quorum || len(all) > 0
}

// write is a store that refuses old tokens, as the lock's users have one.
func (h *recorder) write(who int, fence uint64, valid func() bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if fence < h.register && valid() {
		h.stale = append(h.stale, who)
	}
	h.register = max(h.register, fence)
}

// wronged counts the refused writes of holders whose leases nothing can have ended.
func (h *recorder) wronged(sessions bool) int {
	var cut []porcupine.Operation
	if sessions {
		cut = h.cuts()
	}
	n := 0
	for _, who := range h.stale {
		if !slices.ContainsFunc(cut, func(o porcupine.Operation) bool { return o.Input.(input).who == who }) {
			n++
		}
	}
	return n
}

// history returns what was recorded, with its open ends closed. sessions says that a lease
// ends with its session.
func (h *recorder) history(sessions bool) []porcupine.Operation {
	end := h.now() + 1
	ops := slices.Clone(h.ops)
	if sessions {
		ops = append(ops, h.cuts()...)
	}
	for i := range ops {
		if ops[i].Return < 0 {
			ops[i].Return = end
		}
	}
	nameRivals(ops, h.quorum)
	return ops
}

// nameRivals notes at each attempt whether another was in its way.
func nameRivals(ops []porcupine.Operation, quorum bool) {
	for i := range ops {
		in, holder := ops[i].Input.(input), ops[i].Output.(output).holder
		if in.kind != acquireOp {
			continue
		}
		in.rivals = slices.ContainsFunc(ops, func(o porcupine.Operation) bool {
			other := o.Input.(input)
			may := o.Output.(output).verdict != held
			if quorum {
				may = other.owner == holder
			}
			return other.kind == acquireOp && other.key == in.key && other.who != in.who &&
				may && o.Call <= ops[i].Return && ops[i].Call <= o.Return
		})
		ops[i].Input = in
	}
}

const historyClients = 5

// historyRounds is how often each client wants the lock.
func (r *run) historyRounds() int { return r.h.times(24) }

// histories records what clients do to one key, with holds that become longer until
// there was contention, and checks the record. A record that the checker cannot decide is
// replaced by shorter ones; if those cannot be decided either, nothing was shown.
func (r *run) histories(hold time.Duration, spoil func(h *recorder, clients []driver.Backend, done <-chan struct{})) {
	clients := r.clients(historyClients)
	hold = max(hold, r.howLong(clients[0]))
	rounds, why := r.historyRounds(), ""
	for range 5 {
		h := r.recorded(clients, rounds, hold, spoil)
		if r.ctx.Err() != nil {
			if why == "" {
				why = "the case's time was over before there was a history to check"
			}
			break
		}
		sessions := r.info.Features.Has(driver.FeatureSession)
		decided := r.explain(h.history(sessions))
		if n := h.wronged(sessions); n > 0 {
			r.fatal(tokens, "a store that refuses old tokens refused %d writes of valid holders", n)
		}
		effective := 0
		for _, f := range h.faults {
			if h.effective(f) {
				effective++
			}
		}
		least := historyClients * rounds / 10
		switch {
		case !decided:
			why = fmt.Sprintf("the checker could not decide on a history of %d calls", len(h.ops))
			rounds = max(rounds/2, 4)
			continue
		case h.refusals < least:
			why = fmt.Sprintf("too little contention to prove anything: %d of %d attempts were refused as held, fewer than %d", h.refusals, h.attempts, least)
		case spoil != nil && effective == 0:
			why = fmt.Sprintf("none of %d faults had an effect on any call: either the harness' hooks do nothing, or no call was in their way", len(h.faults))
		default:
			r.note("%d calls, %d refused, %d attempts without an answer, %d leases lost, %d faults of which %d had an effect, holds of up to %v",
				len(h.ops), h.refusals, h.unanswered, h.losses, len(h.faults), effective, hold)
			return
		}
		hold *= 3
	}
	r.fatal(history, "%s", why)
}

func (r *run) recorded(clients []driver.Backend, rounds int, hold time.Duration, spoil func(*recorder, []driver.Backend, <-chan struct{})) *recorder {
	h, key := &recorder{start: time.Now()}, r.key()
	done := make(chan struct{})
	var spoiled <-chan struct{}
	if spoil != nil {
		spoiled = r.async(func() { spoil(h, clients, done) })
	}
	var wg sync.WaitGroup
	for i, b := range clients {
		wg.Go(func() {
			defer r.recoverPanic()
			for n := range rounds {
				c := &historyClient{run: r, record: h, id: i, backend: b, key: key, hold: rand.N(hold), longest: hold}
				c.want(ways[(n+i)%len(ways)])
			}
		})
	}
	wg.Wait()
	close(done)
	if spoiled != nil {
		<-spoiled
	}
	if r.over() {
		r.join(done)
	}
	return h
}

// historyClient wants the lock once.
type historyClient struct {
	*run
	record  *recorder
	id      int
	backend driver.Backend
	key     string
	hold    time.Duration
	longest time.Duration // that anybody holds it
}

// way is how a client gets the lock: by one attempt, by one that may wait, or by attempts
// each time it is woken.
type way int

const (
	tries way = iota
	waitsFor
	watchesFor
)

var ways = []way{tries, waitsFor, watchesFor}

// want makes attempts in one of the ways, until one succeeds or it gives up.
func (c *historyClient) want(w way) {
	// Long enough for those before it to have their time.
	ctx, cancel := context.WithTimeout(c.ctx, max(c.callTime(), 4*historyClients*c.longest))
	defer cancel()
	if _, ok := c.backend.(driver.Watcher); w != watchesFor || !ok {
		if c.attempt(ctx, w == waitsFor) == held {
			c.pause(c.hold)
		}
		return
	}
	signal, err := c.backend.(driver.Watcher).Watch(ctx, c.key)
	if v := c.saw(err); v != granted && v != unknown && v != later {
		c.fatal(watching, "Watch gives %v: %v", v, err)
	}
	for range 6 {
		if c.attempt(ctx, false) != held {
			return
		}
		select {
		case <-signal:
		case <-time.After(max(c.hold, 20*time.Millisecond)): // others may be before it
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// attempt is one attempt, and if it succeeds a hold with a renewal and a write.
func (c *historyClient) attempt(ctx context.Context, wait bool) verdict {
	h := c.record
	in := input{kind: acquireOp, key: c.key, who: h.attempt(), owner: c.owner(), waits: wait}
	call := h.now()
	l, err := c.tryCtx(ctx, c.backend, driver.Request{Key: c.key, Owner: in.owner, Wait: wait})
	ret := h.now()
	v := c.saw(err)
	if v == held && ctx.Err() != nil {
		v = unknown // a wait that its context ended: perhaps it was let in just then
	}
	switch v {
	case granted:
		h.add(c.id, in, call, ret, output{verdict: granted, fence: l.Grant().Fence})
		h.votes(l.Grant().Votes)
		c.hasLock(in, l)
	case held:
		out := output{verdict: held}
		var he *driver.HeldError
		if errors.As(err, &he) {
			out.holder, out.reserved = he.Holder, he.ReservedForWaiter
		}
		h.add(c.id, in, call, ret, out)
	case unknown, later:
		h.add(c.id, in, call, ret, output{verdict: unknown})
		in.kind = undoOp
		h.add(c.id, in, call, 0, output{verdict: unknown})
		c.pause(poll)
	default:
		c.fatal(fourOutcomes, "Acquire gives %v: %v", v, err)
	}
	return v
}

// callTime bounds a call of a history, so that a fault costs no more than that.
func (r *run) callTime() time.Duration { return min(r.h.Timeout/30, time.Second) }

// hasLock holds the lock for a while, in which it may be renewed, writes, and releases.
func (c *historyClient) hasLock(in input, l *lease) {
	h := c.record
	if g := l.Grant(); g.Expires.IsZero() || time.Until(g.Expires) < c.left() {
		lose := in
		lose.kind = loseOp
		h.add(c.id, lose, h.now(), 0, output{verdict: unknown})
	}
	c.pause(c.hold / 2)
	if rand.N(3) == 0 {
		in.kind = renewOp
		call := h.now()
		_, err := l.Renew(c.ctx, &driver.Renewal{TTL: c.long()})
		if v := c.saw(err); v == granted || v == lost {
			h.add(c.id, in, call, h.now(), output{verdict: v})
		}
	}
	h.write(in.who, l.Grant().Fence, func() bool { return c.valid(l) })
	c.pause(c.hold / 2)
	c.releaseUntilKnown(in, l)
}

// releaseUntilKnown releases until that is known to be done.
func (c *historyClient) releaseUntilKnown(in input, l *lease) {
	h := c.record
	in.kind = releaseOp
	for {
		call := h.now()
		v := c.saw(l.Release(c.ctx))
		ret := h.now()
		if v == later {
			v = unknown
		}
		h.add(c.id, in, call, ret, output{verdict: v})
		switch v {
		case granted, lost:
			return
		case unknown:
		default:
			c.fatal(releasing, "Release gives %v", v)
		}
		if !c.pause(poll) {
			c.fatal(releasing, "a lease was not released before the case's time was over")
		}
	}
}

// defaultSteps bounds the search for an order of calls. It counts steps and not time, so
// that a slow machine comes as far as a fast one.
const defaultSteps = 2_000_000

// maxSteps returns how many steps the search for an order may take.
func (h *Harness) maxSteps() int64 {
	if h.steps != 0 {
		return h.steps
	}
	return defaultSteps
}

// explain asks whether any order of the calls explains their answers, and reports whether
// the checker came to an end.
func (r *run) explain(ops []porcupine.Operation) (decided bool) {
	m := lockModel(r.info.Features.Has(driver.FeatureFencing))
	legal, steps, info := decide(m, ops, r.h.maxSteps())
	decided = steps <= r.h.maxSteps() || legal
	if decided && !legal {
		r.fatal(history, "no order of these %d calls explains their answers; see %s", len(ops), drawing(m, info))
	}
	return decided
}

// decide asks whether any order of the calls explains their answers, and counts the steps of the
// search. If they are more than most it was given up, and illegal says nothing.
func decide(m porcupine.Model, ops []porcupine.Operation, most int64) (legal bool, taken int64, info porcupine.LinearizationInfo) {
	var steps atomic.Int64
	inner := m.Step
	m.Step = func(state, in, out interface{}) (bool, interface{}) {
		if steps.Add(1) > most {
			return false, state // gives up soon
		}
		return inner(state, in, out)
	}
	result, info := porcupine.CheckOperationsVerbose(m, ops, 0)
	return result == porcupine.Ok, steps.Load(), info
}

// drawing keeps the picture of a history and returns where.
func drawing(m porcupine.Model, info porcupine.LinearizationInfo) string {
	f, err := os.CreateTemp("", "redlocktest-history-*.html")
	if err != nil {
		return fmt.Sprintf("nothing: the picture could not be kept: %v", err)
	}
	err = porcupine.Visualize(m, info, f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Sprintf("%s, which is not whole: %v", f.Name(), err)
	}
	return f.Name()
}

// historyUnderFaults spoils the calls by whatever the harness can do that leaves
// the servers their memory. Leases that live with a session may end with any fault
// between their own client and the servers, and not with those of others.
func historyUnderFaults(r *run) {
	f := r.h.Faults
	type spoiler struct {
		span   span
		inject func(b driver.Backend)
	}
	var faults []spoiler
	during := func(begin, end func() error) {
		heal := r.inject(begin, end)
		r.pause(rand.N(20 * time.Millisecond))
		heal()
	}
	const slow = 5 * time.Millisecond
	if f.DropReply != nil {
		faults = append(faults, spoiler{span{after: true}, r.drop})
	}
	if f.Slow != nil {
		faults = append(faults, spoiler{span{shortest: slow}, func(b driver.Backend) {
			during(func() error { return f.Slow(b, slow) }, func() error { return f.Slow(b, 0) })
		}})
	}
	if f.Partition != nil && f.Heal != nil {
		faults = append(faults, spoiler{span{}, func(b driver.Backend) {
			during(func() error { return f.Partition(b) }, func() error { return f.Heal(b) })
		}})
	}
	if f.EndSession != nil && r.info.Features.Has(driver.FeatureSession) {
		faults = append(faults, spoiler{span{}, func(b driver.Backend) {
			if err := f.EndSession(b); err != nil {
				r.note("the harness could not end a session: %v", err)
			}
		}})
	}
	if f.Pause != nil && f.Resume != nil {
		faults = append(faults, spoiler{span{client: allClients}, func(driver.Backend) { during(f.Pause, f.Resume) }})
	}
	// Holds so long that some faults fall into them.
	r.histories(10*time.Millisecond, func(h *recorder, clients []driver.Backend, done <-chan struct{}) {
		for n := 0; n < 20 && !over(done); n++ {
			which, client := faults[rand.N(len(faults))], rand.N(len(clients))
			hit := which.span
			if hit.client != allClients {
				hit.client = client
			}
			h.spoil(hit, func() { which.inject(clients[client]) })
			r.pause(rand.N(5 * time.Millisecond))
		}
	})
}

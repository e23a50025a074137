package redlocktest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
)

var historyCases = []testCase{
	{name: "steady", do: func(r *run) { r.histories(time.Millisecond, nil) }},
	{name: "faults", needs: []condition{spoilable}, do: historyUnderFaults},
}

// kind is the kind of a call, or of an event that may happen by itself.
type kind int

const (
	acquireOp kind = iota
	renewOp
	releaseOp
	undoOp  // the clean-up of an attempt whose outcome is unknown; may never come
	loseOp  // the end of a lease by its TTL or with its session; may never come
	reapOp  // the server's notice that a session has ended; may never come
	breakOp // an operator's call
	lookOp  // a look at who has the lock, which changes nothing
	listOp  // like watchOp a call that the model does not have
	watchOp
	kinds // how many there are
)

func (k kind) String() string {
	return [...]string{"acquire", "renew", "release", "undo", "lose", "reap", "break", "look", "list", "watch"}[k]
}

// input is a call as the model sees it.
type input struct {
	kind  kind
	key   string
	who   int // the attempt: every one is an owner of its own
	owner string
	// rivals says that another attempt was under way. A refusal may name it as the holder even
	// if it is never granted; a quorum may do so even if that attempt is refused.
	rivals bool
	// waits says that the call may wait while others have the lock.
	waits bool
	// cut is a loss by the end of a session, which the client may notice before the server.
	cut bool
	// shared says that the call asks for the shared mode, which the model does not have.
	shared bool
}

// output is the answer to a call.
type output struct {
	verdict verdict
	fence   uint64
	holder  string // that a refusal names
	// reserved says that the lock is kept for a waiter and has no holder.
	reserved bool
	// expires is the end of the lease that a grant or a renewal gives; zero: its session's.
	expires int64
	// open, of the end of a lost lease, is when the lease was last seen to be valid.
	open int64
}

// lockState is the lock as the model sees it: who has it, and the largest token that
// is known to have been given.
type lockState struct {
	who   int // 0: nobody
	fence uint64
	// ghost says that the owner's session was cut and the server has not noticed: nobody has
	// the lock, and nobody gets it.
	ghost bool
}

// lockModel is a lock with fencing tokens. A call with an unknown outcome may take effect at
// any time after it began.
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

// byKey splits a history by keys, whose locks are independent of each other.
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

// A span is the time of a fault between the servers and one client, or all clients.
type span struct {
	client     int
	begin, end int64
	// after says that the fault affects the next request after end.
	after bool
	// shortest is the least duration of a call that the fault delayed.
	shortest time.Duration
}

// usual is the duration of most calls that do not wait for the lock.
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

// effective reports whether the record shows an effect of the fault: a call of its client
// failed or was delayed.
func (h *recorder) effective(f span) bool {
	longer := max(f.shortest, time.Millisecond+4*h.usual())
	return slices.ContainsFunc(h.ops, func(op porcupine.Operation) bool {
		in, v := op.Input.(input), op.Output.(output).verdict
		if f.client != allClients && f.client != op.ClientId || in.kind == undoOp || in.kind == loseOp || in.waits {
			return false
		}
		ret := op.Return
		if ret < 0 {
			ret = h.now()
		}
		if op.Call > h.last(f) || ret < f.begin {
			return false
		}
		return v == unknown || v == lost || ret-op.Call >= int64(longer)
	})
}

// last returns the end of a fault, or the call of the request that it affects.
func (h *recorder) last(f span) int64 {
	if !f.after {
		return f.end
	}
	next := int64(math.MaxInt64)
	for _, op := range h.ops {
		if in := op.Input.(input); op.ClientId == f.client && in.kind != undoOp && in.kind != loseOp && op.Call > f.end {
			next = min(next, op.Call)
		}
	}
	return next
}

const allClients = -1

// spoil injects a fault, which is over when inject returns, and records its time.
func (h *recorder) spoil(f span, inject func()) {
	f.begin = h.now()
	inject()
	f.end = h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = append(h.faults, f)
}

// cuts returns the ends of sessions that a fault may have caused. A fault between the request
// for a lease and the end of its release may have cut the session of its own client, and no
// other. Without a fault no session is cut.
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
func (h *recorder) votes(all []quorum.Vote) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.quorum = h.quorum || len(all) > 0
}

// write simulates a write to a store that refuses old tokens.
func (h *recorder) write(who int, fence uint64, valid func() bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if fence < h.register && valid() {
		h.stale = append(h.stale, who)
	}
	h.register = max(h.register, fence)
}

// wronged counts the refused writes of holders whose leases were certainly valid.
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

// history returns the record, with events added for calls whose effects may come later.
// sessions says that leases end with sessions.
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

// nameRivals marks each attempt during which another attempt was under way. In a quorum, another
// attempt counts until its lease is released: requests for it that are late, or that renew a
// lost lease, may still reach nodes, whose refusals then name it.
func nameRivals(ops []porcupine.Operation, quorum bool) {
	released := map[int]int64{} // by attempt
	for _, o := range ops {
		in, v := o.Input.(input), o.Output.(output).verdict
		if _, known := released[in.who]; in.kind == releaseOp && (v == granted || v == lost) && !known {
			released[in.who] = o.Return
		}
	}
	end := func(o porcupine.Operation) int64 {
		if !quorum || o.Output.(output).verdict != granted {
			return o.Return
		}
		if at, ok := released[o.Input.(input).who]; ok {
			return at
		}
		return math.MaxInt64
	}
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
				may && o.Call <= ops[i].Return && ops[i].Call <= end(o)
		})
		ops[i].Input = in
	}
}

const historyClients = 5

// historyRounds is how often each client wants the lock.
func (r *run) historyRounds() int { return r.h.times(24) }

// histories records the calls of several clients for one key and checks the record. Holds
// become longer until there is contention. If the checker cannot decide a record, shorter ones
// replace it; if it cannot decide these either, the case fails.
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

// historyClient tries to get the lock once, and uses it.
type historyClient struct {
	*run
	record  *recorder
	id      int
	backend driver.Backend
	key     string
	hold    time.Duration
	longest time.Duration // that any client holds it
}

// way is how a client gets the lock: by one attempt, by one waiting call, or by an attempt
// after each signal.
type way int

const (
	tries way = iota
	waitsFor
	watchesFor
)

var ways = []way{tries, waitsFor, watchesFor}

// want makes attempts in one of the ways, until one succeeds or it gives up.
func (c *historyClient) want(w way) {
	// Long enough for the waiters before it.
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
		case <-time.After(max(c.hold, 20*time.Millisecond)): // other waiters may be first
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
	if v == held && gaveUp(ctx, in, err) {
		v = unknown
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

// gaveUp reports whether the context ended a refused attempt, perhaps just when the lock was
// granted. The driver's timer may be a moment before the context's.
func gaveUp(ctx context.Context, in input, err error) bool {
	return ctx.Err() != nil || in.waits && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled))
}

// callTime bounds a call of a history, so that a fault costs no more than that.
func (r *run) callTime() time.Duration { return min(r.limit/30, time.Second) }

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

// releaseUntilKnown calls Release until its outcome is known.
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

// defaultSteps bounds the search for an order of calls. It counts steps and not time, so that a
// slow machine searches as far as a fast one.
const defaultSteps = 2_000_000

// maxSteps returns how many steps the search for an order may take.
func (h *Harness) maxSteps() int64 {
	if h.steps != 0 {
		return h.steps
	}
	return defaultSteps
}

// explain checks that some order of the calls explains their answers, and reports whether the
// checker finished.
func (r *run) explain(ops []porcupine.Operation) (decided bool) {
	m := lockModel(r.info.Features.Has(driver.FeatureFencing))
	legal, steps, info := decide(m, ops, r.h.maxSteps())
	decided = steps <= r.h.maxSteps() || legal
	if decided && !legal {
		r.fatal(history, "no order of these %d calls explains their answers; see %s", len(ops), drawing(m, info))
	}
	return decided
}

// decide asks whether any order of the calls explains their answers, and counts the steps of
// the search. If there were more than most, the search was given up, and illegal has no
// meaning.
func decide(m porcupine.Model, ops []porcupine.Operation, most int64) (legal bool, taken int64, info porcupine.LinearizationInfo) {
	var steps atomic.Int64
	inner := m.Step
	m.Step = func(state, in, out interface{}) (bool, interface{}) {
		if steps.Add(1) > most {
			return false, state // the search gives up soon
		}
		return inner(state, in, out)
	}
	result, info := porcupine.CheckOperationsVerbose(m, ops, 0)
	return result == porcupine.Ok, steps.Load(), info
}

// legible is added to the picture: what it shows, all of its legend on narrow screens too, and
// light colours, because its lines and texts are black.
const legible = `<p style="position: sticky; left: 10px; max-width: calc(100vw - 30px)">Each box is a call, from its start to its end. The grey lines are an
order of calls that explains their answers, as far as there is one; a red line is a call that none explains. Point at a call for
the state of the lock before and after it.</p>
<style>:root { color-scheme: only light; background: white } body { width: max-content } #legend svg { overflow: visible }</style>
<script>
document.title = 'Calls that no order explains'
if (innerWidth < 700) {
  const legend = document.querySelector('#legend svg')
  legend.setAttribute('viewBox', '295 0 400 20')
  legend.setAttribute('width', innerWidth - 30)
}
</script>
`

// drawing keeps the picture of a history and returns where.
func drawing(m porcupine.Model, info porcupine.LinearizationInfo) string {
	f, err := os.CreateTemp("", "redlocktest-history-*.html")
	if err != nil {
		return fmt.Sprintf("nothing: the picture could not be kept: %v", err)
	}
	if err = porcupine.Visualize(m, info, f); err == nil {
		_, err = f.WriteString(legible)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Sprintf("%s, which is not whole: %v", f.Name(), err)
	}
	return f.Name()
}

// historyUnderFaults injects every fault of the harness that keeps the servers' data. A fault
// between a client and the servers may end leases of that client's sessions, and no others.
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
	// Holds are so long that some faults fall into them.
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

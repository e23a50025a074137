package redlocktest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/redlock-go/redlock/driver"
)

var historyCases = []testCase{
	{name: "steady", do: func(r *run) { r.histories(time.Millisecond, nil) }},
	{name: "faults", do: historyUnderFaults},
}

// kind is what a client called, or what may have happened by itself.
type kind int

const (
	acquireOp kind = iota
	renewOp
	releaseOp
	undoOp // the clean-up of an attempt whose outcome is unknown; may never come
	loseOp // the end of a lease by its TTL or with its session; may never come
	reapOp // the server's notice that a session has ended; may never come
)

func (k kind) String() string {
	return [...]string{"acquire", "renew", "release", "undo", "lose", "reap"}[k]
}

// input is a call as the model sees it.
type input struct {
	kind kind
	key  string
	who  int // the attempt: every one is an owner of its own
	// again: an earlier call of this kind had an unknown outcome.
	again bool
	// rivals: another attempt was under way, which a quorum may report as held
	// though it is never granted.
	rivals bool
	// cut: a loss with a session, whose client may learn of it before the server does.
	cut bool
}

// output is its answer.
type output struct {
	verdict verdict
	fence   uint64
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
		return only(s, s.who != 0 || in.rivals)
	case in.kind == acquireOp: // unknown
		if s.who != 0 {
			return []lockState{s}
		}
		return []lockState{s, {who: in.who, fence: s.fence}}
	case in.kind == renewOp && out.verdict == granted:
		return only(s, mine)
	case in.kind == renewOp: // lost
		return only(s, !mine)
	case out.verdict == lost: // of Release: the lock is free of it on the server too
		return only(s, !his)
	case in.kind == releaseOp && out.verdict == granted && !his:
		return only(s, in.again)
	case in.kind == releaseOp && out.verdict == granted:
		return []lockState{freed}
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
}

const allClients = -1

// spoil injects a fault, which is over when inject returns, and keeps when that was.
func (h *recorder) spoil(client int, inject func()) {
	f := span{client: client, begin: h.now()}
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
	for i := range ops {
		in := ops[i].Input.(input)
		in.rivals = slices.ContainsFunc(ops, func(o porcupine.Operation) bool {
			other := o.Input.(input)
			return other.kind == acquireOp && other.key == in.key && other.who != in.who &&
				o.Output.(output).verdict != held && o.Call <= ops[i].Return && ops[i].Call <= o.Return
		})
		ops[i].Input = in
	}
	return ops
}

const (
	historyClients = 5
	historyTurns   = 20 // a client's attempts
	leastRefusals  = historyClients * historyTurns / 10
)

// histories records what clients do to one key, with holds that become longer until
// there was contention, and checks the record.
func (r *run) histories(hold time.Duration, spoil func(h *recorder, clients []driver.Backend, done <-chan struct{})) {
	clients := r.clients(historyClients)
	hold = max(hold, r.howLong(clients[0]))
	for range 4 {
		h := r.recorded(clients, hold, spoil)
		sessions := r.info.Features.Has(driver.FeatureSession)
		r.explain(h.history(sessions))
		if n := h.wronged(sessions); n > 0 {
			r.fatal(tokens, "a store that refuses old tokens refused %d writes of valid holders", n)
		}
		if h.refusals >= leastRefusals {
			r.note("%d calls, %d refused, %d attempts without an answer, %d leases lost, holds of up to %v", len(h.ops), h.refusals, h.unanswered, h.losses, hold)
			return
		}
		hold *= 4
	}
	r.fatal(history, "too little contention to prove anything: fewer than %d of %d attempts were refused as held",
		leastRefusals, historyClients*historyTurns)
}

func (r *run) recorded(clients []driver.Backend, hold time.Duration, spoil func(*recorder, []driver.Backend, <-chan struct{})) *recorder {
	h, key := &recorder{start: time.Now()}, r.key()
	done := make(chan struct{})
	var spoiled <-chan struct{}
	if spoil != nil {
		spoiled = r.async(func() { spoil(h, clients, done) })
	}
	var wg sync.WaitGroup
	for i, b := range clients {
		wg.Go(func() {
			defer r.caught()
			for range historyTurns {
				r.turn(h, i, b, key, rand.N(hold))
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

// turn is one attempt, and if it succeeds a hold with a renewal and a write.
func (r *run) turn(h *recorder, client int, b driver.Backend, key string, hold time.Duration) {
	in := input{kind: acquireOp, key: key, who: h.attempt()}
	ctx, cancel := context.WithTimeout(r.ctx, r.callTime())
	call := h.now()
	l, err := r.tryCtx(ctx, b, driver.Request{Key: key})
	ret := h.now()
	cancel()
	switch v := r.saw(err); v {
	case granted:
		h.add(client, in, call, ret, output{verdict: granted, fence: l.Grant().Fence})
		r.hold(h, client, in, l, hold)
	case held:
		if ctx.Err() == nil || ret-call < int64(r.callTime()) {
			h.add(client, in, call, ret, output{verdict: held})
		}
		r.pause(hold)
	case unknown, later:
		h.add(client, in, call, ret, output{verdict: unknown})
		in.kind = undoOp
		h.add(client, in, call, 0, output{verdict: unknown})
		r.pause(poll)
	default:
		r.fatal(fourOutcomes, "Acquire gives %v: %v", v, err)
	}
}

// callTime bounds a call of a history, so that a fault costs no more than that.
func (r *run) callTime() time.Duration { return min(r.h.Timeout/30, time.Second) }

func (r *run) hold(h *recorder, client int, in input, l driver.Lease, hold time.Duration) {
	if g := l.Grant(); g.Expires.IsZero() || time.Until(g.Expires) < r.left() {
		lose := in
		lose.kind = loseOp
		h.add(client, lose, h.now(), 0, output{verdict: unknown})
	}
	r.pause(hold / 2)
	if rand.N(3) == 0 {
		in.kind = renewOp
		call := h.now()
		_, err := l.Renew(r.ctx, &driver.Renewal{TTL: r.long()})
		if v := r.saw(err); v == granted || v == lost {
			h.add(client, in, call, h.now(), output{verdict: v})
		}
	}
	h.write(in.who, l.Grant().Fence, func() bool { return r.valid(l) })
	r.pause(hold / 2)
	r.letGo(h, client, in, l)
}

// letGo releases until that is known to be done.
func (r *run) letGo(h *recorder, client int, in input, l driver.Lease) {
	in.kind = releaseOp
	for {
		call := h.now()
		v := r.saw(l.Release(r.ctx))
		ret := h.now()
		if v == later {
			v = unknown
		}
		h.add(client, in, call, ret, output{verdict: v})
		switch v {
		case granted, lost:
			return
		case unknown:
			in.again = true
		default:
			r.fatal(releasing, "Release gives %v", v)
		}
		if !r.pause(poll) {
			r.fatal(releasing, "a lease was not released before the case's time was over")
		}
	}
}

// explain asks whether any order of the calls explains their answers.
func (r *run) explain(ops []porcupine.Operation) {
	m := lockModel(r.info.Features.Has(driver.FeatureFencing))
	result, info := porcupine.CheckOperationsVerbose(m, ops, r.h.Timeout/3)
	switch result {
	case porcupine.Ok:
	case porcupine.Unknown:
		r.note("a history of %d calls took too long to check", len(ops))
	default:
		r.fatal(history, "no order of these %d calls explains their answers; see %s", len(ops), drawing(m, info))
	}
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
	var one, all []func(b driver.Backend)
	during := func(begin, end func() error) {
		mend := r.inject(begin, end)
		r.pause(rand.N(20 * time.Millisecond))
		mend()
	}
	if f.DropReply != nil {
		one = append(one, r.drop)
	}
	if f.Slow != nil {
		one = append(one, func(b driver.Backend) {
			during(func() error { return f.Slow(b, 5*time.Millisecond) }, func() error { return f.Slow(b, 0) })
		})
	}
	if f.Partition != nil && f.Heal != nil {
		one = append(one, func(b driver.Backend) {
			during(func() error { return f.Partition(b) }, func() error { return f.Heal(b) })
		})
	}
	if f.EndSession != nil && r.info.Features.Has(driver.FeatureSession) {
		one = append(one, func(b driver.Backend) {
			if err := f.EndSession(b); err != nil {
				r.note("the harness could not end a session: %v", err)
			}
		})
	}
	if f.Pause != nil && f.Resume != nil {
		all = append(all, func(driver.Backend) { during(f.Pause, f.Resume) })
	}
	faults := slices.Concat(one, all)
	r.offers("drop replies, slow them, partition, pause or end sessions", len(faults) > 0)
	// Holds so long that some faults fall into them.
	r.histories(10*time.Millisecond, func(h *recorder, clients []driver.Backend, done <-chan struct{}) {
		for n := 0; n < 20 && !over(done); n++ {
			which, client := rand.N(len(faults)), rand.N(len(clients))
			hit := client
			if which >= len(one) {
				hit = allClients
			}
			h.spoil(hit, func() { faults[which](clients[client]) })
			r.pause(rand.N(5 * time.Millisecond))
		}
	})
}

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
)

func (k kind) String() string {
	return [...]string{"acquire", "renew", "release", "undo", "lose"}[k]
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
			return fmt.Sprintf("owner %d, token %d", s.(lockState).who, s.(lockState).fence)
		},
	}
	return m.ToModel()
}

// step returns the states in which the lock may be after one call.
func step(s lockState, in input, out output, fencing bool) []lockState {
	freed := lockState{fence: s.fence}
	mine := s.who == in.who
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
	case out.verdict == lost: // of Renew and of Release
		return only(s, !mine)
	case in.kind == releaseOp && out.verdict == granted && !mine:
		return only(s, in.again)
	case in.kind == releaseOp && out.verdict == granted:
		return []lockState{freed}
	case mine: // an unknown release, an undo, an end
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
	attempts int
	refusals int
	register uint64 // the largest token that a holder wrote with
	// unanswered counts attempts whose outcome is unknown.
	unanswered int
	stale      int // writes that were refused though the lease was valid
}

func (h *recorder) now() int64 { return int64(time.Since(h.start)) }

func (h *recorder) attempt() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.attempts++
	return h.attempts
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
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: ret})
}

// write is a store that refuses old tokens, as the lock's users have one.
func (h *recorder) write(fence uint64, valid func() bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if fence < h.register && valid() {
		h.stale++
	}
	h.register = max(h.register, fence)
}

// history returns what was recorded, with its open ends closed.
func (h *recorder) history() []porcupine.Operation {
	end := h.now() + 1
	ops := slices.Clone(h.ops)
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
func (r *run) histories(hold time.Duration, spoil func(clients []driver.Backend, done <-chan struct{})) {
	clients := r.clients(historyClients)
	hold = max(hold, r.howLong(clients[0]))
	for range 4 {
		h := r.recorded(clients, hold, spoil)
		r.explain(h.history())
		if h.stale > 0 {
			r.fatal(tokens, "a store that refuses old tokens refused %d writes of valid holders", h.stale)
		}
		if h.refusals >= leastRefusals {
			r.note("%d calls, %d refused, %d attempts without an answer, holds of up to %v", len(h.ops), h.refusals, h.unanswered, hold)
			return
		}
		hold *= 4
	}
	r.fatal(history, "too little contention to prove anything: fewer than %d of %d attempts were refused as held",
		leastRefusals, historyClients*historyTurns)
}

func (r *run) recorded(clients []driver.Backend, hold time.Duration, spoil func([]driver.Backend, <-chan struct{})) *recorder {
	h, key := &recorder{start: time.Now()}, r.key()
	done := make(chan struct{})
	var spoiled <-chan struct{}
	if spoil != nil {
		spoiled = r.async(func() { spoil(clients, done) })
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
func (r *run) callTime() time.Duration { return r.h.Timeout / 30 }

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
	h.write(l.Grant().Fence, func() bool { return r.valid(l) })
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
	m := lockModel(r.info.Features.Has(driver.Fencing))
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
// the servers their memory.
func historyUnderFaults(r *run) {
	f := r.h.Faults
	var faults []func(b driver.Backend)
	during := func(begin, end func() error) {
		mend := r.inject(begin, end)
		r.pause(rand.N(20 * time.Millisecond))
		mend()
	}
	if f.DropReply != nil {
		faults = append(faults, r.drop)
	}
	if f.Slow != nil {
		faults = append(faults, func(b driver.Backend) {
			during(func() error { return f.Slow(b, 5*time.Millisecond) }, func() error { return f.Slow(b, 0) })
		})
	}
	if f.Partition != nil && f.Heal != nil {
		faults = append(faults, func(b driver.Backend) {
			during(func() error { return f.Partition(b) }, func() error { return f.Heal(b) })
		})
	}
	if f.Pause != nil && f.Resume != nil {
		faults = append(faults, func(driver.Backend) { during(f.Pause, f.Resume) })
	}
	r.offers("drop replies, slow them, partition or pause", len(faults) > 0)
	// Holds so long that some faults fall into them.
	r.histories(10*time.Millisecond, func(clients []driver.Backend, done <-chan struct{}) {
		for n := 0; n < 20 && !over(done); n++ {
			faults[rand.N(len(faults))](clients[rand.N(len(clients))])
			r.pause(rand.N(5 * time.Millisecond))
		}
	})
}

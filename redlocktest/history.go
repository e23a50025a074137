package redlocktest

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"github.com/anishathalye/porcupine"
)

var historyCases = []testCase{
	{name: "steady", do: func(r *run) { r.smallStress(nil) }},
	{name: "faults", needs: []condition{spoilable}, do: func(r *run) { r.smallStress(r.h.Faults) }},
}

// smallStress is a stress of one key at a time, with a search for an order of all its calls.
func (r *run) smallStress(faults *Faults) {
	h := *r.h
	if h.Faults = faults; faults == nil {
		h.Faults = &Faults{}
	}
	r.h = &h
	long := r.limit / 3 // a busy machine makes fewer calls in this time
	s := &stress{outer: context.Background(), limit: long, o: StressOptions{Duration: long, Operations: int64(r.h.times(900)), Keys: 1, Clients: historyClients, Workers: historyClients, Seed: rand.Uint64()}}
	s.do(r)
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
)

// input is a call as the model sees it.
type input struct {
	kind  kind
	who   int // the attempt: every one is an owner of its own
	owner string
	// rivals says that another attempt was under way. A refusal may name it as the holder even
	// if it is never granted; a quorum may do so even if that attempt is refused.
	rivals bool
	// waits says that the call may wait while others have the lock.
	waits bool
	// cut is a loss by the end of a session, which the client may notice before the server.
	cut    bool
	shared bool // the attempt asks for the shared mode
}

// output is the answer to a call.
type output struct {
	verdict verdict
	fence   uint64
	holder  string // that a refusal names
	// reserved says that the lock is kept for a waiter and has no holder.
	reserved bool
	// readers says that readers have the lock; then it has no one holder.
	readers bool
	// expires is the end of the lease that a grant or a renewal gives; zero: its session's.
	expires int64
	// open, of the end of a lost lease, is when the lease was last seen to be valid.
	open int64
}

// lockState is the lock as the model sees it: who has it, and the largest tokens that are
// known to have been given, to anybody and to a writer.
type lockState struct {
	holders       []modelHolder // a writer, or readers in the order of their attempts
	fence, writer uint64
}

type modelHolder struct {
	who    int
	shared bool
	// ghost says that the owner's session was cut and the server has not noticed: the owner does
	// not have the lock, and keeps others out.
	ghost bool
}

// with returns the state after a grant to in.
func (s lockState) with(in input, fence uint64) lockState {
	i, _ := slices.BinarySearchFunc(s.holders, in.who, func(h modelHolder, who int) int { return h.who - who })
	s.holders = slices.Insert(slices.Clone(s.holders), i, modelHolder{who: in.who, shared: in.shared})
	s.fence = max(s.fence, fence)
	if !in.shared {
		s.writer = s.fence
	}
	return s
}

// without returns the state without the i-th holder.
func (s lockState) without(i int) lockState {
	s.holders = slices.Delete(slices.Clone(s.holders), i, i+1)
	return s
}

// lockModel is a lock with fencing tokens, for one writer or any number of readers. A call with
// an unknown outcome may take effect at any time after it began.
func lockModel(fencing bool) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []interface{} { return []interface{}{lockState{}} },
		Step: func(state, in, out interface{}) []interface{} {
			var next []interface{}
			for _, s := range step(state.(lockState), in.(input), out.(output), fencing) {
				next = append(next, s)
			}
			return next
		},
		Equal: func(a, b interface{}) bool {
			x, y := a.(lockState), b.(lockState)
			return x.fence == y.fence && x.writer == y.writer && slices.Equal(x.holders, y.holders)
		},
	}
	return m.ToModel()
}

// step returns the states in which the lock may be after one call.
func step(s lockState, in input, out output, fencing bool) []lockState {
	at := slices.IndexFunc(s.holders, func(h modelHolder) bool { return h.who == in.who })
	his := at >= 0 // the server has it for this attempt
	mine := his && !s.holders[at].ghost
	free := len(s.holders) == 0 || in.shared && s.holders[0].shared
	least := s.fence // every grant to a writer has a larger token, and one to a reader than all writers before
	if in.shared {
		least = s.writer
	}
	switch {
	case in.kind == acquireOp && out.verdict == granted:
		if !free || fencing && out.fence <= least {
			return nil
		}
		return []lockState{s.with(in, out.fence)}
	case in.kind == acquireOp && out.verdict == held: // a reader beside readers: a writer waits
		return only(s, len(s.holders) > 0 || in.rivals || out.reserved)
	case in.kind == acquireOp: // unknown
		if !free {
			return []lockState{s}
		}
		return []lockState{s, s.with(in, 0)}
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
		return []lockState{s.without(at)}
	case in.kind == lookOp:
		return []lockState{s}
	case in.kind == loseOp && mine && in.cut:
		ghost := s
		ghost.holders = slices.Clone(s.holders)
		ghost.holders[at].ghost = true
		return []lockState{s, ghost, s.without(at)}
	case in.kind == loseOp && !mine, in.kind == reapOp && !(his && !mine):
		return []lockState{s}
	case his: // an unknown release, an undo, an end
		return []lockState{s, s.without(at)}
	}
	return []lockState{s}
}

func only(s lockState, legal bool) []lockState {
	if !legal {
		return nil
	}
	return []lockState{s}
}

// nameRivals marks each attempt during which another attempt was under way. In a quorum, another
// attempt counts until its lease is released: requests for it that are late, or that renew a
// lost lease, may still reach nodes, whose refusals then name it, or readers together.
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
		in, out := ops[i].Input.(input), ops[i].Output.(output)
		if in.kind != acquireOp {
			continue
		}
		in.rivals = slices.ContainsFunc(ops, func(o porcupine.Operation) bool {
			other := o.Input.(input)
			may := o.Output.(output).verdict != held
			if quorum {
				may = other.owner == out.holder || out.readers && other.shared
			}
			return other.kind == acquireOp && other.who != in.who &&
				may && o.Call <= ops[i].Return && ops[i].Call <= end(o)
		})
		ops[i].Input = in
	}
}

const (
	historyClients = 5
	allClients     = -1
)

// gaveUp reports whether the context ended a refused attempt, perhaps just when the lock was
// granted. The driver's timer may be a moment before the context's.
func gaveUp(ctx context.Context, in input, err error) bool {
	return ctx.Err() != nil || in.waits && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled))
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

// decide asks whether any order of the calls explains their answers, and counts the steps of
// the search. If there were more than most, the search was given up, and legal has no
// meaning. Where the lock may be in n states, as after losses at unknown times, a step compares
// each with each, and n²/64 more are counted: that takes as long.
func decide(m porcupine.Model, ops []porcupine.Operation, most int64) (legal bool, taken int64) {
	var steps atomic.Int64
	inner := m.Step
	m.Step = func(state, in, out interface{}) (bool, interface{}) {
		n := int64(len(state.([]interface{})))
		if steps.Add(1+n*n/64) > most {
			return false, state // the search gives up soon
		}
		return inner(state, in, out)
	}
	legal = porcupine.CheckOperations(m, ops)
	return legal, steps.Load()
}

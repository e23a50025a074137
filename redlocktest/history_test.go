package redlocktest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/redlock-go/redlock/driver"
)

// op returns a call on one key that lasts from call to ret.
func op(k kind, who int, v verdict, fence uint64, call, ret int64) porcupine.Operation {
	return porcupine.Operation{
		ClientId: who, Call: call, Return: ret,
		Input:  input{kind: k, who: who},
		Output: output{verdict: v, fence: fence},
	}
}

// named returns the operation with its owner, and the holder that its answer names.
func named(o porcupine.Operation, owner, holder string) porcupine.Operation {
	in, out := o.Input.(input), o.Output.(output)
	in.owner, out.holder = owner, holder
	o.Input, o.Output = in, out
	return o
}

// cut returns an operation by which a fault may have ended the session of an attempt.
func cut(k kind, who int, call, ret int64) porcupine.Operation {
	o := op(k, who, unknown, 0, call, ret)
	in := o.Input.(input)
	in.cut = true
	o.Input = in
	return o
}

// reader returns the operation in the shared mode.
func reader(o porcupine.Operation) porcupine.Operation {
	in := o.Input.(input)
	in.shared = true
	o.Input = in
	return o
}

// TestAQuorumsRefusalMayNameAnOwnerUntilItsRelease: a single server's refusal proves that
// somebody has the lock. A quorum's may name an owner that is being released, or is lost and
// not yet released, because late requests reach nodes; but no owner whose release was confirmed.
func TestAQuorumsRefusalMayNameAnOwnerUntilItsRelease(t *testing.T) {
	const end = 1000
	refusal := named(op(acquireOp, 3, held, 0, 40, 45), "c", "a")
	others := []porcupine.Operation{ // beside the release of a
		named(op(acquireOp, 1, granted, 5, 0, 10), "a", ""), named(op(acquireOp, 2, granted, 6, 20, 30), "b", ""), op(releaseOp, 2, granted, 0, 31, 35),
	}
	for name, c := range map[string]struct {
		quorum, legal bool
		ops           []porcupine.Operation
	}{
		"during the release":           {true, true, []porcupine.Operation{op(releaseOp, 1, granted, 0, 11, 50)}},
		"after a loss":                 {true, true, []porcupine.Operation{op(loseOp, 1, unknown, 0, 10, end), op(renewOp, 1, lost, 0, 12, 15)}},
		"after the release":            {true, false, []porcupine.Operation{op(releaseOp, 1, granted, 0, 11, 15)}},
		"after a second release":       {true, false, []porcupine.Operation{op(releaseOp, 1, granted, 0, 11, 15), op(releaseOp, 1, granted, 0, 16, 50)}},
		"a server, during the release": {false, false, []porcupine.Operation{op(releaseOp, 1, granted, 0, 11, 50)}},
	} {
		ops := append(append([]porcupine.Operation{refusal}, others...), c.ops...)
		nameRivals(ops, c.quorum)
		if legal, _ := decide(lockModel(true), ops, 1e6); legal != c.legal {
			t.Errorf("%s: legal: %v", name, legal)
		}
	}
}

func TestTheModelTellsHistoriesApart(t *testing.T) {
	const end = 1000
	for name, c := range map[string]struct {
		legal bool
		ops   []porcupine.Operation
	}{
		"held by nobody": {false, []porcupine.Operation{
			op(acquireOp, 1, granted, 5, 0, 10), op(releaseOp, 1, granted, 0, 11, 20), op(acquireOp, 2, held, 0, 21, 30),
		}},
		"a loss that is none": {false, []porcupine.Operation{
			op(acquireOp, 1, granted, 5, 0, 10), op(renewOp, 1, lost, 0, 11, 20), op(releaseOp, 1, granted, 0, 21, 30),
		}},
		"an unknown attempt that was undone": {true, []porcupine.Operation{
			op(acquireOp, 1, unknown, 0, 0, end), op(undoOp, 1, unknown, 0, 0, end),
			op(acquireOp, 2, held, 0, 11, 20), op(acquireOp, 3, granted, 9, 21, 30),
		}},
		"an unknown attempt that nobody undid": {false, []porcupine.Operation{
			op(acquireOp, 1, unknown, 0, 0, end),
			op(acquireOp, 2, held, 0, 11, 20), op(acquireOp, 3, granted, 9, 21, 30),
		}},
		"a renewal of what ended and went to another": {false, []porcupine.Operation{
			op(acquireOp, 1, granted, 5, 0, 10), op(loseOp, 1, unknown, 0, 11, end), op(acquireOp, 2, granted, 6, 21, 30),
			op(renewOp, 1, granted, 0, 31, 40),
		}},
		"a session that is cut, seen by its client first": {true, []porcupine.Operation{
			op(acquireOp, 1, granted, 5, 0, 10), cut(loseOp, 1, 11, 60), cut(reapOp, 1, 11, 60), op(renewOp, 1, lost, 0, 12, 20),
			op(acquireOp, 2, held, 0, 21, 30), op(acquireOp, 2, granted, 6, 31, 40), op(releaseOp, 1, lost, 0, 50, 60),
		}},
		"a session that is cut, and its lock granted before it is free": {false, []porcupine.Operation{
			op(acquireOp, 1, granted, 5, 0, 10), cut(loseOp, 1, 11, 60), cut(reapOp, 1, 41, 60),
			op(renewOp, 1, lost, 0, 12, 20), op(acquireOp, 2, held, 0, 21, 22), op(acquireOp, 2, granted, 6, 31, 40),
		}},
		"readers together, with one token, then a writer": {true, []porcupine.Operation{
			reader(op(acquireOp, 1, granted, 5, 0, 10)), reader(op(acquireOp, 2, granted, 5, 5, 11)), op(acquireOp, 3, held, 0, 12, 13),
			reader(op(releaseOp, 1, granted, 0, 14, 15)), op(acquireOp, 3, held, 0, 16, 17), reader(op(releaseOp, 2, granted, 0, 18, 19)),
			op(acquireOp, 3, granted, 6, 20, 21),
		}},
		"a writer beside a reader": {false, []porcupine.Operation{
			reader(op(acquireOp, 1, granted, 5, 0, 10)), reader(op(acquireOp, 2, granted, 6, 5, 11)),
			reader(op(releaseOp, 1, granted, 0, 14, 15)), op(acquireOp, 3, granted, 7, 16, 17), reader(op(renewOp, 2, granted, 0, 18, 19)),
		}},
		"a writer whose token is not above a reader's": {false, []porcupine.Operation{
			reader(op(acquireOp, 1, granted, 5, 0, 10)), reader(op(releaseOp, 1, granted, 0, 11, 12)), op(acquireOp, 3, granted, 5, 13, 14),
		}},
		"a reader whose token is not above a writer's": {false, []porcupine.Operation{
			op(acquireOp, 1, granted, 5, 0, 10), op(releaseOp, 1, granted, 0, 11, 12), reader(op(acquireOp, 3, granted, 5, 13, 14)),
		}},
		"a reader that is refused though nobody has the lock": {false, []porcupine.Operation{
			reader(op(acquireOp, 1, granted, 5, 0, 10)), reader(op(releaseOp, 1, granted, 0, 11, 12)), reader(op(acquireOp, 3, held, 0, 13, 14)),
		}},
		"a release that says lost while the server keeps the lock": {false, []porcupine.Operation{
			op(acquireOp, 1, granted, 5, 0, 10), cut(loseOp, 1, 11, 20), cut(reapOp, 1, 11, 20),
			op(releaseOp, 1, lost, 0, 12, 20), op(acquireOp, 2, held, 0, 21, 30),
		}},
	} {
		if legal := porcupine.CheckOperations(lockModel(true), c.ops); legal != c.legal {
			t.Errorf("%s: legal is %v", name, legal)
		}
	}
}

// TestOnlyABidThatIsNamedIsInTheWay: a quorum says that a lock is held, though no client has it
// any more. Only a concurrent bid of the owner that the answer names explains that.
func TestOnlyABidThatIsNamedIsInTheWay(t *testing.T) {
	bid := func(who int, owner, holder string, call, ret int64) porcupine.Operation {
		o := named(op(acquireOp, who, held, 0, call, ret), owner, holder)
		out := o.Output.(output)
		out.reserved = holder == ""
		o.Output = out
		return o
	}
	for name, c := range map[string]struct {
		legal bool
		bids  []porcupine.Operation
	}{
		"a bid that is refused in the end":      {true, []porcupine.Operation{bid(2, "b", "", 21, 40), bid(3, "c", "b", 22, 30)}},
		"another's":                             {false, []porcupine.Operation{bid(2, "b", "", 21, 40), bid(3, "c", "d", 22, 30)}},
		"one that was over":                     {false, []porcupine.Operation{bid(2, "b", "", 21, 25), bid(3, "c", "b", 26, 30)}},
		"the holder's that has released":        {false, []porcupine.Operation{bid(2, "b", "", 21, 40), bid(3, "c", "a", 22, 30)}},
		"kept for the next in line, and nobody": {true, []porcupine.Operation{bid(2, "b", "", 21, 40)}},
	} {
		first := named(op(acquireOp, 1, granted, 5, 0, 10), "a", "")
		ops := append([]porcupine.Operation{first, op(releaseOp, 1, granted, 0, 11, 20)}, c.bids...)
		nameRivals(ops, true)
		if legal, _ := decide(lockModel(true), ops, 1e6); legal != c.legal {
			t.Errorf("%s: legal is %v", name, legal)
		}
	}
}

// TestAManyStateSearchIsGivenUp: readers whose sessions ended at unknown times leave the lock in any of
// thousands of states, and a step that compares them counts for what it costs.
func TestAManyStateSearchIsGivenUp(t *testing.T) {
	var ops []porcupine.Operation
	for who := range 8 {
		ops = append(ops, reader(op(acquireOp, who, granted, 5, 0, 10)), cut(loseOp, who, 11, 100))
	}
	ops = append(ops, op(acquireOp, 9, granted, 1, 50, 60)) // which no order explains
	const most = 10_000
	m, pairs := lockModel(true), int64(0)
	step := m.Step
	m.Step = func(state, in, out interface{}) (bool, interface{}) {
		n := int64(len(state.([]interface{})))
		pairs += n * n
		return step(state, in, out)
	}
	if legal, steps := decide(m, ops, most); legal || steps <= most || pairs/64 > most {
		t.Errorf("legal: %v, after %d steps and %d pairs of states", legal, steps, pairs)
	}
}

// TestRepeatsOfAReleaseDoNotLengthenTheSearch: the first release without an answer may take effect as
// late as its repeats, each of which would double the number of orders.
func TestRepeatsOfAReleaseDoNotLengthenTheSearch(t *testing.T) {
	t.Parallel()
	s := &stress{}
	ops := []porcupine.Operation{op(acquireOp, 1, granted, 1, 0, 10)}
	for i := range int64(20) {
		ops = append(ops, op(releaseOp, 1, unknown, 0, 30-i, -1))
	}
	ops = append(ops, op(acquireOp, 2, granted, 2, 40, 50))
	full := s.whole(ops, nil, 100)
	if legal, steps := decide(lockModel(true), full, 100); len(full) != 3 || !legal || steps > 100 {
		t.Errorf("%d calls, legal: %v after %d steps", len(full), legal, steps)
	}
	ops[len(ops)-1] = op(acquireOp, 2, granted, 2, 5, 9) // before any of them began
	if legal, _ := decide(lockModel(true), s.whole(ops, nil, 100), 100); legal {
		t.Error("a grant before the first release passes")
	}
}

// TestAnUndecidedHistoryIsAFailure: an undecided history shows nothing.
func TestAnUndecidedHistoryIsAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := brokenHarness(func(*broken) {})
		h.steps, h.Only = 1, "history/steady"
		bug{want: "history/steady", rule: "a run that proves nothing", says: "could not decide"}.said(t, failures(t, Check(h)))
	})
}

// TestALossThatAFaultFollowsIsNoFaults: a process tells that a lease was lost with its session, and
// later, before the lease is released, the process is stopped. The session had ended before that.
func TestALossThatAFaultFollowsIsNoFaults(t *testing.T) {
	s := &stress{
		run:     &run{h: &Harness{}, info: driver.Info{Features: driver.FeatureFencing | driver.FeatureSession}},
		start:   time.Now(),
		clients: []*stressClient{{id: 0}, {id: 1, remote: true}},
		faults:  []*stressFault{{name: "stop a process", client: 1, begin: 30, end: 40}},
	}
	release := op(releaseOp, 1, lost, 0, 50, 60)
	release.Output = output{verdict: lost, open: 11}
	if f := s.fault([]porcupine.Operation{op(acquireOp, 1, granted, 5, 1, 10), op(renewOp, 1, lost, 0, 12, 20), release}); f != nil {
		t.Errorf("%s: %s", f.broken, f.text)
	}
}

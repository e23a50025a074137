package redlocktest

import (
	"context"
	"os"
	"regexp"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/redlock-go/redlock/driver"
)

// op is a call on one key from call to ret.
func op(k kind, who int, v verdict, fence uint64, call, ret int64) porcupine.Operation {
	return porcupine.Operation{
		ClientId: who, Call: call, Return: ret,
		Input:  input{kind: k, key: "k", who: who},
		Output: output{verdict: v, fence: fence},
	}
}

func TestTheModelTellsHistoriesApart(t *testing.T) {
	const end = 1000
	for name, c := range map[string]struct {
		legal bool
		ops   []porcupine.Operation
	}{
		"one after the other": {true, []porcupine.Operation{
			op(acquireOp, 1, granted, 5, 0, 10), op(acquireOp, 2, held, 0, 11, 12), op(renewOp, 1, granted, 0, 13, 14),
			op(releaseOp, 1, granted, 0, 15, 20), op(acquireOp, 2, granted, 6, 21, 30),
		}},
		"two at once": {false, []porcupine.Operation{
			op(acquireOp, 1, granted, 5, 0, 10), op(acquireOp, 2, granted, 6, 11, 20), op(releaseOp, 1, granted, 0, 21, 30),
		}},
		"a token that falls": {false, []porcupine.Operation{
			op(acquireOp, 1, granted, 5, 0, 10), op(releaseOp, 1, granted, 0, 11, 20), op(acquireOp, 2, granted, 4, 21, 30),
		}},
		"a token that comes twice": {false, []porcupine.Operation{
			op(acquireOp, 1, granted, 5, 0, 10), op(releaseOp, 1, granted, 0, 11, 20), op(acquireOp, 2, granted, 5, 21, 30),
		}},
		"held by nobody": {false, []porcupine.Operation{
			op(acquireOp, 1, granted, 5, 0, 10), op(releaseOp, 1, granted, 0, 11, 20), op(acquireOp, 2, held, 0, 21, 30),
		}},
		"a renewal after the release": {false, []porcupine.Operation{
			op(acquireOp, 1, granted, 5, 0, 10), op(releaseOp, 1, granted, 0, 11, 20), op(renewOp, 1, granted, 0, 21, 30),
		}},
		"a loss that is none": {false, []porcupine.Operation{
			op(acquireOp, 1, granted, 5, 0, 10), op(renewOp, 1, lost, 0, 11, 20), op(releaseOp, 1, granted, 0, 21, 30),
		}},
		"an unknown attempt that took effect": {true, []porcupine.Operation{
			op(acquireOp, 1, unknown, 0, 0, end), op(acquireOp, 2, held, 0, 11, 20),
		}},
		"an unknown attempt that did not": {true, []porcupine.Operation{
			op(acquireOp, 1, unknown, 0, 0, end), op(acquireOp, 2, granted, 9, 11, 20),
		}},
		"an unknown attempt that was undone": {true, []porcupine.Operation{
			op(acquireOp, 1, unknown, 0, 0, end), op(undoOp, 1, unknown, 0, 0, end),
			op(acquireOp, 2, held, 0, 11, 20), op(acquireOp, 3, granted, 9, 21, 30),
		}},
		"an unknown attempt that nobody undid": {false, []porcupine.Operation{
			op(acquireOp, 1, unknown, 0, 0, end),
			op(acquireOp, 2, held, 0, 11, 20), op(acquireOp, 3, granted, 9, 21, 30),
		}},
		"an unknown release": {true, []porcupine.Operation{
			op(acquireOp, 1, granted, 5, 0, 10), op(releaseOp, 1, unknown, 0, 11, end), op(acquireOp, 2, granted, 6, 21, 30),
		}},
		"the end of a lease": {true, []porcupine.Operation{
			op(acquireOp, 1, granted, 5, 0, 10), op(loseOp, 1, unknown, 0, 11, end), op(acquireOp, 2, granted, 6, 21, 30),
			op(renewOp, 1, lost, 0, 31, 40),
		}},
	} {
		if legal := porcupine.CheckOperations(lockModel(true), c.ops); legal != c.legal {
			t.Errorf("%s: legal is %v", name, legal)
		}
	}
}

// onlyHistories leaves everything else out.
func onlyHistories(h Harness) Harness {
	h.Skip = map[string]string{}
	for _, g := range groups {
		if g.name != "history" {
			h.Skip[g.name] = "not what this is about"
		}
	}
	return h
}

// TestAHistoryThatNothingExplains is told, with a picture that is kept.
func TestAHistoryThatNothingExplains(t *testing.T) {
	t.Parallel()
	all := failures(t, Check(onlyHistories(brokenHarness(mutant("check, then set")))))
	caught(t, all, "history/steady", "linearizability")
	for _, f := range all {
		if path := regexp.MustCompile(`see (\S+\.html)`).FindStringSubmatch(f.Text); path != nil {
			if s, err := os.Stat(path[1]); err != nil || s.Size() == 0 {
				t.Errorf("the picture is not there: %v", err)
			}
			if err := os.Remove(path[1]); err != nil {
				t.Error(err)
			}
			return
		}
	}
	t.Errorf("no failure names the picture: %v", all)
}

// TestAHistoryWithoutContentionProvesNothing: a backend that lets everybody wait
// refuses nobody.
func TestAHistoryWithoutContentionProvesNothing(t *testing.T) {
	t.Parallel()
	h := brokenHarness(func(b *bad) {
		b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
			waits := *req
			waits.Wait = true
			return b.Backend.Acquire(context.WithoutCancel(ctx), &waits)
		}
	})
	all := failures(t, Check(onlyHistories(h)))
	caught(t, all, "history/steady", "linearizability")
}

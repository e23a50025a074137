package redlock

import (
	"flag"
	"testing"

	"github.com/redlock-go/redlock/redlocktest/server"
)

var searchFlag = flag.Bool("redlock.search", false, "search for schedules that break a promise without a part, instead of taking the known ones")

// missed returns a schedule that breaks a promise: the known one, or if it does not, or with
// -redlock.search, one of the first n. The known one is tried often, since the order of
// goroutines is not always the same.
func missed(t *testing.T, known uint64, n int, run func(seed uint64) *world) *world {
	t.Helper()
	if !*searchFlag {
		for range 50 {
			if w := run(known); w.problem != nil {
				return w
			}
		}
		if !server.IsDeep() {
			t.Skip("the known schedule breaks nothing here: the deep depth searches")
		}
	}
	w, _ := hunt(n, run)
	if w == nil {
		t.Fatalf("taken out, and nothing noticed in %d schedules", n)
	}
	return w
}

// If any part of the algorithm is taken out, the simulation notices it within a bounded number
// of schedules. That shows that the simulation would notice a mistake, and that the part is
// needed. The test prints the list of parts, each with a schedule that breaks a promise without
// it. After a change of the engine the known ones may be no longer these; a search finds others:
//
//	go test -run TestEveryPartIsMissed -v ./drivers/redlock -redlock.search
//
// Two rules of a quarantine are not on the list. First, it waits until the other nodes' clocks
// are known; "the other nodes' clocks in a quarantine's end" takes this out too. Second, it
// refuses joins, which the promises do not need: a join helps only a lease that a majority of
// the other nodes carries, so no lease that the node forgot is valid beside it, and a join
// brings the token along. (20,000 forgetful schedules agree.) The rule only prevents that a
// lease that has ended without its holder knowing takes the node from the current holder.
//
// (TestNoPairOfClientsOverlaps also takes out the margins of terms.go, one by one, for the
// worst pairs of clients. TestALeaseOutlivesAShorterGuard and TestALeaseOutlivesAForgottenLongerGuard
// take out the protections that stay while terms change.)
func TestEveryPartIsMissed(t *testing.T) {
	if testing.Short() {
		t.Skip("short: TestEveryRuleIsNeeded takes the rules out")
	}
	if Race {
		t.Skip("with the race detector goroutines take other turns: all.bash runs this without it")
	}
	byName := map[string]kind{}
	for _, k := range kinds {
		byName[k.name] = k
	}
	for _, c := range []struct {
		part   string
		kind   string
		known  uint64
		budget int
		sabotage
	}{
		{"the write-back of the token", "wild", 123, 10000, sabotage{engine: noWriteBack}},
		{"the write-back's owner check", "wild", 17, 6000, sabotage{engine: ackUnowned, node: simBroken{owner: true}}},
		{"the write-back's instance check", "dense", 1626, 20000, sabotage{node: simBroken{instance: true}}},
		{"late answers do not confirm", "wild", 2977, 20000, sabotage{engine: countLate}},
		{"an extension counts those that carried the lease", "wild", 262, 6000, sabotage{engine: extendOwn}},
		{"the attempt in the value", "forgetful", 555, 6000, sabotage{engine: oneAttempt}},
		{"the end of a range in the counter", "wild", 343, 2000, sabotage{node: simBroken{first: true}}},
		{"the join's bound", "dense", 520, 20000, sabotage{node: simBroken{join: true}}},
		{"the slack of the floor", "set", 6014642, 2000, sabotage{node: simBroken{hasty: true}}},
		{"the perishable acquire", "lossless", 209, 2000, sabotage{node: simBroken{perishable: true}}},
		{"the release's own context", "lossless", 4, 2000, sabotage{node: simBroken{caller: true}}},
		{"the release's order behind its acquire", "lossless", 14, 2000, sabotage{engine: releaseEarly}},
		{"the final validity check", "timely", 22, 2000, sabotage{engine: noValidity}},
		{"the agreement of clocks", "timely", 89, 6000, sabotage{engine: noClockCheck}},

		{"the restart guard", "forgetful", 3, 2000, sabotage{node: simBroken{guard: true}}},
		{"the look for the process of the last handshake", "forgetful", 46, 2000, sabotage{node: simBroken{bond: true}}},
		{"the handshake's own look at the process", "crossing", 64, 6000, sabotage{node: simBroken{repair: true}}},
		{"the handshake that loads its text in one execution", "crossing", 88, 6000, sabotage{node: simBroken{apart: true}}},
		{"the other nodes' clocks in a quarantine's end", "set", 468, 6000, sabotage{node: simBroken{others: true}}},
		{"the high-water mark of a clock", "set", 1, 6000, sabotage{node: simBroken{high: true}}},
		{"the number of nodes in the bond", "growing", 209, 2000, sabotage{node: simBroken{nodes: true}}},
		{"the second time that a change of nodes is told", "growing", 3128, 60000, sabotage{node: simBroken{once: true}}},
		{"the process and the time of a statement that a node is new", "fresh", 2453, 20000, sabotage{node: simBroken{new: true}}},
		{"nodes that remember in a first contact", "fresh", 736, 6000, sabotage{node: simBroken{hides: true}}},

		{"the quarantine of a clock that was set back by the others' clocks", "set", 307, 20000, sabotage{node: simBroken{ownStep: true}}},

		{"the grace that the script adds", "differing", 4182, 40000, sabotage{node: simBroken{grace: true}}},
		{"Expires of a renewal counts from the first request", "differing", 9945, 60000, sabotage{engine: renewFromReply}},
		{"a join after the grant alone", "dense", 1919, 20000, sabotage{engine: joinEarly}},
		{"how long a node is kept for the first waiter", "lossless", 22, 2000, sabotage{node: simBroken{kept: true}}},
		{"the boot-time clock", "differing", 2, 6000, sabotage{asleep: true}},
	} {
		t.Run(c.part, func(t *testing.T) {
			w := missed(t, c.known, c.budget, func(seed uint64) *world { return simulate(t, byName[c.kind], seed, c.sabotage) })
			t.Logf("%s, schedule %d: %v", c.kind, w.seed, w.problem)
		})
	}
}

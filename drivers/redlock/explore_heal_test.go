package redlock

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// Scenarios of a lease that loses nodes while other bids come: it has its lease on all nodes at
// the beginning, and renews it. Their paths to a broken promise are long, so that random paths
// find them sooner than a search by distance.
var healing = func() []scenario {
	lease := scenario{bids: 3, lease: true, gone: 1 << 2, keeps: true, proposal: [exBids]uint64{10, 14, 12}, tokens: ranges}
	above := scenario{bids: 3, lease: true, tardy: 1 << 2, clocks: ahead, proposal: [exBids]uint64{0, 14, 0}, renewals: 2}
	timed := scenario{bids: 2, lease: true, gone: 1 << 2, keeps: true, ticks: 13, patience: 4, prompt: true}
	with := func(s scenario, name string, f func(*scenario)) scenario {
		s.name = name
		f(&s)
		return s
	}
	return []scenario{
		with(lease, "a node is lost again and again", func(s *scenario) { s.bids, s.renewals, s.first, s.gone, s.faults = 2, 3, true, 0, faults{expire: 3} }),
		with(lease, "a second round", func(s *scenario) { s.bids, s.renewals, s.rounds, s.faults = 2, 2, 1, faults{expire: 2} }),
		with(lease, "two bids, and requests twice", func(s *scenario) { s.renewals, s.faults = 2, faults{expire: 3, again: 2} }),
		with(lease, "two bids in turn, which release", func(s *scenario) { s.renewals, s.after, s.keeps, s.faults = 1, true, false, faults{expire: 2} }),
		with(lease, "two bids, and a release late", func(s *scenario) { s.renewals, s.faults = 1, faults{expire: 1, late: 1, slow: 1} }),
		with(lease, "two bids, one of which crashes", func(s *scenario) { s.renewals, s.faults = 2, faults{expire: 2, crash: 1} }),
		with(lease, "two bids, and a lost message", func(s *scenario) { s.renewals, s.faults = 2, faults{expire: 2, lose: 1} }),
		with(lease, "a bid waits in the queue", func(s *scenario) { s.renewals, s.faults = 2, faults{expire: 1, reserve: 1, waits: 1} }),
		with(timed, "time passes, and a node is cut off", func(s *scenario) { s.cut, s.renewals = 1<<1, 5 }),
		with(timed, "time passes, and a bidder crashes", func(s *scenario) { s.renewals, s.patience, s.faults = 5, 1, faults{expire: 1, crash: 1} }),
		with(lease, "a reader beside readers, one of which ends early", func(s *scenario) { s.readers, s.renewals, s.faults = 0b011, 2, faults{expire: 2, lapse: 2} }),
		with(lease, "a reader beside a writer, and requests twice", func(s *scenario) { s.readers, s.renewals, s.faults = 0b101, 2, faults{expire: 3, again: 2} }),
		with(lease, "a reader beside readers that release", func(s *scenario) {
			s.readers, s.renewals, s.keeps, s.faults = 0b111, 2, false, faults{expire: 2, lapse: 1, late: 1, slow: 1}
		}),
		with(lease, "a writer beside readers, one of which crashes", func(s *scenario) { s.readers, s.renewals, s.faults = 0b110, 2, faults{expire: 2, lapse: 1, crash: 1} }),
		with(timed, "time passes, and readers come", func(s *scenario) {
			s.bids, s.readers, s.cut, s.renewals, s.faults = 3, 0b011, 1<<1, 5, faults{expire: 1, lapse: 1}
		}),
		with(above, "a vote above the token", func(s *scenario) { s.keeps, s.faults = true, faults{expire: 2, again: 2} }),
		with(above, "a vote above the token, and late releases", func(s *scenario) { s.faults = faults{expire: 2, late: 1, slow: 1} }),
		with(above, "a reader's vote above the token", func(s *scenario) { s.keeps, s.readers, s.faults = true, 0b011, faults{expire: 2, lapse: 1, again: 1} }),
		with(timed, "time passes, and a clock is set", func(s *scenario) { s.cut, s.renewals, s.ticks, s.faults = 1<<1, 4, 12, faults{expire: 1, step: 1} }),
	}
}()

// walk follows n random paths to their ends. It returns the shortest that breaks a promise,
// without the moves that it does not need.
func walk(s scenario, step machine, seed uint64, n int) (best found) {
	x := &explorer{s: s, step: step}
	rng := rand.New(rand.NewPCG(seed, 1))
	first := x.start()
	var buf []move
	for range n {
		w := first
		var path []move
		for range 200 {
			if buf = x.moves(&w, buf); len(buf) == 0 {
				x.clean(&w)
				break
			}
			m := buf[rng.IntN(len(buf))]
			switch m.kind {
			case mTick, mLoseRequest, mLoseAnswer, mCopy, mExpire, mStep, mCrash: // rare, so that much happens in between
				if rng.IntN(3) > 0 {
					continue
				}
			}
			path = append(path, m)
			x.apply(&w, m)
			best.edges++
			if x.problem != "" || x.cut(&w) {
				break
			}
		}
		if x.problem != "" {
			path = shorten(s, step, path, x.problem[:2])
			if best.problem == "" || len(path) < len(best.path) {
				best.problem, best.path = x.problem, path
			}
			x.problem = ""
		}
	}
	best.healed = x.healed
	return best
}

// shorten leaves out moves that a path to a broken promise does not need.
func shorten(s scenario, step machine, path []move, promise string) []move {
	for again := true; again; {
		again = false
		for size := 4; size > 0; size-- {
			for i := 0; i+size <= len(path); i++ {
				f := follow(s, step, append(slices.Clone(path[:i]), path[i+size:]...))
				if strings.HasPrefix(f.problem, promise) && len(f.path) < len(path) {
					path, again = f.path, true
					i--
				}
			}
		}
	}
	return path
}

// follow makes those moves of a path that are possible.
func follow(s scenario, step machine, path []move) (f found) {
	x := &explorer{s: s, step: step}
	w := x.start()
	for _, m := range path {
		if slices.Contains(x.moves(&w, nil), m) {
			f.path = append(f.path, m)
			x.apply(&w, m)
		}
		if x.problem != "" {
			break
		}
	}
	f.problem, f.healed = x.problem, x.healed
	return f
}

// walks is how many random paths of a scenario a run follows.
func walks() int {
	switch {
	case *exploreLong:
		return 1000000
	case Race, testing.Short():
		return 300
	}
	return Amount(500, 20000)
}

// In random orders of events beside a lease that loses nodes, the promises are kept, and the
// nodes are healed.
func TestALeaseIsHealed(t *testing.T) {
	for _, s := range healing {
		t.Run(s.name, func(t *testing.T) {
			f := walk(s, (*bid).step, 1, walks())
			t.Logf("%d moves, healed %d times", f.edges, f.healed)
			if f.problem != "" {
				t.Errorf("%s, by %s\n%s", f.problem, encode(f.path), chart(s, (*bid).step, f.path))
			}
			if f.healed == 0 {
				t.Error("no node was healed")
			}
		})
	}
}

// Without any of these rules a node is not healed, though nothing breaks.
func TestEveryRuleOfHealingIsNeeded(t *testing.T) {
	one := scenario{bids: 2, lease: true, gone: 1 << 2, keeps: true, renewals: 4, proposal: [exBids]uint64{10, 14, 12}, faults: faults{expire: 1}}
	queue := one
	queue.bids, queue.faults = 3, faults{reserve: 1, waits: 1, hurry: 1}
	pair := one
	pair.readers = 0b11
	contact := scenario{bids: 2, lease: true, tardy: 1 << 2, clocks: ahead, keeps: true, renewals: 1}
	losers := one
	losers.bids, losers.readers = 3, 0b110
	for _, c := range []struct {
		rule    string
		without oddity
		s       scenario
		path    string // to a join
	}{
		{"a failed bid gives its votes back", keepsVote, one, "aB0 fB0 fB1 fB2 gB0 gB1 gB2 bB0 fB2 gB2 dA0 fA0 fA1 fA2"},
		{"a join raises no counter", joinRaise, one, "dA0 fA0 fA1 fA2 gA0 gA1 gA2 bA0 nA2 dA0 fA0 fA1 fA2 gA0 gA1 gA2 bA0 dA0 fA0 fA1 fA2"},
		{"a join takes a key that is kept for a waiter", joinKept, queue, "aB0 fB0 gB0 aC0 fC2 gC2 cC0 fC2 dA0 fA0 fA1 fA2"},
		{"a reader joins beside those who came later", joinCounter, pair, "aB0 fB0 fB1 fB2 gB0 gB1 bB0 dA0 fA0 fA1 fA2"},
		{"failed bids of readers give their votes back", backKept, losers, "aB0 aC0 fB0 fC0 gB0 gC0 fB1 fC1 gB1 gC1 fB2 fC2 gB2 gC2 bB0 bC0 fB2 fC2 dA0 fA0 fA1 fA2"},
		{"a lease gives back a vote above its token", keepsVote, contact, "fA2 gA2 fA2 gA2 dA0 fA0 fA1 fA2"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			if f := replay(c.s, (*bid).step, c.path); f.problem != "" || !f.last.nodes[2].has(0) {
				t.Errorf("with the rule node 2 is not healed: %s\n%s", f.problem, chart(c.s, (*bid).step, f.path))
			}
			c.s.odd = c.without
			if f := replay(c.s, (*bid).step, c.path); f.problem != "" || f.last.nodes[2].has(0) {
				t.Errorf("node 2 is healed without the rule, or %q\n%s", f.problem, chart(c.s, (*bid).step, f.path))
			}
		})
	}
}

// A node whose release failed in a split vote is not free: it is released again in the end.
func TestANodeWhoseReleaseFailedIsNotFree(t *testing.T) {
	s := scenario{bids: 3, proposal: alike, rounds: 1, keeps: true, faults: faults{lose: 1}}
	known := replay(s, (*bid).step, "aA0 aB0 aC0 fC0 fB1 fA0 gA0 fA1 fA2 gA2 gA1 bA0 hA2 kA2 bA0 bA0")
	if known.problem != "" {
		t.Errorf("%s\n%s", known.problem, chart(s, (*bid).step, known.path))
	}
	if f := walk(s, (*bid).step, 1, walks()); f.problem != "" {
		t.Errorf("%s, by %s\n%s", f.problem, encode(f.path), chart(s, (*bid).step, f.path))
	}
}

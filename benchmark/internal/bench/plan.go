package bench

import (
	"fmt"
	"regexp"
	"time"
)

// A Plan is how much is measured. How long a contestant is measured in a case follows
// from the time for all of it: see Runner.Run.
type Plan struct {
	Quick  bool
	For    time.Duration  // all of it
	Part   bool           // not all of it is measured, and has the time that it needs
	Only   *regexp.Regexp // cases; nil: all
	Rounds int            // of a case, besides one to warm up
	Fewest int            // rounds of what is so slow that the time is over before
	Slice  time.Duration  // the least that a contestant has in a round
	TTL    time.Duration

	Nodes      []int // of a quorum
	Goroutines []int
	Waiters    []int
	Waiting    time.Duration // the least that waiters have in a round
	Held       []Holding
	Hold       time.Duration // of a lock that others wait for
	DeadTTL    time.Duration // of a holder that dies
	Deaths     int           // of it
	Patience   time.Duration // with a lock that may never be granted
	Silence    time.Duration // of a node, with which a call is waited for
	Guard      time.Duration // the restart guard, where one is measured
	BothKinds  bool          // five nodes are measured on redis-servers and on valkey-servers
}

// A Holding is a number of leases at once, with their TTL and the time for which they
// are watched, in which each is renewed about once.
type Holding struct {
	Leases  int
	TTL     time.Duration
	Watched time.Duration
}

// Full is the plan of a run in under ten minutes, Quick of one in under one.
func Full() Plan {
	return Plan{
		For: 510 * time.Second, Rounds: 12, Fewest: 3, Slice: 20 * time.Millisecond, TTL: 10 * time.Second,
		Nodes: []int{1, 3, 5, 7, 9}, Goroutines: []int{1, 16, 64, 256},
		Waiters: []int{2, 8, 32, 128}, Waiting: 300 * time.Millisecond, Hold: time.Millisecond,
		Held: []Holding{
			{100, 3600 * time.Millisecond, 1500 * time.Millisecond}, {10_000, 6 * time.Second, 2500 * time.Millisecond},
			{manyHeld, 24 * time.Second, 8 * time.Second},
		},
		DeadTTL: 500 * time.Millisecond, Deaths: 3, Patience: 10 * time.Second, Silence: 4 * time.Second, Guard: 2 * time.Second,
		BothKinds: true,
	}
}

// Quick is a plan for a first look.
func Quick() Plan {
	return Plan{
		Quick: true,
		For:   50 * time.Second, Rounds: 8, Fewest: 1, Slice: 5 * time.Millisecond, TTL: 10 * time.Second,
		Nodes: []int{1, 5}, Goroutines: []int{1, 64},
		Waiters: []int{2, 8}, Waiting: 60 * time.Millisecond, Hold: time.Millisecond,
		Held:    []Holding{{10_000, 3 * time.Second, 1200 * time.Millisecond}},
		DeadTTL: 300 * time.Millisecond, Deaths: 1, Patience: 3 * time.Second, Silence: time.Second, Guard: time.Second,
	}
}

// manyHeld is so many leases that only ours and the bare commands hold them: the others
// would take most of the run.
const manyHeld = 100_000

// budget returns how much of the time that is left the first of these cases has, beside
// what it takes in any case.
func budget(left time.Duration, cases []*testCase) time.Duration {
	weights := 0.0
	for _, c := range cases {
		left -= c.fixed
		weights += c.weight()
	}
	if left <= 0 || weights == 0 {
		return 0
	}
	return time.Duration(float64(left) * cases[0].weight() / weights)
}

// weight is how much of the time a case must have, beside the others.
func (c *testCase) weight() float64 { return c.heavy * float64(len(c.contestants)) }

// slice returns how long each of n entries has in the next of so many rounds, when a measurement
// takes so much longer than its slice.
func slice(left time.Duration, rounds, n int, overhead, least time.Duration) time.Duration {
	if rounds*n == 0 {
		return least
	}
	return max(left/time.Duration(rounds*n)-overhead, least)
}

// shortly writes a duration for progress lines.
func shortly(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

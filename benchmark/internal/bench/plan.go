package bench

import (
	"fmt"
	"regexp"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
)

// A Plan says how much a run measures. The time of one contestant in one case follows from the
// time of the whole run: see Runner.Run.
type Plan struct {
	Quick  bool
	For    time.Duration  // the time of the whole run
	Only   *regexp.Regexp // the cases to measure; nil: all
	Rounds int            // greatest number of rounds of a case, besides the warm-up
	Fewest int            // least number of rounds, however long they take: a comparison needs them
	Slice  time.Duration  // least time of a contestant in a round
	TTL    time.Duration

	Nodes      []int // sizes of the quorums
	Goroutines []int
	Waiters    []int
	Waiting    time.Duration // least time of waiters in a round
	Hold       time.Duration // how long a lock is held while others wait for it
	Faults     []faultCase
	Valkey     bool // measure five valkey-servers too
}

// Full is the plan of a run of less than ten minutes.
func Full() Plan {
	return Plan{
		For: 500 * time.Second, Rounds: 100, Fewest: 12, Slice: 10 * time.Millisecond, TTL: 10 * time.Second,
		Nodes: []int{3, 5, 7}, Goroutines: []int{1, 8, 64},
		Waiters: []int{2, 8}, Waiting: 100 * time.Millisecond, Hold: time.Millisecond, Faults: faultCases, Valkey: true,
	}
}

// Quick is the plan of a run of less than one minute, for a first look.
func Quick() Plan {
	return Plan{
		Quick: true,
		For:   45 * time.Second, Rounds: 10, Fewest: figures.LeastRounds, Slice: 5 * time.Millisecond, TTL: 10 * time.Second,
		Nodes: []int{5}, Goroutines: []int{64},
		Waiters: []int{2}, Waiting: 60 * time.Millisecond, Hold: time.Millisecond, Faults: faultCases[:1],
	}
}

// budget returns the first case's share of the time that is left.
func budget(left time.Duration, cases []*testCase) time.Duration {
	all := 0.0
	for _, c := range cases {
		all += c.weight()
	}
	if left <= 0 || all == 0 {
		return 0
	}
	return time.Duration(float64(left) * cases[0].weight() / all)
}

// weight is the case's time relative to the other cases.
func (c *testCase) weight() float64 { return c.heavy * float64(len(c.contestants)) }

// slice returns the time of each of n entries in the next round, if so many rounds are left and
// a measurement takes longer than its slice by overhead.
func slice(left time.Duration, rounds, n int, overhead, least time.Duration) time.Duration {
	if rounds*n == 0 {
		return least
	}
	return max(left/time.Duration(rounds*n)-overhead, least)
}

// shortly writes a duration for progress lines.
func shortly(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

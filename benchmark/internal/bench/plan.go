package bench

import "time"

// A Plan is how much is measured.
type Plan struct {
	Quick  bool
	Rounds int           // of each case, besides one to warm up
	Fewest int           // rounds of contestants that are very slow
	Slice  time.Duration // that a contestant has in a round
	TTL    time.Duration

	Nodes      []int // of a quorum
	Goroutines []int
	Waiters    []int
	Waiting    time.Duration // that waiters have in a round
	Held       []int         // leases at once
	HeldTTL    time.Duration // of them
	Watched    time.Duration // for how long they are held
	Hold       time.Duration // of a lock that others wait for
	DeadTTL    time.Duration // of a holder that dies
	Deaths     int           // of it
}

// Full is the plan of a run in under ten minutes, Quick of one in under one.
func Full() Plan {
	return Plan{
		Rounds: 12, Fewest: 3, Slice: 60 * time.Millisecond, TTL: 10 * time.Second,
		Nodes: []int{1, 3, 5, 7, 9}, Goroutines: []int{1, 16, 64, 256},
		Waiters: []int{2, 8, 32, 128}, Waiting: 400 * time.Millisecond, Hold: time.Millisecond,
		Held: []int{100, 10_000, 100_000}, HeldTTL: 30 * time.Second, Watched: 10 * time.Second,
		DeadTTL: 500 * time.Millisecond, Deaths: 5,
	}
}

// Quick is a plan for a first look.
func Quick() Plan {
	return Plan{
		Quick:  true,
		Rounds: 7, Fewest: 1, Slice: 15 * time.Millisecond, TTL: 10 * time.Second,
		Nodes: []int{1, 3, 5}, Goroutines: []int{1, 64},
		Waiters: []int{2, 8}, Waiting: 100 * time.Millisecond, Hold: time.Millisecond,
		Held: []int{100, 10_000}, HeldTTL: 3 * time.Second, Watched: 1200 * time.Millisecond,
		DeadTTL: 300 * time.Millisecond, Deaths: 2,
	}
}

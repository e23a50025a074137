package redlock

import "sync/atomic"

// Stats are counts since New, and the nodes that are skipped now.
type Stats struct {
	OneRoundTrip uint64   // grants that took one round trip to the nodes, and no write-back
	Splits       uint64   // split votes, resolved or given up
	Heals        uint64   // nodes that joined a lease after its grant
	Unreleased   uint64   // releases that a node did not confirm: its key ends with the TTL
	NodeSkips    uint64   // how often a node that kept timing out began to be skipped
	Skipped      []string // nodes that are skipped now
	Workers      int      // goroutines that wait for nodes or for work; a call that its node starts needs none
}

type counters struct {
	oneRoundTrip, splits, heals, unreleased, nodeSkips atomic.Uint64
}

package redlock

import "sync/atomic"

// Stats are counts since New, and what the breakers say now.
type Stats struct {
	OneTrip    uint64   // grants that took one round trip to the nodes
	TwoTrips   uint64   // grants whose token was written back, in a second one
	Splits     uint64   // votes that were split, and settled or given up
	Failures   uint64   // calls of Acquire or Release that returned an error
	Renewals   uint64   // renewals that succeeded
	Heals      uint64   // nodes that joined a lease after its grant
	Losses     uint64   // leases that a renewal found lost
	Unreleased uint64   // releases that a node did not confirm: its key ends with the TTL
	Trips      uint64   // how often a breaker opened
	Skipped    []string // nodes that are skipped now
	Workers    int      // goroutines that wait for nodes, or for work
}

type counters struct {
	oneTrip, twoTrips, splits, failures, renewals, heals, losses, unreleased, trips atomic.Uint64
}

func (c *counters) granted(l *lease) {
	if l.bid.raised {
		c.twoTrips.Add(1)
	} else {
		c.oneTrip.Add(1)
	}
}

// Stats returns the counts. It does no I/O.
func (b *Backend) Stats() Stats {
	c := &b.count
	s := Stats{
		OneTrip: c.oneTrip.Load(), TwoTrips: c.twoTrips.Load(), Splits: c.splits.Load(), Failures: c.failures.Load(),
		Renewals: c.renewals.Load(), Heals: c.heals.Load(), Losses: c.losses.Load(), Unreleased: c.unreleased.Load(), Trips: c.trips.Load(),
	}
	for _, n := range b.nodes {
		if n.tripped.Load() {
			s.Skipped = append(s.Skipped, n.name)
		}
		n.mu.Lock()
		s.Workers += n.workers
		n.mu.Unlock()
	}
	return s
}

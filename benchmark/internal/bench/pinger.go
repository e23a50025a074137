package bench

import (
	"context"
	"errors"
	"slices"
	"time"
)

// roundTrip is no lock: it measures what the network forces on any, the majority-th of
// the nodes' round trips.
var roundTrip = Contestant{
	Name: "majority-th round trip", Kind: Limit,
	How: "no lock: PING to one node after the other, over a socket each; the majority-th of their medians",
	Open: func(_ context.Context, s *Setup) (Locker, error) {
		p := &pinger{timeout: s.nodeTimeout()}
		for _, n := range s.Nodes {
			p.nodes = append(p.nodes, dialAsync(n.Addr))
		}
		return p, nil
	},
}

// tripOp is how its metric is called.
const tripOp = "round trip"

type pinger struct {
	nodes   []*socket
	timeout time.Duration
}

func (p *pinger) Lock(context.Context, string, bool) (Held, error) {
	return nil, errors.New("a ping is no lock")
}

func (p *pinger) Close() error {
	var errs []error
	for _, n := range p.nodes {
		errs = append(errs, n.close())
	}
	return errors.Join(errs...)
}

// measurement measures once. A node that does not answer is the slowest.
func (p *pinger) measurement(ctx context.Context) *measurement {
	t := &measurement{}
	trips := make([]time.Duration, len(p.nodes))
	for i, n := range p.nodes {
		trips[i] = p.ping(ctx, n)
	}
	slices.Sort(trips)
	third := trips[len(trips)/2]
	if third < p.timeout {
		t.series = []series{{tripOp, []time.Duration{third}}}
	}
	return t
}

// ping returns the median of a node's round trips.
func (p *pinger) ping(ctx context.Context, n *socket) time.Duration {
	const pings = 5
	var trips []time.Duration
	for range pings {
		one, cancel := context.WithTimeout(ctx, p.timeout)
		start := time.Now()
		_, err := n.do(one, []string{"PING"})
		cancel()
		if err != nil {
			return p.timeout
		}
		trips = append(trips, time.Since(start))
	}
	return median50(trips)
}

// relateToMajority sets the latencies of a case against the round trip that was measured
// in it.
func relateToMajority(rows []*Row) {
	var trip Metric
	for _, r := range rows {
		if m, ok := r.metric(tripOp + " p50"); ok {
			trip = m
		}
	}
	if trip.Value == 0 {
		return
	}
	for _, r := range rows {
		for _, op := range []string{"acquire", "renew", "release"} {
			for _, q := range []string{"p50", "p99"} {
				if m, ok := r.metric(op + " " + q); ok {
					v := m.Value / trip.Value
					r.Metrics = append(r.Metrics, Metric{Name: op + " " + q + " " + toMajority, Unit: Times, Value: v, Low: v, High: v})
				}
			}
		}
	}
}

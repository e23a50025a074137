package bench

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
)

// roundTrip is no lock: it measures what the network forces on any, the majority-th of
// the nodes' round trips.
var roundTrip = Contestant{
	Name: "majority-th round trip", Kind: Limit,
	How: "no lock: PING to one node after the other, over a connection each; the majority-th of their medians",
	Open: func(_ context.Context, s *Setup) (Locker, error) {
		p := &pinger{timeout: s.nodeTimeout()}
		for _, n := range s.Nodes {
			c, err := openGoRedis(n.Addr, s.nodeTimeout())
			if err != nil {
				return nil, errors.Join(err, p.Close())
			}
			p.nodes = append(p.nodes, c)
		}
		return p, nil
	},
}

// tripOp is how its metric is called.
const tripOp = "round trip"

type pinger struct {
	nodes   []commands
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
func (p *pinger) ping(ctx context.Context, n commands) time.Duration {
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
// in the same rounds.
func relateToMajority(rows []*Row) {
	i := slices.IndexFunc(rows, func(r *Row) bool { return r.Contestant == roundTrip.Name })
	trip, ok := rows[i].metric(tripOp + " p50")
	if !ok {
		return
	}
	for _, r := range rows {
		for _, op := range []string{"acquire", "renew", "release"} {
			if m, ok := r.metric(op + " p50"); ok {
				r.Metrics = append(r.Metrics, Metric{Name: op + " p50 " + toMajority, Unit: figures.Times, Interval: figures.Ratios(m.ByRound, trip.ByRound)})
			}
			if m, ok := r.metric(op + " p99"); ok {
				v := m.Median / trip.Median
				r.Metrics = append(r.Metrics, Metric{Name: op + " p99 " + toMajority, Unit: figures.Times, Interval: figures.Interval{Median: v, Low: v, High: v}})
			}
		}
	}
}

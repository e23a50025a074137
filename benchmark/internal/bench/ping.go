package bench

import (
	"context"
	"slices"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
)

// roundTrip is not a lock. It measures the least time that the network allows any quorum: how
// long the answers of a majority take, if all nodes are asked at once.
var roundTrip = limitOf(libraries[0], "round trip", "no lock: PING to all nodes, until a majority has answered",
	func(context.Context, string, *Setup) (protocol, error) { return ping{}, nil })

// ping is a protocol that sends PING.
type ping struct{}

func (ping) acquire(string, string) []string         { return []string{"PING"} }
func (ping) granted(any) (string, bool)              { return "", true }
func (ping) release(string, string, string) []string { return []string{"PING"} }

// toMajority is the metric of a latency divided by the majority's round trip in the same rounds.
const toMajority = "to round trip"

// relateToMajority adds these metrics to the rows of a case.
func relateToMajority(rows []*Row) {
	i := slices.IndexFunc(rows, func(r *Row) bool { return r.Contestant == roundTrip.Name })
	trip, ok := rows[i].metric("acquire p50")
	if !ok {
		return
	}
	for _, r := range slices.Delete(slices.Clone(rows), i, i+1) {
		for _, op := range []string{"acquire", "release"} {
			if m, ok := r.metric(op + " p50"); ok {
				r.Metrics = append(r.Metrics, Metric{Name: op + " p50 " + toMajority, Unit: figures.Times, Interval: figures.Ratios(m.ByRound, trip.ByRound)})
			}
			if m, ok := r.metric(op + " p99"); ok {
				r.Metrics = append(r.Metrics, exactly(op+" p99 "+toMajority, figures.Times, m.Median/trip.Median))
			}
		}
	}
}

package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// A Scenario measures one thing.
type Scenario struct {
	Name string // for the command line
	What string // one line for its help
	run  func(ctx context.Context, r *Runner) ([]*Section, error)
}

// Scenarios returns all of them, in the report's order.
func Scenarios() []Scenario {
	return []Scenario{
		{"single", "latency on one server: acquire, renew, release", single},
		{"quorum", "latency by the number of nodes, on loopback", quorum},
		{"faults", "latency of a quorum of five with slow, dead and flapping nodes", faults},
		{"wire", "requests and bytes of one lock on the wire", wire},
		{"throughput", "many goroutines on keys of their own: rate, CPU, allocations", throughput},
		{"handoff", "waiters on one key: rate, latency, fairness", handoff},
		{"held", "many leases held and renewed: memory, goroutines, CPU", held},
		{"postgres", "PostgreSQL: rate, waiting, locks per connection", postgres},
		{"orphans", "keys left behind after cancelled calls and on a slow node", orphans},
		{"recovery", "from a holder's death to the next grant", recovery},
	}
}

// Pick returns the scenarios of a comma-separated list; all of them for an empty one.
func Pick(list string) ([]Scenario, error) {
	all := Scenarios()
	if list == "" {
		return all, nil
	}
	var out []Scenario
	for _, name := range strings.Split(list, ",") {
		i := slices.IndexFunc(all, func(s Scenario) bool { return s.Name == strings.TrimSpace(name) })
		if i < 0 {
			return nil, fmt.Errorf("unknown scenario %q (there are %s)", name, names(all))
		}
		out = append(out, all[i])
	}
	return out, nil
}

func names(list []Scenario) string {
	var out []string
	for _, s := range list {
		out = append(out, s.Name)
	}
	return strings.Join(out, ", ")
}

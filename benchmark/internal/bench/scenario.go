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
	// share is how much of a whole run's time it has when it is run alone.
	share float64
	// plan returns what there is to measure, having started the servers for it.
	plan func(ctx context.Context, r *Runner) ([]*testCase, error)
}

// Scenarios returns all of them, in the report's order.
func Scenarios() []Scenario {
	return []Scenario{
		{"single", "latency on one server: acquire, renew, release", 0.08, single},
		{"quorum", "latency by the number of nodes, on loopback", 0.14, quorum},
		{"faults", "latency of a quorum of five with slow, dead and flapping nodes", 0.18, faults},
		{"throughput", "many goroutines on keys of their own: rate, CPU, allocations", 0.15, throughput},
		{"load", "latency at 50, 80 and 95 % of the capacity, on one server and on five", 0.10, load},
		{"handoff", "waiters on one key, each a process: rate, latency, fairness", 0.12, handoff},
		{"held", "many leases held and renewed: memory, goroutines, CPU", 0.09, held},
		{"postgres", "PostgreSQL: rate, waiting, locks per connection", 0.07, postgres},
		{"recovery", "a holder is cut off, a node starts again, a node stops answering", 0.07, recovery},
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

// shares returns how much of a whole run's time these have.
func shares(list []Scenario) (sum float64) {
	for _, s := range list {
		sum += s.share
	}
	return min(sum, 1)
}

func names(list []Scenario) string {
	var out []string
	for _, s := range list {
		out = append(out, s.Name)
	}
	return strings.Join(out, ", ")
}

// Quickly returns those of all scenarios for which there is time in a quick run.
func Quickly() []Scenario {
	return slices.DeleteFunc(Scenarios(), func(s Scenario) bool {
		return slices.Contains([]string{"load", "held", "recovery"}, s.Name)
	})
}

// ScenarioHelp lists the scenarios, a line each.
func ScenarioHelp() (text string) {
	for _, s := range Scenarios() {
		text += fmt.Sprintf("  %-12s %s\n", s.Name, s.What)
	}
	return text
}

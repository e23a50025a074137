package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A Scenario measures one thing.
type Scenario struct {
	Name string // its name on the command line
	What string // its line in the help
	// share is the part of a whole run's time that the scenario gets when it runs alone.
	share float64
	// plan starts the servers and returns the cases to measure.
	plan func(ctx context.Context, r *Runner) []*testCase
}

// Scenarios returns all scenarios, in the report's order.
func Scenarios() []Scenario {
	return []Scenario{
		{"single", "latency on one server", 0.15, single},
		{"quorum", "latency by the number of nodes, on loopback", 0.20, quorum},
		{"faults", "latency of a quorum of five with a node far away, and with one that hangs", 0.10, faults},
		{"throughput", "many goroutines on keys of their own: rate, CPU, allocations", 0.25, throughput},
		{"load", "latency at 50, 80 and 95 % of the capacity, on one server and on five", 0.12, load},
		{"handoff", "clients that wait for one key: rate, latency, fairness", 0.18, handoff},
	}
}

// Pick returns the scenarios of a comma-separated list of names, or all for an empty list.
func Pick(list string) ([]Scenario, error) {
	all := Scenarios()
	if list == "" {
		return all, nil
	}
	var out []Scenario
	for _, name := range strings.Split(list, ",") {
		i := slices.IndexFunc(all, func(s Scenario) bool { return s.Name == strings.TrimSpace(name) })
		if i < 0 {
			return nil, fmt.Errorf("unknown scenario %q; the scenarios are:\n%s", name, ScenarioHelp())
		}
		out = append(out, all[i])
	}
	return out, nil
}

// shares returns the part of a whole run's time that these scenarios get.
func shares(list []Scenario) (sum float64) {
	for _, s := range list {
		sum += s.share
	}
	return min(sum, 1)
}

// Quickly returns the scenarios of a quick run.
func Quickly() []Scenario {
	return slices.DeleteFunc(Scenarios(), func(s Scenario) bool {
		return s.Name == "load"
	})
}

// ScenarioHelp lists the scenarios, a line each.
func ScenarioHelp() (text string) {
	for _, s := range Scenarios() {
		text += fmt.Sprintf("  %-12s %s\n", s.Name, s.What)
	}
	return text
}

// A ground is the servers of a case: n servers of one kind.
type ground struct {
	kind server.Kind
	n    int
}

var (
	oneRedis    = ground{server.KindRedis, 1}
	fiveRedis   = ground{server.KindRedis, 5}
	fiveValkey  = ground{server.KindValkey, 5}
	onePostgres = ground{server.KindPostgres, 1}
	oneEtcd     = ground{server.KindEtcd, 1}
)

// grounds are the servers on which throughput and handoffs are measured.
var grounds = []ground{oneRedis, fiveRedis, onePostgres, oneEtcd}

func (g ground) String() string { return plural(g.n, string(g.kind)) }

// plural is "1 node", "3 nodes".
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return figures.Digits(float64(n)) + " " + what + "s"
}

// on makes a case of a section on the servers of a ground, with the contestants that serving
// returns. It returns nil if the servers cannot be started. x is the value of this case on the
// section's axis, and what names its unit in the case's name; if what is empty, the ground
// alone names the case.
func (r *Runner) on(ctx context.Context, s *Section, g ground, pick func(Contestant) bool, x int, what string) *testCase {
	servers, ok := r.servers(ctx, g)
	if !ok {
		return nil
	}
	c := &testCase{
		section: s, name: g.String(), x: float64(x), contestants: r.serving(g, pick), servers: servers, setup: direct(servers, r.plan.TTL),
		clients: 1, heavy: 1,
	}
	if what != "" {
		c.name += ", " + plural(x, what)
	}
	return c
}

// direct makes a setup that connects to the servers without proxies.
func direct(servers []*server.Server, ttl time.Duration) *Setup {
	s := &Setup{TTL: ttl}
	for _, n := range servers {
		s.Nodes = append(s.Nodes, Node{n.Kind(), n.Addr(), n.Addr()})
	}
	return s
}

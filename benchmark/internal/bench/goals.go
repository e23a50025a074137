package bench

import (
	"fmt"
	"slices"

	"github.com/redlock-go/redlock/redlocktest/server"
)

// A Goal is what this module set itself, and whether this run shows it.
type Goal struct {
	What     string  `json:"what"`
	Most     float64 `json:"most"`
	Measured float64 `json:"measured"`
	Met      bool    `json:"met"`
}

// goals looks the module's goals up in what was measured; those whose scenario was not
// run are left out.
func goals(sections []*Section) []Goal {
	var out []Goal
	ask := func(what string, most float64, measured float64, ok bool) {
		if ok {
			out = append(out, Goal{what, most, measured, measured <= most})
		}
	}
	for _, client := range []string{"go-redis", "valkey-go"} {
		own, scripts := "dlock, "+client, "scripts, "+client
		v, ok := ratio(sections, "single", "redis-server", pair+" p50", own, scripts)
		ask("one server, one goroutine: acquire+release of "+own+" to our scripts alone", 1.25, v, ok)
		for _, kind := range []server.Kind{server.KindRedis, server.KindValkey} {
			fiveGoals(sections, client, kind, ask)
		}
		v, ok = ratio(sections, "throughput", "1 server, 64 goroutines", "locks", scripts, own)
		ask("one server, 64 goroutines: our scripts' throughput to "+own, 1/0.85, v, ok)
		for _, w := range []string{"2 clients", "8 clients"} {
			v, ok = ratio(sections, "handoff", w, "handoff p50", own, "BLPOP queue, "+client)
			ask(fmt.Sprintf("one server, %s: handoff of %s to a bare BLPOP queue", w, own), 4, v, ok)
			v, ok = toBest(sections, "handoff", w, "handoff p50", own, "")
			ask(fmt.Sprintf("one server, %s: handoff of %s to the best other library that hands over", w, own), 1, v, ok)
			v, ok = toBest(sections, "handoff", w, "passing on p50", own, "")
			ask(fmt.Sprintf("one server, %s: passing on of %s to the best other library", w, own), 1, v, ok)
		}
		v, ok = lookUp(sections, "handoff", "2 clients", own, "handoff p50")
		ask("one server, 2 clients: median handoff of "+own+" in ms", 1, 1000*v, ok)
	}
	for _, client := range []string{"go-redis", "valkey-go"} {
		for _, name := range orphanCases {
			v, ok := lookUp(sections, "orphans", name, "dlock, "+client, keysLeft)
			ask("keys left behind by dlock, "+client+": "+name, 0, v, ok)
		}
	}
	v, ok := ratio(sections, "postgres", "postgres", pair+" p50", "dlock, pgx", "bare, pgx")
	ask("postgres, one goroutine: latency to a connection for each lock", 1.25, v, ok)
	v, ok = ratio(sections, "postgres", "64 goroutines", "locks", "bare, pgx", "dlock, pgx")
	ask("postgres, 64 goroutines: throughput of a connection for each lock to ours", 0.5, v, ok)
	v, ok = ratio(sections, "postgres", "8 clients", "handoff p50", "dlock, pgx", "bare, pgx")
	ask("postgres, 8 clients: handoff to bare pg_advisory_lock", 2, v, ok)
	v, ok = lookUp(sections, "postgres", "10,000 leases", "dlock, pgx", "connections")
	ask("postgres: connections for 10,000 leases", 4, v, ok)
	return out
}

// fiveGoals asks for what must be with five nodes of a kind.
func fiveGoals(sections []*Section, client string, kind server.Kind, ask func(what string, most, measured float64, ok bool)) {
	own, scripts, where := "dlock, "+client, "scripts, "+client, "five "+string(kind)+"s"
	alone, many := "5 nodes"+on(kind), "5 servers"+on(kind)+", 64 goroutines"
	v, ok := ratio(sections, "quorum", alone, pair+" p50", own, scripts)
	ask(where+", one goroutine: acquire+release of "+own+" to our scripts alone", 1.1, v, ok)
	v, ok = toBest(sections, "quorum", alone, pair+" p50", own, client)
	ask(where+", one goroutine: acquire+release of "+own+" to the best other library over "+client, 1, v, ok)
	for _, f := range faultCases[:4] {
		for _, op := range []string{"acquire", "release"} {
			v, ok := lookUp(sections, "faults", f.name+on(kind), own, op+" p50 "+toMajority)
			ask(f.name+on(kind)+": median "+op+" of "+own+" to the majority-th round trip", 1.1, v, ok)
			v, ok = lookUp(sections, "faults", f.name+on(kind), own, op+" p99 "+toMajority)
			ask(f.name+on(kind)+": p99 "+op+" of "+own+" to the majority-th round trip", 3, v, ok)
		}
	}
	v, ok = ratio(sections, "throughput", many, "locks", scripts, own)
	ask(where+", 64 goroutines: our scripts' throughput to "+own, 1/0.9, v, ok)
	v, ok = ratio(sections, "throughput", many, "locks", "redsync, go-redis", own)
	ask(where+", 64 goroutines: redsync's throughput on go-redis to "+own, 1/2.5, v, ok)
}

// toBest returns the figure of one of ours by the least of all peers over a client
// library; over any for "".
func toBest(sections []*Section, scenario, name, metric, own, client string) (float64, bool) {
	best := 0.0
	for _, s := range sections {
		if s.Scenario != scenario || !slices.ContainsFunc(s.of(name), func(r *Row) bool { return r.Contestant == own }) {
			continue
		}
		for _, r := range s.of(name) {
			if m, ok := r.metric(metric); ok && r.Kind == Peer && r.handsOver() && (client == "" || r.Client == client) && (best == 0 || m.Value < best) {
				best = m.Value
			}
		}
		break
	}
	v, ok := lookUp(sections, scenario, name, own, metric)
	return v / best, ok && best > 0
}

// lookUp returns a figure; the first section of the scenario that has the contestant in
// this case counts.
func lookUp(sections []*Section, scenario, name, contestant, metric string) (float64, bool) {
	for _, s := range sections {
		if s.Scenario != scenario {
			continue
		}
		for _, r := range s.of(name) {
			if r.Contestant != contestant {
				continue
			}
			m, ok := r.metric(metric)
			return m.Value, ok
		}
	}
	return 0, false
}

// handsOver reports whether at least one in ten of a row's locks goes to another client;
// true where that is not measured. With fewer, how long it takes is luck.
func (r *Row) handsOver() bool {
	locks, ok := r.metric("locks")
	handoffs, known := r.metric("handoffs")
	return !ok || !known || handoffs.Value >= locks.Value/10
}

// ratio returns the figure of a by that of b.
func ratio(sections []*Section, scenario, name, metric, a, b string) (float64, bool) {
	x, okX := lookUp(sections, scenario, name, a, metric)
	y, okY := lookUp(sections, scenario, name, b, metric)
	return x / y, okX && okY && y > 0
}

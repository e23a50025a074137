package bench

import "fmt"

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
		v, ok = ratio(sections, "quorum", "5 nodes", pair+" p50", own, scripts)
		ask("five nodes, one goroutine: acquire+release of "+own+" to our scripts alone", 1.1, v, ok)
		for _, f := range faultCases[:4] {
			for _, op := range []string{"acquire", "release"} {
				v, ok := lookUp(sections, "faults", f.name, own, op+" p50 "+toMajority)
				ask(f.name+": median "+op+" of "+own+" to the majority-th round trip", 1.1, v, ok)
				v, ok = lookUp(sections, "faults", f.name, own, op+" p99 "+toMajority)
				ask(f.name+": p99 "+op+" of "+own+" to the majority-th round trip", 3, v, ok)
			}
		}
		v, ok = ratio(sections, "throughput", "1 server, 64 goroutines", "locks", scripts, own)
		ask("one server, 64 goroutines: our scripts' throughput to "+own, 1/0.85, v, ok)
		v, ok = ratio(sections, "throughput", "5 servers, 64 goroutines", "locks", scripts, own)
		ask("five servers, 64 goroutines: our scripts' throughput to "+own, 1/0.9, v, ok)
		for _, w := range []string{"2 clients", "8 clients"} {
			v, ok = ratio(sections, "handoff", w, "handoff p50", own, "BLPOP queue, "+client)
			ask(fmt.Sprintf("one server, %s: handoff of %s to a bare BLPOP queue", w, own), 4, v, ok)
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

// ratio returns the figure of a by that of b.
func ratio(sections []*Section, scenario, name, metric, a, b string) (float64, bool) {
	x, okX := lookUp(sections, scenario, name, a, metric)
	y, okY := lookUp(sections, scenario, name, b, metric)
	return x / y, okX && okY && y > 0
}

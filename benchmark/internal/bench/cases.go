package bench

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A Scenario is one kind of work.
type Scenario struct {
	Name string
	What string // for the report and the help
	Key  string // the metric by which contestants are compared; less is better
}

var (
	single = &Scenario{"single", "One goroutine takes a lock on one server and gives it back, over and over, on loopback.", pair}
	quorum = &Scenario{"quorum", "The same on several servers, which are one quorum.", pair}
	links  = &Scenario{"links", "The same on a quorum of five behind TCP proxies that delay both directions. Acquisition and release need one answer of a majority each: the majority's round trip, measured by PING through the same proxies, is the limit of each. " +
		"A silent node keeps its connections and never answers; a contestant that then takes more than a second has one round.", pair}
	throughput = &Scenario{"throughput", "Goroutines of one process share one client and take locks on keys of their own, on loopback.", aLock}
	handoff    = &Scenario{"handoff", "Clients with connections of their own, like processes, want one key, hold it for " + figures.Format(hold.Seconds(), figures.Seconds) + " and want it again at once. " +
		"A handoff is from just before the release to the return of another client's Lock. A client that gets the lock again itself makes no handoff: if waiters only poll, handoffs are few, and those few are short by luck. " +
		"Passing on counts from a client's first release in a row, when another client could have got the lock. Least and most say how many locks the clients got in one round; CPU, commands and bytes are per handoff.", "handoff"}
	hot     = &Scenario{"hot", "64 goroutines of one client want one key, over and over, on loopback. Each locks it, waiting for the others, and releases it at once.", aLock}
	keeping = &Scenario{"keeping", "One client holds 100,000 locks for 10 s each and renews them. CPU, allocations, commands and bytes are per second. Each round gives one of the locks back and takes it again, which fails if it was lost.", "client CPU"}

	scenarios = []*Scenario{single, quorum, links, throughput, handoff, hot, keeping}
)

// ScenarioHelp lists the scenarios, a line each.
func ScenarioHelp() (text string) {
	for _, s := range scenarios {
		first, _, _ := strings.Cut(s.What, ". ")
		text += fmt.Sprintf("  %-12s %s.\n", s.Name, strings.TrimSuffix(first, "."))
	}
	return text
}

// A Case is one setup in which contestants are compared.
type Case struct {
	*Scenario
	ground
	Name    string
	Rows    []*Row
	Foreign float64 // how many processors other programs used meanwhile; negative: unknown

	clients  int           // of each contestant
	slice    time.Duration // the time of a contestant in a round
	patience time.Duration // a contestant that takes longer, beyond the slice, gets no other round; 0: no bound
	heavy    float64       // the weight of a contestant's time, relative to other cases
	link     *link         // what is between the clients and the servers; nil: nothing
	measure  func(ctx context.Context, r *Row, slice time.Duration)
}

// Title is the case's name on the command line and in the report.
func (c *Case) Title() string { return c.Scenario.Name + "/" + c.Name }

// A ground is the servers of a case: n servers of one kind.
type ground struct {
	kind server.Kind
	n    int
}

var (
	oneRedis    = ground{server.KindRedis, 1}
	fiveRedis   = ground{server.KindRedis, 5}
	onePostgres = ground{server.KindPostgres, 1}
	oneEtcd     = ground{server.KindEtcd, 1}
	oneConsul   = ground{server.KindConsul, 1}
)

func (g ground) String() string { return plural(g.n, string(g.kind)) }

// plural is "1 node", "3 nodes".
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// A link delays what goes to each node and back. If it is silent, the last node never answers.
type link struct {
	rtts   [5]int // in milliseconds
	silent bool
}

// These names of cases stand in tables and pictures.
const (
	near    = "2 ms to each node"
	silence = "2 ms, one node silent"
	far     = "2 ms, one node 50 ms away"
)

// Cases returns all cases, with the contestants that can take part, in the report's order.
func Cases(contestants []Contestant) (list []*Case) {
	add := func(s *Scenario, g ground, more string, c Case) {
		c.Scenario, c.ground, c.Name, c.clients = s, g, g.String(), max(c.clients, 1)
		if more != "" {
			c.Name += ", " + more
		}
		for _, k := range contestants {
			fits := !k.OnlyWaits && !k.Hot
			switch s {
			case handoff:
				fits = k.Waits && !k.Hot
			case hot:
				fits = k.Hot || k.Waits && !k.OnlyWaits
			case keeping: // alone: the processor time is that of the process
				fits = k.Kind == Ours && k.Client == "go-redis"
			}
			if fits && k.Serves(g.kind, g.n) {
				c.Rows = append(c.Rows, &Row{Contestant: k})
			}
		}
		if s == links {
			c.Name = more
			c.Rows = append(c.Rows, &Row{Contestant: roundTrip})
		}
		list = append(list, &c)
	}
	alone := Case{slice: 20 * time.Millisecond, heavy: 1, measure: taking(1)}
	for _, g := range []ground{oneRedis, {server.KindValkey, 1}, onePostgres, oneEtcd, oneConsul} {
		add(single, g, "", alone)
	}
	for _, g := range []ground{{server.KindRedis, 3}, fiveRedis, {server.KindRedis, 7}, {server.KindValkey, 5}} {
		add(quorum, g, "", alone)
	}
	slow := Case{slice: 60 * time.Millisecond, heavy: 1.5, patience: time.Second, measure: taking(1)}
	for _, l := range []struct {
		name string
		link
	}{{near, link{rtts: [5]int{2, 2, 2, 2, 2}}}, {silence, link{[5]int{2, 2, 2, 2, 2}, true}}, {far, link{rtts: [5]int{2, 2, 2, 2, 50}}}} {
		slow.link = &l.link
		add(links, fiveRedis, l.name, slow)
	}
	grounds := []ground{oneRedis, fiveRedis, onePostgres, oneEtcd}
	for _, g := range grounds {
		for _, n := range []int{8, 64} { // many goroutines need some time to reach a steady rate
			add(throughput, g, plural(n, "goroutine"), Case{slice: time.Duration(20+n/4) * time.Millisecond, heavy: 1, measure: taking(n)})
		}
	}
	for _, g := range append(grounds, oneConsul) {
		for _, n := range []int{2, 8} {
			add(handoff, g, plural(n, "client"), Case{clients: n, slice: 200 * time.Millisecond, heavy: 2, measure: handingOver})
		}
	}
	for _, g := range grounds[:3] {
		add(hot, g, "", Case{slice: 200 * time.Millisecond, heavy: 2, measure: sharing(64)})
	}
	// Last: so many locks are still ending when the case is over.
	add(keeping, oneRedis, "", Case{slice: time.Second, heavy: 10, measure: keepingAll()})
	return list
}

// weight is the case's time relative to the other cases.
func (c *Case) weight() float64 { return c.heavy * float64(len(c.Rows)) }

func weights(cases []*Case) (sum float64) {
	for _, c := range cases {
		sum += c.weight()
	}
	return sum
}

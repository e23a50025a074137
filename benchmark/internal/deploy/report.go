package deploy

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/benchmark/internal/machine"
)

// A Report holds the results, in words and as tables whose first row is the header.
type Report struct {
	Lead, Stopped, Left, Circumstances string
	Advice                             []string
	Latency, Nodes, Load               [][]string
}

// Text returns the report as Markdown.
func (r *Report) Text() string {
	parts := []string{figures.Wrap(r.Lead), figures.List(r.Advice), figures.Table(r.Latency...)}
	if len(r.Nodes) > 2 {
		parts = append(parts, figures.Table(r.Nodes...))
	}
	parts = append(parts, figures.Table(r.Load...), figures.Wrap("The load ended there: "+r.Stopped+"."), figures.Wrap("Left behind: "+r.Left+"."), figures.Wrap(r.Circumstances))
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), "\n")
}

// report makes the report.
func (r *run) report(foreign float64) *Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &Report{
		Lead: r.lead(foreign), Advice: r.advice(foreign), Stopped: r.stopped, Left: r.left,
		Latency: [][]string{{"latency", "median", "p90", "p99", "p99.9", "× round trip (99 % interval)", "rounds", "samples"}},
		Nodes:   [][]string{{"node", "round trip, median", "p99", "in the majority", "timed out", "version"}},
		Load:    [][]string{{"goroutines", "locks a second", "median", "p99", "busiest server", "this machine", "samples"}},
	}
	add := func(name string, s *figures.Series) {
		if s.Count() == 0 {
			return
		}
		ratio := "–"
		if i := figures.Ratios(s, &r.trip); s != &r.trip && i.Rounds > 0 {
			ratio = i.Ratio()
		}
		cells := []string{name}
		for _, q := range []float64{0.5, 0.9, 0.99, 0.999} {
			cells = append(cells, figures.OrDash(s.Quantile(q), figures.Seconds))
		}
		out.Latency = append(out.Latency, append(cells, ratio, strconv.Itoa(len(s.Rounds)), figures.Digits(float64(s.Count()))))
	}
	add(r.tripName(), &r.trip)
	add("acquire", &r.acquire)
	add("release", &r.release)
	add("handoff", &r.handoff)
	var versions []string
	for i, n := range r.nodes {
		median := "no answer"
		if n.trips.Count() > 0 {
			median = figures.Format(n.trips.Quantile(0.5), figures.Seconds)
		}
		of := func(count int) string { return percent(float64(count) / float64(max(r.votes, 1))) }
		out.Nodes = append(out.Nodes, []string{r.nodeName(i), median, figures.OrDash(n.trips.Quantile(0.99), figures.Seconds), of(n.inVotes), of(n.timeouts), n.version})
		if n.version != "" && !slices.Contains(versions, n.version) {
			versions = append(versions, n.version)
		}
	}
	for i := range r.steps {
		s := &r.steps[i]
		out.Load = append(out.Load, []string{
			strconv.Itoa(s.goroutines), figures.Format(s.rate, figures.PerSecond), figures.Format(s.took.Quantile(0.5), figures.Seconds), figures.OrDash(s.took.Quantile(0.99), figures.Seconds), percent(s.server), percent(s.client), figures.Digits(float64(s.took.Count())),
		})
	}
	out.Circumstances = fmt.Sprintf("Measured on %s in %.0f s, in %d rounds, from %s.", r.began.Format("2 January 2006 at 15:04"), time.Since(r.began).Seconds(), rounds, machine.Describe())
	if foreign >= 0 {
		out.Circumstances += fmt.Sprintf(" Meanwhile others used %s of its processors.", figures.Digits(foreign))
	}
	if versions != nil {
		out.Circumstances += " Servers: " + strings.Join(versions, ", ") + "."
	}
	out.Circumstances += " Client libraries in this program: " + strings.Join(machine.Libraries("redis/go-redis", "valkey-io/valkey-go", "jackc/pgx/", "etcd/client/v3", "go-sql-driver/mysql"), ", ") + "."
	if r.unguarded {
		out.Circumstances += " " + unguarded
	}
	out.Circumstances += " Acquire and release are of one caller; a handoff is from just before one client's Unlock to the return of the other's Lock. dlock doctor checks the configuration."
	return out
}

// tripName names the time with which an acquisition is compared.
func (r *run) tripName() string {
	switch {
	case len(r.nodes) > 1:
		return "majority's round trip"
	case r.nodes[0].lookup:
		return "lookup"
	}
	return "round trip"
}

// nodeName names a node as the report does: "node c (10.0.0.3:6379)".
func (r *run) nodeName(i int) string {
	return fmt.Sprintf("node %c (%s)", 'a'+rune(i%26), r.nodes[i].name)
}

func percent(v float64) string {
	if v < 0 {
		return "–"
	}
	return figures.Format(100*v, figures.Percent)
}

// near is the greatest ratio to the round trip at which an acquisition counts as fast as possible.
const near = 1.5

// lead summarizes the report in one sentence.
func (r *run) lead(foreign float64) string {
	text, article := "Your "+strings.TrimSuffix(address(r.Backend()), ":"), "a "
	if n := len(r.nodes); n > 1 {
		text, article = fmt.Sprintf("Your quorum of %d", n), "the "
	}
	text += fmt.Sprintf(": acquire %s at the median", figures.Format(r.acquire.Quantile(0.5), figures.Seconds))
	ratio := figures.Ratios(&r.acquire, &r.trip)
	if ratio.Rounds > 0 {
		about := figures.Digits(ratio.Median)
		if ratio.High > 1.5*ratio.Low {
			about = figures.Digits(ratio.Low) + " to " + figures.Digits(ratio.High)
		}
		text += ", " + about + " × " + article + r.tripName()
	}
	if p99 := r.acquire.Quantile(0.99); p99 > 0 {
		text += "; p99 " + figures.Format(p99, figures.Seconds)
	}
	cost := ""
	if ratio.Decided() && ratio.High < near {
		cost = " and costs nothing"
	}
	for i, n := range r.nodes {
		short, _, _ := strings.Cut(r.nodeName(i), " (")
		median := n.trips.Quantile(0.5)
		switch {
		case len(r.nodes) < 2:
		case n.trips.Count() == 0:
			text += "; " + short + " does not answer" + cost
		case figures.Ratios(&n.trips, &r.trip).Low > 3 && median > r.trip.Quantile(0.5)+0.001:
			text += fmt.Sprintf("; %s is %s away%s", short, figures.Format(median, figures.Seconds), cost)
		}
	}
	if loaded(foreign) {
		text += fmt.Sprintf("; others used %s of this machine's %d processors", figures.Digits(foreign), runtime.NumCPU())
	}
	return text + "."
}

// loaded reports whether other programs used so much of this machine that the figures show it.
func loaded(foreign float64) bool { return foreign > 0.2*float64(runtime.NumCPU()) }

// advice derives advice from the figures alone.
func (r *run) advice(foreign float64) (list []string) {
	most := (len(r.nodes) - 1) / 2 // that may fail
	silent := 0
	for _, n := range r.nodes {
		if n.trips.Count() == 0 {
			silent++
		}
	}
	for i, n := range r.nodes {
		trip, p99 := figures.Format(n.trips.Quantile(0.5), figures.Seconds), n.trips.Quantile(0.99)
		timeouts := float64(n.timeouts) / float64(max(r.votes, 1))
		switch name := r.nodeName(i); {
		case len(r.nodes) == 1:
		case n.trips.Count() == 0:
			list = append(list, fmt.Sprintf("%s answered in none of %d rounds: bring it back; until then the quorum survives the loss of %d more, and not of %d", name, n.silent, max(most-silent, 0), most))
		case timeouts > 0.001:
			enough := max(time.Duration(3*p99*float64(time.Second)).Round(10*time.Millisecond), 50*time.Millisecond)
			list = append(list, fmt.Sprintf("%s did not answer within the node timeout in %s of the acquisitions (its round trip: %s, p99 %s): set node_timeout=%v or longer, or bring it nearer", name, percent(timeouts), trip, figures.Format(p99, figures.Seconds), enough))
		case r.votes >= 100 && n.inVotes == 0 && most > 0:
			list = append(list, fmt.Sprintf("%s was in the majority of none of %d acquisitions (its round trip: %s): it costs no time, and counts when another fails, at that price", name, r.votes, trip))
		}
	}
	if ratio := figures.Ratios(&r.acquire, &r.trip); ratio.Decided() && ratio.Low > near {
		list = append(list, fmt.Sprintf("an acquisition takes %s the %s", ratio.Ratio(), r.tripName()))
	}
	if loaded(foreign) {
		list = append(list, "the figures include the load of other programs on this machine: measure again without it")
	}
	if r.failures > 0 {
		list = append(list, fmt.Sprintf("failed operations: %d, the first: %v", r.failures, r.failed))
	}
	return list
}

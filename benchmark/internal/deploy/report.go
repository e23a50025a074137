package deploy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/benchmark/internal/machine"
	"github.com/redlock-go/redlock/driver"
)

// A Report holds the results. The names in its JSON are stable; new ones may be added.
type Report struct {
	Lead    string        `json:"lead"`
	Advice  []string      `json:"advice,omitempty"`
	Backend string        `json:"backend"`
	Machine string        `json:"machine"`
	Servers []string      `json:"servers,omitempty"`   // versions
	Library []string      `json:"libraries,omitempty"` // versions of client libraries
	Began   time.Time     `json:"began"`
	Took    time.Duration `json:"took_ns"`
	TTL     time.Duration `json:"ttl_ns,omitempty"`
	// Foreign is how many processors of this machine other programs used, on average; negative:
	// unknown.
	Foreign float64 `json:"foreign_processors"`
	Rows    []Row   `json:"rows"`
	Nodes   []Node  `json:"nodes,omitempty"`
	Steps   []Step  `json:"ladder,omitempty"`
	Stopped string  `json:"ladder_ended"` // why
	Left    string  `json:"left_behind"`
	Note    string  `json:"note,omitempty"`
	Failed  int     `json:"failed,omitempty"`
	Failure string  `json:"first_failure,omitempty"`
}

// A Row holds the latency of one operation.
type Row struct {
	Name    string           `json:"name"`
	Library string           `json:"library"`
	Median  figures.Interval `json:"median_s"` // of the rounds' medians
	P50     float64          `json:"p50_s"`    // like all quantiles, of all rounds together
	P90     float64          `json:"p90_s,omitempty"`
	P99     float64          `json:"p99_s,omitempty"`
	P999    float64          `json:"p999_s,omitempty"`
	Samples int64            `json:"samples"`
	// Ratio is the median divided by the round trip of the majority, or of the only server, in
	// the same rounds.
	Ratio figures.Interval `json:"to_round_trip"`
}

// A Node holds the results for one server.
type Node struct {
	Row
	Version  string  `json:"version,omitempty"`
	Silent   int     `json:"silent_rounds,omitempty"`
	InVotes  float64 `json:"in_majority"` // share of the acquisitions
	Timeouts float64 `json:"timeouts"`    // share of the acquisitions
}

func row(name, library string, s *figures.Rounds, trip *figures.Rounds) Row {
	r := Row{Name: name, Library: library, Median: figures.IntervalOf(slices.Collect(maps.Values(s.Medians))), P50: s.All.Quantile(0.5).Seconds(), Samples: s.All.Count()}
	for i, t := range s.Tails() {
		*[]*float64{&r.P90, &r.P99, &r.P999}[i] = t.Value
	}
	if trip != s {
		r.Ratio = figures.Ratios(s.Medians, trip.Medians)
	}
	return r
}

// check asks the backend for its advice to an operator.
func (r *run) check(ctx context.Context) []driver.Diagnostic {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	inspector, ok := r.Backend().(driver.Inspector)
	if !ok {
		return nil
	}
	found, _ := inspector.Check(ctx) // a backend that cannot check itself has no advice
	return found
}

// clean removes the measurement's data, and finds out what remains.
func (r *run) clean(ctx context.Context) {
	t, err := open(r.URL, r.prefix, r.unguarded)
	if err != nil {
		r.left = "not known: " + err.Error()
		return
	}
	defer t.Close() //nolint:errcheck // its only work was to remove
	if _, ok := t.nodes[0].(eachServer); !ok {
		r.left = r.leftOf(ctx, t)
		return
	}
	var failed []string
	for _, b := range t.nodes {
		n := 0
		// A late request may still write after the first pass, and a node that stalled may
		// answer later.
		for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
			again, err := remove(ctx, b, t.prefix)
			if n += again; err == nil && again == 0 {
				break
			}
			if time.Now().After(end) {
				failed = append(failed, fmt.Sprintf("%s could not be cleaned (%v): its locks end within %v, and its counters within minutes", newProbe(b).name, clean(err), r.TTL()))
				break
			}
		}
		r.removed += n
	}
	r.left = fmt.Sprintf("nothing: %d names under %q were removed, fencing counters included", r.removed, t.prefix)
	if len(failed) > 0 {
		r.left = strings.Join(failed, "; ") + fmt.Sprintf("; %d names were removed from the others", r.removed)
	}
}

// leftOf says which data stays on servers whose driver offers no command to remove it.
func (r *run) leftOf(ctx context.Context, t *target) string {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	held, err := 0, errors.ErrUnsupported
	if inspector, ok := t.Backend().(driver.Inspector); ok {
		err = inspector.List(ctx, "", func(*driver.State) bool { held++; return true })
	}
	stays := map[string]string{
		"memory": "", "file": "", "etcd": "",
		"postgres": "; the sequence dlock_fence belongs to the database's locks, and stays",
		"mysql":    "; the rows of its keys are deleted by the next client that comes after two minutes, and a table that setup=on made stays",
	}
	stays["pgtable"], stays["sqlite"], stays["mariadb"] = stays["mysql"], stays["mysql"], stays["mysql"]
	scheme, _, _ := strings.Cut(r.URL, ":")
	more, known := stays[strings.Replace(scheme, "postgresql", "postgres", 1)]
	if !known {
		more = fmt.Sprintf("; what else the driver keeps under %q is not known", t.prefix)
	}
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return "no lock that this program knows of" + more
	case err != nil:
		return "not known: " + clean(err).Error()
	case held > 0:
		return fmt.Sprintf("%d locks under %q, which end within %v", held, t.prefix, r.TTL())
	}
	return "no lock" + more
}

// report makes the report.
func (r *run) report(foreign float64, checked []driver.Diagnostic) *Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &Report{
		Backend: address(r.whole), Machine: machine.Describe(), Library: machine.Libraries("redis/go-redis", "valkey-io/valkey-go", "jackc/pgx/", "etcd/client/v3", "go-sql-driver/mysql", "go-zookeeper/zk"), Began: r.began.Truncate(time.Second), Took: time.Since(r.began), TTL: r.TTL(),
		Foreign: foreign, Steps: r.steps, Stopped: r.stopped, Left: r.left, Note: r.note, Failed: r.failures,
	}
	if r.failed != nil {
		out.Failure = r.failed.Error()
	}
	for i, p := range r.nodes {
		if p.version != "" && !slices.Contains(out.Servers, p.version) {
			out.Servers = append(out.Servers, p.version)
		}
		if p.ping == nil {
			continue
		}
		n := Node{Row: row(p.name, "round trip", p.trips, r.trip), Version: p.version, Silent: p.silent}
		if r.votes > 0 {
			n.InVotes, n.Timeouts = float64(p.inVotes)/float64(r.votes), float64(p.timeouts)/float64(r.votes)
		}
		if len(r.nodes) > 1 {
			n.Name = fmt.Sprintf("node %c (%s)", 'a'+rune(i%26), p.name)
		}
		out.Nodes = append(out.Nodes, n)
	}
	trip := "round trip"
	switch {
	case len(r.nodes) > 1:
		trip = "majority's round trip"
	case r.bare == nil && len(r.nodes) == 1 && r.nodes[0].commands == nil: // newProbe found no better ping
		trip = "lookup"
	}
	add := func(name, library string, s *figures.Rounds) {
		if s.All.Count() > 0 {
			out.Rows = append(out.Rows, row(name, library, s, r.trip))
		}
	}
	add(trip, "round trip", r.trip)
	if r.bare != nil {
		add("bare acquire", "bare", r.bareAcquire)
		add("bare release", "bare", r.bareRelease)
	}
	add("acquire", "dlock", r.acquire)
	add("release", "dlock", r.release)
	add("handoff", "dlock", r.handoff)
	out.Lead, out.Advice = r.lead(out), r.advice(out, checked)
	return out
}

// find returns a row by its name; nil if there is none.
func (r *Report) find(name string) *Row {
	i := slices.IndexFunc(r.Rows, func(r Row) bool { return r.Name == name })
	if i < 0 {
		return nil
	}
	return &r.Rows[i]
}

// near is the greatest ratio to the round trip at which an acquisition counts as fast as possible.
const near = 1.5

// lead summarizes the report in one sentence.
func (r *run) lead(out *Report) string {
	acquire := out.find("acquire")
	text := "Your " + strings.TrimSuffix(out.Backend, ":")
	if n := len(r.nodes); n > 1 {
		text = fmt.Sprintf("Your quorum of %d", n)
	}
	text += fmt.Sprintf(": acquire %s at the median", figures.Format(acquire.P50, figures.Seconds))
	if ratio := acquire.Ratio; ratio.Rounds > 0 {
		article := "a "
		if len(r.nodes) > 1 {
			article = "the "
		}
		text += ", " + about(ratio) + " × " + article + out.Rows[0].Name
	}
	if acquire.P99 > 0 {
		text += "; p99 " + figures.Format(acquire.P99, figures.Seconds)
	}
	quick := acquire.Ratio.Decided() && acquire.Ratio.High < near
	trip := r.trip.All.Quantile(0.5).Seconds()
	for _, n := range out.Nodes {
		if len(r.nodes) < 2 {
			break
		}
		short, _, _ := strings.Cut(n.Name, " (")
		cost := ""
		if quick {
			cost = " and costs nothing"
		}
		switch {
		case n.Samples == 0:
			text += "; " + short + " does not answer" + cost
		case n.Ratio.Low > 3 && n.P50 > trip+0.001:
			text += fmt.Sprintf("; %s is %s away%s", short, figures.Format(n.P50, figures.Seconds), cost)
		}
	}
	if out.loaded() {
		text += fmt.Sprintf("; others used %s of this machine's %d processors", figures.Digits(out.Foreign), runtime.NumCPU())
	}
	return text + "."
}

// about writes a ratio by its median, or by its interval if that is wide.
func about(ratio figures.Interval) string {
	if ratio.High > 1.5*ratio.Low {
		return figures.Digits(ratio.Low) + " to " + figures.Digits(ratio.High)
	}
	return figures.Digits(ratio.Median)
}

// loaded reports whether other programs used so much of this machine that the figures show it.
func (r *Report) loaded() bool { return r.Foreign > 0.2*float64(runtime.NumCPU()) }

// advised are the findings of driver.Inspector.Check that concern the measurement.
var advised = []string{"quorum-size", "round-trip-slow", "same-server", "same-host", "clock-apart", "not-independent"}

// advice derives advice from the figures alone.
func (r *run) advice(out *Report, checked []driver.Diagnostic) (list []string) {
	quorum, silent := r.nodes.quorum(), 0
	for _, n := range out.Nodes {
		if n.Samples == 0 {
			silent++
		}
	}
	for _, n := range out.Nodes {
		switch {
		case len(r.nodes) == 1:
		case n.Samples == 0:
			list = append(list, fmt.Sprintf("%s answered in none of %d rounds: bring it back; until then the quorum survives the loss of %d more, and not of %d", n.Name, n.Silent, max(len(r.nodes)-silent-quorum, 0), len(r.nodes)-quorum))
		case n.Timeouts > 0.001:
			list = append(list, fmt.Sprintf("%s did not answer within the node timeout in %s of the acquisitions (its round trip: %s, p99 %s): set node_timeout=%v or longer, or bring it nearer",
				n.Name, figures.Format(100*n.Timeouts, figures.Percent), figures.Format(n.P50, figures.Seconds), figures.Format(n.P99, figures.Seconds), tolerant(n.P99)))
		case r.votes >= 100 && n.InVotes == 0 && len(r.nodes) > quorum:
			list = append(list, fmt.Sprintf("%s was in the majority of none of %d acquisitions (its round trip: %s): it costs no time, and counts when another fails, at that price", n.Name, r.votes, figures.Format(n.P50, figures.Seconds)))
		}
	}
	for _, d := range checked {
		node := out.node(d.Node)
		if d.Severity < driver.SeverityWarning || !slices.Contains(advised, d.Code) || node.refutes(d) {
			continue
		}
		text := d.Summary
		if d.Node != "" {
			text = cmp.Or(node.Name, d.Node) + ": " + text
		}
		if d.Remedy != "" {
			text += ": " + d.Remedy
		}
		list = append(list, text)
	}
	if a := out.find("acquire"); a.Ratio.Decided() && a.Ratio.Low > near {
		text := fmt.Sprintf("an acquisition takes %s the %s", a.Ratio, out.Rows[0].Name)
		if b := out.find("bare acquire"); b != nil {
			text += fmt.Sprintf("; the bare commands %s", b.Ratio)
		}
		list = append(list, text)
	}
	if out.loaded() {
		list = append(list, "the figures include the load of other programs on this machine: measure again without it")
	}
	if out.Failed > 0 {
		list = append(list, fmt.Sprintf("failed operations: %d, the first: %s", out.Failed, out.Failure))
	}
	return list
}

// node returns the node whose address this is, or an empty one.
func (r *Report) node(address string) (found Node) {
	_, host, _ := strings.Cut(strings.TrimSuffix(address, "/0"), "://")
	for _, n := range r.Nodes {
		if strings.HasSuffix(n.Name, "("+host+")") {
			found = n
		}
	}
	return found
}

// refutes reports whether a finding rests on a round trip that was far above the usual ones.
func (n Node) refutes(d driver.Diagnostic) bool {
	trip, err := time.ParseDuration(d.Measured)
	return d.Code == "round-trip-slow" && err == nil && n.Samples > 0 && cmp.Or(n.P99, n.P50) < trip.Seconds()/2
}

// tolerant returns a node timeout well above a p99.
func tolerant(p99 float64) time.Duration {
	return max(time.Duration(3*p99*float64(time.Second)).Round(10*time.Millisecond), 50*time.Millisecond)
}

// slowest sorts the nodes for the plot, the quickest first.
func slowest(a, b Node) int { return cmp.Compare(a.P50, b.P50) }

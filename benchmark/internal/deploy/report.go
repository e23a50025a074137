package deploy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/benchmark/internal/machine"
	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
)

// A Report is what was found. Names of its JSON stay; new ones may come.
type Report struct {
	Lead    string        `json:"lead"`
	Advice  []string      `json:"advice,omitempty"`
	Backend string        `json:"backend"`
	Machine string        `json:"machine"`
	Began   time.Time     `json:"began"`
	Took    time.Duration `json:"took_ns"`
	TTL     time.Duration `json:"ttl_ns,omitempty"`
	// Foreign is how many processors of this machine others used, on average; below zero: not known.
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

// A Row is the latency of one operation.
type Row struct {
	Name    string           `json:"name"`
	Library string           `json:"library"`
	Median  figures.Interval `json:"median_s"` // of the rounds' medians
	P90     float64          `json:"p90_s,omitempty"`
	P99     float64          `json:"p99_s,omitempty"`
	P999    float64          `json:"p999_s,omitempty"`
	Samples int64            `json:"samples"`
	// Ratio is to the majority's round trip, or the only server's, in the same rounds.
	Ratio figures.Interval `json:"to_round_trip"`
}

// A Node is one server.
type Node struct {
	Row
	Version  string  `json:"version,omitempty"`
	Silent   int     `json:"silent_rounds,omitempty"`
	InVotes  float64 `json:"in_majority"` // share of the acquisitions
	Timeouts float64 `json:"timeouts"`    // share of the acquisitions
}

func row(name, library string, s *series, trip *series) Row {
	var medians []float64
	for _, m := range s.medians {
		medians = append(medians, m)
	}
	r := Row{Name: name, Library: library, Median: figures.IntervalOf(medians), Samples: s.all.Count()}
	for _, q := range []struct {
		q     float64
		least int64
		to    *float64
	}{{0.9, 10, &r.P90}, {0.99, 100, &r.P99}, {0.999, 1000, &r.P999}} {
		if r.Samples >= q.least {
			*q.to = s.all.Quantile(q.q).Seconds()
		}
	}
	if trip != s {
		r.Ratio = figures.Ratios(s.medians, trip.medians)
	}
	return r
}

// check asks the backend what an operator should know.
func (r *run) check(ctx context.Context) []driver.Diagnostic {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	found, _ := r.Check(ctx) // a backend that cannot say has no advice to give
	return found
}

// clean removes what the measurement stored, and finds out what is left.
func (r *run) clean(ctx context.Context) {
	t, err := open(r.URL, r.prefix, r.unguarded)
	if err != nil {
		r.left = "not known: " + err.Error()
		return
	}
	defer t.Close() //nolint:errcheck // it only removed
	if _, ok := t.nodes[0].(eachServer); !ok {
		r.left = r.leftOf(ctx, t)
		return
	}
	var failed []string
	for _, b := range t.nodes {
		n := 0
		for range 3 { // what was on its way may arrive in between
			again, err := remove(ctx, b, t.prefix)
			n += again
			if err != nil {
				failed = append(failed, fmt.Sprintf("%s could not be cleaned (%v): its locks end within %v, and its counters within minutes", newProbe(b).name, clean(err), r.TTL()))
				break
			}
			if again == 0 {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		r.removed += n
	}
	r.left = fmt.Sprintf("nothing: %d names under %q were removed, fencing counters included", r.removed, t.prefix)
	if len(failed) > 0 {
		r.left = strings.Join(failed, "; ") + fmt.Sprintf("; %d names were removed from the others", r.removed)
	}
}

// leftOf says what stays on servers whose driver offers no command to remove it.
func (r *run) leftOf(ctx context.Context, t *target) string {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	held, err := 0, error(nil)
	for _, err = range t.List(ctx, "") {
		if err != nil {
			break
		}
		held++
	}
	stays := map[string]string{
		"memory": "", "file": "", "etcd": "",
		"postgres": "; the sequence dlock_fence belongs to the database's locks, and stays",
		"mysql":    "; the rows of its keys are deleted by the next client that comes after two minutes",
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

// report puts it together.
func (r *run) report(foreign float64, checked []driver.Diagnostic) *Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &Report{
		Backend: address(r.whole), Machine: machine.Describe(), Began: r.began.Truncate(time.Second), Took: time.Since(r.began), TTL: r.TTL(),
		Foreign: foreign, Steps: r.steps, Stopped: r.stopped, Left: r.left, Note: r.note, Failed: r.failures,
	}
	if r.failed != nil {
		out.Failure = r.failed.Error()
	}
	for i, p := range r.nodes {
		if p.ping == nil {
			continue
		}
		n := Node{Row: row(p.name, "round trip", &series{p.trips, p.medians}, r.trip), Version: p.version, Silent: p.silent}
		if r.votes > 0 {
			n.InVotes, n.Timeouts = float64(p.inVotes)/float64(r.votes), float64(p.timeouts)/float64(r.votes)
		}
		if len(r.nodes) > 1 {
			n.Name = fmt.Sprintf("node %c (%s)", 'a'+rune(i%26), p.name)
		}
		out.Nodes = append(out.Nodes, n)
	}
	trip := "round trip"
	if len(r.nodes) > 1 {
		trip = "majority's round trip"
	}
	add := func(name, library string, s *series) {
		if s.all.Count() > 0 {
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

// near is up to which ratio to the round trip an acquisition is called as quick as it can be.
const near = 1.5

// lead is the report in one sentence.
func (r *run) lead(out *Report) string {
	acquire := out.find("acquire")
	text := "Your " + strings.TrimSuffix(out.Backend, ":")
	if n := len(r.nodes); n > 1 {
		text = fmt.Sprintf("Your quorum of %d", n)
	}
	text += fmt.Sprintf(": acquire %s at the median", figures.Format(acquire.Median.Median, figures.Seconds))
	if trip := out.find("majority's round trip"); trip != nil && acquire.Ratio.Rounds > 0 {
		text += fmt.Sprintf(", %s × the majority's round trip", figures.Digits(acquire.Ratio.Median))
	} else if acquire.Ratio.Rounds > 0 {
		text += fmt.Sprintf(", %s × a round trip", figures.Digits(acquire.Ratio.Median))
	}
	if acquire.P99 > 0 {
		text += "; p99 " + figures.Format(acquire.P99, figures.Seconds)
	}
	if len(r.nodes) < 2 {
		return text + "."
	}
	quick := acquire.Ratio.Decided() && acquire.Ratio.High < near
	trip := r.trip.all.Quantile(0.5).Seconds()
	for _, n := range out.Nodes {
		short, _, _ := strings.Cut(n.Name, " (")
		cost := ""
		if quick {
			cost = " and costs nothing"
		}
		switch {
		case n.Samples == 0:
			text += "; " + short + " does not answer" + cost
		case n.Median.Median > 3*trip && n.Median.Median > trip+0.001:
			text += fmt.Sprintf("; %s is %s away%s", short, figures.Format(n.Median.Median, figures.Seconds), cost)
		}
	}
	return text + "."
}

// advised are the findings of dlock.Client.Check that concern what is measured here.
var advised = []string{"quorum-size", "round-trip-slow", "same-server", "same-host", "clock-apart", "not-independent"}

// advice follows from figures alone.
func (r *run) advice(out *Report, checked []driver.Diagnostic) (list []string) {
	quorum := len(r.nodes)/2 + 1
	for _, n := range out.Nodes {
		switch {
		case len(r.nodes) == 1:
		case n.Samples == 0:
			list = append(list, fmt.Sprintf("%s answered in none of %d rounds: bring it back; until then the quorum outlives the loss of %d fewer", n.Name, n.Silent, 1))
		case n.Timeouts > 0.001:
			list = append(list, fmt.Sprintf("%s did not answer within the node timeout in %s of the acquisitions (its round trip: %s, p99 %s): set node_timeout=%v or longer, or bring it nearer",
				n.Name, figures.Format(100*n.Timeouts, figures.Percent), figures.Format(n.Median.Median, figures.Seconds), figures.Format(n.P99, figures.Seconds), tolerant(n.P99)))
		case r.votes >= 100 && n.InVotes == 0 && len(r.nodes) > quorum:
			list = append(list, fmt.Sprintf("%s was in the majority of none of %d acquisitions (its round trip: %s): it costs no time, and counts when another fails, at that price", n.Name, r.votes, figures.Format(n.Median.Median, figures.Seconds)))
		}
	}
	for _, d := range checked {
		if d.Severity < dlock.SeverityWarning || !slices.Contains(advised, d.Code) {
			continue
		}
		text := strings.TrimSpace(d.Node + " " + d.Summary)
		if d.Remedy != "" {
			text += ": " + d.Remedy
		}
		list = append(list, text)
	}
	if a := out.find("acquire"); a.Ratio.Decided() && a.Ratio.Low > near {
		text := fmt.Sprintf("an acquisition takes %s the round trip", a.Ratio)
		if b := out.find("bare acquire"); b != nil {
			text += fmt.Sprintf("; the bare commands %s", b.Ratio)
		}
		list = append(list, text)
	}
	if out.Failed > 0 {
		list = append(list, fmt.Sprintf("%d operations failed, the first: %s", out.Failed, out.Failure))
	}
	return list
}

// tolerant is a node timeout with room above a p99.
func tolerant(p99 float64) time.Duration {
	return max(time.Duration(3*p99*float64(time.Second)).Round(10*time.Millisecond), 50*time.Millisecond)
}

// slowest sorts nodes for the plot: the quickest first.
func slowest(a, b Node) int { return cmp.Compare(a.Median.Median, b.Median.Median) }

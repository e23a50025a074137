package bench

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
)

// A Report holds all results of a run.
type Report struct {
	Began     time.Time
	Took      time.Duration
	Whole     bool     // it measured everything, for long enough
	Machine   string   // system, processors, Go
	Servers   []string // with versions
	Libraries []string // client and lock libraries, with versions
	Foreign   float64  // how many processors other programs used, on average; negative: unknown
	Cases     []*Case
	Notes     []string // what was left out or failed, and why
}

// Text writes the report for people, as Markdown.
func (r *Report) Text() string {
	var b strings.Builder
	o := r.overview()
	fmt.Fprintf(&b, "# Locks, measured\n\n%s\n%s", figures.Wrap(o.lead), figures.Wrap(r.circumstances()+" "+howToRead))
	if len(o.table) > 1 {
		fmt.Fprintf(&b, "\n%s\n%s", figures.Table(o.table...), figures.List(o.why))
	}
	var scenario *Scenario
	var setups []string
	for _, c := range r.Cases {
		if c.Scenario != scenario {
			scenario = c.Scenario
			fmt.Fprintf(&b, "\n## %s\n\n%s", scenario.Name, figures.Wrap(scenario.What))
		}
		fmt.Fprintf(&b, "\n### %s\n\n%s", c.Title(), figures.Table(c.table()...))
		for _, row := range c.Rows {
			if text := row.String() + ": " + row.How + "."; !slices.Contains(setups, text) {
				setups = append(setups, text)
			}
		}
	}
	fmt.Fprintf(&b, "\n## Contestants\n\n%s", figures.List(setups))
	if r.Notes != nil {
		fmt.Fprintf(&b, "\n## Left out or failed\n\n%s", figures.List(r.Notes))
	}
	return b.String()
}

// howToRead is the explanation before the figures.
const howToRead = "Every figure is the median of the rounds; a range is its 99 % confidence interval, and p99 is of all rounds together. " +
	"All contestants have a turn in every round, and two are compared by the ratio of their figures in each round. Ours is ahead or behind if the whole interval of these ratios is more than 5 % away from 1. Otherwise, and if other programs used more than a fifth of the processors, the run cannot tell. " +
	"CPU, allocations and bytes are per lock (acquisition and release), the client's include goroutines in the background; server commands count those inside scripts; wire is what the servers received and sent."

// when says when and where the run was; the table and the picture have it.
func (r *Report) when() string {
	return fmt.Sprintf("Measured on %s in %.0f s, on %s.", r.Began.Format("2 January 2006 at 15:04"), r.Took.Seconds(), r.Machine)
}

// circumstances says also with what, and how busy the machine was otherwise.
func (r *Report) circumstances() string {
	text := r.when()
	if r.Foreign >= 0 {
		text += fmt.Sprintf(" Other programs used %s of the processors.", figures.Digits(r.Foreign))
	}
	if len(r.Servers) > 0 {
		text += " Servers, on the same machine: " + strings.Join(r.Servers, ", ") + "."
	}
	return text + " Libraries: " + strings.Join(r.Libraries, ", ") + "."
}

// loaded reports whether other programs used so much of the processors that nothing is compared.
// Beside such a load a contestant loses that needs more processor time and fewer round trips,
// though it wins on an idle machine.
func loaded(foreign float64) bool { return foreign > 0.2*float64(runtime.NumCPU()) }

// row returns the row of a contestant, nil if there is none.
func (c *Case) row(name, client string) *Row {
	i := slices.IndexFunc(c.Rows, func(r *Row) bool { return r.Name == name && r.Client == client })
	if i < 0 {
		return nil
	}
	return c.Rows[i]
}

// base returns the row with which the others are compared: the round trip, or else the quickest
// other library; nil if there is none.
func (c *Case) base() (best *Row) {
	if r := c.row(roundTrip.Name, roundTrip.Client); r != nil {
		return r
	}
	for _, r := range c.Rows {
		if v := r.figure(c.Key); r.Kind == Peer && v > 0 && r.handsOver() && (best == nil || v < best.figure(c.Key)) {
			best = r
		}
	}
	return best
}

// compare returns the ratio of a metric of two rows, and what it tells.
func (c *Case) compare(own, other *Row, metric string) (ratio figures.Interval, v figures.Verdict) {
	a, b := own.metric(metric), other.metric(metric)
	if a == nil || b == nil {
		return ratio, figures.CannotTell
	}
	if ratio = figures.Ratios(&a.Series, &b.Series); loaded(c.Foreign) {
		return ratio, figures.CannotTell
	}
	return ratio, figures.Compare(ratio)
}

// why names what is measured to be greater for ours in the same rounds.
func (c *Case) why(own, other *Row) string {
	var found []string
	for _, name := range []string{"server CPU", "client CPU", "server commands", "wire", "allocations"} {
		if ratio, v := c.compare(own, other, name); v == figures.Behind {
			a, b := own.metric(name), other.metric(name)
			found = append(found, fmt.Sprintf("%s × the %s (%s to %s)", figures.Digits(ratio.Median), name, figures.Format(a.Interval().Median, a.Unit), figures.Format(b.Interval().Median, b.Unit)))
		}
	}
	return strings.Join(found, "; ")
}

// table has a row for each contestant, and a column for each metric.
func (c *Case) table() (table [][]string) {
	base := c.base()
	header := []string{"", "client", "rounds", c.Key, "p99"}
	if base != nil {
		header = append(header, "to "+base.String())
	}
	var names []string
	for _, r := range c.Rows {
		for _, m := range r.Metrics {
			if m.Name != c.Key && !slices.Contains(names, m.Name) {
				names = append(names, m.Name)
			}
		}
	}
	table = append(table, append(header, names...))
	for _, r := range c.Rows {
		cells := []string{r.Name, r.Client, "0", "–", "–"}
		if m := r.metric(c.Key); m != nil {
			cells[2], cells[3], cells[4] = strconv.Itoa(len(m.Rounds)), m.Interval().Format(m.Unit), figures.OrDash(m.Quantile(0.99), m.Unit)
		}
		if base != nil {
			text := ""
			if ratio, verdict := c.compare(r, base, c.Key); r != base && ratio.Rounds > 0 {
				if text = ratio.Ratio(); r.Kind == Ours && base.Kind == Peer {
					text += ", " + string(verdict)
				}
			}
			cells = append(cells, text)
		}
		for _, name := range names {
			text := "–"
			if m := r.metric(name); m != nil {
				text = figures.Format(m.Interval().Median, m.Unit)
			}
			cells = append(cells, text)
		}
		table = append(table, cells)
	}
	return table
}

// Raw has each round's figures in the format of Go's benchmarks, as benchstat reads it.
func (r *Report) Raw() string {
	var b strings.Builder
	word := strings.NewReplacer(" ", "_", ",", "", "+", "-")
	units := map[figures.Unit]string{figures.Seconds: "-sec", figures.Bytes: "-bytes", figures.PerSecond: "/sec"}
	for _, c := range r.Cases {
		for _, row := range c.Rows {
			lines := map[int]string{}
			for _, m := range row.Metrics {
				for round, v := range m.Rounds {
					lines[round] += fmt.Sprintf("\t%g %s", v, word.Replace(m.Name)+units[m.Unit])
				}
			}
			for _, line := range lines {
				b.WriteString("Benchmark" + word.Replace(c.Title()+"/"+row.String()) + "\t1" + line + "\n")
			}
		}
	}
	return b.String()
}

package deploy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
)

// orDash writes a figure, or a dash if it is not positive.
func orDash(v float64, u figures.Unit) string {
	if v <= 0 {
		return "–"
	}
	return figures.Format(v, u)
}

func share(v float64) string {
	if v < 0 {
		return "–"
	}
	return figures.Format(100*v, figures.Percent)
}

// Circumstances says where and when the measurement was, and how busy the machine was otherwise.
func (r *Report) Circumstances() string {
	rounds := 0
	if len(r.Rows) > 0 {
		rounds = r.Rows[len(r.Rows)-1].Median.Rounds
	}
	text := fmt.Sprintf("Measured on %s in %s, in %d rounds, from %s.", r.Began.Format("2 January 2006 at 15:04"), figures.Duration(r.Took), rounds, r.Machine)
	if r.Foreign >= 0 {
		text += fmt.Sprintf(" Meanwhile others used %s of its processors.", figures.Digits(r.Foreign))
	}
	if len(r.Servers) > 0 {
		text += " Servers: " + strings.Join(r.Servers, ", ") + "."
	}
	text += " Client libraries in this program: " + strings.Join(r.Library, ", ") + "."
	if r.Note != "" {
		text += " " + r.Note
	}
	if rounds < figures.LeastRounds {
		text += fmt.Sprintf(" With fewer than %d rounds the ranges are extremes, and decide nothing.", figures.LeastRounds)
	}
	return text
}

// latencies returns the plot below the first sentence.
func (r *Report) latencies() figures.Dots {
	d := figures.Dots{Unit: figures.Seconds}
	add := func(row Row) {
		d.Rows = append(d.Rows, figures.Dot{Name: row.Name, Library: row.Library, Value: row.P50, High: row.P99})
	}
	if len(r.Nodes) > 1 {
		for _, n := range slices.SortedFunc(slices.Values(r.Nodes), slowest) {
			if n.Samples > 0 {
				add(n.Row)
			}
		}
	}
	for _, row := range r.Rows {
		add(row)
	}
	return d
}

// load returns the plot of the rates at growing load.
func (r *Report) load() figures.Lines {
	s := figures.Series{Name: "dlock", Library: "dlock"}
	for _, step := range r.Steps {
		s.Points = append(s.Points, figures.Point{X: float64(step.Goroutines), Y: step.Rate})
	}
	return figures.Lines{X: "goroutines", YUnit: figures.PerSecond, Series: []figures.Series{s}}
}

// operations, nodes and steps return the tables of the report.
func (r *Report) operations() figures.Table {
	t := figures.Table{Header: []string{"", "median", "p90", "p99", "p99.9", "× round trip (99 % interval)", "rounds", "samples"}}
	for _, row := range r.Rows {
		ratio := "–"
		if row.Ratio.Rounds > 0 {
			ratio = row.Ratio.String()
		}
		t.Rows = append(t.Rows, figures.TableRow{Cells: []string{
			row.Name, orDash(row.P50, figures.Seconds), orDash(row.P90, figures.Seconds), orDash(row.P99, figures.Seconds), orDash(row.P999, figures.Seconds),
			ratio, strconv.Itoa(row.Median.Rounds), figures.Digits(float64(row.Samples)),
		}})
	}
	return t
}

func (r *Report) nodes() figures.Table {
	t := figures.Table{Header: []string{"", "round trip, median", "p99", "in the majority", "timed out", "version"}}
	for _, n := range r.Nodes {
		median := "no answer"
		if n.Samples > 0 {
			median = figures.Format(n.P50, figures.Seconds)
		}
		t.Rows = append(t.Rows, figures.TableRow{Cells: []string{n.Name, median, orDash(n.P99, figures.Seconds), share(n.InVotes), share(n.Timeouts), n.Version}})
	}
	return t
}

func (r *Report) steps() figures.Table {
	t := figures.Table{Header: []string{"goroutines", "locks a second", "median", "p99", "busiest server", "this machine", "samples"}}
	for _, s := range r.Steps {
		t.Rows = append(t.Rows, figures.TableRow{Cells: []string{
			strconv.Itoa(s.Goroutines), figures.Format(s.Rate, figures.PerSecond), figures.Duration(s.Median), figures.Duration(s.P99), share(s.Server), share(s.Client), figures.Digits(float64(s.Samples)),
		}})
	}
	return t
}

// blocks returns what the page and the terminal show below the first sentence.
func (r *Report) blocks() []figures.Block {
	list := []figures.Block{{}} // the plot
	if len(r.Advice) > 0 {
		list = append(list, figures.Block{Heading: "What follows from the figures", List: r.Advice})
	}
	list = append(list, figures.Block{Heading: "Latency", Tables: []figures.Table{r.operations()}})
	if len(r.Nodes) > 1 {
		list = append(list, figures.Block{Heading: "Nodes", Tables: []figures.Table{r.nodes()}})
	}
	return append(list,
		figures.Block{Heading: "Load", Text: "The load ended there: " + r.Stopped + ".", Tables: []figures.Table{r.steps()}},
		figures.Block{Text: "Left behind: " + r.Left + "."},
		figures.Block{Quiet: true, Text: r.Circumstances() + " A range is where the median is with a confidence of 99 %, by the ratios within each round. " +
			"Acquire and release are of one caller; a handoff is from just before one client's Unlock to the return of the other's Lock."})
}

// Write writes report.html and report.json into a folder.
func (r *Report) Write(folder string) error {
	p := figures.Page{Title: "Your locks, measured", Lead: r.Lead, Blocks: r.blocks()}
	svg, err := r.latencies().SVG()
	if err != nil {
		return err
	}
	p.Blocks[0].Plots = []figures.Figure{{Title: "latency, median to p99", Better: "less is better", SVG: svg}}
	if len(r.Steps) > 1 {
		if svg, err = r.load().SVG(); err != nil {
			return err
		}
		p.Blocks[len(p.Blocks)-3].Plots = []figures.Figure{{Title: "locks a second", Better: "more is better", SVG: svg}}
	}
	return p.Write(folder, r)
}

// Text returns the report for a terminal.
func (r *Report) Text() string {
	var b strings.Builder
	fmt.Fprintln(&b, r.Lead+"\n")
	for _, block := range r.blocks() {
		for _, item := range block.List {
			fmt.Fprintln(&b, "  - "+item)
		}
		for _, t := range block.Tables {
			t.Header[0] = cmp.Or(t.Header[0], strings.ToLower(block.Heading))
			w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "\n"+strings.Join(t.Header, "\t"))
			for _, row := range t.Rows {
				fmt.Fprintln(w, strings.Join(row.Cells, "\t"))
			}
			_ = w.Flush() // a strings.Builder takes everything
		}
		if block.Text != "" {
			fmt.Fprintln(&b, "\n"+block.Text)
		}
	}
	return b.String()
}

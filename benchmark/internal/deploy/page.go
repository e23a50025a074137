package deploy

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
)

//go:embed page.html.tmpl
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"s":       func(v float64) string { return orDash(v, figures.Seconds) },
	"d":       func(d time.Duration) string { return figures.Duration(d) },
	"rate":    func(v float64) string { return figures.Format(v, figures.PerSecond) },
	"percent": share,
	"count":   func(n int64) string { return figures.Digits(float64(n)) },
	"ratio":   ratio,
	"style":   figures.Style,
}).Parse(pageText))

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

func ratio(i figures.Interval) string {
	if i.Rounds == 0 {
		return "–"
	}
	return i.String()
}

// Circumstances says where, when and beside what it was measured.
func (r *Report) Circumstances() string {
	rounds := 0
	if len(r.Rows) > 0 {
		rounds = r.Rows[len(r.Rows)-1].Median.Rounds
	}
	text := fmt.Sprintf("Measured on %s in %s, in %d rounds, from %s.", r.Began.Format("2 January 2006 at 15:04"), figures.Duration(r.Took), rounds, r.Machine)
	if r.Foreign >= 0 {
		text += fmt.Sprintf(" Meanwhile others used %s of its processors.", figures.Digits(r.Foreign))
	}
	if r.Note != "" {
		text += " " + r.Note
	}
	if rounds < figures.LeastRounds {
		text += fmt.Sprintf(" With fewer than %d rounds the ranges are extremes, and decide nothing.", figures.LeastRounds)
	}
	return text
}

// latencies is the plot below the lead.
func (r *Report) latencies() figures.Dots {
	d := figures.Dots{X: "time, median to p99: less is better", Unit: figures.Seconds, Log: true}
	add := func(row Row) {
		d.Rows = append(d.Rows, figures.Dot{Name: row.Name, Library: row.Library, Value: row.Median.Median, High: row.P99})
	}
	nodes := slices.SortedFunc(slices.Values(r.Nodes), slowest)
	if len(nodes) > 1 {
		for _, n := range nodes {
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

// load is the plot of the ladder.
func (r *Report) load() figures.Lines {
	l := figures.Lines{X: "goroutines", Y: "locks a second: more is better", YUnit: figures.PerSecond, LogX: true, LogY: true}
	s := figures.Series{Name: "dlock", Library: "dlock"}
	for _, step := range r.Steps {
		s.Points = append(s.Points, figures.Point{X: float64(step.Goroutines), Y: step.Rate})
	}
	l.Series = append(l.Series, s)
	return l
}

// Write writes report.html and report.json into a folder.
func (r *Report) Write(folder string) error {
	js, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	data := struct {
		*Report
		Latencies, Load template.HTML
	}{Report: r}
	if data.Latencies, err = r.latencies().SVG(); err != nil {
		return err
	}
	if len(r.Steps) > 1 {
		if data.Load, err = r.load().SVG(); err != nil {
			return err
		}
	}
	var b bytes.Buffer
	if err := page.Execute(&b, data); err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "report.json"), append(js, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "report.html"), b.Bytes(), 0o644)
}

// Text is the report for a terminal.
func (r *Report) Text() string {
	var b strings.Builder
	p := func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) }
	p("%s\n", r.Lead)
	for _, a := range r.Advice {
		p("  - %s", a)
	}
	if len(r.Advice) > 0 {
		p("")
	}
	p("%-34s %9s %9s %9s %9s  %s", "latency", "median", "p90", "p99", "samples", "× round trip (99 % interval)")
	line := func(row Row) {
		p("%-34s %9s %9s %9s %9s  %s", row.Name, figures.Format(row.Median.Median, figures.Seconds), orDash(row.P90, figures.Seconds), orDash(row.P99, figures.Seconds), figures.Digits(float64(row.Samples)), ratio(row.Ratio))
	}
	for _, n := range r.Nodes {
		if n.Samples == 0 {
			p("%-34s does not answer", n.Name)
		} else if len(r.Nodes) > 1 {
			line(n.Row)
		}
	}
	for _, row := range r.Rows {
		line(row)
	}
	p("\n%-34s %9s %9s %9s  %s", "goroutines", "locks/s", "median", "p99", "busiest server")
	for _, s := range r.Steps {
		p("%-34d %9s %9s %9s  %s", s.Goroutines, figures.Digits(s.Rate), figures.Duration(s.Median), figures.Duration(s.P99), share(s.Server))
	}
	p("The load ended there: %s.\n\nLeft behind: %s.\n%s", r.Stopped, r.Left, r.Circumstances())
	return b.String()
}

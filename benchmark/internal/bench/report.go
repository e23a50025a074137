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
	Title    string        `json:"title"`
	Began    time.Time     `json:"began"`
	Took     time.Duration `json:"took_ns"`
	Quick    bool          `json:"quick"`
	Machine  Machine       `json:"machine"`
	Lead     string        `json:"lead"`             // where another library is ahead, then the rest
	Behind   []string      `json:"behind,omitempty"` // each comparison in which ours is behind
	Compared []Comparison  `json:"comparisons,omitempty"`
	Goals    []Goal        `json:"goals,omitempty"`
	Sections []*Section    `json:"sections"`
	Setups   []About       `json:"contestants"`
	Notes    []string      `json:"notes,omitempty"` // what was left out, and why
}

// Machine describes the machine of the run.
type Machine struct {
	Text      string   `json:"machine"` // system, processors, Go
	Servers   []string `json:"servers,omitempty"`
	Libraries []string `json:"libraries,omitempty"` // client and lock libraries, with versions
	// Foreign is how many processors other programs used, on average; negative: unknown.
	Foreign float64 `json:"foreign_processors"`
}

// About describes a contestant's setup.
type About struct {
	Name string `json:"name"`
	Kind Kind   `json:"kind"`
	How  string `json:"how"`
}

// A Section holds the results of one scenario.
type Section struct {
	Scenario string `json:"scenario"`
	Title    string `json:"title"`
	Text     string `json:"text"`
	// Key is the metric by which contestants are compared; Axis names the quantity that the
	// cases vary.
	Key  string `json:"key"`
	More bool   `json:"more_is_better,omitempty"`
	Axis string `json:"axis,omitempty"`
	// Once says that the section compares no contestants.
	Once  bool   `json:"once,omitempty"`
	Rows  []*Row `json:"rows"`
	Plots []Plot `json:"plots,omitempty"`
}

// A Plot says how to draw a metric of a section.
type Plot struct {
	Title  string `json:"title"`
	Metric string `json:"metric"`
	// Lines: one line per contestant over X; else one bar per contestant, by case.
	Lines bool `json:"lines,omitempty"`
	// Curve: the quantiles of each contestant, by case.
	Curve bool `json:"curve,omitempty"`
	More  bool `json:"more_is_better,omitempty"`
}

// label joins the titles of a section and a case, without repeating the servers if both name them.
func label(title, name string) string {
	if servers, rest, ok := strings.Cut(name, ", "); ok && strings.HasSuffix(title, servers) {
		name = rest
	}
	return title + ", " + name
}

// columns returns the names of the section's metrics, in order of appearance.
func (s *Section) columns() []string {
	var names []string
	for _, r := range s.Rows {
		at := -1 // after the metric that precedes it in this row
		for _, m := range r.Metrics {
			i := slices.Index(names, m.Name)
			if i < 0 {
				i = at + 1
				names = slices.Insert(names, i, m.Name)
			}
			at = i
		}
	}
	return names
}

// cases returns the names of the section's cases, in order.
func (s *Section) cases() []string {
	var names []string
	for _, r := range s.Rows {
		if !slices.Contains(names, r.Case) {
			names = append(names, r.Case)
		}
	}
	return names
}

// of returns the rows of this case.
func (s *Section) of(name string) []*Row {
	var rows []*Row
	for _, r := range s.Rows {
		if r.Case == name {
			rows = append(rows, r)
		}
	}
	return rows
}

// tables makes a table for each case of a section.
func (s *Section) tables() (out []figures.Table) {
	for _, name := range s.cases() {
		rows := s.of(name)
		t := figures.Table{Title: name, Header: []string{"contestant", "rounds", "samples"}}
		var shown []string
		for _, c := range s.columns() {
			if slices.ContainsFunc(rows, func(r *Row) bool { _, ok := r.metric(c); return ok }) {
				shown = append(shown, c)
			}
		}
		t.Header = append(t.Header, shown...)
		for _, r := range rows {
			cells := []string{r.Contestant, strconv.Itoa(r.rounds()), figures.Digits(float64(r.Samples))}
			for _, c := range shown {
				text := "–"
				if m, ok := r.metric(c); ok {
					text = m.String()
				}
				cells = append(cells, text)
			}
			t.Rows = append(t.Rows, figures.TableRow{Class: string(r.Kind), Cells: cells})
			if r.Error != "" {
				t.Notes = append(t.Notes, failure(r))
			}
			if r.Slow {
				t.Notes = append(t.Notes, r.Contestant+" took so long in one round that it had no other")
			}
		}
		out = append(out, t)
	}
	return out
}

// failure describes what failed in a row.
func failure(r *Row) string {
	if r.Failed == 0 {
		return r.Contestant + " could not take part: " + r.Error
	}
	return r.Contestant + ": " + figures.Digits(float64(r.Failed)) + " operations failed, the first: " + r.Error
}

// row returns the row of a contestant in a case; nil if there is none.
func (s *Section) row(name, contestant string) *Row {
	for _, r := range s.of(name) {
		if r.Contestant == contestant {
			return r
		}
	}
	return nil
}

// sumUp writes the sentences at the report's begin.
func (r *Report) sumUp() {
	counts, behind := summarize(r.Compared)
	r.Lead, r.Behind = strings.TrimSpace(newOverview(r).Lead+" "+counts), behind
	if f := r.Machine.Foreign; loaded(f) {
		r.Lead = fmt.Sprintf("Other programs used %s of %d processors. Beside such load nothing is judged: measure again without it. ", figures.Digits(f), runtime.NumCPU()) + r.Lead
	}
}

// write writes both files into a folder, which it makes.
func (r *Report) write(folder string) error {
	page, err := r.page()
	if err != nil {
		return err
	}
	return page.Write(folder, r)
}

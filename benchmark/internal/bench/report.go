package bench

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
)

// A Report is all that a run found. Its JSON is what the other two files are made of.
type Report struct {
	Title    string        `json:"title"`
	Began    time.Time     `json:"began"`
	Took     time.Duration `json:"took_ns"`
	Quick    bool          `json:"quick"`
	Machine  Machine       `json:"machine"`
	Summary  []string      `json:"summary"` // sentences, where we lose first
	Compared []Comparison  `json:"comparisons,omitempty"`
	Goals    []Goal        `json:"goals,omitempty"`
	Sections []*Section    `json:"sections"`
	Setups   []About       `json:"contestants"`
	Notes    []string      `json:"notes,omitempty"` // what was left out, and why
}

// Machine is where it was measured.
type Machine struct {
	Text      string   `json:"machine"` // system, processors, Go
	Servers   []string `json:"servers,omitempty"`
	Libraries []string `json:"libraries,omitempty"` // client and lock libraries, with versions
	// Foreign is how many processors others used, on average; below zero: not known.
	Foreign float64 `json:"foreign_processors"`
}

// About says how a contestant is set up.
type About struct {
	Name string `json:"name"`
	Kind Kind   `json:"kind"`
	How  string `json:"how"`
}

// A Section is what one scenario found.
type Section struct {
	Scenario string `json:"scenario"`
	Title    string `json:"title"`
	Text     string `json:"text"`
	// Key is the metric by which contestants are compared, Axis what the cases vary.
	Key   string `json:"key"`
	More  bool   `json:"more_is_better,omitempty"`
	Axis  string `json:"axis,omitempty"`
	Rows  []*Row `json:"rows"`
	Plots []Plot `json:"plots,omitempty"`
}

// A Plot is a metric of a section as a picture.
type Plot struct {
	Title  string `json:"title"`
	Metric string `json:"metric"`
	// Lines: one line per contestant over X; else one bar per contestant, by case.
	Lines bool `json:"lines,omitempty"`
	// Curve: the quantiles of each contestant, by case.
	Curve bool `json:"curve,omitempty"`
	More  bool `json:"more_is_better,omitempty"`
}

// columns returns the names of the section's metrics, in order of appearance.
func (s *Section) columns() []string {
	var names []string
	for _, r := range s.Rows {
		at := -1 // after its neighbour of this row
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

// of returns the rows of a case.
func (s *Section) of(name string) []*Row {
	var rows []*Row
	for _, r := range s.Rows {
		if r.Case == name {
			rows = append(rows, r)
		}
	}
	return rows
}

// A table is a case of a section as people read it: text alone.
type table struct {
	Case   string
	Header []string
	Rows   []tableRow
	Notes  []string
}

type tableRow struct {
	Kind  Kind
	Cells []string
}

// steps are operations whose figures have a table of their own, since one with all of
// them would be too wide to read.
var steps = []string{"", "acquire", "renew", "release"}

// tables makes the tables of a section. Markdown and HTML show the same.
func (s *Section) tables() []table {
	columns := s.columns()
	var out []table
	for _, name := range s.cases() {
		for _, step := range steps {
			if t := s.table(name, step, columns); len(t.Header) > 1 || step == "" {
				out = append(out, t)
			}
		}
	}
	return out
}

// stepOf returns to which of the steps a metric belongs, and what is left of its name.
func stepOf(name string) (step, rest string) {
	first, rest, _ := strings.Cut(name, " ")
	if rest != "" && slices.Contains(steps[1:], first) {
		return first, rest
	}
	return "", name
}

func (s *Section) table(name, step string, columns []string) table {
	rows := s.of(name)
	t := table{Case: name, Header: []string{"contestant"}}
	if step == "" {
		t.Header = append(t.Header, "rounds", "samples")
	}
	if step != "" {
		t.Case += ": " + step
	}
	var shown []string
	for _, c := range columns {
		of, rest := stepOf(c)
		if of == step && slices.ContainsFunc(rows, func(r *Row) bool { _, ok := r.metric(c); return ok }) {
			shown = append(shown, c)
			t.Header = append(t.Header, rest)
		}
	}
	for _, r := range rows {
		cells := []string{r.Contestant}
		if step == "" {
			cells = append(cells, strconv.Itoa(r.rounds()), figures.Digits(float64(r.Samples)))
		}
		for _, c := range shown {
			text := "–"
			if m, ok := r.metric(c); ok {
				text = m.String()
			}
			cells = append(cells, text)
		}
		t.Rows = append(t.Rows, tableRow{r.Kind, cells})
		if r.Error != "" && step == "" {
			t.Notes = append(t.Notes, failure(r))
		}
		if r.Cut && step == "" {
			t.Notes = append(t.Notes, r.Contestant+" still waited at the end of the case, which cut its last operation short: it takes longer than the figures say")
		}
	}
	return t
}

// failure says what failed in a row.
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

// write writes the three files into a folder, which it makes.
func (r *Report) write(folder string) error {
	js, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	md, html, err := r.pages()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for name, text := range map[string][]byte{"report.json": append(js, '\n'), "report.md": md, "report.html": html} {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

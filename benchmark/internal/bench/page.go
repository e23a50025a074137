package bench

import (
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
)

// page makes the report for people.
func (r *Report) page() (*figures.Page, error) {
	p := &figures.Page{Title: r.Title, Lead: r.Lead, Nav: true}
	add := func(b figures.Block) { p.Blocks = append(p.Blocks, b) }
	add(figures.Block{Text: r.circumstances() + " " + howToRead, Quiet: true})
	if r.Behind != nil {
		add(figures.Block{Fold: "Each comparison in which ours is behind, and what was measured beside it", List: r.Behind})
	}
	if o := newOverview(r); len(o.Rows) > 0 {
		add(figures.Block{Heading: "Overview", Text: "The time of a lock and its release, or of a handoff. Less is better, and the quickest other library is bold.", Tables: []figures.Table{o.Table}})
	}
	if len(r.Goals) > 0 {
		add(figures.Block{Fold: "Goals", Tables: []figures.Table{goalTable(r.Goals)}})
	}
	for _, s := range r.Sections {
		drawn, err := s.figures()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Title, err)
		}
		add(figures.Block{Heading: s.Title, Text: s.Text, Plots: drawn, Fold: "Figures", Tables: s.tables()})
	}
	var setups []string
	for _, a := range r.Setups {
		setups = append(setups, fmt.Sprintf("**%s** (%s): %s.", a.Name, a.Kind, a.How))
	}
	add(figures.Block{Heading: "Contestants", List: setups})
	if r.Notes != nil {
		add(figures.Block{Heading: "Left out", List: r.Notes})
	}
	return p, nil
}

// howToRead is the explanation before the figures.
const howToRead = "Every figure is the median of the rounds, with its 99 % confidence interval in brackets; p90 and beyond are of all rounds together. " +
	"All contestants have a turn in every round, and two are compared by the ratio of their figures in each round. Ours is ahead or behind if the whole interval of these ratios is more than 5 % away from 1. Otherwise, and if other programs used more than a fifth of the processors, the run cannot tell. " +
	"Ours is what users get; a part is some of it; a limit does less than a lock must do, as fast as possible; a peer is another library."

// circumstances says where and when the run was, and how busy the machine was otherwise.
func (r *Report) circumstances() string {
	m := r.Machine
	text := fmt.Sprintf("Measured on %s in %.0f s, on %s.", r.Began.Format("2 January 2006"), r.Took.Seconds(), m.Text)
	if m.Foreign >= 0 {
		text += fmt.Sprintf(" Other programs used %s of the processors.", figures.Digits(m.Foreign))
	}
	if len(m.Servers) > 0 {
		text += " Servers, on the same machine: " + strings.Join(m.Servers, ", ") + "."
	}
	if len(m.Libraries) > 0 {
		text += " Libraries: " + strings.Join(m.Libraries, ", ") + "."
	}
	if r.Quick {
		text += " This was a quick run, which cannot tell much."
	}
	return text
}

func goalTable(goals []Goal) figures.Table {
	t := figures.Table{Header: []string{"goal", "at most", "measured", ""}}
	for _, g := range goals {
		t.Rows = append(t.Rows, figures.TableRow{Class: string(g.Verdict), Cells: []string{g.What, figures.Digits(g.Most), g.Figure.String(), string(g.Verdict)}})
	}
	return t
}

// figures draws the plots of a section: lines by client library, dots and quantiles by case.
func (s *Section) figures() (out []figures.Figure, err error) {
	for _, p := range s.Plots {
		better := "less is better"
		if p.More || s.More && p.Metric == s.Key {
			better = "more is better"
		}
		add := func(title string, l interface{ SVG() (template.HTML, error) }) {
			svg, drawErr := l.SVG()
			err = cmp.Or(err, drawErr)
			out = append(out, figures.Figure{Title: title, Better: better, SVG: svg})
		}
		for _, client := range s.clients() {
			l := s.lines(p, client)
			if p.drawsLines(s) && slices.ContainsFunc(l.Series, func(s figures.Series) bool { return s.Client == client && len(s.Points) > 1 }) {
				add(strings.TrimSuffix(p.Title+", "+client, ", "), l)
			}
		}
		for _, c := range s.cases() {
			if l := s.curves(c); p.Curve && len(l.Series) > 0 {
				add(p.Title+": "+c, l)
			} else if d := s.dots(p, c); !p.Curve && !p.drawsLines(s) && len(d.Rows) > 1 {
				add(p.Title+": "+c, d)
			}
		}
	}
	return out, err
}

// drawsLines reports whether the plot has lines: they need more than one case.
func (p Plot) drawsLines(s *Section) bool { return p.Lines && len(s.cases()) > 1 }

// clients returns the client libraries of the section's rows.
func (s *Section) clients() (names []string) {
	for _, r := range s.Rows {
		if !slices.Contains(names, r.Client) {
			names = append(names, r.Client)
		}
	}
	return names
}

// lines returns a line for each contestant of a client library, and the lines of ours if the
// library has none.
func (s *Section) lines(p Plot, client string) figures.Lines {
	l := figures.Lines{X: s.Axis}
	own := slices.ContainsFunc(s.Rows, func(r *Row) bool { return r.Kind == Ours && r.Client == client })
	for _, r := range s.Rows {
		m, ok := r.metric(p.Metric)
		if p.Metric == s.Key && !r.handsOver() {
			continue
		}
		if !ok || m.Median <= 0 || r.Client != client && (own || r.Kind != Ours) {
			continue
		}
		l.YUnit = m.Unit
		i := slices.IndexFunc(l.Series, func(s figures.Series) bool { return s.Name == r.Contestant })
		if i < 0 {
			i = len(l.Series)
			l.Series = append(l.Series, r.series())
		}
		l.Series[i].Points = append(l.Series[i].Points, figures.Point{X: r.X, Y: m.Median, Low: m.Low, High: m.High})
	}
	return l
}

// series returns the contestant's name, colour and mark, the same in all plots.
func (r *Row) series() figures.Series {
	return figures.Series{Name: r.Contestant, Library: r.Library, Client: r.Client, Dashed: r.Kind == Part || strings.Contains(r.Contestant, "fail-fast")}
}

func (s *Section) curves(name string) figures.Lines {
	l := figures.Lines{X: "share of the locks", YUnit: figures.Seconds, Quantiles: true}
	for _, r := range s.of(name) {
		if len(r.Curve) > 1 {
			line := r.series()
			line.Points = r.Curve
			l.Series = append(l.Series, line)
		}
	}
	return l
}

func (s *Section) dots(p Plot, name string) figures.Dots {
	d := figures.Dots{}
	for _, r := range s.of(name) {
		if m, ok := r.metric(p.Metric); ok && m.Median > 0 {
			d.Unit = m.Unit
			d.Rows = append(d.Rows, figures.Dot{Name: r.Contestant, Library: r.Library, Client: r.Client, Value: m.Median, Low: m.Low, High: m.High})
		}
	}
	return d
}

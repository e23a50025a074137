package bench

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"slices"
	"strings"
	texttemplate "text/template"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
)

//go:embed page.html.tmpl
var htmlText string

//go:embed page.md.tmpl
var mdText string

var (
	helpers  = map[string]any{"style": figures.Style, "id": id}
	htmlPage = template.Must(template.New("html").Funcs(helpers).Parse(htmlText))
	mdPage   = texttemplate.Must(texttemplate.New("md").Funcs(helpers).Parse(mdText))
)

// view is the report as both pages show it.
type view struct {
	*Report
	Circumstances, HowToRead string
	GoalTable, Readme        table
	Views                    []sectionView
}

// sectionView is a section as the pages show it.
type sectionView struct {
	*Section
	Figures []figure
	Tables  []table
}

type figure struct {
	Title, Better string
	SVG           template.HTML
}

// pages writes the report for a repository, and as one page without scripts.
func (r *Report) pages() (md, html []byte, err error) {
	v := view{Report: r, Circumstances: r.circumstances(), HowToRead: howToRead, GoalTable: goalTable(r.Goals), Readme: readme(r.Sections)}
	for _, s := range r.Sections {
		drawn, err := s.figures()
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", s.Title, err)
		}
		v.Views = append(v.Views, sectionView{s, drawn, s.tables()})
	}
	var m, h bytes.Buffer
	if err := mdPage.Execute(&m, v); err != nil {
		return nil, nil, err
	}
	err = htmlPage.Execute(&h, v)
	return m.Bytes(), h.Bytes(), err
}

// howToRead stands before the figures.
const howToRead = "Every figure is the median of the rounds, with the range in brackets in which it is with a confidence of 99 %; p90 and beyond are of all rounds together. " +
	"Contestants took turns in every round, and two are compared by the ratio of each round: ahead or behind is only what the whole range of the ratios says, and everything else cannot be told. " +
	"Ours is what users get; a part is some of it, alone; a limit does less than a lock has to, as fast as it can be done; a peer is another library."

// circumstances says where, when and beside what it was measured.
func (r *Report) circumstances() string {
	m := r.Machine
	text := fmt.Sprintf("Measured on %s in %s, on %s.", r.Began.Format("2 January 2006 at 15:04"), shortly(r.Took), m.Text)
	if m.Foreign >= 0 {
		text += fmt.Sprintf(" Meanwhile others used %s of its processors.", figures.Digits(m.Foreign))
	}
	if len(m.Servers) > 0 {
		text += " Servers, on the same machine: " + strings.Join(m.Servers, ", ") + "."
	}
	if len(m.Libraries) > 0 {
		text += " Libraries: " + strings.Join(m.Libraries, ", ") + "."
	}
	if r.Quick {
		text += " This was a quick run: much of it cannot be told."
	}
	return text
}

func goalTable(goals []Goal) table {
	t := table{Header: []string{"goal", "at most", "measured", ""}}
	for _, g := range goals {
		t.Rows = append(t.Rows, tableRow{Kind(g.Verdict), []string{g.What, figures.Digits(g.Most), g.Figure.String(), string(g.Verdict)}})
	}
	return t
}

// markdown writes a table.
func (t table) markdown() string {
	var b strings.Builder
	row := func(cells []string) {
		for _, c := range cells {
			b.WriteString("| " + strings.ReplaceAll(c, "|", `\|`) + " ")
		}
		b.WriteString("|\n")
	}
	row(t.Header)
	row(slices.Repeat([]string{"---"}, len(t.Header)))
	for _, r := range t.Rows {
		row(r.Cells)
	}
	return b.String()
}

// Markdown is markdown, for templates.
func (t table) Markdown() string { return t.markdown() }

// figures draws the plots of a section: lines for each client library, dots and quantiles for each case.
func (s *Section) figures() (out []figure, err error) {
	for _, p := range s.Plots {
		better := "less is better"
		if p.More || s.More && p.Metric == s.Key {
			better = "more is better"
		}
		add := func(title string, svg template.HTML, drawErr error) {
			if drawErr != nil {
				err = drawErr
				return
			}
			out = append(out, figure{title, better, svg})
		}
		switch {
		case p.Curve:
			for _, c := range s.cases() {
				if l := s.curves(c); len(l.Series) > 0 {
					svg, err := l.SVG()
					add(p.Title+": "+c, svg, err)
				}
			}
		case p.Lines && len(s.cases()) > 1:
			for _, client := range s.clients() {
				if l := s.lines(p, client); slices.ContainsFunc(l.Series, func(s figures.Series) bool { return s.Client == client && len(s.Points) > 1 }) {
					svg, err := l.SVG()
					add(strings.TrimSuffix(p.Title+", "+client, ", "), svg, err)
				}
			}
		default:
			for _, c := range s.cases() {
				if d := s.dots(p, c); len(d.Rows) > 1 {
					svg, err := d.SVG()
					add(p.Title+": "+c, svg, err)
				}
			}
		}
	}
	return out, err
}

// clients returns the client libraries of the section's rows.
func (s *Section) clients() (names []string) {
	for _, r := range s.Rows {
		if !slices.Contains(names, r.Client) {
			names = append(names, r.Client)
		}
	}
	return names
}

// lines has a line for each contestant of a client library, and ours where that has none.
func (s *Section) lines(p Plot, client string) figures.Lines {
	l := figures.Lines{X: s.Axis, Y: p.Title, LogX: true, LogY: true}
	own := slices.ContainsFunc(s.Rows, func(r *Row) bool { return r.Kind == Ours && r.Client == client })
	for _, r := range s.Rows {
		m, ok := r.metric(p.Metric)
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

// series is how a contestant looks in all plots.
func (r *Row) series() figures.Series {
	return figures.Series{Name: r.Contestant, Library: r.Library, Client: r.Client, Dashed: r.Kind == Part || strings.Contains(r.Contestant, "fail-fast")}
}

func (s *Section) curves(name string) figures.Lines {
	l := figures.Lines{X: "share of the locks", Y: "latency", YUnit: figures.Seconds, LogX: true, LogY: true, Quantiles: true}
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
	d := figures.Dots{X: p.Title, Log: true}
	for _, r := range s.of(name) {
		if m, ok := r.metric(p.Metric); ok && m.Median > 0 {
			d.Unit = m.Unit
			d.Rows = append(d.Rows, figures.Dot{Name: r.Contestant, Library: r.Library, Client: r.Client, Value: m.Median, Low: m.Low, High: m.High})
		}
	}
	return d
}

// id makes an anchor of a title.
func id(title string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(title))
}

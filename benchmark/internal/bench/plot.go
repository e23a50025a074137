package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// A figure is a plot with all its coordinates, for the template. It is drawn for a width
// that a telephone shows, and grows from there.
type figure struct {
	Title  string
	Width  float64
	Height float64
	Scale  string // what the reader must know of the axis
	Ticks  []tick // of the vertical axis of lines
	Marks  []tick // of the horizontal axis
	Axis   string
	Lines  []drawnLine
	Bars   []drawnBar
	// of the field in which the lines are
	Left, Right, Top, Bottom float64
}

type tick struct {
	At   float64
	Text string
}

type drawnLine struct {
	Name, Class string
	Path        string
	Points      []drawnPoint
}

type drawnPoint struct {
	X, Y, Low, High float64
	Text            string
}

type drawnBar struct {
	Name, Class, Text string
	Y, Length         float64
	Low, High         float64 // the spread
}

const (
	plotWidth   = 480
	lineHeight  = 280
	barHeight   = 34
	barLeft     = 4
	barMost     = plotWidth - 8
	plotLeft    = 58
	plotRight   = 14
	plotTop     = 12
	plotBottom  = 40
	linesAtMost = 8 // colours
)

// figures draws the plots of a section: lines for each client library, bars for each
// case.
func (s *Section) figures() []figure {
	var out []figure
	for _, p := range s.Plots {
		if p.Lines && len(s.cases()) > 1 {
			for _, client := range s.clients() {
				if f, ok := s.lines(p, client); ok {
					out = append(out, f)
				}
			}
			continue
		}
		for _, c := range s.cases() {
			if f, ok := s.bars(p, c); ok {
				out = append(out, f)
			}
		}
	}
	return out
}

// clients returns the client libraries for which there is more than the floor.
func (s *Section) clients() []string {
	var names []string
	for _, r := range s.Rows {
		if r.Client != floorClient && !slices.Contains(names, r.Client) {
			names = append(names, r.Client)
		}
	}
	return names
}

// floorClient is the library whose contestants stand beside those of all others.
const floorClient = "socket"

// shows reports whether a row stands in the picture of a client library: its own, the
// floor and, where ours have no driver for it, those of ours.
func (s *Section) shows(r *Row, client string) bool {
	switch r.Client {
	case client:
		return true
	case floorClient:
		return r.Contestant != "scripts, "+floorClient
	}
	own := func(o *Row) bool { return o.Kind == Ours && o.Client == client }
	return r.Kind == Ours && !slices.ContainsFunc(s.Rows, own)
}

// lines draws one line per contestant of a client library.
func (s *Section) lines(p Plot, client string) (figure, bool) {
	f := figure{
		Title: p.Title, Width: plotWidth, Height: lineHeight, Axis: s.Axis,
		Left: plotLeft, Right: plotWidth - plotRight, Top: plotTop, Bottom: lineHeight - plotBottom,
	}
	if client != "" {
		f.Title += ", " + client
	}
	var unit Unit
	var xs, ys, own []float64
	var names []string
	byName := map[string][]*Row{}
	for _, r := range s.Rows {
		m, ok := r.metric(p.Metric)
		if !ok || !s.shows(r, client) {
			continue
		}
		if r.Client == client && !slices.Contains(own, r.X) {
			own = append(own, r.X)
		}
		unit = m.Unit
		if !slices.Contains(xs, r.X) {
			xs = append(xs, r.X)
		}
		ys = append(ys, m.Low, m.High)
		if byName[r.Contestant] == nil {
			names = append(names, r.Contestant)
		}
		byName[r.Contestant] = append(byName[r.Contestant], r)
	}
	if len(own) < 2 {
		return f, false // a point says nothing
	}
	slices.Sort(xs)
	axis := newAxis(ys, p.Log)
	if p.Log {
		f.Scale = "logarithmic scale"
	}
	down := func(v float64) float64 { return f.Bottom - axis.share(v)*(f.Bottom-f.Top) }
	across := func(x float64) float64 {
		return f.Left + 14 + float64(slices.Index(xs, x))*(f.Right-f.Left-28)/float64(len(xs)-1)
	}
	for _, v := range axis.ticks {
		f.Ticks = append(f.Ticks, tick{down(v), short(v, unit)})
	}
	for _, x := range xs {
		f.Marks = append(f.Marks, tick{across(x), grouped(x)})
	}
	colour, ours := 0, 0
	for _, name := range names {
		l := drawnLine{Name: name, Class: lineClass(byName[name][0], &colour)}
		if l.Class == "ours" {
			if ours++; ours > 1 {
				l.Class += " second"
			}
		}
		for i, r := range byName[name] {
			m, _ := r.metric(p.Metric)
			pt := drawnPoint{across(r.X), down(m.Value), down(m.Low), down(m.High), name + ", " + r.Case + ": " + m.String()}
			l.Points = append(l.Points, pt)
			l.Path += fmt.Sprintf("%s%.1f %.1f", map[bool]string{true: "M", false: " L"}[i == 0], pt.X, pt.Y)
		}
		f.Lines = append(f.Lines, l)
	}
	return f, true
}

// short is format for the few places of a tick: 150k/s.
func short(v float64, u Unit) string {
	if u != PerSecond && u != Count || v < 1000 {
		return format(v, u)
	}
	text := digits(v/1000) + "k"
	if v >= 1e6 {
		text = digits(v/1e6) + "M"
	}
	if u == PerSecond {
		text += "/s"
	}
	return text
}

// lineClass names how a line looks: ours stands out, the others have colours in turn.
func lineClass(r *Row, colour *int) string {
	switch r.Kind {
	case Ours:
		return "ours"
	case Part:
		return "part"
	}
	*colour++
	return fmt.Sprintf("c%d", (*colour-1)%linesAtMost)
}

// bars draws one bar per contestant of a case.
func (s *Section) bars(p Plot, name string) (figure, bool) {
	f := figure{Title: p.Title, Width: plotWidth}
	if len(s.cases()) > 1 {
		f.Title += ": " + name
	}
	var values []float64
	for _, r := range s.of(name) {
		if m, ok := r.metric(p.Metric); ok {
			values = append(values, m.Value, m.Low, m.High)
		}
	}
	if len(values) < 2*3 {
		return f, false // one bar says nothing
	}
	logarithmic := p.Log || spreadOut(values)
	axis := newAxis(values, logarithmic)
	if logarithmic {
		f.Scale = "logarithmic scale"
	}
	at := func(v float64) float64 { return barLeft + axis.share(v)*barMost }
	y := 0.0
	for _, r := range s.of(name) {
		m, ok := r.metric(p.Metric)
		if !ok {
			continue
		}
		f.Bars = append(f.Bars, drawnBar{
			Name: r.Contestant, Class: string(r.Kind), Text: format(m.Value, m.Unit),
			Y: y, Length: at(m.Value) - barLeft, Low: at(m.Low), High: at(m.High),
		})
		y += barHeight
	}
	f.Height = y
	return f, true
}

// spreadOut reports whether the greatest of values would leave nothing of most others on
// a linear scale.
func spreadOut(values []float64) bool {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[0] > 0 && sorted[len(sorted)-1] > 8*median(sorted)
}

// An axis maps values to shares of its length.
type axis struct {
	low, high float64
	log       bool
	ticks     []float64
}

// newAxis makes an axis that holds all values: from zero, or over whole steps of 1, 2, 5
// if it is logarithmic.
func newAxis(values []float64, logarithmic bool) axis {
	top := slices.Max(values)
	least := math.Inf(1)
	for _, v := range values {
		if v > 0 {
			least = min(least, v)
		}
	}
	if top <= 0 {
		return axis{high: 1, ticks: []float64{0, 1}}
	}
	if logarithmic {
		return logAxis(least, top)
	}
	step := niceStep(top / 5)
	a := axis{high: math.Ceil(top/step-1e-9) * step}
	for i := 0; float64(i)*step <= a.high*1.0001; i++ {
		a.ticks = append(a.ticks, float64(i)*step)
	}
	return a
}

func logAxis(least, top float64) axis {
	a := axis{log: true, low: math.Pow(10, math.Floor(math.Log10(least)+1e-9)), high: top}
	var steps []float64
	for p := a.low; p <= top*10; p *= 10 {
		steps = append(steps, p, 2*p, 5*p)
	}
	i := slices.IndexFunc(steps, func(v float64) bool { return v > least*0.999 })
	a.low = steps[max(i-1, 0)]
	j := slices.IndexFunc(steps, func(v float64) bool { return v >= top*0.999 })
	a.high = steps[j]
	for _, v := range steps {
		if v >= a.low*0.999 && v <= a.high*1.001 {
			a.ticks = append(a.ticks, v)
		}
	}
	if len(a.ticks) > 9 { // decades are enough
		a.ticks = slices.DeleteFunc(a.ticks, func(v float64) bool {
			e := math.Log10(v)
			return math.Abs(e-math.Round(e)) > 1e-6
		})
	}
	return a
}

// niceStep returns the least of 1, 2, 5 times a power of ten that is not below v.
func niceStep(v float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 2, 5} {
		if f*p >= v*0.999 {
			return f * p
		}
	}
	return 10 * p
}

// share returns where v stands, from 0 to 1.
func (a axis) share(v float64) float64 {
	s := (v - a.low) / (a.high - a.low)
	if a.log {
		s = math.Log(max(v, a.low)/a.low) / math.Log(a.high/a.low)
	}
	return min(max(s, 0), 1)
}

// id makes an anchor of a title.
func id(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r == ' ':
			return '-'
		}
		return -1
	}, title)
}

package figures

import (
	"bytes"
	"cmp"
	"fmt"
	"hash/fnv"
	"html/template"
	"image/color"
	"math"
	"regexp"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A Point is one figure on a line. Low and High are where it may be; zero: not known.
type Point struct{ X, Y, Low, High float64 }

// A Series is one line, or the dots of one contestant.
type Series struct {
	Name    string // "dlock, go-redis"
	Library string // decides the colour, in all plots of all reports
	Client  string // decides the shape of the marks
	Dashed  bool
	Points  []Point
}

// Lines is a plot of figures over something that varies.
type Lines struct {
	X, Y         string // what the axes show
	XUnit, YUnit Unit
	LogX, LogY   bool
	// Quantiles says that X is one divided by the share of the samples that are beyond.
	Quantiles bool
	Series    []Series
}

// A Dot is one row of Dots. Low and High are the ends of its whisker; zero: none.
type Dot struct {
	Name, Library, Client string
	Value, Low, High      float64
}

// Dots is a plot with a row for each of several names, on one axis.
type Dots struct {
	X    string
	Unit Unit
	Log  bool
	Rows []Dot
}

const (
	width    = vg.Length(360)
	fontSize = 11
)

// ink stands for the colour of the page's text, and faint for that of the grid: the page's style
// sheet decides them, in light and in dark.
var (
	ink   = color.RGBA{1, 1, 1, 255}
	faint = color.RGBA{2, 2, 2, 255}
)

// libraries have colours of their own; those that are not in the list get one by their name.
var libraries = []struct{ name, light, dark string }{
	{"dlock", "#0a5fd0", "#5aa2ff"},
	{"driver", "#6fa8e8", "#2f639e"},
	{"scripts", "#4b5563", "#b6bec8"},
	{"bare", "#9aa3ad", "#6b7480"},
	{"queue", "#b08d57", "#c9a877"},
	{"round trip", "#64748b", "#94a3b8"},
	{"redsync", "#d97b1c", "#e59a4d"},
	{"redislock", "#2a9d6f", "#4cc795"},
	{"valkeylock", "#b8337d", "#e46bae"},
	{"rueidislock", "#7a52cc", "#a98bf0"},
	{"etcd concurrency", "#c0392b", "#ef7b6e"},
	{"go-pglock", "#8a6d00", "#cfae3c"},
}

// slot returns the place of a library in the list of colours.
func slot(library string) int {
	for i, l := range libraries {
		if l.name == library {
			return i
		}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(library)) // it never fails
	return 6 + int(h.Sum32()%6)
}

// colourOf returns what stands for a library's colour until the page's style decides it.
func colourOf(library string) color.Color { return color.RGBA{0, 7, uint8(slot(library)), 255} }

// Style is the style sheet of a page with plots.
func Style() template.CSS {
	var light, dark strings.Builder
	for i, l := range libraries {
		fmt.Fprintf(&light, "--l%d:%s;", i, l.light)
		fmt.Fprintf(&dark, "--l%d:%s;", i, l.dark)
	}
	return template.CSS(":root{" + light.String() + "--grid:#dde1e6}@media(prefers-color-scheme:dark){:root{" + dark.String() + "--grid:#333a41}}" +
		"svg.plot{width:100%;height:auto;display:block}svg.plot text{font-family:system-ui,sans-serif!important}")
}

var standIn = regexp.MustCompile(`#(0[0-9A-Fa-f]{5})`)

// svg draws a plot.
func svg(p *plot.Plot, height vg.Length) (template.HTML, error) {
	c := vgsvg.New(width, height)
	p.Draw(draw.Crop(draw.New(c), 0, -6, 0, 0))
	return finish(c)
}

// finish returns what was drawn, with the colours of Style.
func finish(c *vgsvg.Canvas) (template.HTML, error) {
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return "", err
	}
	_, text, _ := strings.Cut(b.String(), "<svg ")
	text = standIn.ReplaceAllStringFunc(text, func(hex string) string {
		var r, g, b int
		if _, err := fmt.Sscanf(hex, "#%02x%02x%02x", &r, &g, &b); err != nil {
			return hex
		}
		switch {
		case r == 1 && g == 1:
			return "currentColor"
		case r == 2 && g == 2:
			return "var(--grid)"
		case g == 7 && b < len(libraries):
			return fmt.Sprintf("var(--l%d,%s)", b, libraries[b].light)
		}
		return hex
	})
	return template.HTML(`<svg class="plot" role="img" ` + text), nil
}

// newPlot returns an empty plot in the reports' style.
func newPlot() *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.Transparent
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Color, a.Label.TextStyle.Color, a.Tick.Label.Color, a.Tick.Color = ink, ink, ink, ink
		a.Label.TextStyle.Font.Size, a.Tick.Label.Font.Size = font.Length(fontSize), font.Length(fontSize)
		a.Label.TextStyle.Font.Variant, a.Tick.Label.Font.Variant = "Sans", "Sans"
		a.Padding = 2
	}
	p.Legend.TextStyle.Color, p.Legend.TextStyle.Font.Size, p.Legend.TextStyle.Font.Variant = ink, fontSize, "Sans"
	return p
}

func grid(p *plot.Plot, x, y bool) {
	g := plotter.NewGrid()
	g.Vertical.Color, g.Horizontal.Color = faint, faint
	if !x {
		g.Vertical.Color = nil
	}
	if !y {
		g.Horizontal.Color = nil
	}
	p.Add(g)
}

// scale sets an axis to the range of the figures and puts ticks on it.
func scale(a *plot.Axis, values []float64, unit Unit, logarithmic bool) {
	low, high := slices.Min(values), slices.Max(values)
	if !logarithmic {
		a.Min, a.Max = 0, high*1.08
		if high <= 0 {
			a.Max = 1
		}
		a.Tick.Marker = plot.TickerFunc(func(low, high float64) []plot.Tick {
			ticks := plot.DefaultTicks{}.Ticks(low, high)
			for i := range ticks {
				if ticks[i].Label != "" {
					ticks[i].Label = tickLabel(ticks[i].Value, unit)
				}
			}
			return ticks
		})
		return
	}
	a.Min, a.Max = low/1.25, high*1.25
	a.Scale = plot.LogScale{}
	a.Tick.Marker = plot.TickerFunc(func(low, high float64) []plot.Tick { return logTicks(low, high, unit) })
}

// logTicks labels decades, and steps between them where there is room.
func logTicks(low, high float64, unit Unit) (ticks []plot.Tick) {
	decades := math.Log10(high / low)
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		for m := 1.0; m < 10; m++ {
			v := m * math.Pow(10, e)
			if v < low || v > high {
				continue
			}
			t := plot.Tick{Value: v}
			if m == 1 || decades < 1.3 && (m == 2 || m == 5) || decades >= 1.3 && decades < 2.5 && m == 3 || decades < 0.4 {
				t.Label = tickLabel(v, unit)
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}

func tickLabel(v float64, u Unit) string {
	if (u == PerSecond || u == Count) && v >= 1000 {
		text := Format(v, Bytes) // the same steps of a thousand
		text = strings.ReplaceAll(strings.TrimSuffix(text, "B"), " ", "")
		if u == PerSecond {
			text += "/s"
		}
		return text
	}
	return strings.ReplaceAll(Format(v, u), " ", "\u2009")
}

// glyph returns the shape for a client library.
func glyph(client string) draw.GlyphDrawer {
	switch client {
	case "valkey-go":
		return draw.BoxGlyph{}
	case "rueidis":
		return draw.PyramidGlyph{}
	}
	return draw.CircleGlyph{}
}

// SVG draws the plot for a width from 360 pixels on.
func (l Lines) SVG() (template.HTML, error) {
	p := newPlot()
	grid(p, false, true)
	p.X.Label.Text, p.Y.Label.Text = l.X, l.Y
	var xs, ys []float64
	legend := 0
	for _, s := range l.Series {
		var at plotter.XYs
		for _, pt := range s.Points {
			if (pt.Y > 0 || !l.LogY) && (pt.X > 0 || !l.LogX) {
				at = append(at, plotter.XY{X: pt.X, Y: pt.Y})
				xs, ys = append(xs, pt.X), append(ys, pt.Y)
			}
		}
		if len(at) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(at)
		if err != nil {
			return "", err
		}
		line.Color, line.Width = colourOf(s.Library), 1.6
		if s.Library == "dlock" {
			line.Width = 2.6
		}
		if s.Dashed {
			line.Dashes = []vg.Length{5, 3}
		}
		dots.GlyphStyle = draw.GlyphStyle{Color: colourOf(s.Library), Radius: 2.8, Shape: glyph(s.Client)}
		p.Add(line, dots)
		p.Legend.Add(s.Name, line, dots)
		legend++
	}
	if len(xs) == 0 {
		return "", fmt.Errorf("the plot of %s has no figures", l.Y)
	}
	scale(&p.X, xs, l.XUnit, l.LogX)
	scale(&p.Y, ys, l.YUnit, l.LogY)
	if l.LogX {
		p.X.Min, p.X.Max = slices.Min(xs)/1.1, slices.Max(xs)*1.1
	}
	if l.LogX && !l.Quantiles { // the places of the figures are the ticks
		slices.Sort(xs)
		p.X.Tick.Marker = ticksAt(slices.Compact(xs), l.XUnit)
	}
	if l.Quantiles {
		p.X.Tick.Marker = plot.TickerFunc(quantileTicks)
	}
	if err := l.whiskers(p); err != nil {
		return "", err
	}
	return withLegend(p, 220, legend)
}

// withLegend draws the plot with the legend below it: there are too many names for a corner.
func withLegend(p *plot.Plot, height vg.Length, names int) (template.HTML, error) {
	legend := p.Legend
	p.Legend = plot.NewLegend()
	total := height + vg.Length(names)*14 + 6
	c := vgsvg.New(width, total)
	dc := draw.New(c)
	p.Draw(draw.Crop(dc, 0, -6, total-height, 0))
	legend.Top, legend.Left, legend.XOffs, legend.YOffs = true, true, 6, 0
	legend.ThumbnailWidth, legend.Padding = 24, 3
	legend.Draw(draw.Crop(dc, 0, 0, 0, -height-2))
	return finish(c)
}

// whiskers draws where the figures may be, within the axis: they do not stretch it.
func (l Lines) whiskers(p *plot.Plot) error {
	for _, s := range l.Series {
		for _, pt := range s.Points {
			low, high := max(pt.Low, p.Y.Min), min(pt.High, p.Y.Max)
			if pt.High <= 0 || low >= high || l.LogY && pt.Y <= 0 || l.LogX && pt.X <= 0 {
				continue
			}
			w, err := plotter.NewLine(plotter.XYs{{X: pt.X, Y: low}, {X: pt.X, Y: high}})
			if err != nil {
				return err
			}
			w.Color, w.Width = colourOf(s.Library), 0.8
			x, y := p.X, p.Y
			p.Add(w)
			p.X, p.Y = x, y
		}
	}
	return nil
}

func ticksAt(values []float64, unit Unit) plot.Ticker {
	var ticks []plot.Tick
	for _, v := range values {
		ticks = append(ticks, plot.Tick{Value: v, Label: tickLabel(v, unit)})
	}
	return plot.ConstantTicks(ticks)
}

// quantileTicks labels p50, p90, p99 and so on.
func quantileTicks(low, high float64) (ticks []plot.Tick) {
	for _, t := range []plot.Tick{{Value: 2, Label: "p50"}, {Value: 10, Label: "p90"}, {Value: 100, Label: "p99"}, {Value: 1000, Label: "p99.9"}, {Value: 1e4, Label: "p99.99"}, {Value: 1e5, Label: "p99.999"}} {
		if t.Value >= low && t.Value <= high {
			ticks = append(ticks, t)
		}
	}
	return ticks
}

// SVG draws the plot for a width from 360 pixels on: the first row is on top.
func (d Dots) SVG() (template.HTML, error) {
	p := newPlot()
	grid(p, true, false)
	p.X.Label.Text = d.X
	var values []float64
	var names []string
	rows := slices.Clone(d.Rows)
	slices.Reverse(rows)
	for _, r := range rows {
		names = append(names, r.Name)
		if r.Value > 0 || !d.Log {
			values = append(values, r.Value)
		}
	}
	if len(values) == 0 {
		return "", fmt.Errorf("the plot of %s has no figures", d.X)
	}
	for _, r := range rows { // a whisker does not stretch the scale by more than a decade
		if high := min(r.High, 10*slices.Max(values)); high > 0 {
			values = append(values, high)
		}
	}
	scale(&p.X, values, d.Unit, d.Log)
	// Room for the figure beside the last dot.
	if d.Log {
		p.X.Min, p.X.Max = p.X.Min/1.1, p.X.Max*math.Pow(p.X.Max/p.X.Min, 0.28)
	} else {
		p.X.Max *= 1.28
	}
	x := p.X
	for i, r := range rows {
		if r.Value <= 0 && d.Log {
			continue
		}
		y := float64(i)
		low, high := max(cmp.Or(r.Low, r.Value), x.Min), min(cmp.Or(r.High, r.Value), x.Max)
		if low < high {
			w, err := plotter.NewLine(plotter.XYs{{X: low, Y: y}, {X: high, Y: y}})
			if err != nil {
				return "", err
			}
			w.Color, w.Width = colourOf(r.Library), 2
			p.Add(w)
		}
		dot, err := plotter.NewScatter(plotter.XYs{{X: r.Value, Y: y}})
		if err != nil {
			return "", err
		}
		dot.GlyphStyle = draw.GlyphStyle{Color: colourOf(r.Library), Radius: 3.6, Shape: glyph(r.Client)}
		text, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: high, Y: y}}, Labels: []string{Format(r.Value, d.Unit)}})
		if err != nil {
			return "", err
		}
		text.TextStyle[0].Color, text.TextStyle[0].Font.Size, text.TextStyle[0].Font.Variant = ink, fontSize, "Sans"
		text.TextStyle[0].YAlign = -0.4
		text.Offset = vg.Point{X: 6}
		p.Add(dot, text)
	}
	p.X = x
	p.NominalY(names...)
	p.Y.Padding = 6
	p.Y.Min, p.Y.Max = -0.6, float64(len(rows))-0.4
	return svg(p, vg.Length(len(rows))*18+44)
}

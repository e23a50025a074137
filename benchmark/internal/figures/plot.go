package figures

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"html"
	"html/template"
	"image/color"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A Point is one figure on a line. Low and High are the ends of its interval; zero: unknown.
type Point struct{ X, Y, Low, High float64 }

// A Series is one line, or the dots of one contestant.
type Series struct {
	Name    string // "dlock, go-redis"
	Library string // decides the colour, the same in all plots of all reports
	Client  string // decides the shape of the marks
	Dashed  bool
	Points  []Point
}

// Lines is a plot of figures over something that varies, on logarithmic axes.
type Lines struct {
	X     string // the title of the axis; the other axis has the plot's title
	YUnit Unit
	// Quantiles says that X is 1/(1-q) for the quantile q.
	Quantiles bool
	Series    []Series
}

// A Dot is one row of Dots. Low and High are the ends of its whisker; zero: none.
type Dot struct {
	Name, Library, Client string
	Value, Low, High      float64
}

// Dots is a plot with one row for each name, on one logarithmic axis, which has the plot's title.
type Dots struct {
	Unit Unit
	Rows []Dot
}

const (
	width    = vg.Length(360)
	fontSize = 11
)

// ink stands for the colour of the text and faint for that of the grid. The page's style sheet
// sets both, for light and dark pages.
var (
	ink   = color.RGBA{1, 1, 1, 255}
	faint = color.RGBA{2, 2, 2, 255}
)

// libraries lists the libraries with fixed colours. Others get a colour by their name.
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
	{"etcd concurrency", "#c0392b", "#ef7b6e"},
	{"go-pglock", "#8a6d00", "#cfae3c"},
}

// slot returns the index of a library's colour.
func slot(library string) int {
	for i, l := range libraries {
		if l.name == library {
			return i
		}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(library)) // it never fails
	return 6 + int(h.Sum32())%(len(libraries)-6)
}

// colourOf returns a placeholder for a library's colour, which the page's style sheet sets.
func colourOf(library string) color.Color { return color.RGBA{0, 7, uint8(slot(library)), 255} }

// style is the style sheet of a page with plots.
func style() template.CSS {
	var light, dark strings.Builder
	for i, l := range libraries {
		fmt.Fprintf(&light, "--l%d:%s;", i, l.light)
		fmt.Fprintf(&dark, "--l%d:%s;", i, l.dark)
	}
	return template.CSS(":root{" + light.String() + "--grid:#dde1e6}@media(prefers-color-scheme:dark){:root{" + dark.String() + "--grid:#333a41}}" +
		"svg.plot{width:100%;height:auto;display:block}svg.plot text{font-family:'Liberation Sans',Arial,Helvetica,sans-serif!important}")
}

// written is one text of a plot. A browser has other fonts than the library that lays the plot
// out. So the SVG gives each text's width, and names end where their rows begin.
var (
	written = regexp.MustCompile(`<text[^>]*>([^<]*)</text>`)
	face    = font.DefaultCache.Lookup(font.Font{Typeface: plot.DefaultFont.Typeface, Variant: "Sans"}, fontSize)
)

var standIn = regexp.MustCompile(`#(0[0-9A-Fa-f]{5})`)

var errEmpty = errors.New("a plot has no figures")

// svg draws a plot as SVG, with the colours of the page's style sheet. A legend of several names
// is below the plot, because the names do not fit into a corner.
func svg(p *plot.Plot, height vg.Length, legend plot.Legend, names int) (template.HTML, error) {
	total := height
	if names > 1 {
		total += vg.Length(names)*14 + 6
	}
	c := vgsvg.New(width, total)
	dc := draw.New(c)
	p.Draw(draw.Crop(dc, 0, -6, total-height, 0))
	if names > 1 {
		legend.Draw(draw.Crop(dc, 0, 0, 0, -height-2))
	}
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return "", err
	}
	_, text, _ := strings.Cut(b.String(), "<svg ")
	text = written.ReplaceAllStringFunc(text, func(element string) string {
		words := html.UnescapeString(written.FindStringSubmatch(element)[1])
		return fmt.Sprintf(`<text textLength="%.1f" lengthAdjust="spacingAndGlyphs"`, face.Width(words).Points()) + strings.TrimPrefix(element, "<text")
	})
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

// textStyle makes a text look like the others.
func textStyle(s *draw.TextStyle) { s.Color, s.Font.Size, s.Font.Variant = ink, fontSize, "Sans" }

// newPlot returns an empty plot in the reports' style, with a grid across one axis.
func newPlot(across func(*plotter.Grid) *draw.LineStyle) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.Transparent
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		textStyle(&a.Label.TextStyle)
		textStyle(&a.Tick.Label)
		a.Color, a.Tick.Color, a.Padding = ink, ink, 2
	}
	g := &plotter.Grid{}
	*across(g) = plotter.DefaultGridLineStyle
	across(g).Color = faint
	p.Add(g)
	return p
}

// scale sets an axis to a range and adds ticks.
func scale(a *plot.Axis, low, high float64, ticks plot.Ticker) {
	a.Min, a.Max, a.Scale, a.Tick.Marker = low, high, plot.LogScale{}, ticks
}

// logTicks labels two to four steps, so that the labels fit below a narrow plot.
func logTicks(unit Unit) plot.TickerFunc {
	return func(low, high float64) (ticks []plot.Tick) {
		first, last := int(math.Floor(math.Log10(low))), int(math.Ceil(math.Log10(high)))
		at := func(every int, steps ...float64) (found []float64) {
			for e := first; e <= last; e += every {
				for _, m := range steps {
					if v := m * math.Pow10(e); v >= low && v <= high {
						found = append(found, v)
					}
				}
			}
			return found
		}
		labels := at(1, 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
		for _, fewer := range [][]float64{at(1, 1, 1.5, 2, 3, 4, 5, 7), at(1, 1, 2, 3, 5), at(1, 1, 2, 5), at(1, 1, 3), at(1, 1), at(2, 1), at(3, 1)} {
			if len(labels) > 4 && len(fewer) > 1 {
				labels = fewer
			}
		}
		for _, v := range at(1, 1, 2, 3, 4, 5, 6, 7, 8, 9) {
			ticks = append(ticks, plot.Tick{Value: v})
		}
		for _, v := range labels {
			ticks = append(ticks, plot.Tick{Value: v, Label: tickLabel(v, unit)})
		}
		return ticks
	}
}

func tickLabel(v float64, u Unit) string {
	switch u {
	case PerSecond, Count:
		return strings.ReplaceAll(humanize.SIWithDigits(v, 2, strings.TrimPrefix(string(u), "1")), " ", "")
	case Seconds, Bytes:
		return strings.ReplaceAll(humanize.SIWithDigits(v, 2, string(u)), " ", "\u2009")
	}
	return Format(v, u)
}

// glyph returns the mark for a client library.
func glyph(client string) draw.GlyphDrawer {
	switch client {
	case "valkey-go":
		return draw.BoxGlyph{}
	case "rueidis":
		return draw.PyramidGlyph{}
	}
	return draw.CircleGlyph{}
}

// whisker draws the interval of a figure.
func whisker(p *plot.Plot, library string, width vg.Length, from, to plotter.XY) error {
	w, err := plotter.NewLine(plotter.XYs{from, to})
	if err == nil {
		w.Color, w.Width = colourOf(library), width
		p.Add(w)
	}
	return err
}

// SVG draws the plot. It leaves out what is not positive.
func (l Lines) SVG() (template.HTML, error) {
	p := newPlot(func(g *plotter.Grid) *draw.LineStyle { return &g.Horizontal })
	p.X.Label.Text = l.X
	var xs, ys []float64
	for _, s := range l.Series {
		for _, pt := range s.Points {
			if pt.X > 0 && pt.Y > 0 {
				xs, ys = append(xs, pt.X), append(ys, pt.Y)
			}
		}
	}
	if len(xs) == 0 {
		return "", errEmpty
	}
	slices.Sort(xs)
	bottom, top := slices.Min(ys)/1.25, slices.Max(ys)*1.25
	legend, names := plot.NewLegend(), 0
	textStyle(&legend.TextStyle)
	legend.Top, legend.Left, legend.XOffs, legend.ThumbnailWidth, legend.Padding = true, true, 6, 24, 3
	for _, s := range l.Series {
		var at plotter.XYs
		for _, pt := range s.Points {
			if pt.X <= 0 || pt.Y <= 0 {
				continue
			}
			at = append(at, plotter.XY{X: pt.X, Y: pt.Y})
			if low, high := max(pt.Low, bottom), min(pt.High, top); low < high { // cut, so that it does not stretch the axis
				if err := whisker(p, s.Library, 0.8, plotter.XY{X: pt.X, Y: low}, plotter.XY{X: pt.X, Y: high}); err != nil {
					return "", err
				}
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
		legend.Add(s.Name, line, dots)
		names++
	}
	ticks := plot.Ticker(plot.TickerFunc(quantileTicks))
	if !l.Quantiles { // the X values themselves
		ticks = ticksAt(slices.Compact(slices.Clone(xs)))
	}
	scale(&p.X, xs[0]/1.1, xs[len(xs)-1]*1.1, ticks)
	scale(&p.Y, bottom, top, logTicks(l.YUnit))
	return svg(p, 220, legend, names)
}

func ticksAt(values []float64) plot.Ticker {
	var ticks []plot.Tick
	for _, v := range values {
		ticks = append(ticks, plot.Tick{Value: v, Label: tickLabel(v, Count)})
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

// SVG draws the plot, with the first row on top. It leaves out what is not positive.
func (d Dots) SVG() (template.HTML, error) {
	p := newPlot(func(g *plotter.Grid) *draw.LineStyle { return &g.Vertical })
	rows := slices.DeleteFunc(slices.Clone(d.Rows), func(r Dot) bool { return r.Value <= 0 })
	slices.Reverse(rows)
	if len(rows) == 0 {
		return "", errEmpty
	}
	byValue := func(a, b Dot) int { return cmp.Compare(a.Value, b.Value) }
	low, high := slices.MinFunc(rows, byValue).Value, slices.MaxFunc(rows, byValue).Value
	most := 10 * high
	for _, r := range rows { // a whisker does not stretch the scale by more than a decade
		high = max(high, min(r.High, most))
	}
	// Leave room for the figure beside the last dot, and between the names and the first dot.
	span := 1.25 * 1.25 * high / low
	left, right := low/1.25/math.Pow(span, 0.08), high*1.25*math.Pow(span, 0.28)
	var names []string
	for i, r := range rows {
		names = append(names, r.Name)
		y := float64(i)
		from, to := max(cmp.Or(r.Low, r.Value), low), min(cmp.Or(r.High, r.Value), right)
		if from < to {
			if err := whisker(p, r.Library, 2, plotter.XY{X: from, Y: y}, plotter.XY{X: to, Y: y}); err != nil {
				return "", err
			}
		}
		dot, err := plotter.NewScatter(plotter.XYs{{X: r.Value, Y: y}})
		if err != nil {
			return "", err
		}
		dot.GlyphStyle = draw.GlyphStyle{Color: colourOf(r.Library), Radius: 3.6, Shape: glyph(r.Client)}
		text, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: to, Y: y}}, Labels: []string{Format(r.Value, d.Unit)}})
		if err != nil {
			return "", err
		}
		textStyle(&text.TextStyle[0])
		text.TextStyle[0].YAlign = -0.4
		text.Offset = vg.Point{X: 6}
		p.Add(dot, text)
	}
	scale(&p.X, left, right, logTicks(d.Unit))
	p.NominalY(names...)
	p.Y.Padding, p.Y.Min, p.Y.Max = 6, -0.6, float64(len(rows))-0.4
	return svg(p, vg.Length(len(rows))*18+30, plot.Legend{}, 0)
}

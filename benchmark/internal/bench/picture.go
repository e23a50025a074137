package bench

import (
	"fmt"
	"html"
	"math"
	"strings"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
)

// panels are the parts of the picture, one below the other: where locks differ by ten and by a
// thousand, and, last and at the same size, where others are ahead.
var panels = []struct {
	title string
	*Scenario
	name, metric string
}{
	{"Five nodes, 2 ms to each: acquire", links, near, "acquire"},
	{"One of the five silent: acquire", links, silence, "acquire"},
	{"One of the five 50 ms away: acquire", links, far, "acquire"},
	{"Eight processes want one key: pass it on", handoff, fiveRedis.String() + ", 8 clients", passingOn},
	{"Five nodes on loopback, alone: acquire", quorum, fiveRedis.String(), "acquire"},
	{"One server on loopback, alone: acquire", single, oneRedis.String(), "acquire"},
}

// The picture's measures, in pixels. It is hardly wider than a telephone, so that its words are large
// enough there.
const (
	pictureWidth = 400
	rowHeight    = 18
	plotLeft     = 208
	plotRight    = 334 // the figure of the rightmost dot is beyond it
)

// The scale of all panels, in powers of ten of a second.
const leastPower, mostPower = -5, 1

var labels = map[int]string{-5: "10 µs", -3: "1 ms", -1: "100 ms", 1: "10 s"}

// place returns where a time stands in a panel.
func place(seconds float64) float64 {
	at := min(max(math.Log10(seconds), leastPower), mostPower)
	return plotLeft + (at-leastPower)/(mostPower-leastPower)*(plotRight-plotLeft)
}

// pictureStyle has the colours for light and for dark pages. The picture has a ground of its own,
// since a page may be dark where the system is light.
const pictureStyle = `<style>
text{font:12px system-ui,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1c2024}.title{font-weight:600;font-size:13px}.quiet{fill:#626a73;font-size:11px}
.middle{text-anchor:middle}.ground{fill:#fff}.grid{stroke:#e2e5e9}.ours{fill:#0a5fd0}.peer{fill:#d06a12}text.ours{font-weight:600}text.peer{fill:#1c2024}
@media(prefers-color-scheme:dark){text,text.peer{fill:#e4e7ea}.quiet{fill:#9aa3ad}.ground{fill:#14171a}.grid{stroke:#2d333a}.ours,text.ours{fill:#5aa2ff}.peer{fill:#e59a4d}}
</style>
`

// Picture draws the time of an acquisition and of a handoff, for ours and for each other library,
// as SVG.
func (r *Report) Picture() string {
	var b strings.Builder
	var cases []*Case // of the panels; nil: not measured
	for _, p := range panels {
		cases = append(cases, r.find(p.Scenario, p.name))
	}
	const top = 5*rowHeight + 8
	height := top + 3*rowHeight
	for _, c := range cases {
		height += (max(1, len(c.shown())) + 3) * rowHeight
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`+"\n", pictureWidth, height, pictureWidth, height)
	text := func(x, y float64, class, words string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" class="%s">%s</text>`+"\n", x, y, class, html.EscapeString(words))
	}
	const title = "How long a lock takes: ours and other libraries"
	fmt.Fprintf(&b, "<title>%s. %s</title>\n", title, html.EscapeString(r.when()))
	fmt.Fprintf(&b, "%s"+`<rect class="ground" width="%d" height="%d"/>`+"\n", pictureStyle, pictureWidth, height)
	text(12, rowHeight+2, "title", title)
	for i, line := range []string{
		"Medians on one logarithmic scale: a step is ten times. Less is",
		"better. Redis, the clients and the locks share one machine;",
		"proxies add the round trips. The last two are on loopback",
		"without a proxy: only processor time counts there.",
	} {
		text(12, float64(i+2)*rowHeight, "quiet", line)
	}
	y := float64(top)
	for i, p := range panels {
		shown := cases[i].shown()
		foot := y + float64(max(1, len(shown))+1)*rowHeight + 6
		text(12, y+rowHeight, "title", p.title)
		for power := leastPower; power <= mostPower; power++ {
			at := place(math.Pow10(power))
			fmt.Fprintf(&b, `<path class="grid" d="M%.1f %.1fV%.1f"/>`+"\n", at, y+rowHeight+6, foot)
			if label := labels[power]; label != "" {
				text(at, foot+12, "quiet middle", label)
			}
		}
		if shown == nil {
			text(12, y+2*rowHeight, "quiet", "not measured")
		}
		for j, row := range shown {
			at, class := y+float64(j+2)*rowHeight, string(row.Kind)
			text(12, at, class, row.String())
			v := row.figure(p.metric)
			if v <= 0 {
				text(plotLeft, at, "quiet", "–")
				continue
			}
			fmt.Fprintf(&b, `<circle class="%s" cx="%.1f" cy="%.1f" r="4"/>`+"\n", class, place(v), at-4)
			text(place(v)+8, at, class, figures.Format(v, figures.Seconds))
		}
		y = foot + rowHeight + 12
	}
	when, where, _ := strings.Cut(r.when(), ", on ")
	text(12, y+rowHeight, "quiet", when)
	text(12, y+2*rowHeight-2, "quiet", "on "+where)
	b.WriteString("</svg>\n")
	return b.String()
}

// shown returns the rows that the picture has: ours and other libraries.
func (c *Case) shown() (list []*Row) {
	if c == nil {
		return nil
	}
	for _, kind := range []Kind{Ours, Peer} {
		for _, r := range c.Rows {
			if r.Kind == kind {
				list = append(list, r)
			}
		}
	}
	return list
}

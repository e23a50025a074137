package bench

import (
	"bytes"
	"encoding/json"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// sample is a report with everything in it that a report can have.
func sample() *Report {
	m := func(name string, u Unit, v, low, high float64) Metric { return Metric{name, u, v, low, high} }
	bars := &Section{
		Scenario: "single", Title: "Latency on one server", Text: "One <caller>.", Key: pair + " p50",
		Plots: []Plot{{Title: "median", Metric: pair + " p50"}},
		Rows: []*Row{
			{Case: "redis-server", Contestant: "dlock, go-redis", Kind: Ours, Client: "go-redis", Metrics: []Metric{
				m(pair+" p50", Seconds, 50e-6, 48e-6, 53e-6), m("acquire p50", Seconds, 26e-6, 25e-6, 28e-6), m("release p50", Seconds, 24e-6, 24e-6, 24e-6)}},
			{Case: "redis-server", Contestant: "bare, go-redis", Kind: Limit, Client: "go-redis", Metrics: []Metric{
				m(pair+" p50", Seconds, 40e-6, 39e-6, 41e-6), m("acquire p50", Seconds, 20e-6, 19e-6, 21e-6)}},
			{Case: "redis-server", Contestant: "a | pipe", Kind: Peer, Error: "open: no", Cut: true},
		},
	}
	lines := &Section{
		Scenario: "throughput", Title: "Throughput", Text: "Many.", Key: "locks", More: true, Axis: "goroutines",
		Plots: []Plot{{Title: "rate", Metric: "locks", Lines: true}, {Title: "rate", Metric: "locks", Lines: true, Log: true}},
	}
	for i, x := range []float64{1, 64} {
		for j, name := range []string{"dlock, go-redis", "bare, go-redis", "bare, socket"} {
			v := float64(1000 * (i + 1) * (j + 1))
			client := name[strings.LastIndex(name, " ")+1:]
			kind := Limit
			if j == 0 {
				kind = Ours
			}
			lines.Rows = append(lines.Rows, &Row{Case: plural(int(x), "goroutine"), X: x, Contestant: name, Kind: kind, Client: client,
				Metrics: []Metric{m("locks", PerSecond, v, v*0.9, v*1.1)}})
		}
	}
	r := &Report{
		Title: "Locks, measured", Began: time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC), Took: time.Minute, Quick: true,
		Machine:  Machine{OS: "linux", Arch: "amd64", CPUs: 2, Go: "go1.25", Servers: []string{"redis-server 7.0"}},
		Sections: []*Section{bars, lines},
		Setups:   []About{{"dlock, go-redis", Ours, "as it is"}},
		Notes:    []string{"valkey-server is left out"},
	}
	relate(bars, "redis-server")
	r.Summary = summarize(r.Sections)
	r.Goals = []Goal{{What: "one", Most: 1.25, Measured: 1.2, Met: true}, {What: "two", Most: 1, Measured: 3}}
	return r
}

// everyCell returns what the tables have to show of a report that was read back from its
// JSON.
func everyCell(t *testing.T, js []byte) (cells []string) {
	var r Report
	if err := json.Unmarshal(js, &r); err != nil {
		t.Fatal(err)
	}
	for _, s := range r.Sections {
		for _, row := range s.Rows {
			cells = append(cells, row.Contestant)
			for _, m := range row.Metrics {
				cells = append(cells, m.String())
			}
		}
	}
	return cells
}

func markdownCells(text string) (cells []string) {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		line = strings.ReplaceAll(line, `\|`, "\x00")
		for _, c := range strings.Split(line, "|") {
			cells = append(cells, strings.ReplaceAll(strings.TrimSpace(c), "\x00", "|"))
		}
	}
	return cells
}

func htmlCells(page string) (cells []string) {
	for _, m := range regexp.MustCompile(`<td[^>]*>(.*?)</td>`).FindAllStringSubmatch(page, -1) {
		cells = append(cells, html.UnescapeString(m[1]))
	}
	return cells
}

func TestTheTablesOfBothPagesMatchTheJSON(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "new", "report")
	if err := sample().write(folder); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	want := everyCell(t, []byte(read("report.json")))
	if len(want) < 20 {
		t.Fatalf("the sample has only %d cells", len(want))
	}
	for name, got := range map[string][]string{"report.md": markdownCells(read("report.md")), "report.html": htmlCells(read("report.html"))} {
		for _, cell := range want {
			if !slices.Contains(got, cell) {
				t.Errorf("%s lacks the cell %q", name, cell)
			}
		}
	}
}

func TestBothPagesHaveTheSameRowsInTheSameOrder(t *testing.T) {
	r := sample()
	page, err := r.html()
	if err != nil {
		t.Fatal(err)
	}
	var want [][]string
	for _, s := range r.Sections {
		for _, tab := range s.tables() {
			for _, row := range tab.Rows {
				want = append(want, row.Cells)
			}
		}
	}
	md, inHTML := markdownCells(string(r.markdown())), htmlCells(string(page))
	for _, cells := range want {
		for _, got := range [][]string{md, inHTML} {
			if !inOrder(got, cells) {
				t.Errorf("the row %q is not there as it is", cells)
			}
		}
	}
}

// inOrder reports whether cells stand next to each other.
func inOrder(all, cells []string) bool {
	for i := range all {
		if i+len(cells) <= len(all) && slices.Equal(all[i:i+len(cells)], cells) {
			return true
		}
	}
	return false
}

func TestThePageNeedsNothingElse(t *testing.T) {
	page, err := sample().html()
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"<script", "http://", "https://", "src=", "@import", "url(", "ZgotmplZ", "NaN", "Inf", "<caller>"} {
		if bytes.Contains(page, []byte(bad)) {
			t.Errorf("the page contains %q", bad)
		}
	}
	for _, want := range []string{"prefers-color-scheme: dark", `name="viewport"`, "<svg", "</html>", "could not take part", "cut its last operation short", "valkey-server is left out", "&lt;caller&gt;"} {
		if !bytes.Contains(page, []byte(want)) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

func TestTheFirstParagraphOfBothPagesIsTheSummary(t *testing.T) {
	r := sample()
	page, err := r.html()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(r.markdown()), "# "+r.Title+"\n\n"+r.Summary[0]+"\n") {
		t.Error("report.md does not begin with it")
	}
	first := regexp.MustCompile(`(?s)<p[^>]*>(.*?)</p>`).FindStringSubmatch(string(page))
	if first == nil || html.UnescapeString(first[1]) != r.Summary[0] {
		t.Errorf("report.html begins with %q", first)
	}
}

func TestWhatIsDrawnStaysInThePicture(t *testing.T) {
	for _, s := range sample().Sections {
		figures := s.figures()
		if len(figures) == 0 {
			t.Errorf("%s has no figures", s.Title)
		}
		for _, f := range figures {
			within := func(what string, v, least, most float64) {
				if !(v >= least-0.01 && v <= most+0.01) {
					t.Errorf("%s: %s at %v, out of %v to %v", f.Title, what, v, least, most)
				}
			}
			for _, l := range f.Lines {
				for _, p := range l.Points {
					within("x", p.X, f.Left, f.Right)
					for _, y := range []float64{p.Y, p.Low, p.High} {
						within("y", y, f.Top, f.Bottom)
					}
				}
			}
			for _, b := range f.Bars {
				within("bar", b.Length, 0, f.Width)
				within("spread", b.Low, 0, f.Width)
				within("spread", b.High, b.Low, f.Width)
			}
			if len(f.Lines) > 0 && len(f.Ticks) < 3 {
				t.Errorf("%s: %d ticks", f.Title, len(f.Ticks))
			}
		}
	}
}

func TestOursStandBesideLibrariesForWhichThereIsNoDriver(t *testing.T) {
	s := &Section{Title: "T", Key: "v", Plots: []Plot{{Title: "v", Metric: "v", Lines: true}}}
	for _, r := range []struct {
		name, client string
		kind         Kind
		xs           int
	}{{"dlock, a", "a", Ours, 2}, {"dlock, d", "d", Ours, 2}, {"peer, a", "a", Peer, 2}, {"peer, b", "b", Peer, 2}, {"bare, socket", floorClient, Limit, 2}, {"peer, c", "c", Peer, 1}} {
		for x := range r.xs {
			s.Rows = append(s.Rows, &Row{Case: plural(x+1, "x"), X: float64(x), Contestant: r.name, Kind: r.kind, Client: r.client,
				Metrics: []Metric{{Name: "v", Value: 1, Low: 1, High: 1}}})
		}
	}
	want := map[string][]string{"v, a": {"dlock, a", "peer, a", "bare, socket"}, "v, b": {"dlock, a", "dlock, d", "peer, b", "bare, socket"},
		"v, d": {"dlock, d", "bare, socket"}}
	figures := s.figures()
	if len(figures) != len(want) {
		t.Errorf("%d figures, want %d: one contestant with one point makes none", len(figures), len(want))
	}
	for _, f := range figures {
		var names []string
		for _, l := range f.Lines {
			names = append(names, l.Name)
		}
		for i, l := range f.Lines {
			if slices.ContainsFunc(f.Lines[:i], func(o drawnLine) bool { return o.Class == l.Class }) {
				t.Errorf("%s: two lines are drawn as %q", f.Title, l.Class)
			}
		}
		if !slices.Equal(names, want[f.Title]) {
			t.Errorf("%s shows %q, want %q", f.Title, names, want[f.Title])
		}
	}
}

func TestBarsThatAreFarApartHaveALogarithmicScale(t *testing.T) {
	near, far := []float64{1, 2, 3, 4}, []float64{1, 2, 3, 400}
	if spreadOut(near) || !spreadOut(far) {
		t.Errorf("spread out: %v %v, %v %v", near, spreadOut(near), far, spreadOut(far))
	}
	if spreadOut([]float64{0, 1, 1, 400}) {
		t.Error("nothing has no place on a logarithmic scale")
	}
}

func TestAnAxisHoldsItsValuesAndHasRoundTicks(t *testing.T) {
	for _, values := range [][]float64{{1, 2, 3}, {0.00004, 0.0004}, {3e-6, 5}, {999, 1000}, {7}, {0, 0}, {0, 12}} {
		for _, logarithmic := range []bool{false, true} {
			a := newAxis(values, logarithmic)
			if len(a.ticks) < 2 || len(a.ticks) > 12 {
				t.Errorf("%v, log %v: ticks %v", values, logarithmic, a.ticks)
			}
			if last := a.ticks[len(a.ticks)-1]; !logarithmic && slices.Max(values) > last*1.0001 {
				t.Errorf("%v: the last tick is %v", values, last)
			}
			if s := a.share(slices.Max(values)); s < 0 || s > 1 {
				t.Errorf("%v, log %v: share %v", values, logarithmic, s)
			}
		}
	}
}

func TestColumnsKeepTheOrderInWhichRowsHaveThem(t *testing.T) {
	one := &Row{Metrics: []Metric{{Name: "a"}, {Name: "c"}}}
	two := &Row{Metrics: []Metric{{Name: "a"}, {Name: "b"}, {Name: "c"}}}
	if got := (&Section{Rows: []*Row{one, two}}).columns(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("columns %v", got)
	}
}

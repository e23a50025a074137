package bench

import (
	"bytes"
	"encoding/json"
	"html"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
)

// measuredRow returns a row with one metric, whose rounds scatter around middle.
func measuredRow(c, name string, kind Kind, metric string, unit figures.Unit, middle float64, more ...Metric) *Row {
	_, client, _ := strings.Cut(name, ", ")
	k := Contestant{Name: name}
	r := &Row{Case: c, Contestant: name, Library: k.library(), Kind: kind, Client: client, Samples: 1000}
	for i := range 12 {
		r.add(metric, unit, i+1, middle*(1+0.002*float64(i%3)))
	}
	for _, m := range more {
		for i := range 12 {
			r.add(m.Name, m.Unit, i+1, m.Median)
		}
	}
	for i := range r.Metrics {
		r.Metrics[i].sumUp()
	}
	return r
}

// sampleReport returns a report with comparisons that are behind, ahead and undecided, and with
// goals that are met and missed.
func sampleReport() *Report {
	cpu := func(v float64) Metric {
		return Metric{Name: "server CPU", Unit: figures.Seconds, Interval: figures.Interval{Median: v}}
	}
	rate := &Section{
		Scenario: "throughput", Title: "Throughput <on> 1 redis-server", Key: "locks", More: true, Axis: "goroutines",
		Plots: []Plot{{Title: "locks per second", Metric: "locks", Lines: true}},
		Rows: []*Row{
			measuredRow("1 redis-server, 1 goroutine", "dlock, go-redis", Ours, "locks", figures.PerSecond, 900),
			measuredRow("1 redis-server, 64 goroutines", "dlock, go-redis", Ours, "locks", figures.PerSecond, 1000, cpu(20e-6)),
			measuredRow("1 redis-server, 64 goroutines", "scripts, go-redis", Limit, "locks", figures.PerSecond, 1010, cpu(20e-6)),
			measuredRow("1 redis-server, 64 goroutines", "redislock, go-redis", Peer, "locks", figures.PerSecond, 1500, cpu(8e-6)),
			measuredRow("1 redis-server, 64 goroutines", "redsync, go-redis", Peer, "locks", figures.PerSecond, 500),
		},
	}
	for i, r := range rate.Rows {
		if r.X = 64; i == 0 {
			r.X = 1
		}
	}
	time := &Section{
		Scenario: "single", Title: "Latency on one server", Key: pair + " p50",
		Plots: []Plot{{Title: "median", Metric: pair + " p50"}},
		Rows: []*Row{
			measuredRow("1 redis-server", "dlock, go-redis", Ours, pair+" p50", figures.Seconds, 60e-6),
			measuredRow("1 redis-server", "scripts, go-redis", Limit, pair+" p50", figures.Seconds, 40e-6),
			measuredRow("1 redis-server", "redislock, go-redis", Peer, pair+" p50", figures.Seconds, 60e-6),
		},
	}
	r := &Report{Title: "Locks, measured", Quick: true, Machine: Machine{Text: "a machine", Foreign: 0.07}, Sections: []*Section{time, rate}, Setups: []About{{"dlock, go-redis", Ours, "as it is"}}, Notes: []string{"something is left out"}}
	r.Compared = comparisons(r.Sections)
	r.Goals = goals(r.Sections)
	r.sumUp()
	return r
}

func TestComparisonsAreJudgedAndReasonsAreMeasured(t *testing.T) {
	r := sampleReport()
	verdicts := map[string]figures.Verdict{}
	for _, c := range r.Compared {
		verdicts[c.Case+"/"+c.Other] = c.Verdict
		if c.Other == "redislock, go-redis" && c.Verdict == figures.Behind {
			for _, want := range []string{"2.50 × the server CPU (20.0 µs to 8", "our scripts alone: 1.49 × (1.49 – 1.49) its time"} {
				if !strings.Contains(c.Why, want) {
					t.Errorf("why: %q, want %q", c.Why, want)
				}
			}
		} else if c.Why != "" && c.Verdict != figures.Behind {
			t.Errorf("%+v gives a reason for nothing", c)
		}
	}
	for name, want := range map[string]figures.Verdict{
		"Throughput <on> 1 redis-server, 64 goroutines/redislock, go-redis": figures.Behind, "Throughput <on> 1 redis-server, 64 goroutines/redsync, go-redis": figures.Ahead,
		"Throughput <on> 1 redis-server, 64 goroutines/scripts, go-redis": figures.CannotTell, "Latency on one server, 1 redis-server/redislock, go-redis": figures.CannotTell, "Latency on one server, 1 redis-server/scripts, go-redis": figures.Behind,
	} {
		if verdicts[name] != want {
			t.Errorf("%s: %q, want %q", name, verdicts[name], want)
		}
	}
	if !strings.HasPrefix(r.Lead, "Other libraries are quicker than ours: redislock over go-redis by 1.50 × (1.50 – 1.50) beside ours over go-redis (one server, 64 goroutines). ") {
		t.Errorf("the lead is %q", r.Lead)
	}
	if len(r.Behind) != 2 || !strings.Contains(r.Behind[0], "2.50 × the server CPU") {
		t.Errorf("behind: %q", r.Behind)
	}
	met := map[figures.Verdict]int{}
	for _, g := range r.Goals {
		met[g.Verdict]++
	}
	if met[figures.Met] != 1 || met[figures.Missed] != 1 {
		t.Errorf("goals: %+v", r.Goals)
	}
}

func TestThePageNeedsNothingElse(t *testing.T) {
	r, folder := sampleReport(), t.TempDir()
	if err := r.write(folder); err != nil {
		t.Fatal(err)
	}
	page := func(name string) string {
		b, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	raw := page("report.html")
	text := html.UnescapeString(raw)
	for _, want := range []string{r.Lead, "a machine", "Other programs used 0.07", "12", "1.50 × (1.50 – 1.50)", "missed", "something is left out", "cannot tell"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, bad := range []string{"<script", "http://", "https://", "src=", "@import", "url(", "ZgotmplZ", "NaN", "<on>"} {
		if text := strings.ReplaceAll(raw, "http://www.w3.org", ""); strings.Contains(text, bad) {
			t.Errorf("the page contains %q", bad)
		}
	}
	if strings.Count(raw, "<svg") != 2 || !strings.Contains(raw, "more is better") || !strings.Contains(raw, "less is better") || !strings.Contains(raw, "prefers-color-scheme:dark") {
		t.Errorf("the page has %d plots", strings.Count(raw, "<svg"))
	}
	var again Report
	if err := json.NewDecoder(bytes.NewReader([]byte(page("report.json")))).Decode(&again); err != nil || len(again.Sections[1].Rows[1].Metrics[0].ByRound) != 12 {
		t.Errorf("the JSON cannot be read again: %v", err)
	}
}

// The table has times alone, so that less is better in every column.
func TestAWholeRunWritesTheTableOfREADME(t *testing.T) {
	r, file := sampleReport(), filepath.Join(t.TempDir(), "README.md")
	if err := r.writeREADME(file); err == nil || !strings.Contains(err.Error(), "quick run") {
		t.Errorf("a quick run writes the table: %v", err)
	}
	r.Quick = false
	r.Setups = append(r.Setups, About{"redislock, go-redis", Peer, "as it is"})
	if err := os.WriteFile(file, []byte("before\n"+readmeBegin+"outdated\n"+readmeEnd+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.writeREADME(file); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	text := string(b)
	if err != nil || !strings.HasPrefix(text, "before\n"+readmeBegin+"Other libraries are quicker than ours: ") || !strings.HasSuffix(text, readmeEnd+"after\n") || strings.Contains(text, "outdated") {
		t.Errorf("%s, error %v", text, err)
	}
	for _, want := range []string{
		"- one server, 64 goroutines, ours over go-redis to redislock over go-redis: 2.50 × the server CPU",
		"| ours | go-redis | 60.1 µs<br>1 × (1 – 1)<br>cannot tell | – | 998 µs<br>1.50 × (1.50 – 1.50)<br>behind | – | – |",
		"| redislock | go-redis | **60.1 µs** | – | **665 µs** | – | – |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no row %s in\n%s", want, text)
		}
	}
	if b, err := os.ReadFile("../../../.github/docs/performance.md"); err != nil || !strings.Contains(string(b), readmeBegin) || !strings.Contains(string(b), readmeEnd) {
		t.Errorf("the performance page has no place for the table: %v", err)
	}
	for line := range strings.SplitSeq(text, "\n") {
		if len([]rune(line)) > 100 && !strings.HasPrefix(line, "|") {
			t.Errorf("the line is too long: %s", line)
		}
	}
	if err := os.WriteFile(file, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.writeREADME(file); err == nil {
		t.Error("a file without the place for the table was changed")
	}
}

// Other load can reverse a comparison, so none is decided beside it.
func TestBesideTheLoadOfOthersNothingIsJudged(t *testing.T) {
	r := sampleReport()
	for _, s := range r.Sections {
		for _, row := range s.Rows {
			row.Foreign = float64(runtime.NumCPU()) / 2
		}
	}
	for _, c := range comparisons(r.Sections) {
		if c.Verdict != figures.CannotTell {
			t.Errorf("%+v", c)
		}
	}
	for _, g := range goals(r.Sections) {
		if g.Verdict != figures.Undecided {
			t.Errorf("%+v", g)
		}
	}
	if text := r.markdown(); strings.Contains(text, ">behind") || strings.Contains(text, ">ahead") || strings.Contains(text, "quicker than ours: ") {
		t.Errorf("%s", text)
	}
}

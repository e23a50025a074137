package bench

import (
	"bytes"
	"encoding/json"
	"html"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
)

// measuredRow is a contestant with one metric, whose rounds are around a middle.
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

// sampleReport is a report with a loss, a win, a draw, and goals that are met and missed.
func sampleReport() *Report {
	cpu := func(v float64) Metric {
		return Metric{Name: "server CPU", Unit: figures.Seconds, Interval: figures.Interval{Median: v}}
	}
	rate := &Section{
		Scenario: "throughput", Title: "Throughput <on> 1 server", Key: "locks", More: true, Axis: "goroutines",
		Plots: []Plot{{Title: "locks per second", Metric: "locks", Lines: true}},
		Rows: []*Row{
			measuredRow("1 server, 1 goroutine", "dlock, go-redis", Ours, "locks", figures.PerSecond, 900),
			measuredRow("1 server, 64 goroutines", "dlock, go-redis", Ours, "locks", figures.PerSecond, 1000, cpu(20e-6)),
			measuredRow("1 server, 64 goroutines", "scripts, go-redis", Limit, "locks", figures.PerSecond, 1010, cpu(20e-6)),
			measuredRow("1 server, 64 goroutines", "redislock, go-redis", Peer, "locks", figures.PerSecond, 1500, cpu(8e-6)),
			measuredRow("1 server, 64 goroutines", "redsync, go-redis", Peer, "locks", figures.PerSecond, 500),
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
			measuredRow("redis-server", "dlock, go-redis", Ours, pair+" p50", figures.Seconds, 60e-6),
			measuredRow("redis-server", "scripts, go-redis", Limit, pair+" p50", figures.Seconds, 40e-6),
			measuredRow("redis-server", "redislock, go-redis", Peer, pair+" p50", figures.Seconds, 60e-6),
		},
	}
	r := &Report{Title: "Locks, measured", Quick: true, Machine: Machine{Text: "a machine", Foreign: 0.7}, Sections: []*Section{time, rate}, Setups: []About{{"dlock, go-redis", Ours, "as it is"}}, Notes: []string{"something is left out"}}
	r.Compared = comparisons(r.Sections)
	r.Goals = goals(r.Sections)
	r.Summary = summarize(r.Compared)
	return r
}

func TestComparisonsAreJudgedAndReasonsAreMeasured(t *testing.T) {
	r := sampleReport()
	verdicts := map[string]figures.Verdict{}
	for _, c := range r.Compared {
		verdicts[c.Section+"/"+c.Other] = c.Verdict
		if c.Other == "redislock, go-redis" && c.Verdict == figures.Behind {
			for _, want := range []string{"2.50 × the server CPU (20.0 µs to 8", "our scripts with nothing around them are 1.49 × behind it"} {
				if !strings.Contains(c.Why, want) {
					t.Errorf("why: %q, want %q", c.Why, want)
				}
			}
		} else if c.Why != "" && c.Verdict != figures.Behind {
			t.Errorf("%+v gives a reason for nothing", c)
		}
	}
	for name, want := range map[string]figures.Verdict{
		"Throughput <on> 1 server/redislock, go-redis": figures.Behind, "Throughput <on> 1 server/redsync, go-redis": figures.Ahead,
		"Throughput <on> 1 server/scripts, go-redis": figures.CannotTell, "Latency on one server/redislock, go-redis": figures.CannotTell, "Latency on one server/scripts, go-redis": figures.Behind,
	} {
		if verdicts[name] != want {
			t.Errorf("%s: %q, want %q", name, verdicts[name], want)
		}
	}
	if !strings.HasPrefix(r.Summary[0], "redislock, go-redis is ahead of dlock, go-redis by 1.50 × at most (Throughput") {
		t.Errorf("the summary begins with %q", r.Summary[0])
	}
	met := map[figures.Verdict]int{}
	for _, g := range r.Goals {
		met[g.Verdict]++
	}
	if met[figures.Met] != 1 || met[figures.Missed] != 1 {
		t.Errorf("goals: %+v", r.Goals)
	}
}

func TestThePagesShowTheSameAndNeedNothingElse(t *testing.T) {
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
	raw, md := page("report.html"), page("report.md")
	text := html.UnescapeString(raw)
	for name, text := range map[string]string{"report.html": text, "report.md": md} {
		for _, want := range []string{r.Summary[0], "a machine", "others used 0.70", "12", "1.50 × (1.50 – 1.50), behind", "missed", "something is left out", "cannot be told"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s lacks %q", name, want)
			}
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

func TestTheTableOfREADMEHasOneDirection(t *testing.T) {
	text := readme(sampleReport().Sections).markdown()
	if !strings.Contains(text, "| Throughput <on> 1 server, 1 server, 64 goroutines | go-redis | – | 1.50 × (1.50 – 1.50), behind | redislock, go-redis |") {
		t.Errorf("%s", text)
	}
}

package bench

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
	_ "github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// fake returns a contestant whose locks exclude nobody, and fail if err is not nil.
func fake(name string, err error) Contestant {
	return Contestant{Name: name, Kind: Ours, Serves: AnyKeyStore, Open: func(context.Context, *Setup) (*Client, error) {
		return &Client{Close: func() error { return nil }, Lock: func(context.Context, string, bool) (func() error, error) {
			return func() error { return nil }, err
		}}, nil
	}}
}

// entered returns a case with the rows of contestants, their clients open.
func entered(t *testing.T, measure func(context.Context, *Row, time.Duration), contestants ...Contestant) *Case {
	c := &Case{Scenario: single, measure: measure, slice: 10 * time.Millisecond, clients: 1}
	for _, k := range contestants {
		r := &Row{Contestant: k}
		r.open(t.Context(), &Setup{}, 3)
		c.Rows = append(c.Rows, r)
	}
	return c
}

func TestEveryContestantHasATurnInEveryRound(t *testing.T) {
	var turns []string
	c := entered(t, func(_ context.Context, r *Row, _ time.Duration) {
		turns = append(turns, r.Name)
		r.add("n", figures.Count, 1)
	}, fake("a", nil), fake("b", nil))
	if err := rounds(t.Context(), c, time.Now().Add(10*time.Millisecond), func() { turns = append(turns, "fault") }); err != nil {
		t.Fatal(err)
	}
	if turns[2] != "fault" {
		t.Fatalf("the fault does not begin behind the warm-up: %v", turns)
	}
	turns = slices.Delete(turns, 2, 3)
	for i := 0; i < len(turns); i += 2 {
		if turns[i] == turns[i+1] {
			t.Errorf("round %d gave %s two turns", i/2, turns[i])
		}
	}
	if n := len(c.Rows[0].metric("n").Rounds); n != len(turns)/2-1 {
		t.Errorf("%d rounds count of %d, of which one warms up", n, len(turns)/2)
	}
}

func TestWhatFailsInAContestantIsInItsRowAndEndsNothing(t *testing.T) {
	away := fake("away", nil)
	away.Open = func(context.Context, *Setup) (*Client, error) { return nil, errors.New("no way in") }
	c := entered(t, taking(1), away, fake("broken", errors.New("out of order")), fake("well", nil))
	if err := rounds(t.Context(), c, time.Now().Add(50*time.Millisecond), func() {}); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"could not take part: open: no way in", "failed operations: 100, the first: out of order", ""} {
		if got := c.Rows[i].trouble(); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("%s: %q, want %q", c.Rows[i].Name, got, want)
		}
	}
	if c.Rows[2].figure(pair) <= 0 {
		t.Errorf("row of the sound contestant: %+v", c.Rows[2])
	}
}

// A contestant that takes too long has one round, and its row says so.
func TestASlowContestantHasOneRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := false
		c := entered(t, func(_ context.Context, r *Row, slice time.Duration) {
			if time.Sleep(slice); hangs && r.Name == "slow" {
				time.Sleep(2 * time.Second)
			}
			r.add("n", figures.Count, 1)
		}, fake("slow", nil), fake("quick", nil))
		c.patience = time.Second
		if err := rounds(t.Context(), c, time.Now().Add(time.Second), func() { hangs = true }); err != nil {
			t.Fatal(err)
		}
		for i, want := range []int{1, fewest} {
			if row := c.Rows[i]; len(row.metric("n").Rounds) < want || want == 1 && len(row.metric("n").Rounds) > 1 || row.Slow != (want == 1) {
				t.Errorf("%s: %d rounds, want %d", row.Name, len(row.metric("n").Rounds), want)
			}
		}
	})
}

func TestRoundsEndWithTheTimeOfTheCase(t *testing.T) {
	for budget, want := range map[time.Duration]int{
		350 * time.Millisecond: 16, // as many rounds as fit the time
		200 * time.Millisecond: 12, // the fewest, within twice the time
		50 * time.Millisecond:  4,  // cut off at twice the time
		-time.Second:           1,
	} {
		synctest.Test(t, func(t *testing.T) {
			turns := 0
			c := entered(t, func(context.Context, *Row, time.Duration) { time.Sleep(21 * time.Millisecond); turns++ }, fake("a", nil))
			if err := rounds(t.Context(), c, time.Now().Add(budget), func() {}); err != nil {
				t.Fatal(err)
			}
			if turns != 1+want {
				t.Errorf("%v: %d turns, of which one warms up, want %d", budget, turns, want)
			}
		})
	}
}

// A handoff measurement reports a lock that excludes nobody.
func TestTwoHoldersAtOnceAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := entered(t, nil, fake("everybody", nil)).Rows[0]
		handingOver(t.Context(), r, 300*time.Millisecond)
		if r.Err == nil || !strings.Contains(r.Err.Error(), "two clients held the lock") {
			t.Errorf("three clients hold a lock that excludes nobody, and the row says %v", r.Err)
		}
	})
}

func TestHandoffsAreCountedFromOneClientToAnother(t *testing.T) {
	// Client 0 has the lock twice, then client 1, client 0 and client 1 again.
	got := runRelay([][]Hold{{{10, 20}, {21, 30}, {52, 60}}, {{35, 50}, {68, 70}}}, time.Unix(0, 20))
	if !slices.Equal(got.got, []float64{2, 2}) || !slices.Equal(got.Handoffs, []float64{5e-9, 2e-9, 8e-9}) || !slices.Equal(got.passings, []float64{15e-9, 2e-9, 8e-9}) || got.all != 3 || got.overlaps != 0 {
		t.Errorf("relay %+v", got)
	}
	// The second hold lies within the first, and the third begins before the first has ended.
	if got := runRelay([][]Hold{{{10, 40}}, {{20, 25}}, {{30, 50}}}, time.Unix(0, 0)); got.overlaps != 2 {
		t.Errorf("%d overlaps, want 2", got.overlaps)
	}
}

// A busy machine may leave out cases, or see no lock in a slice: then the run gets more time.
func TestARunMeasuresAndWritesItsReport(t *testing.T) {
	t.Parallel()
	server.Redis(t) // or skip
	match := regexp.MustCompile("^(single|throughput|handoff)/1 redis-server(, 8 .*|)/(ours|bare) over go-redis")
	for length := 2 * time.Second; ; length *= 4 {
		r, err := Run(t.Context(), match, length, nil, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		text, missing := r.Text()+r.Raw(), ""
		for _, want := range []string{"single/1 redis-server\n", "Benchmarksingle/1_redis-server/bare_over_go-redis\t1\t", "server CPU", "allocations", "throughput/1 redis-server, 8 goroutines", "handoff/1 redis-server, 8 clients", "passing on", "redis-server 7", "programs used"} {
			if !strings.Contains(text, want) {
				missing = want
			}
		}
		if missing == "" {
			return
		}
		if length > time.Minute {
			t.Fatalf("in %v the report lacks %q", length, missing)
		}
	}
}

func TestARunEndsWithItsContextOrItsTime(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	match := regexp.MustCompile("single/1 redis-server/bare")
	if _, err := Run(ctx, match, time.Minute, nil, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	r, err := Run(t.Context(), match, time.Nanosecond, nil, io.Discard)
	if err != nil || len(r.Cases) > 0 || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "the time was over before single/1 redis-server") {
		t.Errorf("error %v, report %+v", err, r)
	}
	if _, err := Run(t.Context(), regexp.MustCompile("doubel"), 0, nil, io.Discard); err == nil || !strings.Contains(err.Error(), "nothing matches") {
		t.Errorf("error %v", err)
	}
}

// sample returns the report of a whole run with comparisons that are behind, ahead and undecided.
func sample() *Report {
	row := func(name, client string, kind Kind, metrics map[string]float64) *Row {
		r := &Row{Contestant: Contestant{Name: name, Client: client, Kind: kind, How: "as it is"}}
		for name, middle := range metrics {
			for r.round = 1; r.round <= 12; r.round++ {
				r.add(name, figures.Seconds, middle*(1+0.002*float64(r.round%3)))
			}
		}
		return r
	}
	of := func(s *Scenario, g ground, more string, rows ...*Row) *Case {
		return &Case{Scenario: s, ground: g, Name: g.String() + more, Rows: rows}
	}
	return &Report{Whole: true, Began: time.Unix(0, 0), Machine: "a machine", Foreign: 0.07, Notes: []string{"something is left out"}, Cases: []*Case{
		of(single, oneRedis, "", row("ours", "go-redis", Ours, map[string]float64{pair: 60e-6}), row("bare", "go-redis", Limit, map[string]float64{pair: 40e-6}), row("redislock", "go-redis", Peer, map[string]float64{pair: 60e-6})),
		of(throughput, oneRedis, ", 64 goroutines",
			row("ours", "go-redis", Ours, map[string]float64{aLock: 15e-6, "server CPU": 20e-6}),
			row("redislock", "go-redis", Peer, map[string]float64{aLock: 10e-6, "server CPU": 8e-6}),
			row("redsync", "go-redis", Peer, map[string]float64{aLock: 30e-6})),
		of(quorum, fiveRedis, "", row("ours", "go-redis", Ours, map[string]float64{pair: 200e-6, "acquire": 200e-6}), row("redsync", "go-redis", Peer, map[string]float64{pair: 400e-6})),
	}}
}

func TestTheReportSaysFirstWhereOthersAreAhead(t *testing.T) {
	r := sample()
	if got, want := r.overview().lead, "Other libraries are quicker than ours: redislock over go-redis by 1.50 × (1.50 – 1.50) beside ours over go-redis (one server, 64 goroutines). Beside the quickest other library of each column, ours is ahead in 1 figures, and 1 cannot be told."; got != want {
		t.Errorf("the lead is %q", got)
	}
	for _, want := range []string{"something is left out", "1.50 × (1.50 – 1.50), behind", "1 × (1 – 1), cannot tell", "0.50 × (0.50 – 0.50), ahead", "Other programs used 0.07"} {
		if !strings.Contains(strings.ReplaceAll(r.Text(), "\n", " "), want) {
			t.Errorf("the report lacks %q:\n%s", want, r.Text())
		}
	}
	// Other load can reverse a comparison, so none is decided beside it.
	for _, c := range r.Cases {
		c.Foreign = float64(runtime.NumCPU()) / 2
	}
	if text := r.Text(); strings.Contains(text, ", behind") || strings.Contains(text, ", ahead") || strings.Contains(text, "quicker than ours: ") {
		t.Errorf("beside load: %s", text)
	}
}

// The table has times alone, so that less is better in every column.
func TestAWholeRunWritesThePage(t *testing.T) {
	r, file := sample(), filepath.Join(t.TempDir(), "performance.md")
	write := func(text string) error {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return r.WritePage(file)
	}
	r.Whole = false
	if err := write(""); err == nil || !strings.Contains(err.Error(), "no whole run") {
		t.Errorf("a part of a run writes the table: %v", err)
	}
	r.Whole = true
	if err := write("nothing"); err == nil {
		t.Error("a file without the place for the table was changed")
	}
	if err := write("before\n" + pageBegin + "outdated\n" + pageEnd + "after\n"); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	text := strings.Join(strings.Fields(string(b)), " ")
	if err != nil || !strings.HasPrefix(string(b), "before\n"+pageBegin+"![") || !strings.HasSuffix(string(b), pageEnd+"after\n") || strings.Contains(text, "outdated") {
		t.Errorf("%s, error %v", b, err)
	}
	for _, want := range []string{
		"- one server, 64 goroutines, ours over go-redis to redislock over go-redis: 2.50 × the server CPU",
		"| ours | go-redis | 60.1 µs<br>1 × (1 – 1)<br>cannot tell | 200 µs<br>0.50 × (0.50 – 0.50)<br>ahead | 15.0 µs<br>1.50 × (1.50 – 1.50)<br>behind | – | – | – |",
		"| redislock | go-redis | **60.1 µs** | – | **10.0 µs** | – | – | – |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %s in\n%s", want, text)
		}
	}
	picture, err := os.ReadFile(strings.Replace(file, ".md", ".svg", 1))
	if err != nil || xml.Unmarshal(picture, new(struct{})) != nil || strings.Contains(string(picture), "NaN") {
		t.Errorf("the picture: error %v\n%s", err, picture)
	}
	for _, want := range []string{"redislock over go-redis", "200 µs", "not measured", "prefers-color-scheme:dark", r.when()} {
		if !strings.Contains(string(picture), want) {
			t.Errorf("the picture lacks %q", want)
		}
	}
	if !strings.Contains(text, r.when()) || !strings.Contains(text, "](performance.svg) Other libraries are quicker than ours: ") {
		t.Errorf("the table is not of the picture's run, or does not show it: %s", text)
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		if len([]rune(line)) > 100 && !strings.HasPrefix(line, "|") {
			t.Errorf("the line is too long: %s", line)
		}
	}
	if b, err := os.ReadFile("../../../.github/docs/performance.md"); err != nil || !strings.Contains(string(b), pageBegin) || !strings.Contains(string(b), pageEnd) {
		t.Errorf("the performance page has no place for the table: %v", err)
	}
}

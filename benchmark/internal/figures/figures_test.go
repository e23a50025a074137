package figures

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// rounds returns n figures that scatter around middle, drawn with a fixed seed.
func rounds(n int, middle, spread float64, seed uint64) map[int]float64 {
	r := rand.New(rand.NewPCG(seed, 1))
	out := map[int]float64{}
	for i := range n {
		out[i+1] = middle * (1 + spread*(r.Float64()-0.5))
	}
	return out
}

func TestAComparisonIsDecidedByTheWholeInterval(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b map[int]float64
		want Verdict
	}{
		{"half the time", rounds(12, 1, 0.1, 1), rounds(12, 2, 0.1, 2), Ahead},
		{"twice the time", rounds(12, 2, 0.1, 1), rounds(12, 1, 0.1, 2), Behind},
		{"the same", rounds(12, 1, 0.1, 1), rounds(12, 1, 0.1, 2), CannotTell},
		{"less than the margin", rounds(12, 1.03, 0.001, 1), rounds(12, 1, 0.001, 2), CannotTell},
		{"too few rounds", rounds(7, 2, 0.1, 1), rounds(7, 1, 0.1, 2), CannotTell},
		{"noise that is larger than the difference", rounds(12, 1.2, 1.5, 1), rounds(12, 1, 1.5, 2), CannotTell},
		{"other rounds", rounds(12, 2, 0.1, 1), map[int]float64{101: 1}, CannotTell},
	} {
		if got := Compare(Ratios(c.a, c.b)); got != c.want {
			t.Errorf("%s: %s, want %s (%v)", c.name, got, c.want, Ratios(c.a, c.b))
		}
	}
}

// A machine that is slow for a while is slow for both contestants. So the ratio of each round
// shows the difference, though the figures overlap.
func TestRatiosArePairedByRound(t *testing.T) {
	a, b := map[int]float64{}, map[int]float64{}
	for i := range 12 {
		slow := 1 + float64(i)
		a[i], b[i] = 1.2*slow, slow
	}
	if r := Ratios(a, b); Compare(r) != Behind || r.Median < 1.19 || r.Median > 1.21 {
		t.Errorf("%s: %v", Compare(r), r)
	}
}

func TestTwoRunsNeverContradictEachOther(t *testing.T) {
	seen := map[Verdict]int{}
	for seed := range uint64(500) {
		a := Compare(Ratios(rounds(8, 1, 0.5, 4*seed), rounds(8, 1, 0.5, 4*seed+1)))
		b := Compare(Ratios(rounds(8, 1, 0.5, 4*seed+2), rounds(8, 1, 0.5, 4*seed+3)))
		seen[a]++
		if a == Ahead && b == Behind || a == Behind && b == Ahead {
			t.Errorf("seed %d: %s, and %s", seed, a, b)
		}
	}
	if seen[CannotTell] < 450 {
		t.Errorf("the verdicts on equal contestants are %v, want mostly CannotTell", seen)
	}
}

func TestAGoalIsMetMissedOrUndecided(t *testing.T) {
	for _, c := range []struct {
		i    Interval
		want Verdict
	}{
		{Interval{1, 0.9, 1.1, 12}, Met}, {Interval{1.5, 1.4, 1.6, 12}, Missed}, {Interval{1.2, 1.1, 1.3, 12}, Undecided}, {Interval{1, 1, 1, 3}, Undecided},
	} {
		if got := Judge(c.i, 1.25); got != c.want {
			t.Errorf("%v: %s, want %s", c.i, got, c.want)
		}
	}
}

func TestLatenciesKeepTheirQuantiles(t *testing.T) {
	l := NewLatencies()
	for i := range 1000 {
		l.Add(time.Duration(i+1) * time.Millisecond)
	}
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.99: 990 * time.Millisecond, 1: time.Second} {
		if got := l.Quantile(q); got < want*998/1000 || got > want*1002/1000 {
			t.Errorf("q %v: %v, want %v", q, got, want)
		}
	}
	if c := l.Curve(); len(c) < 8 || c[0].X != 2 || c[0].Y > c[len(c)-1].Y {
		t.Errorf("curve %v", c)
	}
}

func TestFiguresAreWrittenForPeople(t *testing.T) {
	for _, c := range []struct {
		v    float64
		u    Unit
		want string
	}{
		{0.00005432, Seconds, "54.3 µs"}, {0.0022, Seconds, "2.20 ms"}, {90, Seconds, "90 s"}, {1234567, PerSecond, "1,234,567/s"}, {1.094, Times, "1.09 ×"}, {0, Seconds, "0 s"}, {64, Count, "64"}, {2048, Bytes, "2.05 kB"},
	} {
		if got := Format(c.v, c.u); got != c.want {
			t.Errorf("%v %s: %q, want %q", c.v, c.u, got, c.want)
		}
	}
}

func TestPlotsHaveTheColourOfALibraryAndTicks(t *testing.T) {
	dots, err := Dots{Unit: Seconds, Rows: []Dot{{Name: "dlock, a", Library: "dlock", Value: 1e-4, Low: 1e-9, High: 9e3}, {Name: "redsync, a", Library: "redsync", Value: 2e-3}}}.SVG()
	if err != nil {
		t.Fatal(err)
	}
	lines, err := Lines{X: "goroutines", YUnit: PerSecond, Series: []Series{
		{Name: "dlock, a", Library: "dlock", Points: []Point{{X: 1, Y: 1000, Low: 1, High: 1e9}, {X: 64, Y: 20000}}}, {Name: "nothing", Library: "x", Points: []Point{{X: 1, Y: 0}}},
	}}.SVG()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"dots": string(dots), "lines": string(lines)} {
		if n := strings.Count(text, "<text"); n == 0 || n != strings.Count(text, `<text textLength="`) {
			t.Errorf("%s: a browser's font decides how wide a text is", name)
		}
		if !strings.Contains(text, "var(--l0,#0a5fd0)") || strings.Contains(text, "NaN") || strings.Contains(text, "<?xml") || !strings.Contains(text, "currentColor") {
			t.Errorf("%s: %.300s", name, text)
		}
	}
	for _, want := range []string{">1k/s<", ">10k/s<", ">64<"} {
		if !strings.Contains(string(lines), want) {
			t.Errorf("the lines lack the tick %q", want)
		}
	}
	for _, span := range []float64{1.05, 1.4, 2, 3, 10, 50, 1e3, 1e5, 1e8} {
		for _, low := range []float64{1.2e-6, 7.7e-6, 2e-4, 0.9} {
			n := 0
			for _, tick := range logTicks(Seconds)(low, low*span) {
				if tick.Label != "" {
					n++
				}
			}
			if n > 4 || n < 2 && span >= 2 {
				t.Errorf("an axis from %g to %g has %d labels", low, low*span, n)
			}
		}
	}
	for _, c := range []struct {
		v    float64
		u    Unit
		want string
	}{{10 * 1e-6, Seconds, "10\u2009µs"}, {1.5e-3, Seconds, "1.5\u2009ms"}, {50000, PerSecond, "50k/s"}, {64, Count, "64"}} {
		if got := tickLabel(c.v, c.u); got != c.want {
			t.Errorf("the tick %v %s is %q, want %q", c.v, c.u, got, c.want)
		}
	}
	if strings.Contains(string(lines), "1M/s") {
		t.Error("a whisker stretches the scale")
	}
	for i, l := range libraries {
		if slot(l.name) != i || !strings.Contains(string(style()), l.dark) {
			t.Errorf("%s has no colour of its own", l.name)
		}
	}
}

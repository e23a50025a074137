package figures

import (
	"math/rand/v2"
	"testing"
)

// drawn returns n rounds that scatter around middle, drawn with a fixed seed.
func drawn(n int, middle, spread float64, seed uint64) *Series {
	r := rand.New(rand.NewPCG(seed, 1))
	s := &Series{}
	for i := range n {
		s.Add(i+1, middle*(1+spread*(r.Float64()-0.5)))
	}
	return s
}

func TestAComparisonIsDecidedByTheWholeInterval(t *testing.T) {
	elsewhere := &Series{}
	elsewhere.Add(101, 1)
	for _, c := range []struct {
		name string
		a, b *Series
		want Verdict
	}{
		{"half the time", drawn(12, 1, 0.1, 1), drawn(12, 2, 0.1, 2), Ahead},
		{"twice the time", drawn(12, 2, 0.1, 1), drawn(12, 1, 0.1, 2), Behind},
		{"the same", drawn(12, 1, 0.1, 1), drawn(12, 1, 0.1, 2), CannotTell},
		{"less than the margin", drawn(12, 1.03, 0.001, 1), drawn(12, 1, 0.001, 2), CannotTell},
		{"too few rounds", drawn(7, 2, 0.1, 1), drawn(7, 1, 0.1, 2), CannotTell},
		{"noise that is larger than the difference", drawn(12, 1.2, 1.5, 1), drawn(12, 1, 1.5, 2), CannotTell},
		{"other rounds", drawn(12, 2, 0.1, 1), elsewhere, CannotTell},
	} {
		if got := Compare(Ratios(c.a, c.b)); got != c.want {
			t.Errorf("%s: %s, want %s (%v)", c.name, got, c.want, Ratios(c.a, c.b))
		}
	}
}

// A machine that is slow for a while is slow for both contestants. So the ratio of each round
// shows the difference, though the figures overlap.
func TestRatiosArePairedByRound(t *testing.T) {
	var a, b Series
	for i := range 12 {
		slow := 1 + float64(i)
		a.Add(i, 1.2*slow)
		b.Add(i, slow)
	}
	if r := Ratios(&a, &b); Compare(r) != Behind || r.Median < 1.19 || r.Median > 1.21 {
		t.Errorf("%s: %v", Compare(r), r)
	}
}

func TestTwoRunsNeverContradictEachOther(t *testing.T) {
	seen := map[Verdict]int{}
	for seed := range uint64(500) {
		a := Compare(Ratios(drawn(8, 1, 0.5, 4*seed), drawn(8, 1, 0.5, 4*seed+1)))
		b := Compare(Ratios(drawn(8, 1, 0.5, 4*seed+2), drawn(8, 1, 0.5, 4*seed+3)))
		seen[a]++
		if a == Ahead && b == Behind || a == Behind && b == Ahead {
			t.Errorf("seed %d: %s, and %s", seed, a, b)
		}
	}
	if seen[CannotTell] < 450 {
		t.Errorf("the verdicts on equal contestants are %v, want mostly CannotTell", seen)
	}
}

func TestASeriesKeepsItsQuantiles(t *testing.T) {
	var s Series
	for i := range 1000 {
		s.Add(i/100, float64(1000-i))
	}
	for q, want := range map[float64]float64{0.5: 500, 0.99: 990, 0.9999: 0} { // of too few samples there is none
		if got := s.Quantile(q); got < want*0.998 || got > want*1.002 {
			t.Errorf("q %v: %v, want %v", q, got, want)
		}
	}
}

func TestFiguresAreWrittenForPeople(t *testing.T) {
	for _, c := range []struct {
		v    float64
		u    Unit
		want string
	}{
		{0.00005432, Seconds, "54.3 µs"}, {0.0022, Seconds, "2.20 ms"}, {90, Seconds, "90 s"}, {1234567, PerSecond, "1,234,567/s"}, {0, Seconds, "0 s"}, {64, Count, "64"}, {2048, Bytes, "2.05 kB"},
	} {
		if got := Format(c.v, c.u); got != c.want {
			t.Errorf("%v %s: %q, want %q", c.v, c.u, got, c.want)
		}
	}
	if got, want := Table([]string{"", "median"}, []string{"node a", "54.3 µs"}), "|        | median  |\n| ------ | ------- |\n| node a | 54.3 µs |\n"; got != want {
		t.Errorf("table\n%swant\n%s", got, want)
	}
}

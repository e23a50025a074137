package bench

import (
	"math"
	"testing"
	"time"
)

func ms(values ...int) []time.Duration {
	out := make([]time.Duration, len(values))
	for i, v := range values {
		out[i] = time.Duration(v) * time.Millisecond
	}
	return out
}

func TestAQuantileIsTheLeastSampleThatTheShareDoesNotExceed(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	for _, c := range []struct {
		samples []time.Duration
		q       float64
		want    time.Duration
	}{
		{nil, 0.5, 0},
		{ms(7), 0.5, 7 * time.Millisecond},
		{ms(7), 0.999, 7 * time.Millisecond},
		{ms(1, 2, 3, 4), 0.5, 2 * time.Millisecond},
		{ms(1, 2, 3), 0.5, 2 * time.Millisecond},
		{ms(1, 2, 3), 0, time.Millisecond},
		{ms(1, 2, 3), 1, 3 * time.Millisecond},
		{hundred, 0.5, 50},
		{hundred, 0.9, 90},
		{hundred, 0.99, 99},
		{hundred, 0.999, 100},
	} {
		if got := quantile(c.samples, c.q); got != c.want {
			t.Errorf("quantile(%d samples, %v) = %v, want %v", len(c.samples), c.q, got, c.want)
		}
	}
}

func TestAMetricIsTheMedianOfItsRoundsAndTheSpanOfTheMiddleHalf(t *testing.T) {
	for _, c := range []struct {
		rounds           []float64
		value, low, high float64
	}{
		{[]float64{5}, 5, 5, 5},
		{[]float64{9, 1}, 5, 1, 9},
		{[]float64{3, 1, 2}, 2, 1, 3},
		{[]float64{100, 1, 2, 3, 4}, 3, 2, 4},
		{[]float64{8, 7, 6, 5, 4, 3, 2, 1, 900}, 5, 3, 7},
		{[]float64{math.NaN(), 4, math.Inf(1)}, 4, 4, 4},
	} {
		m, ok := metric("x", Count, c.rounds)
		if !ok || m.Value != c.value || m.Low != c.low || m.High != c.high {
			t.Errorf("metric of %v = %v (%v – %v), want %v (%v – %v)", c.rounds, m.Value, m.Low, m.High, c.value, c.low, c.high)
		}
	}
	if _, ok := metric("x", Count, []float64{math.NaN()}); ok {
		t.Error("a metric was made of nothing")
	}
}

func TestMetricLeavesTheRoundsAsTheyAre(t *testing.T) {
	rounds := []float64{3, 1, 2}
	metric("x", Count, rounds)
	if rounds[0] != 3 || rounds[1] != 1 || rounds[2] != 2 {
		t.Errorf("the rounds became %v", rounds)
	}
}

func TestLatenciesTakeTheMedianOfRoundsAndTheTailOfAllSamples(t *testing.T) {
	slow := make([]time.Duration, 50)
	quick := make([]time.Duration, 50)
	for i := range slow {
		slow[i], quick[i] = 100*time.Millisecond, time.Millisecond
	}
	got := latencies("op", [][]time.Duration{quick, quick, nil, slow})
	if len(got) != 3 {
		t.Fatalf("%d metrics of 150 samples, want p50, p90 and p99: %v", len(got), got)
	}
	for i, want := range []struct {
		name  string
		value float64
	}{{"op p50", 0.001}, {"op p90", 0.1}, {"op p99", 0.1}} {
		if got[i].Name != want.name || got[i].Value != want.value {
			t.Errorf("metric %d is %s = %v, want %s = %v", i, got[i].Name, got[i].Value, want.name, want.value)
		}
	}
	if got := latencies("op", nil); len(got) != 0 {
		t.Errorf("no samples gave %v", got)
	}
}

func TestValuesHaveThreeDigitsAndTheUnitThatSuitsThem(t *testing.T) {
	for _, c := range []struct {
		v    float64
		unit Unit
		want string
	}{
		{0.0000123, Seconds, "12.3 µs"}, {0.0123, Seconds, "12.3 ms"}, {1.5, Seconds, "1.50 s"}, {0.99999, Seconds, "1.00 s"},
		{2e-9, Seconds, "2 ns"}, {0, Seconds, "0 ns"}, {123.4, Seconds, "123 s"},
		{512, Bytes, "512 B"}, {2048, Bytes, "2 kB"}, {1.5 * (1 << 20), Bytes, "1.50 MB"},
		{1234567, PerSecond, "1,234,567/s"}, {999, PerSecond, "999/s"}, {42.42, PerSecond, "42.4/s"},
		{1.0777, Times, "1.08 ×"}, {3, Count, "3"}, {10000, Count, "10,000"}, {-1234, Count, "-1,234"}, {0.5, Percent, "0.50 %"},
	} {
		if got := format(c.v, c.unit); got != c.want {
			t.Errorf("format(%v, %q) = %q, want %q", c.v, c.unit, got, c.want)
		}
	}
}

func TestASpreadIsWrittenWithTheUnitOnce(t *testing.T) {
	for _, c := range []struct {
		m    Metric
		want string
	}{
		{Metric{Unit: Seconds, Value: 2e-6, Low: 1e-6, High: 3e-6}, "2 (1 – 3) µs"},
		{Metric{Unit: Seconds, Value: 2e-6, Low: 1e-6, High: 3e-3}, "2 µs (1 µs – 3 ms)"},
		{Metric{Unit: Seconds, Value: 2e-6, Low: 2e-6, High: 2e-6}, "2 µs"},
		{Metric{Unit: Count, Value: 5, Low: 4, High: 6}, "5 (4 – 6)"},
		{Metric{Unit: PerSecond, Value: 5, Low: 4, High: 6}, "5/s (4/s – 6/s)"},
	} {
		if got := c.m.String(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

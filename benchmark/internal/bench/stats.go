package bench

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Unit says what a value counts, always in its base: seconds and bytes, not
// milliseconds.
type Unit string

// The units of metrics.
const (
	Seconds   Unit = "s"
	PerSecond Unit = "1/s"
	Bytes     Unit = "B"
	Times     Unit = "×"
	Count     Unit = ""
	Percent   Unit = "%"
)

// A Metric is one figure: the median of its rounds, and how far they spread.
type Metric struct {
	Name  string  `json:"name"`
	Unit  Unit    `json:"unit,omitempty"`
	Value float64 `json:"value"`
	Low   float64 `json:"low"`  // a quarter of the rounds is below
	High  float64 `json:"high"` // a quarter of the rounds is above
}

// metric makes a Metric of the values of the rounds; ok is false if there are none.
// Values that are no numbers are left out.
func metric(name string, unit Unit, rounds []float64) (m Metric, ok bool) {
	v := slices.DeleteFunc(slices.Clone(rounds), func(x float64) bool {
		return math.IsNaN(x) || math.IsInf(x, 0)
	})
	if len(v) == 0 {
		return Metric{}, false
	}
	slices.Sort(v)
	return Metric{Name: name, Unit: unit, Value: median(v), Low: v[(len(v)-1)/4], High: v[len(v)-1-(len(v)-1)/4]}, true
}

// median returns the median of sorted values, of which there is at least one.
func median(sorted []float64) float64 {
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// quantile returns the least of sorted samples that at least the share q of them does
// not exceed (nearest rank); zero if there are none.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// A quantileName is a quantile that the tables show, and how many samples it needs:
// with fewer it would only repeat the greatest.
type quantileName struct {
	name  string
	q     float64
	least int
}

var quantileNames = []quantileName{
	{"p50", 0.5, 1}, {"p90", 0.9, 10}, {"p99", 0.99, 100}, {"p99.9", 0.999, 1000},
}

// latencies makes the metrics of an operation: p50 is the median of the rounds' p50;
// the tail is taken from the samples of all rounds, since one round has too few.
func latencies(op string, rounds [][]time.Duration) []Metric {
	var all []time.Duration
	var middle []float64
	for _, samples := range rounds {
		if len(samples) == 0 {
			continue
		}
		sorted := slices.Sorted(slices.Values(samples))
		middle = append(middle, quantile(sorted, 0.5).Seconds())
		all = append(all, samples...)
	}
	slices.Sort(all)
	var out []Metric
	for _, n := range quantileNames {
		if len(all) < n.least {
			break
		}
		v := quantile(all, n.q).Seconds()
		m := Metric{Name: op + " " + n.name, Unit: Seconds, Value: v, Low: v, High: v}
		if n.q == 0.5 {
			m, _ = metric(m.Name, Seconds, middle)
		}
		out = append(out, m)
	}
	return out
}

// String formats the value for people, and its spread where there is one worth
// a word.
func (m Metric) String() string {
	s := format(m.Value, m.Unit)
	low, high := format(m.Low, m.Unit), format(m.High, m.Unit)
	if low == s && high == s {
		return s
	}
	number, unit, _ := strings.Cut(s, " ")
	least, lowUnit, _ := strings.Cut(low, " ")
	most, highUnit, _ := strings.Cut(high, " ")
	if unit == "" || lowUnit != unit || highUnit != unit {
		return s + " (" + low + " – " + high + ")"
	}
	return number + " (" + least + " – " + most + ") " + unit
}

// format writes a value with three digits and the unit that suits it.
func format(v float64, u Unit) string {
	switch u {
	case Seconds:
		return formatScaled(v, []scale{{1, " s"}, {1e-3, " ms"}, {1e-6, " µs"}, {1e-9, " ns"}})
	case Bytes:
		return formatScaled(v, []scale{{1 << 30, " GB"}, {1 << 20, " MB"}, {1 << 10, " kB"}, {1, " B"}})
	case PerSecond:
		return grouped(v) + "/s"
	case Times:
		return digits(v) + " ×"
	case Percent:
		return digits(v) + " %"
	}
	return grouped(v)
}

type scale struct {
	unit float64
	name string
}

func formatScaled(v float64, scales []scale) string {
	for _, s := range scales {
		if math.Abs(v) >= s.unit*0.9995 {
			return digits(v/s.unit) + s.name
		}
	}
	return digits(v/scales[len(scales)-1].unit) + scales[len(scales)-1].name
}

// digits writes three significant digits, without an exponent.
func digits(v float64) string {
	a := math.Abs(v)
	switch {
	case v == math.Trunc(v) && a < 1000, a >= 99.95:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 0.0095:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}

// grouped is digits with thousands apart: 123,456.
func grouped(v float64) string {
	s := digits(v)
	if math.Abs(v) < 999.5 {
		return s
	}
	sign := ""
	if s[0] == '-' {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// spoken writes a duration for a sentence: 1.5 s.
func spoken(d time.Duration) string { return format(d.Seconds(), Seconds) }

// shortly writes a duration for progress lines.
func shortly(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

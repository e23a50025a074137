package figures

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies is a histogram of durations up to a minute, with three significant digits. It is safe
// for concurrent use. Use NewLatencies.
type Latencies struct {
	mu sync.Mutex
	h  *hdrhistogram.Histogram
}

// NewLatencies returns a histogram of these durations.
func NewLatencies(durations ...time.Duration) *Latencies {
	l := &Latencies{h: hdrhistogram.New(1, int64(time.Minute), 3)}
	for _, d := range durations {
		l.Add(d)
	}
	return l
}

// Rounds holds the latencies of one operation in several rounds. Use NewRounds.
type Rounds struct {
	All     *Latencies
	Medians map[int]float64 // in seconds, by round
}

// NewRounds returns Rounds without latencies.
func NewRounds() *Rounds { return &Rounds{NewLatencies(), map[int]float64{}} }

// Add adds the latencies of one round.
func (r *Rounds) Add(round int, found *Latencies) {
	if found.Count() > 0 {
		r.All.Merge(found)
		r.Medians[round] = found.Quantile(0.5).Seconds()
	}
}

// A Tail is a quantile above the median.
type Tail struct {
	Name  string
	Value float64 // in seconds
}

// Tails returns p90, p99 and p99.9, without those for which there are too few samples.
func (r *Rounds) Tails() (list []Tail) {
	n := float64(r.All.Count())
	for _, t := range []Tail{{"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}} {
		if n*(1-t.Value) > 0.9999 { // with fewer it would only be the maximum
			list = append(list, Tail{t.Name, r.All.Quantile(t.Value).Seconds()})
		}
	}
	return list
}

// Add records one duration. A longer one than a minute counts as a minute.
func (l *Latencies) Add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.h.RecordValue(min(max(int64(d), 1), int64(time.Minute))) // cannot fail: the value is within the bounds
}

// Merge adds all durations of other.
func (l *Latencies) Merge(other *Latencies) {
	other.mu.Lock()
	defer other.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.h.Merge(other.h)
}

// Count returns the number of durations.
func (l *Latencies) Count() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.h.TotalCount()
}

// Quantile returns the duration that the share q (0 to 1) of all durations does not exceed, or
// zero if there are none.
func (l *Latencies) Quantile(q float64) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Duration(l.h.ValueAtQuantile(100 * q))
}

// Curve returns the quantiles from the median on. Each is half as far from one as the quantile
// before it; the last one is the last for which there are enough samples.
func (l *Latencies) Curve() (points []Point) {
	n := float64(l.Count())
	for beyond := 0.5; beyond*n >= 1; beyond /= 2 {
		points = append(points, Point{X: 1 / beyond, Y: l.Quantile(1 - beyond).Seconds()})
	}
	return points
}

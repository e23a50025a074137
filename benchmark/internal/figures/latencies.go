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

// NewLatencies returns an empty histogram.
func NewLatencies() *Latencies {
	return &Latencies{h: hdrhistogram.New(1, int64(time.Minute), 3)}
}

// Add records one duration. What is longer than a minute counts as a minute.
func (l *Latencies) Add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.h.RecordValue(min(max(int64(d), 1), int64(time.Minute))) // it is within the bounds
}

// Merge adds all of other.
func (l *Latencies) Merge(other *Latencies) {
	other.mu.Lock()
	defer other.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.h.Merge(other.h)
}

// Count returns how many there are.
func (l *Latencies) Count() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.h.TotalCount()
}

// Quantile returns the duration that the share q, from 0 to 1, does not exceed; zero if there are none.
func (l *Latencies) Quantile(q float64) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Duration(l.h.ValueAtQuantile(100 * q))
}

// Curve returns the quantiles from the median on, each half as far from one as that before,
// as far as there are samples.
func (l *Latencies) Curve() (points []Point) {
	n := float64(l.Count())
	for beyond := 0.5; beyond*n >= 1; beyond /= 2 {
		points = append(points, Point{X: 1 / beyond, Y: l.Quantile(1 - beyond).Seconds()})
	}
	return points
}

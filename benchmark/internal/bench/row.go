package bench

import (
	"maps"
	"runtime"
	"slices"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
)

// A Metric is one figure of a contestant in a case: its value in each round, and their median
// with its interval.
type Metric struct {
	Name string       `json:"name"`
	Unit figures.Unit `json:"unit,omitempty"`
	figures.Interval
	ByRound map[int]float64 `json:"by_round,omitempty"` // empty where it is of all rounds together
}

// sumUp computes the interval of the rounds.
func (m *Metric) sumUp() {
	m.Interval = figures.IntervalOf(slices.Collect(maps.Values(m.ByRound)))
}

// exactly returns a metric of all rounds together, which has no interval.
func exactly(name string, unit figures.Unit, v float64) Metric {
	return Metric{Name: name, Unit: unit, Interval: figures.Interval{Median: v, Low: v, High: v}}
}

// String returns the median, and the interval if there are enough rounds.
func (m Metric) String() string {
	s := figures.Format(m.Median, m.Unit)
	if m.Rounds < 2 || m.Low == m.High {
		return s
	}
	return s + " (" + figures.Format(m.Low, m.Unit) + " – " + figures.Format(m.High, m.Unit) + ")"
}

// A Row holds the results of one contestant in one case.
type Row struct {
	Case       string          `json:"case"`
	X          float64         `json:"x,omitempty"` // where the case stands on the axis
	Contestant string          `json:"contestant"`
	Library    string          `json:"library"`
	Kind       Kind            `json:"kind"`
	Client     string          `json:"client,omitempty"`
	Metrics    []Metric        `json:"metrics,omitempty"`
	Curve      []figures.Point `json:"quantiles,omitempty"` // X: one by the share beyond; Y: seconds
	Samples    int64           `json:"samples,omitempty"`   // of the operation with the most
	Failed     int             `json:"failed,omitempty"`    // operations
	Error      string          `json:"error,omitempty"`     // the first error
	// Foreign is how many processors other programs used during the case; negative: unknown.
	Foreign float64 `json:"foreign_processors"`
	// Slow says that a measurement took so long that no other was made.
	Slow bool `json:"slow,omitempty"`
}

// add adds a round's figure.
func (r *Row) add(name string, unit figures.Unit, round int, v float64) {
	i := slices.IndexFunc(r.Metrics, func(m Metric) bool { return m.Name == name })
	if i < 0 {
		i = len(r.Metrics)
		r.Metrics = append(r.Metrics, Metric{Name: name, Unit: unit, ByRound: map[int]float64{}})
	}
	r.Metrics[i].ByRound[round] = v
}

// metric returns the row's metric of this name.
func (r *Row) metric(name string) (Metric, bool) {
	i := slices.IndexFunc(r.Metrics, func(m Metric) bool { return m.Name == name })
	if i < 0 {
		return Metric{}, false
	}
	return r.Metrics[i], true
}

// rounds returns the number of rounds.
func (r *Row) rounds() (n int) {
	for _, m := range r.Metrics {
		n = max(n, m.Rounds)
	}
	return n
}

// disturbed reports whether other programs used so much of the processors during the case that
// it can compare nothing. Beside such a load a contestant loses that needs more processor time
// and fewer round trips, though it wins on an idle machine.
func (r *Row) disturbed() bool { return loaded(r.Foreign) }

// loaded reports whether other programs used more than a fifth of the processors.
func loaded(foreign float64) bool { return foreign > 0.2*float64(runtime.NumCPU()) }

// handsOver reports whether at least one in ten of the row's locks went to another client, or
// handoffs were not measured. With fewer handoffs their time is down to chance.
func (r *Row) handsOver() bool {
	locks, ok := r.metric("locks")
	handoffs, known := r.metric("handoffs")
	return !ok || !known || handoffs.Median >= locks.Median/10
}

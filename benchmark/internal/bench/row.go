package bench

import (
	"maps"
	"slices"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
)

// A Metric is one figure of a contestant in a case: of each round, and the median with its interval.
type Metric struct {
	Name string       `json:"name"`
	Unit figures.Unit `json:"unit,omitempty"`
	figures.Interval
	ByRound map[int]float64 `json:"by_round,omitempty"` // empty where it is of all rounds together
}

// sumUp makes the interval of the rounds.
func (m *Metric) sumUp() {
	m.Interval = figures.IntervalOf(slices.Collect(maps.Values(m.ByRound)))
}

// String writes the median, and the interval where there are rounds for it.
func (m Metric) String() string {
	s := figures.Format(m.Median, m.Unit)
	if m.Rounds < 2 || m.Low == m.High {
		return s
	}
	return s + " (" + figures.Format(m.Low, m.Unit) + " – " + figures.Format(m.High, m.Unit) + ")"
}

// A Row is one contestant in one case.
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
	Error      string          `json:"error,omitempty"`     // the first
	// Cut says that an operation was under way when the case was over: its time is the
	// least that it would have taken.
	Cut bool `json:"cut_short,omitempty"`
}

// add adds the figure of a round.
func (r *Row) add(name string, unit figures.Unit, round int, v float64) {
	i := slices.IndexFunc(r.Metrics, func(m Metric) bool { return m.Name == name })
	if i < 0 {
		i = len(r.Metrics)
		r.Metrics = append(r.Metrics, Metric{Name: name, Unit: unit, ByRound: map[int]float64{}})
	}
	r.Metrics[i].ByRound[round] = v
}

// metric returns a metric of the row by name.
func (r *Row) metric(name string) (Metric, bool) {
	i := slices.IndexFunc(r.Metrics, func(m Metric) bool { return m.Name == name })
	if i < 0 {
		return Metric{}, false
	}
	return r.Metrics[i], true
}

// rounds returns how many rounds the row has.
func (r *Row) rounds() (n int) {
	for _, m := range r.Metrics {
		n = max(n, m.Rounds)
	}
	return n
}

// handsOver reports whether at least one in ten of a row's locks goes to another client;
// true where that is not measured. With fewer, how long it takes is luck.
func (r *Row) handsOver() bool {
	locks, ok := r.metric("locks")
	handoffs, known := r.metric("handoffs")
	return !ok || !known || handoffs.Median >= locks.Median/10
}

package bench

import (
	"errors"
	"slices"
	"strings"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A Metric is one figure of a contestant in a case.
type Metric struct {
	Name string
	Unit figures.Unit
	figures.Series
}

// A Row holds the results of one contestant in one case.
type Row struct {
	Contestant
	Metrics []*Metric
	Failed  int   // operations
	Err     error // why it could not take part, or what failed first
	Slow    bool  // one round took so long that there was no other

	out     bool             // it takes part no more
	round   int              // that is being measured; 0 warms up, and does not count
	keys    string           // prefix of its keys; no other row has it
	clients []*Client        // as many as the case needs
	servers []*server.Server // of its locks, which give figures
}

// add adds what was measured in this round.
func (r *Row) add(name string, unit figures.Unit, samples ...float64) {
	if r.round == 0 || len(samples) == 0 {
		return
	}
	m := r.metric(name)
	if m == nil {
		m = &Metric{Name: name, Unit: unit}
		r.Metrics = append(r.Metrics, m)
	}
	m.Add(r.round, samples...)
}

// fail counts n failed operations, the first of which failed with err.
func (r *Row) fail(n int, err error) {
	if r.Failed += n; r.Err == nil {
		r.Err = err
	}
}

// metric returns the row's metric of this name; nil if there is none.
func (r *Row) metric(name string) *Metric {
	i := slices.IndexFunc(r.Metrics, func(m *Metric) bool { return m.Name == name })
	if i < 0 {
		return nil
	}
	return r.Metrics[i]
}

// figure returns the median of a metric; zero if it was not measured.
func (r *Row) figure(name string) float64 {
	if m := r.metric(name); m != nil {
		return m.Interval().Median
	}
	return 0
}

// requests is how many requests the clients have made that count them.
func (r *Row) requests() (n int64) {
	for _, c := range r.clients {
		if c.Requests != nil {
			n += c.Requests.Load()
		}
	}
	return n
}

// handsOver reports whether at least one in ten of the row's locks went to another client, or
// handoffs were not measured. With fewer handoffs their time is down to chance.
func (r *Row) handsOver() bool {
	return r.metric("handoffs") == nil || r.figure("handoffs") >= r.figure("locks")/10
}

// trouble says what went wrong in the row; empty: nothing.
func (r *Row) trouble() string {
	switch {
	case r.Err != nil && r.Failed == 0:
		return r.String() + " could not take part: " + firstLine(r.Err)
	case r.Err != nil:
		return r.String() + ": failed operations: " + figures.Digits(float64(r.Failed)) + ", the first: " + firstLine(r.Err)
	case r.Slow:
		return r.String() + " took so long in one round that it had no other"
	}
	return ""
}

// close closes the clients.
func (r *Row) close() {
	var errs []error
	for _, c := range r.clients {
		errs = append(errs, c.Close())
	}
	if err := errors.Join(errs...); err != nil {
		r.fail(1, err)
	}
	r.clients = nil
}

// firstLine shortens an error to one line.
func firstLine(err error) string {
	s, _, _ := strings.Cut(err.Error(), "\n")
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return s
}

// Package promlock reports dlock clients to Prometheus: a collector over their Stats and hooks.
//
//	metrics := promlock.New(nil)
//	prometheus.MustRegister(metrics)
//	locks, err := dlock.OpenURL(url, dlock.WithHooks(metrics.Hooks()))
//	metrics.Add(locks)
//
// The package is a module of its own: only programs that import it depend on Prometheus. Its
// file grafana.json is a dashboard of these metrics.
//
//	dlock_held                       gauge      leases that are held
//	dlock_waiting                    gauge      calls of Lock that wait
//	dlock_acquired_total             counter    leases granted
//	dlock_passed_total               counter    leases that got their lock within the process
//	dlock_contended_total            counter    requests that were answered "held"
//	dlock_failed_total               counter    requests that failed otherwise
//	dlock_renewed_total              counter    renewals that succeeded
//	dlock_renewals_failed_total      counter    renewals that did not
//	dlock_lost_total                 counter    leases lost
//	dlock_released_total             counter    releases that succeeded
//	dlock_releases_failed_total      counter    releases whose outcome is unknown
//	dlock_node_failures_total        counter    by node: requests of a quorum that failed there
//	dlock_wait_seconds               histogram  from the call of Lock to the lease, or to the failure
//	dlock_hold_seconds               histogram  from the grant to the release or loss
//	dlock_renewal_margin_seconds     histogram  the time left of a lease when it was renewed
//
// No metric has the key as a label, because there may be any number of keys. Options.Class maps
// keys to a few classes.
package promlock

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redlock-go/redlock/dlock"
)

// Options are the settings of New. The zero Options are the defaults.
type Options struct {
	// Class adds the label "class" to the histograms of waiting and holding: its result for a
	// key. It must return few different values, and be safe for concurrent use.
	Class func(key string) string
	// Labels are added to every metric.
	Labels prometheus.Labels
	// Buckets are the buckets of the histograms of waiting and holding, in seconds; nil: from 1
	// ms to 5 min.
	Buckets []float64
	_       struct{}
}

// A Collector collects the metrics of the clients that were added. It is safe for concurrent
// use.
type Collector struct {
	class    func(string) string
	all      []prometheus.Collector
	wait     *prometheus.HistogramVec
	hold     *prometheus.HistogramVec
	margin   prometheus.Histogram
	failures *prometheus.CounterVec
	anyWait  prometheus.Observer // of all keys, without classes
	anyHold  prometheus.Observer

	mu      sync.Mutex
	clients []*dlock.Client
}

var _ prometheus.Collector = (*Collector)(nil)

// New returns a collector of no clients; nil stands for the zero Options.
func New(o *Options) *Collector {
	if o == nil {
		o = &Options{}
	}
	buckets := o.Buckets
	if len(buckets) == 0 {
		buckets = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}
	}
	var labels []string
	if o.Class != nil {
		labels = []string{"class"}
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets, ConstLabels: o.Labels}, labels)
	}
	c := &Collector{
		wait: histogram("dlock_wait_seconds", "Time from the call of Lock or TryLock to the lease, or to the failure."),
		hold: histogram("dlock_hold_seconds", "Time from the grant of a lease to its release or loss."),
		margin: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "dlock_renewal_margin_seconds", Help: "Time left of a lease when it was renewed.",
			Buckets: []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80}, ConstLabels: o.Labels,
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dlock_node_failures_total", Help: "Requests to a node of a quorum that failed otherwise than by contention.", ConstLabels: o.Labels,
		}, []string{"node"}),
	}
	if o.Class == nil {
		c.anyWait, c.anyHold = c.wait.WithLabelValues(), c.hold.WithLabelValues()
	} else { // a label of another encoding would panic
		c.class = func(key string) string { return strings.ToValidUTF8(o.Class(key), "\uFFFD") }
	}
	c.all = []prometheus.Collector{c.wait, c.hold, c.margin, c.failures}
	gauge := func(name, help string, read func(*dlock.Stats) float64) {
		c.all = append(c.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: o.Labels}, c.sum(read)))
	}
	counter := func(name, help string, read func(*dlock.Stats) float64) {
		c.all = append(c.all, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: o.Labels}, c.sum(read)))
	}
	gauge("dlock_held", "Leases that are held.", func(s *dlock.Stats) float64 { return float64(s.Held) })
	gauge("dlock_waiting", "Calls of Lock that wait.", func(s *dlock.Stats) float64 { return float64(s.Waiting) })
	counter("dlock_acquired_total", "Leases granted.", func(s *dlock.Stats) float64 { return float64(s.Acquired) })
	counter("dlock_passed_total", "Leases that got their lock from another one of the process.", func(s *dlock.Stats) float64 { return float64(s.Passed) })
	counter("dlock_contended_total", "Requests that were answered held.", func(s *dlock.Stats) float64 { return float64(s.Contended) })
	counter("dlock_failed_total", "Requests that failed otherwise than by contention.", func(s *dlock.Stats) float64 { return float64(s.Failed) })
	counter("dlock_renewed_total", "Renewals that succeeded.", func(s *dlock.Stats) float64 { return float64(s.Renewed) })
	counter("dlock_renewals_failed_total", "Renewals that failed.", func(s *dlock.Stats) float64 { return float64(s.RenewalFailed) })
	counter("dlock_lost_total", "Leases lost.", func(s *dlock.Stats) float64 { return float64(s.Lost) })
	counter("dlock_released_total", "Releases that succeeded.", func(s *dlock.Stats) float64 { return float64(s.Released) })
	counter("dlock_releases_failed_total", "Releases of which it is unknown whether they succeeded.", func(s *dlock.Stats) float64 { return float64(s.ReleaseFailed) })
	return c
}

// Add adds clients, whose Stats are summed. Make the clients with WithHooks(c.Hooks());
// otherwise they are missing in the histograms and the failures by node.
func (c *Collector) Add(clients ...*dlock.Client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clients = append(c.clients, clients...)
}

// sum returns a function that sums what read finds in the clients' Stats.
func (c *Collector) sum(read func(*dlock.Stats) float64) func() float64 {
	return func() (sum float64) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, client := range c.clients {
			stats := client.Stats()
			sum += read(&stats)
		}
		return sum
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, v := range c.all {
		v.Describe(to)
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	for _, v := range c.all {
		v.Collect(to)
	}
}

// Hooks returns the hooks that report a client. dlock.WithHooks may be given more than once.
func (c *Collector) Hooks() dlock.Hooks {
	return dlock.Hooks{Event: func(_ context.Context, e dlock.Event) {
		switch e.Op {
		case "attempt":
			c.count(e)
		case "lock", "trylock":
			c.waited(e.Key).Observe(e.Waited.Seconds())
		case "renew":
			c.count(e)
			if e.Err == nil {
				c.margin.Observe(e.Left.Seconds())
			}
		case "lost", "unlock":
			if e.Held > 0 { // once for each lease
				c.held(e.Key).Observe(e.Held.Seconds())
			}
		}
	}}
}

// count counts the nodes of a quorum that failed.
func (c *Collector) count(e dlock.Event) {
	for i := range e.Votes {
		if v := &e.Votes[i]; v.Err != nil && !errors.Is(v.Err, dlock.ErrHeld) {
			c.failures.WithLabelValues(v.Node).Inc()
		}
	}
}

// waited and held return the histograms for a key.
func (c *Collector) waited(key string) prometheus.Observer {
	if c.class == nil {
		return c.anyWait
	}
	return c.wait.WithLabelValues(c.class(key))
}

func (c *Collector) held(key string) prometheus.Observer {
	if c.class == nil {
		return c.anyHold
	}
	return c.hold.WithLabelValues(c.class(key))
}

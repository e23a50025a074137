package promlock_test

import (
	_ "embed"
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/dlock/promlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/memory"
)

func client(t *testing.T, c *promlock.Collector, b driver.Backend, opts ...dlock.Option) *dlock.Client {
	t.Helper()
	l, err := dlock.New(b, append(opts, dlock.WithHooks(c.Hooks()), dlock.WithLogger(nil))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	c.Add(l)
	return l
}

func lock(t *testing.T, c *dlock.Client, key string) *dlock.Lease {
	t.Helper()
	l, err := c.Lock(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// expect compares some metrics with the wanted text.
func expect(t *testing.T, c *promlock.Collector, want string, names ...string) {
	t.Helper()
	if err := testutil.CollectAndCompare(c, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
}

func TestStatsAreCollected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := promlock.New(&promlock.Options{Labels: prometheus.Labels{"app": "shop"}, Buckets: []float64{1, 10}})
		b := memory.New()
		one, two := client(t, c, b, dlock.WithTTL(3*time.Second)), client(t, c, b.Peer())
		held := lock(t, one, "held")
		released := lock(t, two, "released")
		if _, err := two.TryLock(t.Context(), "held"); !errors.Is(err, dlock.ErrHeld) {
			t.Fatal(err)
		}
		time.Sleep(1100 * time.Millisecond) // one renewal of each
		synctest.Wait()
		if err := released.Unlock(); err != nil {
			t.Fatal(err)
		}
		if err := b.Peer().Break(t.Context(), "held", driver.Holder{Fence: held.Fence()}); err != nil {
			t.Fatal(err)
		}
		<-held.Done()
		synctest.Wait()
		kept := lock(t, one, "kept")
		expect(t, c, `
# HELP dlock_acquired_total Leases granted.
# TYPE dlock_acquired_total counter
dlock_acquired_total{app="shop"} 3
# HELP dlock_contended_total Requests that were answered held.
# TYPE dlock_contended_total counter
dlock_contended_total{app="shop"} 1
# HELP dlock_held Leases that are held.
# TYPE dlock_held gauge
dlock_held{app="shop"} 1
# HELP dlock_hold_seconds Time from the grant of a lease to its release or loss.
# TYPE dlock_hold_seconds histogram
dlock_hold_seconds_bucket{app="shop",le="1"} 0
dlock_hold_seconds_bucket{app="shop",le="10"} 2
dlock_hold_seconds_bucket{app="shop",le="+Inf"} 2
dlock_hold_seconds_sum{app="shop"} 2.2
dlock_hold_seconds_count{app="shop"} 2
# HELP dlock_lost_total Leases lost.
# TYPE dlock_lost_total counter
dlock_lost_total{app="shop"} 1
# HELP dlock_passed_total Leases that got their lock from another one of the process.
# TYPE dlock_passed_total counter
dlock_passed_total{app="shop"} 0
# HELP dlock_released_total Releases that succeeded.
# TYPE dlock_released_total counter
dlock_released_total{app="shop"} 1
# HELP dlock_waiting Calls of Lock that wait.
# TYPE dlock_waiting gauge
dlock_waiting{app="shop"} 0
`, "dlock_acquired_total", "dlock_contended_total", "dlock_held", "dlock_hold_seconds", "dlock_lost_total", "dlock_passed_total", "dlock_released_total", "dlock_waiting")
		if n := testutil.CollectAndCount(c, "dlock_wait_seconds"); n != 1 {
			t.Errorf("%d series of dlock_wait_seconds", n)
		}
		if err := kept.Unlock(); err != nil {
			t.Fatal(err)
		}
	})
}

// A renewal at a third of its TTL has two thirds left.
func TestTheMarginOfARenewalIsWhatWasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := promlock.New(nil)
		l := lock(t, client(t, c, memory.New(), dlock.WithTTL(12*time.Second)), "k")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(c)
		all, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			if m.GetName() != "dlock_renewal_margin_seconds" {
				continue
			}
			h := m.GetMetric()[0].GetHistogram()
			if h.GetSampleCount() != 1 || h.GetSampleSum() < 7 || h.GetSampleSum() > 9.1 {
				t.Errorf("%d renewals had %v s left", h.GetSampleCount(), h.GetSampleSum())
			}
		}
		if err := l.Unlock(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestFailuresAreCountedByNode(t *testing.T) {
	c := promlock.New(nil)
	for _, op := range []string{"attempt", "renew"} {
		c.Hooks().Event(t.Context(), dlock.Event{Op: op, Votes: []quorum.Vote{
			{Node: "a", Granted: true}, {Node: "b", Err: errors.New("the disk is full")}, {Node: "c", Err: &driver.HeldError{}},
		}})
	}
	expect(t, c, `
# HELP dlock_node_failures_total Requests to a node of a quorum that failed otherwise than by contention.
# TYPE dlock_node_failures_total counter
dlock_node_failures_total{node="b"} 2
`, "dlock_node_failures_total")
}

func TestKeysAreNoLabelsButTheirClassesAre(t *testing.T) {
	for class, series := range map[string]int{"": 1, "yes": 3} {
		o := &promlock.Options{}
		if class != "" {
			o.Class = func(key string) string { class, _, _ := strings.Cut(key, "/"); return class }
		}
		c := promlock.New(o)
		locks := client(t, c, memory.New())
		for _, key := range []string{"reports/1", "reports/2", "mail/1", "\xff/1"} {
			if err := lock(t, locks, key).Unlock(); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"dlock_wait_seconds", "dlock_hold_seconds"} {
			if n := testutil.CollectAndCount(c, name); n != series {
				t.Errorf("%d series of %s, want %d", n, name, series)
			}
		}
		if problems, err := testutil.CollectAndLint(c); err != nil || len(problems) > 0 {
			t.Errorf("%v, %v", problems, err)
		}
	}
}

//go:embed grafana.json
var dashboard []byte

// Every metric of the dashboard is one that is collected, and every one that is collected is
// shown.
func TestTheDashboardShowsWhatIsCollected(t *testing.T) {
	if !json.Valid(dashboard) {
		t.Fatal("the dashboard is no JSON")
	}
	c := promlock.New(nil)
	descs := make(chan *prometheus.Desc, 100)
	c.Describe(descs)
	close(descs)
	collected := map[string]bool{}
	for d := range descs {
		collected[regexp.MustCompile(`fqName: "(\w+)"`).FindStringSubmatch(d.String())[1]] = false
	}
	for _, name := range regexp.MustCompile(`dlock_\w+`).FindAllString(string(dashboard), -1) {
		base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"), "_count")
		if _, ok := collected[base]; !ok {
			t.Errorf("the dashboard shows %s, which nobody collects", name)
		}
		collected[base] = true
	}
	for name, shown := range collected {
		if !shown {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
}

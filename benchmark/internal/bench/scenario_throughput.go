package bench

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// throughputMeasurement lets goroutines take locks on keys of their own for a slice of time.
func (r *Runner) throughputMeasurement(goroutines int) func(context.Context, *entry, time.Duration) *measurement {
	return func(ctx context.Context, e *entry, slice time.Duration) *measurement {
		t := &measurement{}
		var mu sync.Mutex
		var samples []time.Duration
		var workers sync.WaitGroup
		done := 0
		m := startMeter(e.servers)
		for g := range goroutines {
			workers.Go(func() {
				n, own, errs := takeLocks(ctx, e.lockers[0], e.keys+"throughput/"+strconv.Itoa(g)+"/", m.at.Add(slice), mostSamples/goroutines)
				mu.Lock()
				defer mu.Unlock()
				done += n
				samples = append(samples, own...)
				for _, err := range errs {
					t.fail(err)
				}
			})
		}
		workers.Wait()
		took := m.stop(t, done)
		t.values = append([]value{{"locks", figures.PerSecond, float64(done) / took.Seconds()}}, t.values...)
		t.series = []series{{pair, samples}}
		return t
	}
}

// leastOf is the least time of a measurement: many goroutines need some until they go steadily.
func (r *Runner) leastOf(goroutines int) time.Duration {
	return r.plan.Slice * time.Duration(1+min(goroutines/16, 4))
}

// takeLocks takes and releases n locks until the end, and keeps the times of some.
func takeLocks(ctx context.Context, l Locker, keys string, end time.Time, most int) (n int, samples []time.Duration, errs []error) {
	const ownKeys = 16
	for i := 0; time.Now().Before(end) && ctx.Err() == nil; i++ {
		start := time.Now()
		h, err := l.Lock(ctx, keys+strconv.Itoa(i%ownKeys), false)
		if err == nil {
			err = h.Unlock()
		}
		if err != nil {
			errs = append(errs, err)
			if len(errs) == 100 {
				return n, samples, errs
			}
			continue
		}
		n++
		if len(samples) < most {
			samples = append(samples, time.Since(start))
		}
	}
	return n, samples, errs
}

// throughput measures many goroutines on one server and on five.
func throughput(ctx context.Context, r *Runner) ([]*testCase, error) {
	var cases []*testCase
	add := func(kind server.Kind, n int, goroutines []int) error {
		s := &Section{
			Title: "Throughput on " + plural(n, "server") + on(kind),
			Text: "Goroutines of one process share one client and take locks on keys of their own, on loopback. CPU, allocations and bytes are per lock (acquisition and release), the client's include goroutines in the background; " +
				"server commands count those inside scripts; wire is what the servers received and sent.",
			Key: "locks", More: true, Axis: "goroutines",
			Plots: []Plot{
				{Title: "locks per second", Metric: "locks", Lines: true},
				{Title: "client CPU per lock", Metric: "client CPU", Lines: true},
			},
		}
		servers, ok, err := r.servers(ctx, kind, n)
		if err != nil || !ok {
			return err
		}
		for _, g := range goroutines {
			cases = append(cases, &testCase{
				section: s, name: plural(n, "server") + on(kind) + ", " + plural(g, "goroutine"), x: float64(g),
				contestants: r.serving(kind, n, nil), servers: servers, setup: direct(servers, r.plan.TTL),
				clients: 1, heavy: 1, least: r.leastOf(g), measurement: r.throughputMeasurement(g),
			})
		}
		return nil
	}
	kinds, err := r.fives(ctx)
	if err != nil {
		return nil, err
	}
	if err := add(server.KindRedis, 1, r.plan.Goroutines); err != nil {
		return nil, err
	}
	for i, kind := range kinds {
		goroutines := r.plan.Goroutines
		if i > 0 {
			goroutines = []int{64}
		}
		if err := add(kind, 5, goroutines); err != nil {
			return nil, err
		}
	}
	return append(cases, r.localThroughput("Throughput without a server", "The same on drivers that need no server.")...), nil
}

// localThroughput measures the contestants that are given no server.
func (r *Runner) localThroughput(title, text string) (cases []*testCase) {
	s := &Section{
		Title: title, Text: text, Key: "locks", More: true, Axis: "goroutines",
		Plots: []Plot{{Title: "locks per second", Metric: "locks", Lines: true}},
	}
	for _, g := range r.plan.Goroutines {
		cases = append(cases, r.local(&testCase{section: s, name: plural(g, "goroutine"), x: float64(g), heavy: 0.5, least: r.leastOf(g), measurement: r.throughputMeasurement(g)}))
	}
	return cases
}

package bench

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// curveOp is the operation whose quantiles are drawn.
const curveOp = "at the rate"

// load measures latency where locks are asked for at a given rate, whether or not those before are done.
func load(ctx context.Context, r *Runner) ([]*testCase, error) {
	var cases []*testCase
	for _, n := range []int{1, 5} {
		servers, ok, err := r.servers(ctx, server.KindRedis, n)
		if err != nil || !ok {
			return cases, err
		}
		s := &Section{
			Title: "Latency under load on " + plural(n, "server"),
			Text: "Locks are asked for at even intervals, at a share of the rate that the contestant itself has with 64 goroutines, which was measured just before; \"locks\" is that rate. " +
				"The time of a lock and its release counts from when it was to begin, even if all callers were busy then (coordinated omission is corrected). Contestants are at different rates here, and so are not judged.",
			Plots: []Plot{{Title: "acquire+release", Curve: true}},
		}
		some := func(c Contestant) bool {
			return !c.OnlyWaits && (c.Kind == Ours || c.Kind == Peer || c.Kind == Limit && c.Name == "bare, "+c.Client)
		}
		for _, share := range []float64{0.5, 0.8, 0.95} {
			cases = append(cases, &testCase{
				section: s, name: fmt.Sprintf("%s at %.0f %% of capacity", plural(n, "server"), 100*share), x: 100 * share,
				contestants: r.serving(server.KindRedis, n, some), setup: direct(servers, r.plan.TTL),
				clients: 1, heavy: 1, least: 4 * r.plan.Slice, rounds: 5, measurement: r.atRate(share),
			})
		}
	}
	return cases, nil
}

// callers is how many locks may be under way at once.
const callers = 256

// atRate measures at a share of the capacity, which the first measurement, that warms up, finds out.
func (r *Runner) atRate(share float64) func(context.Context, *entry, time.Duration) *measurement {
	const goroutines = 64
	full := r.throughputMeasurement(goroutines)
	return func(ctx context.Context, e *entry, slice time.Duration) *measurement {
		if e.capacity == 0 {
			t := full(ctx, e, max(slice, r.leastOf(goroutines)))
			e.capacity = t.values[0].v
			return t
		}
		t := &measurement{}
		interval := time.Duration(float64(time.Second) / (share * e.capacity))
		n := max(int64(slice/max(interval, 1)), 1)
		samples := make([]time.Duration, n)
		var next atomic.Int64
		var mu sync.Mutex
		var workers sync.WaitGroup
		start := time.Now()
		for g := range callers {
			workers.Go(func() {
				for i := next.Add(1) - 1; i < n && ctx.Err() == nil; i = next.Add(1) - 1 {
					begin := start.Add(time.Duration(i) * interval)
					if early := time.Until(begin); early > 0 {
						time.Sleep(early)
						begin = time.Now() // the timer's own delay is not the lock's
					}
					h, err := e.lockers[0].Lock(ctx, e.keys+"load/"+strconv.Itoa(g)+"/"+strconv.FormatInt(i%16, 10), false)
					if err == nil {
						err = h.Unlock()
					}
					samples[i] = time.Since(begin)
					if err != nil {
						mu.Lock()
						t.fail(err)
						mu.Unlock()
					}
				}
			})
		}
		workers.Wait()
		t.add("locks", figures.PerSecond, share*e.capacity)
		t.series = []series{{curveOp, samples}}
		return t
	}
}

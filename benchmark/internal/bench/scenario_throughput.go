package bench

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redlock-go/redlock/redlocktest/server"
)

// throughputTurn lets goroutines take locks on keys of their own for a slice of time.
func (r *Runner) throughputTurn(goroutines int, servers []*server.Server) func(context.Context, *entry) *turn {
	return func(ctx context.Context, e *entry) *turn {
		t := &turn{}
		var mu sync.Mutex
		var samples []time.Duration
		var workers sync.WaitGroup
		m := startMeter(servers)
		for g := range goroutines {
			workers.Go(func() {
				own, errs := takeLocks(ctx, e.lockers[0], r.keys+"throughput/"+strconv.Itoa(g)+"/", m.at.Add(r.plan.Slice))
				mu.Lock()
				defer mu.Unlock()
				samples = append(samples, own...)
				for _, err := range errs {
					t.fail(err)
				}
			})
		}
		workers.Wait()
		took := m.stop(t, len(samples))
		t.values = append([]value{{"locks", PerSecond, float64(len(samples)) / took.Seconds()}}, t.values...)
		t.series = []series{{pair, samples}}
		return t
	}
}

// takeLocks takes and releases locks until the end.
func takeLocks(ctx context.Context, l Locker, keys string, end time.Time) (samples []time.Duration, errs []error) {
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
				return samples, errs
			}
			continue
		}
		samples = append(samples, time.Since(start))
	}
	return samples, errs
}

// throughput measures many goroutines on one server and on five.
func throughput(ctx context.Context, r *Runner) ([]*Section, error) {
	var out []*Section
	for _, n := range []int{1, 5} {
		s := &Section{
			Title: "Throughput on " + plural(n, "server"),
			Text: "Goroutines of one process share one client and take locks on keys of their own, on loopback. CPU, allocations and bytes are per lock (acquisition and release), the client's include goroutines in the background; " +
				"server commands count those inside scripts; wire is what the servers received and sent.",
			Key: "locks", More: true, Axis: "goroutines",
			Plots: []Plot{
				{Title: "locks per second", Metric: "locks", Lines: true},
				{Title: "client CPU per lock", Metric: "client CPU", Lines: true},
			},
		}
		out = append(out, s)
		servers, ok, err := r.servers(ctx, server.KindRedis, n)
		if err != nil || !ok {
			return nil, err
		}
		for _, g := range r.plan.Goroutines {
			c := &testCase{
				name: fmt.Sprintf("%s, %s", plural(n, "server"), plural(g, "goroutine")), x: float64(g), clients: 1, rounds: r.plan.Rounds,
				setup: direct(servers, r.plan.TTL), turn: r.throughputTurn(g, servers),
			}
			if err := r.compare(ctx, s, c, r.serving(server.KindRedis, n, nil)); err != nil {
				return nil, err
			}
		}
	}
	s, err := r.localThroughput(ctx, "Throughput without a server", "The same on drivers that need no server.")
	return append(out, s), err
}

// localThroughput measures the contestants that are given no server.
func (r *Runner) localThroughput(ctx context.Context, title, text string) (*Section, error) {
	s := &Section{
		Title: title, Text: text, Key: "locks", More: true, Axis: "goroutines",
		Plots: []Plot{{Title: "locks per second", Metric: "locks", Lines: true}},
	}
	for _, g := range r.plan.Goroutines {
		if err := r.local(ctx, s, plural(g, "goroutine"), float64(g), 1, r.throughputTurn(g, nil), nil); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// wire counts what one lock sends, exactly, by a proxy.
func wire(ctx context.Context, r *Runner) ([]*Section, error) {
	s := &Section{
		Title: "On the wire",
		Text:  "What one lock, acquired and released by one goroutine, sends and receives, over all of its servers, counted by proxies over 200 locks. Pings of a client in the background count as well.",
		Key:   "requests",
	}
	for _, n := range []int{1, 5} {
		servers, ok, err := r.servers(ctx, server.KindRedis, n)
		if err != nil || !ok {
			return nil, err
		}
		setup, proxies, err := proxied(servers, r.plan.TTL)
		if err != nil {
			return nil, err
		}
		c := &testCase{name: plural(n, "server"), clients: 1, rounds: 1, setup: setup, turn: countOnProxies(proxies)}
		err = r.compare(ctx, s, c, r.serving(server.KindRedis, n, nil))
		closeAll(proxies)
		if err != nil {
			return nil, err
		}
	}
	return []*Section{s}, nil
}

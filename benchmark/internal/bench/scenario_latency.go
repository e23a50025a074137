package bench

import (
	"context"
	"strconv"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// keysInMeasurement is over how many keys a lone caller goes: what is still under way for a
// lock, on a slow node, does not meet the next one.
const keysInMeasurement = 256

// pair is the whole use of a lock: what is compared.
const pair = "acquire+release"

// mostSamples bounds what a measurement keeps.
const mostSamples = 50_000

// latencyMeasurement takes locks one after the other for a slice of time.
func (r *Runner) latencyMeasurement(ctx context.Context, e *entry, slice time.Duration) *measurement {
	t := &measurement{}
	var acquire, renew, release, both []time.Duration
	for i, begun := 0, time.Now(); (i == 0 || time.Since(begun) < slice) && i < mostSamples && ctx.Err() == nil; i++ {
		key := e.keys + "latency/" + strconv.Itoa(i%keysInMeasurement)
		start := time.Now()
		h, err := e.lockers[0].Lock(ctx, key, false)
		acquired := time.Now()
		if err != nil {
			t.fail(err)
			continue
		}
		renewed := acquired
		if e.contestant.Renews {
			err = h.Renew(ctx)
			renewed = time.Now()
		}
		if unlockErr := h.Unlock(); err == nil {
			err = unlockErr
		}
		released := time.Now()
		if err != nil {
			t.fail(err)
			continue
		}
		acquire = append(acquire, acquired.Sub(start))
		if e.contestant.Renews {
			renew = append(renew, renewed.Sub(acquired))
		}
		release = append(release, released.Sub(renewed))
		both = append(both, acquired.Sub(start)+released.Sub(renewed))
	}
	t.series = []series{{pair, both}, {"acquire", acquire}, {"renew", renew}, {"release", release}}
	return t
}

func latencySection(title, text string) *Section {
	return &Section{
		Title: title, Text: text, Key: pair + " p50",
		Plots: []Plot{{Title: "acquire+release, median", Metric: pair + " p50"}},
	}
}

// single measures one caller on one server, and on what needs none.
func single(ctx context.Context, r *Runner) ([]*testCase, error) {
	s := latencySection("Latency on one server", "One goroutine takes a lock, renews it and gives it back, over and over, on loopback. The time of a renewal is not part of acquire+release.")
	kinds, err := r.kinds(ctx, server.KindRedis, server.KindValkey)
	if err != nil {
		return nil, err
	}
	var cases []*testCase
	for _, kind := range kinds {
		servers, _, err := r.servers(ctx, kind, 1)
		if err != nil {
			return nil, err
		}
		cases = append(cases, &testCase{
			section: s, name: string(kind), contestants: r.serving(kind, 1, nil), setup: direct(servers, r.plan.TTL),
			clients: 1, heavy: 1, measurement: r.latencyMeasurement,
		})
	}
	return append(cases, r.local(&testCase{section: s, name: "no server", heavy: 0.5, measurement: r.latencyMeasurement})), nil
}

// quorum measures by the number of nodes.
func quorum(ctx context.Context, r *Runner) ([]*testCase, error) {
	s := &Section{
		Title: "Latency by the number of nodes",
		Text: "One goroutine, N redis-servers on loopback. Asking one node after the other is how the algorithm reads; asking all at once and waiting for all is the next step; " +
			"returning at the majority's answer is ours.",
		Key:   pair + " p50",
		Axis:  "nodes",
		Plots: []Plot{{Title: "acquire+release, median", Metric: pair + " p50", Lines: true}},
	}
	var cases []*testCase
	add := func(s *Section, kind server.Kind, n int) error {
		servers, ok, err := r.servers(ctx, kind, n)
		if err != nil || !ok {
			return err
		}
		cases = append(cases, &testCase{
			section: s, name: plural(n, "node") + on(kind), x: float64(n), contestants: r.serving(kind, n, nil), setup: direct(servers, r.plan.TTL),
			clients: 1, heavy: 1, measurement: r.latencyMeasurement,
		})
		return nil
	}
	for _, n := range r.plan.Nodes {
		if err := add(s, server.KindRedis, n); err != nil {
			return nil, err
		}
	}
	s = latencySection("Latency on five valkey-servers", "The same on five valkey-servers.")
	return cases, add(s, server.KindValkey, 5)
}

// plural is "1 node", "3 nodes".
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return figures.Digits(float64(n)) + " " + what + "s"
}

// local completes a case of the contestants that need no server.
func (r *Runner) local(c *testCase) *testCase {
	c.setup, c.clients = &Setup{TTL: r.plan.TTL}, max(c.clients, 1)
	if c.contestants == nil {
		c.contestants = r.serving("", 0, nil)
	}
	c.begin = func() (end func(), err error) {
		c.setup.Folder, end, err = temporary()
		return end, err
	}
	return c
}

// faultCase is a quorum of five behind proxies, and what is wrong with it.
type faultCase struct {
	name string
	rtts []time.Duration
	// breaks spoils the last node and returns what stops that.
	breaks func(f *faulty) (stop func(), err error)
}

func same(n int, d time.Duration) []time.Duration {
	out := make([]time.Duration, n)
	for i := range out {
		out[i] = d
	}
	return out
}

var faultCases = []faultCase{
	{name: "all 2 ms", rtts: same(5, 2*time.Millisecond)},
	{name: "1, 2, 3, 5 and 50 ms", rtts: []time.Duration{time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond, 5 * time.Millisecond, 50 * time.Millisecond}},
	{name: "2 ms, one black hole", rtts: same(5, 2*time.Millisecond), breaks: (*faulty).blackHole},
	{name: "2 ms, one refuses", rtts: same(5, 2*time.Millisecond), breaks: (*faulty).refuse},
	{name: "2 ms, one flaps", rtts: same(5, 2*time.Millisecond), breaks: (*faulty).flap},
}

// toMajority is the metric that sets a latency against what the network forces: the
// majority-th round trip, measured in the same rounds.
const toMajority = "to round trip"

// faults measures a quorum of five with slow and broken nodes.
func faults(ctx context.Context, r *Runner) ([]*testCase, error) {
	const nodes = 5
	kinds, err := r.fives(ctx)
	if err != nil {
		return nil, err
	}
	var cases []*testCase
	for _, kind := range kinds {
		s := &Section{
			Title: "A quorum of five with slow and broken nodes" + on(kind),
			Text: "One goroutine; a TCP proxy before each " + string(kind) + " delays both directions. Acquisition and release need one answer of the majority each, so that the third-fastest round trip is the limit of each: " +
				"it is measured by PING through the same proxies, in the same rounds. Contestants have their turns one after the other, but one that waits for a long time goes on waiting beside the next; what it still waits for at the end is cut short. A black hole accepts connections and never answers; a flapping node is a black hole for 150 ms and well for 150 ms.",
			Key:   pair + " p50",
			Plots: []Plot{{Title: "acquire+release, median", Metric: pair + " p50"}},
		}
		servers, ok, err := r.servers(ctx, kind, nodes)
		if err != nil || !ok {
			return nil, err
		}
		broken := faultCases
		if r.plan.Quick {
			broken = faultCases[1:3]
		}
		for _, f := range broken {
			cases = append(cases, r.fault(s, f, kind, servers))
		}
	}
	return cases, nil
}

// fault makes one case of faults.
func (r *Runner) fault(s *Section, f faultCase, kind server.Kind, servers []*server.Server) *testCase {
	c := &testCase{
		section: s, name: f.name + on(kind), clients: 1, heavy: 3, waits: true,
		contestants: append(r.serving(kind, len(servers), nil), roundTrip), relate: relateToMajority,
	}
	var broken *faulty
	c.begin = func() (end func(), err error) {
		if broken, err = newFaulty(servers, f.rtts, r.plan.TTL); err != nil {
			return nil, err
		}
		c.setup = broken.setup
		return broken.close, nil
	}
	c.measurement = func(ctx context.Context, e *entry, slice time.Duration) *measurement {
		if p, ok := e.lockers[0].(*pinger); ok {
			return p.measurement(ctx)
		}
		return r.latencyMeasurement(ctx, e, slice)
	}
	// Contestants connect while all is well, as processes that have run for a while.
	c.ready = func() (func(), error) {
		if f.breaks == nil {
			return func() {}, nil
		}
		return f.breaks(broken)
	}
	return c
}

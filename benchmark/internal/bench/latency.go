package bench

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// keysInMeasurement is how many keys the callers use in turn, so that the next lock does not
// meet requests on which a slow node still works.
const keysInMeasurement = 256

// pair names the operation that is compared: a lock and its release.
const pair = "acquire+release"

// mostFailures ends a caller, so that a contestant that fails at once does not fill the report.
const mostFailures = 100

// Turns are the latencies of locks and of their releases, and the failures.
type Turns struct {
	Acquire, Release, Both []time.Duration
	Failed                 int
	Err                    error // the first failure
}

// TakeTurns lets each goroutine take locks on keys of its own, one after the other, until the
// given time. Each takes one at least.
func TakeTurns(ctx context.Context, l Locker, keys string, goroutines int, end time.Time) (t Turns) {
	var mu sync.Mutex
	var workers sync.WaitGroup
	for g := range goroutines {
		workers.Go(func() {
			keys := keys + strconv.Itoa(g) + "/"
			var own Turns
			for i := 0; (i == 0 || time.Now().Before(end)) && ctx.Err() == nil && own.Failed < mostFailures; i++ {
				start := time.Now()
				h, err := l.Lock(ctx, keys+strconv.Itoa(i%max(keysInMeasurement/goroutines, 16)), false)
				granted := time.Now()
				if err == nil {
					err = h.Unlock()
				}
				if err != nil {
					own.Failed++
					if own.Err == nil {
						own.Err = err
					}
					continue
				}
				took := time.Since(start)
				own.Acquire, own.Release, own.Both = append(own.Acquire, granted.Sub(start)), append(own.Release, took-granted.Sub(start)), append(own.Both, took)
			}
			mu.Lock()
			defer mu.Unlock()
			t.Acquire, t.Release, t.Both = append(t.Acquire, own.Acquire...), append(t.Release, own.Release...), append(t.Both, own.Both...)
			t.Failed += own.Failed
			if t.Err == nil {
				t.Err = own.Err
			}
		})
	}
	workers.Wait()
	return t
}

// locking measures goroutines that take turns for a slice of time.
func locking(goroutines int) func(context.Context, *entry, time.Duration) *measurement {
	return func(ctx context.Context, e *entry, slice time.Duration) *measurement {
		m := startMeter(e.servers)
		turns := TakeTurns(ctx, e.lockers[0], e.keys+"lock/", goroutines, m.at.Add(slice))
		t := &measurement{failed: turns.Failed, err: turns.Err, values: []value{{"locks", figures.PerSecond, 0}}}
		took := m.stop(t, len(turns.Both))
		t.values[0].v = float64(len(turns.Both)) / took.Seconds()
		t.series = []series{{pair, turns.Both}, {"acquire", turns.Acquire}, {"release", turns.Release}}
		return t
	}
}

func latencySection(title, text string) *Section {
	return &Section{Title: title, Text: text, Key: pair + " p50", Plots: []Plot{{Title: "acquire+release, median", Metric: pair + " p50"}}}
}

// single measures one caller on one server.
func single(ctx context.Context, r *Runner) (cases []*testCase) {
	s := latencySection("Latency on one server", "One goroutine takes a lock and gives it back, over and over, on loopback. "+costs)
	for _, g := range []ground{oneRedis, {server.KindValkey, 1}, onePostgres, oneEtcd} {
		if c := r.on(ctx, s, g, nil, 0, ""); c != nil {
			c.measurement = locking(1)
			cases = append(cases, c)
		}
	}
	return cases
}

// quorum measures one caller on quorums of several sizes.
func quorum(ctx context.Context, r *Runner) (cases []*testCase) {
	s := latencySection("Latency by the number of nodes", "One goroutine, N redis-servers on loopback. "+costs)
	s.Axis, s.Plots[0].Lines = "nodes", true
	valkeys := latencySection("Latency of a quorum of valkey-servers", "The same with other servers.")
	add := func(s *Section, g ground) {
		if c := r.on(ctx, s, g, nil, g.n, ""); c != nil {
			c.measurement = locking(1)
			cases = append(cases, c)
		}
	}
	for _, n := range r.plan.Nodes {
		add(s, ground{server.KindRedis, n})
	}
	if r.plan.Valkey {
		add(valkeys, fiveValkey)
	}
	return cases
}

// A faultCase is a quorum of five behind proxies.
type faultCase struct {
	name  string
	rtts  []int // in milliseconds
	hangs bool  // the last node
}

var faultCases = []faultCase{
	{"1, 2, 3, 5 and 50 ms", []int{1, 2, 3, 5, 50}, false},
	{"2 ms, one hangs", []int{2, 2, 2, 2, 2}, true},
}

// faults measures a quorum of five with slow and broken nodes.
func faults(ctx context.Context, r *Runner) (cases []*testCase) {
	s := latencySection("A quorum of five with a slow and with a broken node", "One goroutine; a TCP proxy before each redis-server delays both directions. Acquisition and release need one answer of a majority each, so that the majority's round trip, measured by PING through the same proxies, is the limit of each. A node that hangs keeps its connections and never answers. A contestant that then takes more than a second has one round. "+costs)
	for _, f := range r.plan.Faults {
		if c := r.on(ctx, s, fiveRedis, nil, 0, ""); c != nil {
			r.fault(c, f)
			cases = append(cases, c)
		}
	}
	return cases
}

// fault makes one case of faults.
func (r *Runner) fault(c *testCase, f faultCase) {
	c.name = f.name
	c.heavy, c.rounds, c.patience, c.contestants, c.relate = 1.5, 24, time.Second, append(c.contestants, roundTrip), relateToMajority
	var proxies []*fault.Proxy
	c.begin = func() (end func(), err error) {
		c.setup, proxies, err = proxied(direct(c.servers, r.plan.TTL))
		for i, p := range proxies {
			p.RTT(time.Duration(f.rtts[i]) * time.Millisecond)
		}
		return func() { closeAll(proxies) }, err
	}
	c.measurement = locking(1)
	// Contestants connect before the fault, like processes that have run for a while.
	c.ready = func() func() {
		last := proxies[len(proxies)-1]
		if f.hangs {
			last.BlackHole()
		}
		return func() { _ = last.Restore() } // clients can then close without waiting for the broken node
	}
}

// proxied makes a setup with a proxy in front of each node.
func proxied(of *Setup) (*Setup, []*fault.Proxy, error) {
	s := &Setup{TTL: of.TTL}
	var proxies []*fault.Proxy
	for _, n := range of.Nodes {
		p, err := fault.Start(n.Direct)
		if err != nil {
			closeAll(proxies)
			return nil, nil, err
		}
		proxies = append(proxies, p)
		s.Nodes = append(s.Nodes, Node{n.Kind, p.Addr(), n.Direct})
	}
	return s, proxies, nil
}

func closeAll(proxies []*fault.Proxy) {
	for _, p := range proxies {
		_ = p.Close() // it can only fail to close its own sockets
	}
}

// leastOf returns the least time of a measurement: many goroutines need some time to reach a
// steady rate.
func (r *Runner) leastOf(goroutines int) time.Duration {
	return r.plan.Slice * time.Duration(1+min(goroutines/32, 2))
}

// costs explains the metrics of a meter.
const costs = "CPU, allocations and bytes are per lock (acquisition and release), the client's include goroutines in the background; server commands count those inside scripts; wire is what the servers received and sent."

// throughput measures many goroutines.
func throughput(ctx context.Context, r *Runner) (cases []*testCase) {
	for _, g := range grounds {
		s := &Section{
			Title: "Throughput on " + g.String(),
			Text:  "Goroutines of one process share one client and take locks on keys of their own, on loopback. " + costs,
			Key:   "locks", More: true, Axis: "goroutines",
			Plots: []Plot{{Title: "locks per second", Metric: "locks", Lines: true}, {Title: "client CPU per lock", Metric: "client CPU", Lines: true}},
		}
		for _, n := range r.plan.Goroutines {
			if c := r.on(ctx, s, g, nil, n, "goroutine"); c != nil {
				c.least, c.measurement = r.leastOf(n), locking(n)
				cases = append(cases, c)
			}
		}
	}
	return cases
}

// curveOp is the operation whose quantiles are plotted.
const curveOp = "at the rate"

// load measures latency when locks are requested at a given rate, whether or not the earlier
// ones are done.
func load(ctx context.Context, r *Runner) (cases []*testCase) {
	some := func(c Contestant) bool {
		return !c.OnlyWaits && (c.Kind == Ours || c.Kind == Peer || c.Name == "bare, "+c.Client)
	}
	for _, g := range []ground{oneRedis, fiveRedis} {
		s := &Section{
			Title: "Latency under load on " + g.String(),
			Text: "Locks are asked for at even intervals, at a share of the rate that the contestant itself has with 64 goroutines, which was measured just before; \"locks\" is that rate. " +
				"The time of a lock and its release counts from when it was to begin, even if all callers were busy then (coordinated omission is corrected). Contestants are at different rates here, and so are not judged.",
			Once:  true,
			Plots: []Plot{{Title: "acquire+release", Curve: true}},
		}
		for _, percent := range []int{50, 80, 95} {
			if c := r.on(ctx, s, g, some, percent, ""); c != nil {
				c.name += ", at " + strconv.Itoa(percent) + " % of capacity"
				c.least, c.rounds, c.measurement = 2*r.plan.Slice, 8, r.atRate(float64(percent)/100)
				cases = append(cases, c)
			}
		}
	}
	return cases
}

// callers is how many locks may be requested at once.
const callers = 256

// atRate measures at a share of the capacity. Its first measurement is the warm-up, which finds
// out the capacity.
func (r *Runner) atRate(share float64) func(context.Context, *entry, time.Duration) *measurement {
	const goroutines = 64
	full := locking(goroutines)
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
						begin = time.Now() // does not count the timer's own delay
					}
					h, err := e.lockers[0].Lock(ctx, e.keys+"load/"+strconv.Itoa(g)+"/"+strconv.FormatInt(i%16, 10), false)
					if err == nil {
						err = h.Unlock()
					}
					if samples[i] = time.Since(begin); err != nil {
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

package deploy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/bench"
	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/benchmark/internal/machine"
	"github.com/redlock-go/redlock/dlock"
)

// Options say what to measure.
type Options struct {
	URL    string
	For    time.Duration // the approximate time, without the restart guard
	Rounds int
	Share  float64 // the part of the servers' capacity at which the load stops growing
}

// run is one measurement of one deployment.
type run struct {
	Options
	*target
	prefix   string
	progress io.Writer
	began    time.Time
	nodes    fan
	bare     *bare
	// unguarded: the restart guard is off, as note says.
	unguarded bool
	note      string

	mu       sync.Mutex // guards the figures of nodes, and the votes
	votes    int        // acquisitions whose votes were counted
	failures int
	failed   error // the first failure

	trip, acquire, release, bareAcquire, bareRelease, handoff *figures.Rounds
	steps                                                     []Step
	stopped                                                   string // why the load stopped growing
	removed                                                   int
	left                                                      string
}

func newRun(o Options) *run {
	return &run{
		Options: o, prefix: ownPrefix(), began: time.Now(),
		trip: figures.NewRounds(), acquire: figures.NewRounds(), release: figures.NewRounds(), bareAcquire: figures.NewRounds(), bareRelease: figures.NewRounds(), handoff: figures.NewRounds(),
	}
}

func (r *run) say(format string, args ...any) {
	fmt.Fprintf(r.progress, "%6.1f s  %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

// Measure measures the deployment. An error says, in one line, why nothing could be measured.
// The measurement's keys are removed in either case.
func Measure(ctx context.Context, o Options, progress io.Writer) (*Report, error) {
	r := newRun(o)
	r.progress = progress
	var err error
	if r.target, err = r.open(false); err != nil {
		return nil, err
	}
	start := machine.Now()
	err = r.all(ctx)
	checked := r.check(ctx)
	_ = r.target.Close() // a lock left on a node that hangs ends with its TTL
	r.clean(context.WithoutCancel(ctx))
	foreign := machine.Now().Foreign(start)
	if err != nil {
		return nil, err
	}
	return r.report(foreign, checked), nil
}

// open opens a client whose votes are counted.
func (r *run) open(unguarded bool) (*target, error) {
	return open(r.URL, r.prefix, unguarded, dlock.WithHooks(dlock.Hooks{Event: r.count}))
}

// begin takes the first lock.
func (r *run) begin(ctx context.Context) error {
	err := r.declare(ctx)
	if err == nil || len(r.parts.nodes) < 2 {
		return r.grant(ctx, r.say)
	}
	unguarded, openErr := r.open(true)
	if openErr != nil {
		return openErr
	}
	_ = r.target.Close() // it has no locks
	r.target, r.unguarded = unguarded, true
	r.note = "Measured with restart_guard=off: with a guard all servers must declare the new prefix, and not all answer."
	r.say("%s", r.note)
	return r.grant(ctx, r.say)
}

// all measures everything.
func (r *run) all(ctx context.Context) error {
	r.say("measuring %s under the prefix %q", address(r.whole), r.parts.prefix)
	if err := r.begin(ctx); err != nil {
		return err
	}
	for _, b := range r.parts.nodes {
		r.nodes = append(r.nodes, newProbe(b))
	}
	_, _ = r.nodes.ask(ctx, func(ctx context.Context, p *probe) error { p.look(ctx); return nil }, nil)
	if r.bare = newBare(ctx, r.nodes, r.whole, r.parts.prefix+"bare/"); r.bare != nil {
		defer r.bare.close()
		if r.bare.ping != nil {
			r.nodes[0].ping = r.bare.ping
		}
	}
	other, err := open(r.URL, r.prefix, r.unguarded)
	if err != nil {
		return err
	}
	defer other.Close() //nolint:errcheck // it has released its locks
	end := time.Now().Add(r.For * 2 / 3)
	for round := range r.Rounds + 1 { // the first round is a warm-up
		slice := time.Until(end) / time.Duration(6*(r.Rounds+1-round))
		slice = min(max(slice, 20*time.Millisecond), time.Second)
		if round > 0 {
			r.say("round %d of %d", round, r.Rounds)
		}
		if err := r.round(ctx, other, round, slice); err != nil {
			return err
		}
	}
	if r.acquire.All.Count() == 0 {
		return fmt.Errorf("no lock was granted in %d rounds: %w", r.Rounds, r.failed)
	}
	return r.ladder(ctx, time.Until(r.began.Add(r.For)))
}

// round measures everything once. Round zero does not count.
func (r *run) round(ctx context.Context, other *target, round int, slice time.Duration) error {
	keep := func(to *figures.Rounds, found *figures.Latencies) {
		if round > 0 {
			to.Add(round, found)
		}
	}
	keep(r.trip, r.trips(ctx, round, slice))
	if r.bare != nil {
		acquire, release := figures.NewLatencies(), figures.NewLatencies()
		err := repeat(ctx, slice, func(i int) error {
			start := time.Now()
			if err := r.bare.acquire(ctx, strconv.Itoa(i%64)); err != nil {
				return err
			}
			acquired := time.Now()
			err := r.bare.release(ctx, strconv.Itoa(i%64))
			acquire.Add(acquired.Sub(start))
			release.Add(time.Since(acquired))
			return err
		})
		if err != nil && ctx.Err() == nil {
			r.say("the bare commands failed: %v", err)
			r.bare = nil
		}
		keep(r.bareAcquire, acquire)
		keep(r.bareRelease, release)
	}
	turns := bench.TakeTurns(ctx, r.locker(), "latency/", 1, time.Now().Add(2*slice))
	r.fail(turns.Failed, turns.Err)
	keep(r.acquire, figures.NewLatencies(turns.Acquire...))
	keep(r.release, figures.NewLatencies(turns.Release...))
	handoffs := figures.NewLatencies()
	for _, length := range []time.Duration{2 * slice, 2*slice + 500*time.Millisecond} { // a handoff far away takes longer than a slice
		if handoffs.Count() > 0 || ctx.Err() != nil {
			break
		}
		relay := bench.Handoffs(ctx, []bench.Locker{r.locker(), other.locker()}, "handoff", held, time.Now(), length)
		for _, err := range relay.Errs {
			if err != nil {
				r.fail(1, err)
			}
		}
		handoffs = figures.NewLatencies(relay.Handoffs...)
	}
	keep(r.handoff, handoffs)
	return context.Cause(ctx)
}

// held is how long a lock is held while another client waits for it.
const held = time.Millisecond

func (t *target) locker() bench.Locker { return bench.Client{Client: t.Client} }

// repeat calls f until the time is over or f fails, at least once.
func repeat(ctx context.Context, slice time.Duration, f func(i int) error) error {
	for i, end := 0, time.Now().Add(slice); (i == 0 || time.Now().Before(end)) && ctx.Err() == nil; i++ {
		if err := f(i); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// fail counts n failed operations, the first of which failed with err.
func (r *run) fail(n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures += n
	if r.failed == nil && err != nil {
		r.failed = clean(err)
	}
}

// count is a hook that counts which nodes were in the majority of a grant.
func (r *run) count(_ context.Context, e dlock.Event) {
	if len(e.Votes) == 0 || e.Err != nil || e.Op != "lock" && e.Op != "trylock" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(e.Votes) != len(r.nodes) {
		return
	}
	r.votes++
	for i, v := range e.Votes {
		switch {
		case v.Granted:
			r.nodes[i].inVotes++
		case errors.Is(v.Err, context.DeadlineExceeded):
			r.nodes[i].timeouts++
		}
	}
}

// trips measures round trips: of each node, and of the majority, which is the time until a
// majority of the nodes, all asked at once, has answered.
func (r *run) trips(ctx context.Context, round int, slice time.Duration) *figures.Latencies {
	majority := figures.NewLatencies()
	if slices.ContainsFunc(r.nodes, func(p *probe) bool { return p.ping == nil }) {
		return majority
	}
	ping := func(ctx context.Context, p *probe) error { return p.ping(ctx) }
	_, _ = r.nodes.ask(ctx, ping, nil) // not counted: a node that is far away may need a new connection
	r.settle(ctx, func(p *probe) bool { return p.silent == 0 })
	own, hung := map[*probe]*figures.Latencies{}, map[*probe]bool{}
	for _, p := range r.nodes {
		own[p], hung[p] = figures.NewLatencies(), p.busy.Load()
	}
	_ = repeat(ctx, slice, func(int) error {
		took, err := r.nodes.ask(ctx, ping, func(p *probe, took time.Duration) {
			own[p].Add(took)
		})
		if err != nil {
			r.fail(1, err)
			return err
		}
		majority.Add(took)
		return nil
	})
	if round == 0 {
		return majority
	}
	// A node that is far away gets time to answer before it counts as silent.
	r.settle(ctx, func(p *probe) bool { return !hung[p] && own[p].Count() == 0 })
	for _, p := range r.nodes {
		r.mu.Lock()
		if own[p].Count() == 0 {
			p.silent++
		} else {
			p.trips.Add(round, own[p])
		}
		r.mu.Unlock()
	}
	return majority
}

// settle waits until all nodes for which waits is true have answered, or have had the time to.
func (r *run) settle(ctx context.Context, waits func(*probe) bool) {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	for slices.ContainsFunc(r.nodes, func(p *probe) bool { return p.busy.Load() && waits(p) }) && ctx.Err() == nil {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// A Step holds the results at one load.
type Step struct {
	Goroutines int           `json:"goroutines"`
	Rate       float64       `json:"locks_per_second"`
	Median     time.Duration `json:"median_ns"`
	P99        time.Duration `json:"p99_ns"`
	Samples    int64         `json:"samples"`
	// Server is how busy the busiest server's main thread was; negative: no server tells.
	Server float64 `json:"server_share"`
	Client float64 `json:"client_share"` // how busy all processors of this machine were
}

const mostGoroutines = 256

// ladder doubles the load until the servers are as busy as Share says, or would be at the next
// step. If a server does not tell how busy it is, ladder estimates the share from the latency:
// at half of its capacity a call takes about twice as long.
func (r *run) ladder(ctx context.Context, length time.Duration) error {
	r.stopped = fmt.Sprintf("%d goroutines are the most that are tried", mostGoroutines)
	step := min(max(length/9, 100*time.Millisecond), 2*time.Second)
	for g := 1; g <= mostGoroutines && ctx.Err() == nil; g *= 2 {
		s, err := r.step(ctx, g, step)
		if err != nil {
			r.stopped = fmt.Sprintf("with %d goroutines a lock failed: %v", g, clean(err))
			break
		}
		r.steps = append(r.steps, *s)
		r.say("%d goroutines: %s, %s at the median", g, figures.Format(s.Rate, figures.PerSecond), figures.Duration(s.Median))
		growth := 2.0
		if n := len(r.steps); n > 1 {
			growth = min(max(s.Rate/r.steps[n-2].Rate, 1), 2)
		}
		share := 100 * r.Share
		switch {
		case s.Server >= r.Share:
			r.stopped = fmt.Sprintf("the busiest server is at %.0f %% of its capacity, the limit is %.0f %%", 100*s.Server, share)
		case s.Server >= 0 && s.Server*growth > r.Share:
			r.stopped = fmt.Sprintf("the busiest server is at %.0f %%, and the next step would exceed %.0f %% of its capacity", 100*s.Server, share)
		case s.Server < 0 && s.Median > time.Duration(float64(r.steps[0].Median)/(1-r.Share)):
			r.stopped = fmt.Sprintf("the server does not tell how busy it is, and a lock takes %.1f × as long as with one goroutine, where %.1f × is taken for %.0f %% of its capacity", s.Median.Seconds()/r.steps[0].Median.Seconds(), 1/(1-r.Share), share)
		case len(r.steps) > 2 && s.Rate < 1.05*r.steps[len(r.steps)-3].Rate:
			r.stopped = fmt.Sprintf("more callers get no more locks, and the processors of this machine are %.0f %% busy", 100*s.Client)
		default:
			continue
		}
		break
	}
	return context.Cause(ctx)
}

func (r *run) step(ctx context.Context, goroutines int, length time.Duration) (*Step, error) {
	before := r.processors(ctx)
	busy := machine.Now()
	start := time.Now()
	turns := bench.TakeTurns(ctx, r.locker(), "load/", goroutines, start.Add(length))
	took := time.Since(start)
	if turns.Err != nil {
		return nil, turns.Err
	}
	found := figures.NewLatencies(turns.Both...)
	s := &Step{
		Goroutines: goroutines, Rate: float64(found.Count()) / took.Seconds(), Samples: found.Count(),
		Median: found.Quantile(0.5), P99: found.Quantile(0.99), Server: -1, Client: machine.Now().Busy(busy),
	}
	for i, cpu := range r.processors(ctx) {
		if cpu > 0 && before[i] > 0 {
			s.Server = max(s.Server, (cpu-before[i]).Seconds()/took.Seconds())
		}
	}
	return s, nil
}

// processors returns the processor time of each server; zero if it is unknown.
func (r *run) processors(ctx context.Context) []time.Duration {
	all := make([]time.Duration, len(r.nodes))
	var mu sync.Mutex
	_, _ = r.nodes.ask(ctx, func(ctx context.Context, p *probe) error {
		cpu := p.processor(ctx)
		mu.Lock()
		defer mu.Unlock()
		all[slices.Index(r.nodes, p)] = cpu
		return nil
	}, nil)
	mu.Lock()
	defer mu.Unlock()
	return slices.Clone(all)
}

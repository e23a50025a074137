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

	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/benchmark/internal/machine"
	"github.com/redlock-go/redlock/dlock"
)

// Options say what to measure.
type Options struct {
	URL    string
	For    time.Duration // about so long, beside the restart guard
	Rounds int
	Share  float64 // of the servers' capacity, at which the ladder of load stops
}

// series is the latencies of one operation.
type series struct {
	all     *figures.Latencies
	medians map[int]float64 // in seconds, by round
}

func newSeries() *series { return &series{figures.NewLatencies(), map[int]float64{}} }

// add counts what one round found.
func (s *series) add(round int, found *figures.Latencies) {
	if found.Count() > 0 {
		s.all.Merge(found)
		s.medians[round] = found.Quantile(0.5).Seconds()
	}
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

	mu       sync.Mutex // of the figures of nodes, and of the votes
	votes    int        // acquisitions whose votes were counted
	failures int
	failed   error // the first failure

	trip, acquire, release, bareAcquire, bareRelease, handoff *series
	pairs                                                     *series
	steps                                                     []Step
	stopped                                                   string // why the ladder ended
	removed                                                   int
	left                                                      string
}

func (r *run) say(format string, args ...any) {
	fmt.Fprintf(r.progress, "%6.1f s  %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

// Measure measures the deployment. An error says, in one line, why nothing could be measured. Keys
// are removed in any case.
func Measure(ctx context.Context, o Options, progress io.Writer) (*Report, error) {
	r := &run{
		Options: o, prefix: ownPrefix(), progress: progress, began: time.Now(),
		trip: newSeries(), acquire: newSeries(), release: newSeries(), bareAcquire: newSeries(), bareRelease: newSeries(), handoff: newSeries(), pairs: newSeries(),
	}
	var err error
	if r.target, err = r.open(false); err != nil {
		return nil, err
	}
	load := machine.Watch()
	err = r.all(ctx)
	checked := r.check(ctx)
	_ = r.target.Close() // a lock that a hanging node keeps ends with its TTL
	r.clean(context.WithoutCancel(ctx))
	foreign := load.Stop()
	if err != nil {
		return nil, err
	}
	return r.report(foreign, checked), nil
}

// open opens a client whose votes are counted.
func (r *run) open(unguarded bool) (*target, error) {
	return open(r.URL, r.prefix, unguarded, dlock.WithHooks(dlock.Hooks{Acquired: r.count}))
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
	r.note = "Measured with restart_guard=off, since new names need a word of all servers where there is a guard, and not all answer."
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
	}
	other, err := open(r.URL, r.prefix, r.unguarded)
	if err != nil {
		return err
	}
	defer other.Close() //nolint:errcheck // it gave back what it had
	end := time.Now().Add(r.For * 2 / 3)
	for round := range r.Rounds + 1 { // the first warms up
		slice := time.Until(end) / time.Duration(6*(r.Rounds+1-round))
		slice = min(max(slice, 20*time.Millisecond), time.Second)
		if round > 0 {
			r.say("round %d of %d", round, r.Rounds)
		}
		if err := r.round(ctx, other, round, slice); err != nil {
			return err
		}
	}
	if r.acquire.all.Count() == 0 {
		return fmt.Errorf("no lock was granted in %d rounds: %w", r.Rounds, r.failed)
	}
	return r.ladder(ctx, time.Until(r.began.Add(r.For)))
}

// round measures everything once. Round zero does not count.
func (r *run) round(ctx context.Context, other *target, round int, slice time.Duration) error {
	forget := func(s *series) *series {
		if round == 0 {
			return newSeries()
		}
		return s
	}
	forget(r.trip).add(round, r.trips(ctx, round, slice))
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
		forget(r.bareAcquire).add(round, acquire)
		forget(r.bareRelease).add(round, release)
	}
	acquire, release, pairs := figures.NewLatencies(), figures.NewLatencies(), figures.NewLatencies()
	_ = repeat(ctx, 2*slice, func(i int) error {
		start := time.Now()
		l, err := r.TryLock(ctx, "latency/"+strconv.Itoa(i%64))
		acquired := time.Now()
		if err == nil {
			err = l.Unlock()
		}
		if err != nil {
			r.fail(err)
			return nil
		}
		acquire.Add(acquired.Sub(start))
		release.Add(time.Since(acquired))
		pairs.Add(time.Since(start))
		return nil
	})
	forget(r.acquire).add(round, acquire)
	forget(r.release).add(round, release)
	forget(r.pairs).add(round, pairs)
	forget(r.handoff).add(round, r.handoffs(ctx, other, slice))
	return context.Cause(ctx)
}

// repeat calls f until the time is over, once at least, or until it fails.
func repeat(ctx context.Context, slice time.Duration, f func(i int) error) error {
	for i, end := 0, time.Now().Add(slice); (i == 0 || time.Now().Before(end)) && ctx.Err() == nil; i++ {
		if err := f(i); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (r *run) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures++
	if r.failed == nil {
		r.failed = clean(err)
	}
}

// count counts which nodes made the majority of a grant. It is a hook.
func (r *run) count(_ context.Context, e dlock.Event) {
	if len(e.Votes) == 0 {
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

// trips measures round trips: of each node, and of the majority, that is the time until so many
// have answered that are asked at once.
func (r *run) trips(ctx context.Context, round int, slice time.Duration) *figures.Latencies {
	majority := figures.NewLatencies()
	if slices.ContainsFunc(r.nodes, func(p *probe) bool { return p.ping == nil }) {
		return majority
	}
	own := map[*probe]*figures.Latencies{}
	for _, p := range r.nodes {
		own[p] = figures.NewLatencies()
	}
	_ = repeat(ctx, slice, func(int) error {
		took, err := r.nodes.ask(ctx, func(ctx context.Context, p *probe) error { return p.ping(ctx) }, func(p *probe, took time.Duration) {
			own[p].Add(took)
		})
		if err != nil {
			r.fail(err)
			return err
		}
		majority.Add(took)
		return nil
	})
	if round == 0 {
		return majority
	}
	// A node that is far away has answered by the next time.
	settled, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	for _, p := range r.nodes {
		for p.silent == 0 && p.busy.Load() && own[p].Count() == 0 && settled.Err() == nil {
			select {
			case <-time.After(time.Millisecond):
			case <-settled.Done():
			}
		}
		r.mu.Lock()
		if own[p].Count() == 0 {
			p.silent++
		} else {
			p.trips.Merge(own[p])
			p.medians[round] = own[p].Quantile(0.5).Seconds()
		}
		r.mu.Unlock()
	}
	return majority
}

// held is how long a lock is held that another client waits for.
const held = time.Millisecond

// handoffs lets two clients want one key, and measures from just before one's Unlock to the return of
// the other's Lock.
func (r *run) handoffs(ctx context.Context, other *target, slice time.Duration) *figures.Latencies {
	found := figures.NewLatencies()
	ctx, cancel := context.WithTimeout(ctx, 2*slice+500*time.Millisecond)
	defer cancel()
	var mu sync.Mutex
	var released time.Time // of the other's last lock
	var holder *target
	var both sync.WaitGroup
	end := time.Now().Add(2 * slice)
	for _, c := range []*target{r.target, other} {
		both.Go(func() {
			for time.Now().Before(end) {
				l, err := c.Lock(ctx, "handoff")
				if err != nil {
					return // the time is over; what else is wrong a lone caller meets too
				}
				granted := time.Now()
				mu.Lock()
				if holder != nil && holder != c {
					found.Add(granted.Sub(released))
				}
				mu.Unlock()
				time.Sleep(held) // the work of a holder
				mu.Lock()
				holder, released = c, time.Now()
				mu.Unlock()
				if err := l.Unlock(); err != nil {
					r.fail(err)
					return
				}
			}
		})
	}
	both.Wait()
	return found
}

// A Step is one load of the ladder.
type Step struct {
	Goroutines int           `json:"goroutines"`
	Rate       float64       `json:"locks_per_second"`
	Median     time.Duration `json:"median_ns"`
	P99        time.Duration `json:"p99_ns"`
	Samples    int64         `json:"samples"`
	// Server is how busy the busiest server's main thread was; below zero: it does not tell.
	Server float64 `json:"server_share"`
	Client float64 `json:"client_share"` // how busy all processors of this machine were
}

const mostGoroutines = 256

// ladder doubles the load until the servers are as busy as Share says, or would be at the next step.
// Of a server that does not tell how busy it is, the share is taken from the wait: one of which
// half is used lets callers wait for about twice as long.
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
			r.stopped = fmt.Sprintf("the server does not tell how busy it is, and a caller takes %.1f times as long as alone: about %.0f %% of its capacity", s.Median.Seconds()/r.steps[0].Median.Seconds(), share)
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
	busy := machine.Busy()
	found := figures.NewLatencies()
	var workers sync.WaitGroup
	var once sync.Once
	var failed error
	start := time.Now()
	for g := range goroutines {
		workers.Go(func() {
			err := repeat(ctx, length, func(i int) error {
				began := time.Now()
				l, err := r.TryLock(ctx, fmt.Sprintf("load/%d/%d", g, i%16))
				if err == nil {
					err = l.Unlock()
				}
				found.Add(time.Since(began))
				return err
			})
			if err != nil {
				once.Do(func() { failed = err })
			}
		})
	}
	workers.Wait()
	took := time.Since(start)
	if failed != nil {
		return nil, failed
	}
	s := &Step{
		Goroutines: goroutines, Rate: float64(found.Count()) / took.Seconds(), Samples: found.Count(),
		Median: found.Quantile(0.5), P99: found.Quantile(0.99), Server: -1, Client: machine.Busy().Since(busy),
	}
	for i, cpu := range r.processors(ctx) {
		if cpu > 0 && before[i] > 0 {
			s.Server = max(s.Server, (cpu-before[i]).Seconds()/took.Seconds())
		}
	}
	return s, nil
}

// processors returns the processor time of each server; zero where it is not known.
func (r *run) processors(ctx context.Context) []time.Duration {
	all := make([]time.Duration, len(r.nodes))
	var mu sync.Mutex
	_, _ = r.nodes.ask(ctx, func(ctx context.Context, p *probe) error {
		cpu, _ := p.processor(ctx)
		mu.Lock()
		defer mu.Unlock()
		all[slices.Index(r.nodes, p)] = cpu
		return nil
	}, nil)
	mu.Lock()
	defer mu.Unlock()
	return slices.Clone(all)
}

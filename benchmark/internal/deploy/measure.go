// Package deploy measures the locks behind a URL: a quorum, a server, or any other backend of a
// registered driver.
//
//	open ──> grant ──> rounds ──> ladder ──> clean ──> Report
//
// It uses keys under a prefix of its own. If the servers have a restart guard, it declares the
// prefix new. At the end it removes these keys from the servers.
package deploy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/bench"
	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/benchmark/internal/machine"
	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
)

// run is one measurement of one deployment.
type run struct {
	*target
	url       string
	length    time.Duration // the approximate time, without the restart guard
	prefix    string
	progress  io.Writer
	began     time.Time
	nodes     []*node
	unguarded bool // the restart guard is off, though the URL has one

	trip, acquire, release, handoff figures.Series
	steps                           []step
	stopped                         string // why the load stopped growing
	left                            string // on the servers
	failures                        int
	failed                          error // the first failure

	mu    sync.Mutex // guards the votes, which hooks count
	votes int        // acquisitions whose votes were counted
}

const (
	rounds = 20
	// patient is how long one command to one node may take.
	patient = 2 * time.Second
	// silence is how long a node has that never answered.
	silence = 200 * time.Millisecond
)

func (r *run) say(format string, args ...any) {
	fmt.Fprintf(r.progress, "%6.1f s  %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

// Measure measures the deployment for about so long, the restart guard apart. An error says, in
// one line, why nothing could be measured. The measurement's keys are removed in either case.
func Measure(ctx context.Context, url string, length time.Duration, progress io.Writer) (*Report, error) {
	r := &run{url: url, length: length, prefix: ownPrefix(), progress: progress, began: time.Now()}
	var err error
	if r.target, err = r.open(false); err != nil {
		return nil, err
	}
	start := machine.Now()
	err = r.all(ctx)
	_ = r.target.Close() // a lock left on a node that hangs ends with its TTL
	r.clean(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	return r.report(machine.Now().Foreign(start)), nil
}

// open opens a client whose votes are counted.
func (r *run) open(unguarded bool) (*target, error) {
	return open(r.url, r.prefix, unguarded, dlock.WithHooks(dlock.Hooks{Event: r.count}))
}

// begin takes the first lock.
func (r *run) begin(ctx context.Context) (err error) {
	if err = r.declare(ctx); err != nil && len(r.target.nodes) > 1 {
		_ = r.target.Close() // it has no locks
		if r.target, err = r.open(true); err != nil {
			return err
		}
		r.unguarded = true
		r.say("%s", unguarded)
	}
	return r.grant(ctx, r.say)
}

const unguarded = "Measured with restart_guard=off: with a guard all servers must declare the new prefix, and not all answer."

// all measures everything.
func (r *run) all(ctx context.Context) error {
	r.say("measuring %s under the prefix %q", address(r.Backend()), r.target.prefix)
	if err := r.begin(ctx); err != nil {
		return err
	}
	for _, b := range r.target.nodes {
		n := newNode(ctx, b)
		if r.nodes = append(r.nodes, n); n.close != nil {
			defer n.close()
		}
	}
	r.each(ctx, func(ctx context.Context, n *node) {
		if v := bench.InfoVersion(n.info(ctx, "server")); v != "" {
			n.version = v
		}
	})
	other, err := open(r.url, r.prefix, r.unguarded)
	if err != nil {
		return err
	}
	defer other.Close() //nolint:errcheck // it has released its locks
	end := time.Now().Add(r.length * 2 / 3)
	for round := range rounds + 1 { // the first round is a warm-up
		slice := min(max(time.Until(end)/time.Duration(5*(rounds+1-round)), 20*time.Millisecond), time.Second)
		if round > 0 {
			r.say("round %d of %d", round, rounds)
		}
		if err := r.round(ctx, other, round, slice); err != nil {
			return err
		}
	}
	if r.acquire.Count() == 0 {
		return fmt.Errorf("no lock was granted in %d rounds: %w", rounds, r.failed)
	}
	return r.ladder(ctx, time.Until(r.began.Add(r.length)))
}

// round measures everything once. Round zero does not count.
func (r *run) round(ctx context.Context, other *target, round int, slice time.Duration) error {
	keep := func(to *figures.Series, found []float64) {
		if round > 0 {
			to.Add(round, found...)
		}
	}
	keep(&r.trip, r.trips(ctx, round, slice))
	turns := bench.TakeTurns(ctx, bench.Of(r.Client), "latency/", 1, time.Now().Add(2*slice))
	r.fail(turns.Failed, turns.Err)
	keep(&r.acquire, turns.Acquire)
	keep(&r.release, turns.Release)
	var handoffs []float64
	for _, length := range []time.Duration{2 * slice, 2*slice + 500*time.Millisecond} { // a handoff far away takes longer than a slice
		if len(handoffs) > 0 || ctx.Err() != nil {
			break
		}
		relay := bench.Handoffs(ctx, []*bench.Client{bench.Of(r.Client), bench.Of(other.Client)}, "handoff", length)
		for _, err := range relay.Errs {
			if err != nil {
				r.fail(1, err)
			}
		}
		handoffs = relay.Handoffs
	}
	keep(&r.handoff, handoffs)
	return context.Cause(ctx)
}

// fail counts n failed operations, the first of which failed with err.
func (r *run) fail(n int, err error) {
	if r.failures += n; r.failed == nil && err != nil {
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

// each calls f for all nodes at once and waits for them. A node that never answered has little
// time.
func (r *run) each(ctx context.Context, f func(ctx context.Context, n *node)) {
	var all sync.WaitGroup
	for _, n := range r.nodes {
		limit := patient
		if n.silent > 0 && n.trips.Count() == 0 {
			limit = silence
		}
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			f(ctx, n)
		})
	}
	all.Wait()
}

// trips measures round trips: of each node, and of the majority, all nodes being asked at once.
// A node that does not answer is not asked again in this round.
func (r *run) trips(ctx context.Context, round int, slice time.Duration) (majority []float64) {
	if slices.ContainsFunc(r.nodes, func(n *node) bool { return n.ping == nil }) {
		return nil
	}
	silent := make([]bool, len(r.nodes))
	own := make([][]float64, len(r.nodes))
	for end, first := time.Now().Add(slice), true; (first || time.Now().Before(end)) && ctx.Err() == nil; first = false {
		took := make([]float64, len(r.nodes))
		start := time.Now()
		r.each(ctx, func(ctx context.Context, n *node) {
			i := slices.Index(r.nodes, n)
			if silent[i] {
				return
			}
			if err := n.ping(ctx); err != nil {
				silent[i] = true
				return
			}
			took[i] = time.Since(start).Seconds()
		})
		for i, t := range took {
			if t > 0 {
				own[i] = append(own[i], t)
			}
		}
		took = slices.DeleteFunc(took, func(t float64) bool { return t == 0 })
		if slices.Sort(took); len(took) > len(r.nodes)/2 {
			majority = append(majority, took[len(r.nodes)/2])
		}
	}
	for i, n := range r.nodes {
		switch {
		case silent[i]:
			n.silent++
		case round > 0:
			n.trips.Add(round, own[i]...)
		}
	}
	return majority
}

// A step holds the results at one load.
type step struct {
	goroutines int
	rate       float64 // locks a second
	took       figures.Series
	server     float64 // how busy the busiest server's main thread was; negative: no server tells
	client     float64 // how busy all processors of this machine were
}

const (
	mostGoroutines = 256
	// share is the part of the servers' capacity at which the load stops growing.
	share = 0.5
)

// ladder doubles the load until the servers are as busy as share says, or would be at the next
// step. If a server does not tell how busy it is, ladder estimates that from the latency: at half
// of its capacity a call takes about twice as long.
func (r *run) ladder(ctx context.Context, length time.Duration) error {
	r.stopped = fmt.Sprintf("%d goroutines are the most that are tried", mostGoroutines)
	slice := min(max(length/9, 100*time.Millisecond), 2*time.Second)
	for g := 1; g <= mostGoroutines && ctx.Err() == nil; g *= 2 {
		s, err := r.step(ctx, g, slice)
		if err != nil {
			r.stopped = fmt.Sprintf("with %d goroutines a lock failed: %v", g, clean(err))
			break
		}
		r.steps = append(r.steps, s)
		r.say("%d goroutines: %s, %s at the median", g, figures.Format(s.rate, figures.PerSecond), figures.Format(s.took.Quantile(0.5), figures.Seconds))
		growth := 2.0
		if n := len(r.steps); n > 1 {
			growth = min(max(s.rate/r.steps[n-2].rate, 1), 2)
		}
		slower := s.took.Quantile(0.5) / r.steps[0].took.Quantile(0.5)
		switch {
		case s.server*growth > share:
			r.stopped = fmt.Sprintf("the busiest server is at %.0f %% of its capacity, and the next step would exceed %.0f %%", 100*s.server, 100*share)
		case s.server < 0 && slower > 1/(1-share):
			r.stopped = fmt.Sprintf("the server does not tell how busy it is, and a lock takes %.1f × as long as with one goroutine, where %.1f × is taken for %.0f %% of its capacity", slower, 1/(1-share), 100*share)
		case len(r.steps) > 2 && s.rate < 1.05*r.steps[len(r.steps)-3].rate:
			r.stopped = fmt.Sprintf("more callers get no more locks, and the processors of this machine are %.0f %% busy", 100*s.client)
		default:
			continue
		}
		break
	}
	return context.Cause(ctx)
}

func (r *run) step(ctx context.Context, goroutines int, length time.Duration) (s step, err error) {
	before, busy, start := r.processors(ctx), machine.Now(), time.Now()
	turns := bench.TakeTurns(ctx, bench.Of(r.Client), "load/", goroutines, start.Add(length))
	took := time.Since(start).Seconds()
	s = step{goroutines: goroutines, rate: float64(len(turns.Both)) / took, server: -1, client: machine.Now().Busy(busy)}
	s.took.Add(1, turns.Both...)
	for i, cpu := range r.processors(ctx) {
		if cpu > 0 && before[i] > 0 {
			s.server = max(s.server, (cpu-before[i])/took)
		}
	}
	return s, turns.Err
}

// processors returns the processor time of each server; zero if it is unknown.
func (r *run) processors(ctx context.Context) []float64 {
	all := make([]float64, len(r.nodes))
	r.each(ctx, func(ctx context.Context, n *node) { all[slices.Index(r.nodes, n)] = n.processor(ctx) })
	return all
}

// clean removes the measurement's data, and finds out what remains.
func (r *run) clean(ctx context.Context) {
	t, err := open(r.url, r.prefix, r.unguarded)
	if err != nil {
		r.left = "not known: " + err.Error()
		return
	}
	defer t.Close() //nolint:errcheck // its only work was to remove
	removed, failed := 0, []string(nil)
	for _, b := range t.nodes {
		servers, ok := b.(eachServer)
		if !ok {
			r.left = r.leftOf(ctx, t)
			return
		}
		// A late request may still write after the first pass, and a node that stalled may
		// answer later.
		for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
			again, err := remove(ctx, servers, t.prefix)
			if removed += again; err == nil && again == 0 {
				break
			}
			if time.Now().After(end) {
				failed = append(failed, fmt.Sprintf("%s could not be cleaned (%v): its locks end within %v, and its counters within minutes", address(b), clean(err), r.TTL()))
				break
			}
		}
	}
	if r.left = fmt.Sprintf("nothing: %d names under %q were removed, fencing counters included", removed, t.prefix); failed != nil {
		r.left = strings.Join(failed, "; ") + fmt.Sprintf("; %d names were removed from the others", removed)
	}
}

// leftOf says which locks stay on servers whose driver offers no command to remove data.
func (r *run) leftOf(ctx context.Context, t *target) string {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	held, err := 0, errors.ErrUnsupported
	if inspector, ok := t.Backend().(driver.Inspector); ok {
		err = inspector.List(ctx, "", func(*driver.State) bool { held++; return true })
	}
	switch {
	case errors.Is(err, errors.ErrUnsupported), errors.Is(err, driver.ErrInvalid): // PostgreSQL stores no names
		return "no lock that this program knows of, and what else the driver keeps for its keys"
	case err != nil:
		return "not known: " + clean(err).Error()
	case held > 0:
		return fmt.Sprintf("%d locks under %q, which end within %v", held, t.prefix, r.TTL())
	}
	return "no lock; what else the driver keeps for its keys, such as rows or a sequence, stays or is removed later by its rules"
}

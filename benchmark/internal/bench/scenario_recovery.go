package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// ends is what a lock has that tells its holder of its end.
type ends interface{ Done() <-chan struct{} }

// recovery measures what a holder's death and a node's restart and silence cost the
// others. Contestants have their turns together, since they wait most of the time.
func recovery(ctx context.Context, r *Runner) ([]*testCase, error) {
	kinds, err := r.fives(ctx)
	if err != nil {
		return nil, err
	}
	var cases []*testCase
	for _, plan := range []func(context.Context, server.Kind, int) (*testCase, error){r.cutOff(), r.silence()} {
		add := func(kind server.Kind, nodes int) error {
			c, err := plan(ctx, kind, nodes)
			if c != nil {
				cases = append(cases, c)
			}
			return err
		}
		err := add(server.KindRedis, 1)
		for _, kind := range kinds {
			err = errors.Join(err, add(kind, 5))
		}
		if err = errors.Join(err, add(server.KindPostgres, 1)); err != nil {
			return nil, err
		}
	}
	return append(cases, r.restarts(kinds)...), nil
}

// recoveryCase makes a case of what waits; nil where there are no servers.
func (r *Runner) recoveryCase(ctx context.Context, s *Section, kind server.Kind, nodes int, ttl time.Duration) (*testCase, error) {
	get := r.fresh
	if kind == server.KindPostgres {
		get = r.servers
	}
	servers, ok, err := get(ctx, kind, nodes)
	if err != nil || !ok {
		return nil, err
	}
	mine := func(c Contestant) bool { return c.Waits && (c.Kind == Ours || c.Kind == Peer) }
	return &testCase{
		section: s, name: plural(nodes, string(kind)), contestants: r.serving(kind, nodes, mine), setup: direct(servers, ttl),
		rounds: r.plan.Deaths, fewest: 1, cold: true, together: true, fixed: time.Duration(r.plan.Deaths) * time.Second,
	}, nil
}

// cutOff measures a holder that is cut off.
func (r *Runner) cutOff() func(context.Context, server.Kind, int) (*testCase, error) {
	s := &Section{
		Title: "A holder is cut off",
		Text: fmt.Sprintf("A holder with a TTL of %s is cut off from all servers, as by a partition or a power failure, just after a renewal. Another client waits. The lost signal is when the holder's Done closes; "+
			"it must come before the next grant, and what has no such signal lets its holder go on. Ours grant later than others on purpose: the servers keep a lock for a grace after its TTL (lock-delay), so that clocks that differ cannot make two holders of one lock. "+
			"PostgreSQL's connection stays open here and is silent. Who waits gives up after %s.", figures.Duration(r.plan.DeadTTL), figures.Duration(r.plan.Patience)),
		Key:   "next grant p50",
		Plots: []Plot{{Title: "from the cut to the next grant, median", Metric: "next grant p50"}},
	}
	return func(ctx context.Context, kind server.Kind, nodes int) (*testCase, error) {
		c, err := r.recoveryCase(ctx, s, kind, nodes, r.plan.DeadTTL)
		if c != nil {
			c.measurement = r.cutOffMeasurement
			if nodes == 1 && slices.ContainsFunc(c.contestants, func(k Contestant) bool { return k.Kind == Peer }) {
				c.fixed = r.plan.Patience // some have longer TTLs, or none
			}
		}
		return c, err
	}
}

// behindProxies opens a client behind proxies and one that is not, and gives the first a
// lock, for something to happen to it.
func behindProxies(ctx context.Context, e *entry, happen func(t *measurement, far, near Locker, h Held, key string, proxies []*fault.Proxy) error) *measurement {
	t := &measurement{}
	setup, proxies, err := proxied(e.setup.Nodes, e.setup.TTL)
	if err != nil {
		t.fail(err)
		return t
	}
	defer closeAll(proxies)
	far, err := e.contestant.Open(ctx, setup)
	if err != nil {
		t.fail(err)
		return t
	}
	near, err := e.contestant.Open(ctx, e.setup)
	if err != nil {
		t.fail(errors.Join(err, far.Close()))
		return t
	}
	key := "recovery/" + newOwner()
	h, err := far.Lock(ctx, key, true)
	if err == nil {
		err = h.Renew(ctx)
	}
	if err == nil {
		err = happen(t, far, near, h, key, proxies)
	}
	for _, p := range proxies {
		_ = p.Restore() // so that Close does not have to give up
	}
	_ = far.Close() // it was cut off: its release may well fail
	if err = errors.Join(err, near.Close()); err != nil {
		t.fail(err)
	}
	return t
}

// cutOffMeasurement cuts a holder off while another waits.
func (r *Runner) cutOffMeasurement(ctx context.Context, e *entry, _ time.Duration) *measurement {
	return behindProxies(ctx, e, func(t *measurement, _, near Locker, h Held, key string, proxies []*fault.Proxy) error {
		cut := time.Now()
		for _, p := range proxies {
			p.BlackHole()
		}
		lost := make(chan time.Duration, 1)
		signal, hasSignal := h.(ends)
		if hasSignal {
			go func() {
				<-signal.Done()
				lost <- time.Since(cut)
			}()
		}
		wait, cancel := context.WithTimeout(ctx, r.plan.Patience)
		defer cancel()
		next, err := near.Lock(wait, key, true)
		granted := time.Since(cut)
		if err == nil {
			t.series = []series{{"next grant", []time.Duration{granted}}}
			err = next.Unlock()
		} else {
			err = fmt.Errorf("nobody else got the lock within %v: %w", r.plan.Patience, err)
		}
		if !hasSignal {
			return err
		}
		select {
		case at := <-lost:
			t.add("lost signal", figures.Seconds, at.Seconds())
			if len(t.series) > 0 {
				t.add("lost signal before next grant", figures.Seconds, (granted - at).Seconds())
			}
		case <-time.After(r.plan.Patience):
			err = errors.Join(err, fmt.Errorf("the holder was not told within %v", r.plan.Patience))
		}
		return err
	})
}

// silence measures a node that stops to answer, at its first moment.
func (r *Runner) silence() func(context.Context, server.Kind, int) (*testCase, error) {
	s := &Section{
		Title: "A node stops answering",
		Text: fmt.Sprintf("The only server, or the last of five, becomes a black hole: connections stay and nothing answers, as when a machine loses its power. A holder then releases; an attempt has a context of %s; the attempt is granted where it can be. "+
			"Then the node is well again, and the next lock is waited for. What does not come back within %s is counted as that. How such a quorum works for a longer time is among the slow and broken nodes.", figures.Duration(silenceTimeout), figures.Duration(r.plan.Silence)),
		Key:   "attempt",
		Plots: []Plot{{Title: "an attempt with a node that does not answer, median", Metric: "attempt"}},
	}
	return func(ctx context.Context, kind server.Kind, nodes int) (*testCase, error) {
		c, err := r.recoveryCase(ctx, s, kind, nodes, r.plan.TTL)
		if c != nil {
			c.measurement, c.rounds, c.fixed = r.silenceMeasurement, 1, r.plan.Silence+time.Second
		}
		return c, err
	}
}

// silenceTimeout is how long an attempt may take that nobody answers.
const silenceTimeout = 500 * time.Millisecond

func (r *Runner) silenceMeasurement(ctx context.Context, e *entry, _ time.Duration) *measurement {
	return behindProxies(ctx, e, func(t *measurement, far, _ Locker, h Held, key string, proxies []*fault.Proxy) error {
		last := proxies[len(proxies)-1]
		last.BlackHole()
		// These two at once: neither may have to wait for the other.
		release := r.patiently(func() error { return h.Unlock() })
		attempt := r.patiently(func() error {
			short, cancel := context.WithTimeout(ctx, silenceTimeout)
			defer cancel()
			h, err := far.Lock(short, key+"/next", false)
			if err == nil {
				_ = h.Unlock() // it is the grant that matters
			}
			return err
		})
		released, tried := <-release, <-attempt
		t.add("attempt", figures.Seconds, tried.took.Seconds())
		t.add("granted", figures.Count, map[bool]float64{true: 1, false: 0}[tried.err == nil])
		t.add("release", figures.Seconds, released.took.Seconds())
		if err := last.Restore(); err != nil {
			return err
		}
		well := <-r.patiently(func() error {
			wait, cancel := context.WithTimeout(ctx, r.plan.Silence)
			defer cancel()
			h, err := far.Lock(wait, key+"/after", true)
			for err != nil && wait.Err() == nil { // what was broken may say so once
				h, err = far.Lock(wait, key+"/after", true)
			}
			if err == nil {
				err = h.Unlock()
			}
			return err
		})
		t.add("well again", figures.Seconds, well.took.Seconds())
		if well.err != nil {
			return fmt.Errorf("when the node was well again: %w", well.err)
		}
		return nil
	})
}

// An outcome is how a call ended.
type outcome struct {
	took time.Duration
	err  error
}

// patiently calls f, and waits for as long as a node may be silent.
func (r *Runner) patiently(f func() error) <-chan outcome {
	out, over := make(chan outcome, 1), make(chan error, 1)
	begun := time.Now()
	go func() { over <- f() }()
	go func() {
		select {
		case err := <-over:
			out <- outcome{time.Since(begun), err}
		case <-time.After(r.plan.Silence):
			out <- outcome{r.plan.Silence, fmt.Errorf("it had not returned after %v", r.plan.Silence)}
		}
	}()
	return out
}

// restarts measures a node that starts again.
func (r *Runner) restarts(kinds []server.Kind) (cases []*testCase) {
	s := &Section{
		Title: "A node starts again",
		Text: fmt.Sprintf("Of three servers one is killed for good and one is killed and starts again without its memory, so that nothing is granted without its vote. Measured is from when it accepts connections to the next grant, to a client that waits. "+
			"The TTL is %s. A restart guard keeps the node out for as long as a lock of its former life can last, on purpose: without one, a node that forgot its locks votes for a second holder.", figures.Duration(restartTTL)),
		Key:   "vote p50",
		Plots: []Plot{{Title: "from a node's restart to its vote, median", Metric: "vote p50"}},
	}
	for _, kind := range kinds {
		var contestants []Contestant
		for _, c := range r.serving(kind, 3, func(c Contestant) bool { return c.Waits && (c.Kind == Ours || c.Kind == Peer) }) {
			if c.Kind != Ours {
				contestants = append(contestants, c)
				continue
			}
			contestants = append(contestants, guarded(c, noGuard), guarded(c, r.plan.Guard))
		}
		cases = append(cases, &testCase{
			section: s, name: "3 " + string(kind) + "s", contestants: contestants, setup: &Setup{TTL: restartTTL},
			rounds: r.plan.Deaths, cold: true, together: true, fixed: time.Duration(r.plan.Deaths) * (r.plan.Guard + time.Second),
			measurement: r.restartMeasurement(kind),
		})
	}
	return cases
}

// restartTTL is below the guard.
const restartTTL = 500 * time.Millisecond

// guarded returns one of ours with a restart guard.
func guarded(c Contestant, guard time.Duration) Contestant {
	open, what := c.Open, "guard off"
	if guard > 0 {
		what = "guard of " + figures.Duration(guard)
	}
	c.Name += ", " + what
	c.How = strings.Replace(c.How, "nothing set", "with its restart "+what+", and nothing set", 1)
	c.Open = func(ctx context.Context, s *Setup) (Locker, error) {
		own := *s
		own.Guard = guard
		return open(ctx, &own)
	}
	return c
}

// restartMeasurement starts servers for one contestant, of which one starts again.
func (r *Runner) restartMeasurement(kind server.Kind) func(context.Context, *entry, time.Duration) *measurement {
	return func(ctx context.Context, e *entry, _ time.Duration) *measurement {
		t := &measurement{}
		var servers []*server.Server
		defer func() {
			for _, s := range servers {
				if err := s.Close(); err != nil {
					t.fail(err)
				}
			}
		}()
		for range 3 {
			s, err := server.Start(ctx, server.Config{Kind: kind})
			if err != nil {
				t.fail(err)
				return t
			}
			servers = append(servers, s)
		}
		if err := r.restart(ctx, e, servers, t); err != nil {
			t.fail(err)
		}
		return t
	}
}

func (r *Runner) restart(ctx context.Context, e *entry, servers []*server.Server, t *measurement) error {
	l, err := e.contestant.Open(ctx, direct(servers, e.setup.TTL))
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // a node is down: that may be said again
	h, err := l.Lock(ctx, "restart/before", true)
	if err == nil {
		err = h.Unlock()
	}
	if err != nil {
		return err
	}
	if err := errors.Join(servers[1].Kill(), servers[2].RestartEmpty()); err != nil {
		return err
	}
	again := time.Now()
	wait, cancel := context.WithTimeout(ctx, r.plan.Guard+r.plan.Patience)
	defer cancel()
	h, err = l.Lock(wait, "restart/after", true)
	if err != nil {
		return fmt.Errorf("no grant after the restart: %w", err)
	}
	t.series = []series{{"vote", []time.Duration{time.Since(again)}}}
	return h.Unlock()
}

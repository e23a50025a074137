package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// A turn is what one contestant did in one round.
type turn struct {
	series []series
	values []value
	failed int
	err    error // the first failure
}

// series are the latencies of one operation.
type series struct {
	op      string
	samples []time.Duration
}

// A value is one figure of a turn.
type value struct {
	name string
	unit Unit
	v    float64
}

func (t *turn) add(name string, unit Unit, v float64) {
	t.values = append(t.values, value{name, unit, v})
}

func (t *turn) fail(err error) {
	t.failed++
	if t.err == nil {
		t.err = err
	}
}

// An entry is a contestant that takes part in a case.
type entry struct {
	contestant Contestant
	setup      *Setup
	lockers    []Locker // one per client that the case needs
	turns      []*turn
	spent      time.Duration
	err        error // it could not take part
}

// A testCase is one set-up in which contestants are compared.
type testCase struct {
	name    string
	x       float64
	setup   *Setup
	clients int // per contestant
	rounds  int
	// ready is called when all clients are open and have warmed up; nil: nothing to do.
	// What it returns is called after the last turn.
	ready func() (done func(), err error)
	// turn measures one contestant for one round.
	turn func(ctx context.Context, e *entry) *turn
}

// compare lets the contestants have their turns and appends a row for each to the
// section. An error is the run's end; what fails in a contestant is in its row.
func (r *Runner) compare(ctx context.Context, s *Section, c *testCase, contestants []Contestant) error {
	if len(contestants) == 0 {
		return nil
	}
	r.say("%s", c.name)
	var entries []*entry
	for _, k := range contestants {
		entries = append(entries, r.enter(ctx, c, k))
	}
	err := r.rounds(ctx, c, entries)
	for _, e := range entries {
		for _, l := range e.lockers {
			if closeErr := l.Close(); closeErr != nil && e.err == nil {
				e.err = fmt.Errorf("close: %w", closeErr)
			}
		}
		s.Rows = append(s.Rows, e.row(c))
		r.know(e.contestant)
	}
	relate(s, c.name)
	return err
}

// enter opens the clients of a contestant.
func (r *Runner) enter(ctx context.Context, c *testCase, k Contestant) *entry {
	e := &entry{contestant: k, setup: c.setup}
	for range max(c.clients, 1) {
		if c.clients == 0 {
			break // it opens what it needs itself
		}
		open, cancel := context.WithTimeout(ctx, 20*time.Second)
		l, err := k.Open(open, c.setup)
		cancel()
		if err != nil {
			e.err = fmt.Errorf("open: %w", err)
			break
		}
		e.lockers = append(e.lockers, l)
	}
	return e
}

// maxTurn ends a turn in which something hangs.
const maxTurn = time.Minute

// rounds gives every entry a turn per round, in an order that changes. The first
// round warms up, and does not count.
func (r *Runner) rounds(ctx context.Context, c *testCase, entries []*entry) error {
	for round := range c.rounds + 1 {
		if round == 1 && c.ready != nil {
			done, err := c.ready()
			if err != nil {
				return err
			}
			defer done()
		}
		for _, i := range rand.Perm(len(entries)) {
			e := entries[i]
			if e.err != nil || r.hasHadEnough(e, c) {
				continue
			}
			turnCtx, cancel := context.WithTimeout(ctx, maxTurn)
			start := time.Now()
			t := c.turn(turnCtx, e)
			e.spent += time.Since(start)
			cancel()
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if round > 0 {
				e.turns = append(e.turns, t)
			} else if t.err != nil && t.values == nil && t.series == nil {
				e.err = t.err
			}
		}
	}
	return nil
}

// hasHadEnough reports whether an entry is so slow that its rounds would take all the
// time: it has fewer then.
func (r *Runner) hasHadEnough(e *entry, c *testCase) bool {
	return len(e.turns) >= r.plan.Fewest && e.spent > 2*time.Duration(c.rounds)*r.plan.Slice
}

// row sums an entry up.
func (e *entry) row(c *testCase) *Row {
	row := &Row{Case: c.name, X: c.x, Contestant: e.contestant.Name, Kind: e.contestant.Kind, Client: e.contestant.Client}
	err := e.err
	var order []string
	byName := map[string]*struct {
		unit   Unit
		values []float64
	}{}
	var ops []string
	byOp := map[string][][]time.Duration{}
	for _, t := range e.turns {
		row.Failed += t.failed
		err = errors.Join(err, t.err)
		for _, s := range t.series {
			if _, ok := byOp[s.op]; !ok {
				ops = append(ops, s.op)
			}
			byOp[s.op] = append(byOp[s.op], s.samples)
		}
		for _, v := range t.values {
			if byName[v.name] == nil {
				order = append(order, v.name)
				byName[v.name] = &struct {
					unit   Unit
					values []float64
				}{unit: v.unit}
			}
			byName[v.name].values = append(byName[v.name].values, v.v)
		}
	}
	for _, name := range order {
		if m, ok := metric(name, byName[name].unit, byName[name].values); ok {
			row.Metrics = append(row.Metrics, m)
		}
	}
	for _, op := range ops {
		row.Metrics = append(row.Metrics, latencies(op, byOp[op])...)
	}
	if err != nil {
		row.Error = firstLine(err)
	}
	return row
}

package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A measurement holds the results of one contestant in one round.
type measurement struct {
	round  int
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

// A value is one figure of a measurement.
type value struct {
	name string
	unit figures.Unit
	v    float64
}

func (t *measurement) add(name string, unit figures.Unit, v float64) {
	t.values = append(t.values, value{name, unit, v})
}

func (t *measurement) fail(err error) {
	t.failed++
	if t.err == nil {
		t.err = err
	}
}

// An entry is a contestant that takes part in a case.
type entry struct {
	contestant   Contestant
	keys         string // prefix of its keys; no other entry has it
	setup        *Setup
	servers      []*server.Server // the servers of its locks, which give figures
	lockers      []Locker         // one for each client that the case needs
	measurements []*measurement
	capacity     float64 // in locks a second, if the case needs it
	slow         bool    // one measurement took so long that no other is made
	err          error   // why it could not take part
}

// A testCase is one setup in which contestants are compared.
type testCase struct {
	scenario    string
	section     *Section
	name        string
	x           float64
	contestants []Contestant
	servers     []*server.Server
	setup       *Setup
	clients     int           // per contestant; 0: each measurement opens its own clients
	rounds      int           // greatest number of rounds; 0: the plan's
	heavy       float64       // the weight of a contestant's time, relative to other cases
	least       time.Duration // the least time of a measurement; 0: the plan's
	// patience bounds a measurement: a contestant that takes longer gets no other one.
	patience time.Duration
	// begin is called before the clients are opened, and its result end after they are closed;
	// nil: nothing to do.
	begin func() (end func(), err error)
	// ready is called when all clients are open and have warmed up; nil: nothing to do. Its
	// result done is called after the last measurement.
	ready func() (done func())
	// measurement measures one contestant for one round.
	measurement func(ctx context.Context, e *entry, slice time.Duration) *measurement
	// relate adds metrics that need the rows of several contestants; nil: none.
	relate func(rows []*Row)
}

// compare measures the contestants in turn and appends a row for each to the section. An error
// ends the run; the failure of a contestant is in its row instead.
func (r *Runner) compare(ctx context.Context, c *testCase, budget time.Duration) error {
	end := time.Now().Add(budget)
	if c.begin != nil {
		done, err := c.begin()
		if err != nil {
			return err
		}
		defer done()
	}
	var entries []*entry
	for i, k := range c.contestants {
		e := r.enter(ctx, c, k)
		e.keys = strconv.Itoa(i) + "/"
		entries = append(entries, e)
	}
	err := r.rounds(ctx, c, entries, end)
	for _, e := range entries {
		for _, l := range e.lockers {
			if closeErr := l.Close(); closeErr != nil && e.err == nil {
				e.err = fmt.Errorf("close: %w", closeErr)
			}
		}
		c.section.Rows = append(c.section.Rows, e.row(c))
		r.know(e.contestant)
	}
	if c.relate != nil {
		c.relate(c.section.of(c.name))
	}
	return err
}

// enter opens the clients of a contestant.
func (r *Runner) enter(ctx context.Context, c *testCase, k Contestant) *entry {
	e := &entry{contestant: k, setup: c.setup, servers: c.servers}
	for range c.clients {
		open, cancel := context.WithTimeout(ctx, 20*time.Second)
		l, err := k.Open(open, e.setup)
		cancel()
		if err != nil {
			e.err = fmt.Errorf("open: %w", err)
			break
		}
		e.lockers = append(e.lockers, l)
	}
	return e
}

// rounds makes one measurement of every entry per round, in an order that changes, until all
// rounds are done or the time is over. The first round is a warm-up, and does not count.
func (r *Runner) rounds(ctx context.Context, c *testCase, entries []*entry, end time.Time) error {
	most := cmp.Or(c.rounds, r.plan.Rounds)
	least := cmp.Or(c.least, r.plan.Slice)
	fewest := min(r.plan.Fewest, most)
	budget := time.Until(end)
	var overhead time.Duration
	for round := 0; round <= most; round++ {
		if round == 1 && c.ready != nil {
			defer c.ready()()
		}
		left := time.Until(end)
		if round > fewest && left <= 0 || round > 1 && time.Since(end) > budget {
			return nil // twice the time is the bound even for the least number of rounds
		}
		var active []*entry
		for _, e := range entries {
			if e.err == nil && !e.slow {
				active = append(active, e)
			}
		}
		if round == 0 { // the warm-up may be shorter than the other rounds
			left /= 2
		}
		s := slice(left, most-round+1, len(active), overhead, least)
		begun := time.Now()
		for _, i := range rand.Perm(len(active)) {
			took := active[i].measure(ctx, c, s, round)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if active[i].slow { // the others keep their time
				begun, end = begun.Add(took), end.Add(took)
			}
		}
		if len(active) > 0 {
			overhead = max(time.Since(begun)/time.Duration(len(active))-s, 0)
		}
	}
	return nil
}

// maxMeasurement bounds a measurement, so that one that hangs ends.
const maxMeasurement = time.Minute

// measure makes one measurement, and returns how long it took. That of round zero does not count.
func (e *entry) measure(ctx context.Context, c *testCase, slice time.Duration, round int) (took time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, maxMeasurement)
	defer cancel()
	begun := time.Now()
	t := c.measurement(ctx, e, slice)
	took = time.Since(begun)
	e.slow = c.patience > 0 && took > slice+c.patience
	switch t.round = round; {
	case round > 0:
		e.measurements = append(e.measurements, t)
	case t.err != nil && t.values == nil && t.series == nil:
		e.err = t.err
	}
	return took
}

// row summarizes an entry.
func (e *entry) row(c *testCase) *Row {
	row := &Row{Case: c.name, X: c.x, Contestant: e.contestant.Name, Library: e.contestant.library(), Kind: e.contestant.Kind, Client: e.contestant.Client, Slow: e.slow}
	err := e.err
	all := map[string]*figures.Rounds{}
	var ops []string
	for _, t := range e.measurements {
		row.Failed += t.failed
		err = errors.Join(err, t.err)
		for _, s := range t.series {
			if len(s.samples) == 0 {
				continue
			}
			if all[s.op] == nil {
				all[s.op] = figures.NewRounds()
				ops = append(ops, s.op)
			}
			all[s.op].Add(t.round, figures.NewLatencies(s.samples...))
			row.add(s.op+" p50", figures.Seconds, t.round, all[s.op].Medians[t.round])
		}
		for _, v := range t.values {
			row.add(v.name, v.unit, t.round, v.v)
		}
	}
	for i := range row.Metrics {
		row.Metrics[i].sumUp()
	}
	for _, op := range ops { // the tails come after all other metrics
		for _, t := range all[op].Tails() {
			row.Metrics = append(row.Metrics, exactly(op+" "+t.Name, figures.Seconds, t.Value))
		}
		if op == curveOp {
			row.Curve = all[op].All.Curve()
		}
		row.Samples = max(row.Samples, all[op].All.Count())
	}
	if err != nil {
		row.Error = firstLine(err)
	}
	return row
}

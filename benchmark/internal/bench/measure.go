package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A measurement is what one contestant did in one round.
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
	keys         string // before its keys, which no other entry has
	setup        *Setup
	servers      []*server.Server // that its locks are on, to be asked for figures
	left         func(ctx context.Context, keys string) (int, error)
	lockers      []Locker // one per client that the case needs
	measurements []*measurement
	spent        time.Duration
	capacity     float64              // locks a second, where a case needs it
	late         chan lateMeasurement // its measurement goes on beside those of others; nil: none does
	cut          bool                 // it went on at the end of the case
	err          error                // it could not take part
}

// A lateMeasurement is a measurement that ended, and whether it counts.
type lateMeasurement struct {
	*measurement
	took   time.Duration
	counts bool
}

// A testCase is one set-up in which contestants are compared.
type testCase struct {
	scenario    string
	section     *Section
	name        string
	x           float64
	contestants []Contestant
	servers     []*server.Server
	setup       *Setup
	clients     int           // per contestant; 0: a measurement opens what it needs
	rounds      int           // at most; 0: as the plan has it
	fewest      int           // rounds, however slow they are; 0: as the plan has it
	heavy       float64       // how much time a contestant must have, beside those of other cases
	fixed       time.Duration // that it takes in any case, all together
	least       time.Duration // of a measurement; 0: as the plan has it
	cold        bool          // there is no round to warm up
	together    bool          // they have their turns at the same time: what takes long and costs little
	waits       bool          // a measurement that takes long only waits, and may go on while others have theirs
	// begin is called before the clients are opened, and what it returns after they were
	// closed; nil: nothing to do.
	begin func() (end func(), err error)
	// ready is called when all clients are open and have warmed up; nil: nothing to do.
	// What it returns is called after the last measurement.
	ready func() (done func(), err error)
	// measurement measures one contestant for one round.
	measurement func(ctx context.Context, e *entry, slice time.Duration) *measurement
	// relate adds what follows from the rows together; nil: nothing.
	relate func(rows []*Row)
}

// compare lets the contestants have their turns and appends a row for each to the
// section. An error is the run's end; what fails in a contestant is in its row.
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
		e.keys = r.keys + strconv.Itoa(i) + "/"
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
	if g := r.guests[k.Name]; g != nil {
		own := *c.setup
		own.Nodes = []Node{g.Node}
		e.setup, e.servers, e.left = &own, nil, g.Left
	}
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

// maxMeasurement ends a measurement in which something hangs.
const maxMeasurement = time.Minute

// rounds gives every entry a measurement per round, in an order that changes, until the rounds
// or the time are over. The first round warms up, and does not count.
func (r *Runner) rounds(ctx context.Context, c *testCase, entries []*entry, end time.Time) error {
	most := c.rounds
	if most == 0 {
		most = r.plan.Rounds
	}
	least := c.least
	if least == 0 {
		least = r.plan.Slice
	}
	fewest := c.fewest
	if fewest == 0 {
		fewest = r.plan.Fewest
	}
	share := time.Until(end)
	if !c.together {
		share /= time.Duration(max(len(entries), 1))
	}
	first := 0
	if c.cold {
		first = 1
	}
	ctx, cancel := context.WithCancel(ctx)
	// After what ready returned: once all is well again what was waited for comes.
	defer func() { r.collect(entries, cancel) }()
	var overhead time.Duration
	for round := first; round <= most; round++ {
		if round == 1 && c.ready != nil {
			done, err := c.ready()
			if err != nil {
				return err
			}
			defer done()
		}
		left := time.Until(end)
		if round > fewest && left <= 0 {
			return nil
		}
		var active []*entry
		for _, e := range entries {
			e.finishLate(0)
			if e.err == nil && e.late == nil && !e.hasHadEnough(fewest, share) {
				active = append(active, e)
			}
		}
		if round == 0 { // it need not take as long as the others
			left /= 2
		}
		s := slice(left, most-round+1, len(active), overhead, least)
		spent, err := r.round(ctx, c, active, s, round)
		if err != nil {
			return err
		}
		if len(active) > 0 {
			overhead = max(spent/time.Duration(len(active))-s, 0)
		}
	}
	return nil
}

// collect waits for the measurements that go on, whose case is over: they have taken at least so
// long.
func (r *Runner) collect(entries []*entry, cancel func()) {
	end := time.Now().Add(r.plan.Silence)
	for _, e := range entries {
		e.finishLate(0)
		e.cut = e.late != nil
		e.finishLate(time.Until(end))
	}
	cancel()
	for _, e := range entries {
		if e.finishLate(maxMeasurement); e.late != nil {
			e.err = errors.New("a call never returned")
		}
	}
}

// finishLate ends the entry's late measurement if that is over by then.
func (e *entry) finishLate(wait time.Duration) {
	if e.late == nil {
		return
	}
	timer := time.NewTimer(max(wait, 0))
	defer timer.Stop()
	select {
	case t := <-e.late:
		e.take(t)
	case <-timer.C:
	}
}

func (e *entry) take(t lateMeasurement) {
	e.late = nil
	if t.counts {
		e.measurements = append(e.measurements, t.measurement)
		e.spent += t.took
	} else if t.err != nil && t.values == nil && t.series == nil {
		e.err = t.err
	}
}

// round gives these entries a measurement each, and returns how long that took.
func (r *Runner) round(ctx context.Context, c *testCase, entries []*entry, slice time.Duration, number int) (time.Duration, error) {
	begun := time.Now()
	begin := func(e *entry) {
		e.late = make(chan lateMeasurement, 1)
		go func(over chan<- lateMeasurement) {
			measureCtx, cancel := context.WithTimeout(ctx, maxMeasurement)
			defer cancel()
			start := time.Now()
			t := c.measurement(measureCtx, e, slice)
			t.round = number
			over <- lateMeasurement{t, time.Since(start), number > 0}
		}(e.late)
	}
	const soon = 400 * time.Millisecond
	for _, i := range rand.Perm(len(entries)) {
		begin(entries[i])
		switch {
		case c.together: // they are waited for below
		case c.waits:
			entries[i].finishLate(max(2*slice, soon))
		default:
			entries[i].take(<-entries[i].late)
		}
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
	}
	for _, e := range entries {
		if c.together {
			e.take(<-e.late)
		}
	}
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	return time.Since(begun), nil
}

// hasHadEnough reports whether an entry is so slow that its rounds would take the time
// of the others: it has fewer then.
func (e *entry) hasHadEnough(fewest int, share time.Duration) bool {
	return len(e.measurements) >= fewest && e.spent > share
}

// row sums an entry up.
func (e *entry) row(c *testCase) *Row {
	row := &Row{Case: c.name, X: c.x, Contestant: e.contestant.Name, Library: e.contestant.library(), Kind: e.contestant.Kind, Client: e.contestant.Client, Cut: e.cut}
	err := e.err
	all := map[string]*figures.Latencies{}
	var tails []Metric // after everything else
	var ops []string
	for _, t := range e.measurements {
		row.Failed += t.failed
		err = errors.Join(err, t.err)
		for _, v := range t.values {
			row.add(v.name, v.unit, t.round, v.v)
		}
		for _, s := range t.series {
			if len(s.samples) == 0 {
				continue
			}
			if all[s.op] == nil {
				all[s.op] = figures.NewLatencies()
				ops = append(ops, s.op)
			}
			one := figures.NewLatencies()
			for _, d := range s.samples {
				one.Add(d)
			}
			all[s.op].Merge(one)
			row.add(s.op+" p50", figures.Seconds, t.round, one.Quantile(0.5).Seconds())
		}
	}
	for _, op := range ops {
		l := all[op]
		for _, q := range []struct {
			name  string
			q     float64
			least int64 // with fewer samples it would only repeat the greatest
		}{{"p90", 0.9, 10}, {"p99", 0.99, 100}, {"p99.9", 0.999, 1000}} {
			if l.Count() >= q.least {
				v := l.Quantile(q.q).Seconds()
				tails = append(tails, Metric{Name: op + " " + q.name, Unit: figures.Seconds, Interval: figures.Interval{Median: v, Low: v, High: v}})
			}
		}
		if op == curveOp {
			row.Curve = l.Curve()
		}
		row.Samples = max(row.Samples, l.Count())
	}
	for i := range row.Metrics {
		row.Metrics[i].sumUp()
	}
	row.Metrics = append(row.Metrics, tails...)
	if err != nil {
		row.Error = firstLine(err)
	}
	return row
}

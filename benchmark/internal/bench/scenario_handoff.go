package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// handoffMeasurement lets clients lock one key, hold it and let go, over and over. Each is a
// process, but those whose locks are of one process.
func (r *Runner) handoffMeasurement(clients int) func(context.Context, *entry, time.Duration) *measurement {
	measurements := 0
	return func(ctx context.Context, e *entry, slice time.Duration) *measurement {
		t := &measurement{}
		// A key for each measurement: what the measurement before left behind is not in the way.
		measurements++
		key := r.keys + "handoff/" + strconv.Itoa(clients) + "/" + strconv.Itoa(measurements)
		meet := r.meetProcesses
		if e.contestant.Local {
			meet = r.meetGoroutines
		}
		m := &meeting{clients: clients, key: key, slice: slice}
		if err := meet(ctx, e, m); err != nil {
			t.fail(err)
			return t
		}
		m.report(t)
		return t
	}
}

// A meeting is clients who want one key, and what came of it.
type meeting struct {
	clients int
	key     string
	slice   time.Duration

	begun time.Time
	holds [][]hold
	cpu   time.Duration
	info  serverInfo // what the servers did
}

// settling is the part of a slice in which the waiters get to know each other: it does
// not count.
const settling = 0.2

// report adds what came of it to the measurement.
func (m *meeting) report(t *measurement) {
	from := m.begun.Add(time.Duration(settling * float64(m.slice)))
	w := runRelay(m.holds, from)
	counted := m.slice - from.Sub(m.begun)
	t.add("locks", figures.PerSecond, float64(sum(w.got))/counted.Seconds())
	t.add("handoffs", figures.PerSecond, float64(len(w.handoffs))/counted.Seconds())
	t.series = []series{{"handoff", w.handoffs}, {"passing on", w.passings}}
	least, most := extremes(w.got)
	t.add("least of a client", figures.Count, float64(least))
	t.add("most of a client", figures.Count, float64(most))
	if w.all > 0 {
		if m.info.commands > 0 {
			t.add("server commands", figures.Count, m.info.commands/float64(w.all))
		}
		t.add("client CPU", figures.Seconds, m.cpu.Seconds()/float64(w.all))
	}
	if w.overlaps > 0 {
		t.failed += w.overlaps
		t.err = fmt.Errorf("two clients held the lock at once, %d times", w.overlaps)
	}
}

// meetProcesses lets processes wait.
func (r *Runner) meetProcesses(_ context.Context, e *entry, m *meeting) error {
	if r.waiters == nil {
		r.waiters = &processes{}
	}
	j := &job{Contestant: e.contestant.Name, Setup: *e.setup, Key: m.key, Hold: r.plan.Hold}
	if err := r.waiters.prepare(m.clients, j); err != nil {
		return r.dismiss(err)
	}
	before := readInfo(e.servers)
	m.begun = time.Now()
	info := make(chan serverInfo, 1)
	go func() {
		time.Sleep(m.slice)
		info <- readInfo(e.servers)
	}()
	all, err := r.waiters.run(m.clients, m.begun.Add(m.slice))
	m.info = (<-info).minus(before)
	if err != nil {
		return r.dismiss(err)
	}
	for _, d := range all {
		m.holds = append(m.holds, d.Holds)
		m.cpu += d.CPU
	}
	return nil
}

// dismiss ends the processes, of which some may have failed in the middle of something:
// there will be others.
func (r *Runner) dismiss(err error) error {
	_ = r.waiters.close() // err says more
	return err
}

// meetGoroutines lets goroutines of this process wait, each with a client of its own.
func (r *Runner) meetGoroutines(ctx context.Context, e *entry, m *meeting) (err error) {
	lockers := make([]Locker, 0, m.clients)
	defer func() {
		for _, l := range lockers {
			err = errors.Join(err, l.Close())
		}
	}()
	for range m.clients {
		l, err := openWarm(ctx, e.contestant, e.setup, m.key)
		if err != nil {
			return err
		}
		lockers = append(lockers, l)
	}
	m.holds = make([][]hold, m.clients)
	errs := make([]error, m.clients)
	cpu := processCPU()
	m.begun = time.Now()
	var running sync.WaitGroup
	for i, l := range lockers {
		running.Go(func() { m.holds[i], errs[i] = want(ctx, l, m.key, r.plan.Hold, m.begun.Add(m.slice)) })
	}
	running.Wait()
	m.cpu = processCPU() - cpu
	return errors.Join(errs...)
}

func sum(n []int) (total int) {
	for _, v := range n {
		total += v
	}
	return total
}

func extremes(n []int) (least, most int) {
	least, most = n[0], n[0]
	for _, v := range n {
		least, most = min(least, v), max(most, v)
	}
	return least, most
}

// waits picks the contestants that can wait.
func waits(c Contestant) bool { return c.Waits }

// handoff measures waiters on one key.
func handoff(ctx context.Context, r *Runner) ([]*testCase, error) {
	kinds, err := r.fives(ctx)
	if err != nil {
		return nil, err
	}
	var cases []*testCase
	add := func(kind server.Kind, n int, waiters []int) error {
		servers, ok, err := r.servers(ctx, kind, n)
		if err != nil || !ok {
			return err
		}
		s := r.handoffSection("Handing over on " + plural(n, "server") + on(kind))
		for _, w := range waiters {
			cases = append(cases, r.handoffCase(&testCase{
				section: s, contestants: r.serving(kind, n, waits), servers: servers, setup: direct(servers, r.plan.TTL),
			}, w))
		}
		return nil
	}
	if err := add(server.KindRedis, 1, r.plan.Waiters); err != nil {
		return nil, err
	}
	for i, kind := range kinds {
		waiters := r.plan.Waiters
		if i > 0 {
			waiters = []int{8}
		}
		if err := add(kind, 5, waiters); err != nil {
			return nil, err
		}
	}
	return append(cases, r.localHandoff("Handing over without a server")...), nil
}

// localHandoff measures the contestants that are given no server.
func (r *Runner) localHandoff(title string) (cases []*testCase) {
	s := r.handoffSection(title)
	for _, w := range r.plan.Waiters {
		c := r.local(&testCase{section: s, contestants: r.serving("", 0, waits)})
		cases = append(cases, r.handoffCase(c, w))
	}
	return cases
}

func (r *Runner) handoffSection(title string) *Section {
	return &Section{
		Title: title,
		Text: fmt.Sprintf("Clients want one key, hold it for %s and want it again at once. Each is a process of its own, with connections of its own, but for those of the driver memory, whose locks are of one process. "+
			"A handoff is from just before the release to the return of another client's Lock. "+
			"A client that gets the lock again itself makes none: where those who wait ask now and then, the handoffs are few, and short by luck. Passing on counts from the first release of a client in a row, when another could have had the lock. Least and most say how many locks the clients got in one round; "+
			"server commands (what the servers count, those inside scripts too) and the CPU of all clients are per handoff.", figures.Duration(r.plan.Hold)),
		Key: "handoff p50", Axis: "clients",
		Plots: []Plot{
			{Title: "handoff, median", Metric: "handoff p50", Lines: true},
			{Title: "passing on, median", Metric: "passing on p50", Lines: true},
			{Title: "handoffs per second", Metric: "handoffs", Lines: true, More: true},
		},
	}
}

// handoffCase completes a case of so many clients. They are opened by its measurements: with
// all contestants' at once there would be too many connections.
func (r *Runner) handoffCase(c *testCase, clients int) *testCase {
	c.name, c.x, c.clients, c.cold = plural(clients, "client"), float64(clients), 0, true
	if strings.Contains(c.section.Title, "valkey") {
		c.name += " of valkey-servers"
	}
	c.rounds, c.fewest, c.least, c.measurement = 3, 1, r.plan.Waiting*time.Duration(1+clients/32), r.handoffMeasurement(clients)
	c.heavy = 3 + float64(clients)/32 // to open them takes its time
	return c
}

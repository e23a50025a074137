package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/redlocktest/server"
)

// held measures what leases cost that are only held.
func held(ctx context.Context, r *Runner) ([]*Section, error) {
	s := r.heldSection()
	servers, _, err := r.servers(ctx, server.KindRedis, 1)
	if err != nil {
		return nil, err
	}
	return []*Section{s}, r.heldOn(ctx, s, servers)
}

func (r *Runner) heldSection() *Section {
	return &Section{
		Title: "Held leases",
		Text: fmt.Sprintf("One client takes that many locks with a TTL of %v, 64 at a time, and holds them for %v while they renew themselves. Memory is this process's heap and stacks, goroutines what there is more of than before; "+
			"CPU is the share of one core while they are held.", r.plan.HeldTTL, r.plan.Watched),
		Key: "memory per lease",
	}
}

// heldOn measures on servers, if there are any, and without.
func (r *Runner) heldOn(ctx context.Context, s *Section, servers []*server.Server) error {
	// The file driver has a descriptor for each lock: more than most systems allow.
	mine := func(c Contestant) bool { return c.Kind == Ours && c.Name != "dlock, file" }
	contestants := r.serving("", 0, mine)
	if len(servers) > 0 {
		contestants = append(r.serving(server.KindRedis, 1, mine), contestants...)
	}
	for _, n := range r.plan.Held {
		c := &testCase{name: plural(n, "lease"), x: float64(n), setup: direct(servers, r.plan.HeldTTL), turn: r.heldTurn(n, func(ctx context.Context, t *turn, l Locker) error { return watch(ctx, t, l, r.plan.Watched, servers) })}
		if err := r.compareOnce(ctx, s, c, contestants); err != nil {
			return err
		}
	}
	return nil
}

// compareOnce is compare with one turn for each, without warming up: for what takes
// long and opens its own clients.
func (r *Runner) compareOnce(ctx context.Context, s *Section, c *testCase, contestants []Contestant) error {
	for _, k := range contestants {
		r.say("%s, %s", c.name, k.Name)
		e := &entry{contestant: k, setup: c.setup}
		e.turns = []*turn{c.turn(ctx, e)}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		s.Rows = append(s.Rows, e.row(c))
		r.know(k)
	}
	return nil
}

// heldTurn takes n leases, watches them and gives them back.
func (r *Runner) heldTurn(n int, watch func(context.Context, *turn, Locker) error) func(context.Context, *entry) *turn {
	return func(ctx context.Context, e *entry) *turn {
		t := &turn{}
		_, goroutines := footprint()
		l, err := e.contestant.Open(ctx, e.setup)
		if err != nil {
			t.err = err
			return t
		}
		if first, err := l.Lock(ctx, r.keys+"held/first", false); err == nil { // connects
			_ = first.Unlock() // a failure comes again
		}
		memory, _ := footprint()
		start := time.Now()
		leases, err := takeMany(ctx, l, r.keys, n)
		t.add("time to take", Seconds, time.Since(start).Seconds())
		if err == nil {
			more, running := footprint()
			t.add("memory per lease", Bytes, (more-memory)/float64(n))
			t.add("goroutines", Count, float64(running-goroutines))
			err = watch(ctx, t, l)
		}
		start = time.Now()
		err = errors.Join(err, giveMany(leases))
		t.add("time to release", Seconds, time.Since(start).Seconds())
		if err = errors.Join(err, l.Close()); err != nil {
			t.fail(err)
		}
		return t
	}
}

// watch measures while leases are held.
func watch(ctx context.Context, t *turn, l Locker, d time.Duration, servers []*server.Server) error {
	renewed := renewals(l)
	cpu, info, start := processCPU(), readInfo(servers), time.Now()
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return ctx.Err()
	}
	took := time.Since(start).Seconds()
	t.add("renewals", PerSecond, float64(renewals(l)-renewed)/took)
	t.add("client CPU", Percent, 100*(processCPU()-cpu).Seconds()/took)
	if len(servers) > 0 {
		t.add("server CPU", Percent, 100*(readInfo(servers).cpu-info.cpu)/took)
	}
	if c, ok := l.(client); ok {
		if lost := c.c.Stats().Lost; lost > 0 {
			return fmt.Errorf("%d leases were lost", lost)
		}
	}
	return nil
}

// renewals returns how many renewals there were.
func renewals(l Locker) uint64 {
	if c, ok := l.(client); ok {
		return c.c.Stats().Renewed
	}
	return 0
}

// footprint returns the memory in use, after the garbage was collected, and the number
// of goroutines.
func footprint() (memory float64, goroutines int) {
	runtime.GC()
	runtime.GC() // what the first one made free
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse), runtime.NumGoroutine()
}

// manyAtOnce is how many locks are taken and given back at a time.
const manyAtOnce = 64

// takeMany takes n locks on n keys.
func takeMany(ctx context.Context, l Locker, keys string, n int) ([]Held, error) {
	leases := make([]Held, n)
	err := inParallel(n, func(i int) (err error) {
		leases[i], err = l.Lock(ctx, keys+"held/"+strconv.Itoa(i), false)
		return err
	})
	return leases, err
}

func giveMany(leases []Held) error {
	return inParallel(len(leases), func(i int) error {
		if leases[i] == nil {
			return nil
		}
		return leases[i].Unlock()
	})
}

// inParallel calls f for 0 to n-1, and returns the first error.
func inParallel(n int, f func(i int) error) error {
	var next atomic.Int64
	var once sync.Once
	var first error
	var workers sync.WaitGroup
	for range min(manyAtOnce, n) {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				if err := f(int(i)); err != nil {
					once.Do(func() { first = err })
				}
			}
		})
	}
	workers.Wait()
	return first
}

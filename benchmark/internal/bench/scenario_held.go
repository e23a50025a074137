package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// held measures what leases cost that are only held.
func held(ctx context.Context, r *Runner) ([]*testCase, error) {
	servers, _, err := r.servers(ctx, server.KindRedis, 1)
	if err != nil {
		return nil, err
	}
	return r.heldOn(r.heldSection(), servers), nil
}

func (r *Runner) heldSection() *Section {
	return &Section{
		Title: "Held leases",
		Text: "One client takes that many locks, 64 at a time, and holds them while each is renewed about once, a third of its TTL after it was taken: by the library or, where that does not renew, by 64 goroutines that go over all of them. " +
			"Memory is this process's heap and stacks, goroutines what there is more of than before; CPU is the share of one core while they are held." + r.holdings(),
		Key: "memory per lease",
	}
}

// holdings says how long each number of leases is held.
func (r *Runner) holdings() (text string) {
	for _, h := range r.plan.Held {
		text += fmt.Sprintf(" %s: a TTL of %s, watched for %s.", plural(h.Leases, "lease"), figures.Duration(h.TTL), figures.Duration(h.Watched))
	}
	return text
}

// heldOn measures on servers, if there are any, and without.
func (r *Runner) heldOn(s *Section, servers []*server.Server) (cases []*testCase) {
	for _, h := range r.plan.Held {
		holds := func(c Contestant) bool { return r.holds(c, h.Leases) }
		contestants := r.serving("", 0, holds)
		if len(servers) > 0 {
			contestants = append(r.serving(server.KindRedis, 1, holds), contestants...)
		}
		c := r.heldCase(s, h, contestants)
		c.servers, c.setup = servers, direct(servers, h.TTL)
		c.measurement = heldMeasurement(r.keys, h.Leases, func(ctx context.Context, t *measurement, l Locker) error {
			return watch(ctx, t, l, h.Watched, servers)
		})
		cases = append(cases, c)
	}
	return cases
}

// heldCase makes a case that is measured once, since it takes long.
func (r *Runner) heldCase(s *Section, h Holding, contestants []Contestant) *testCase {
	const perLock = 100 * time.Microsecond // to take it and to give it back
	return &testCase{
		section: s, name: plural(h.Leases, "lease"), x: float64(h.Leases), contestants: contestants, rounds: 1, cold: true,
		fixed: time.Duration(len(contestants)) * (h.Watched + time.Duration(h.Leases)*perLock),
	}
}

// holds reports whether a contestant holds so many leases. The file driver has a
// descriptor for each lock: more than most systems allow.
func (r *Runner) holds(c Contestant, n int) bool {
	switch {
	case c.OnlyWaits || c.Kind == Part || c.Name == "dlock, file":
		return false
	case c.Kind == Ours:
		return true
	case n >= manyHeld || r.plan.Quick && n > 100:
		return c.Kind == Limit && strings.HasPrefix(c.Name, "bare, ")
	}
	return true
}

// heldMeasurement takes n leases, watches them and gives them back.
func heldMeasurement(keys string, n int, watch func(context.Context, *measurement, Locker) error) func(context.Context, *entry, time.Duration) *measurement {
	return func(ctx context.Context, e *entry, _ time.Duration) *measurement {
		t := &measurement{}
		_, goroutines := footprint()
		l, err := e.contestant.Open(ctx, e.setup)
		if err != nil {
			t.err = err
			return t
		}
		// Connections and their buffers are there before; a failure comes again.
		first, _ := takeMany(ctx, l, keys+"first/", min(n, 4*manyAtOnce))
		_ = giveMany(first)
		memory, _ := footprint()
		start := time.Now()
		leases, err := takeMany(ctx, l, keys, n)
		t.add("time to take", figures.Seconds, time.Since(start).Seconds())
		if err == nil {
			more, running := footprint()
			if more > memory { // else there are too few to be seen
				t.add("memory per lease", figures.Bytes, (more-memory)/float64(n))
			}
			t.add("goroutines", figures.Count, float64(running-goroutines))
			if e.contestant.Renews && e.contestant.Kind != Ours {
				stop := renewAll(ctx, t, leases, e.setup.TTL/3)
				err = watch(ctx, t, l)
				stop()
			} else {
				err = watch(ctx, t, l)
			}
		}
		start = time.Now()
		err = errors.Join(err, giveMany(leases))
		t.add("time to release", figures.Seconds, time.Since(start).Seconds())
		if err = errors.Join(err, l.Close()); err != nil {
			t.fail(err)
		}
		return t
	}
}

// renewAll renews leases in turns, as the users of libraries do that leave it to them.
func renewAll(ctx context.Context, t *measurement, leases []Held, every time.Duration) (stop func()) {
	work, end := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			next := time.After(every)
			err := inParallel(len(leases), func(i int) error {
				if work.Err() != nil {
					return nil
				}
				return leases[i].Renew(ctx)
			})
			if err != nil {
				t.fail(err)
			}
			select {
			case <-work.Done():
				return
			case <-next:
			}
		}
	})
	return func() { end(); running.Wait() }
}

// watch measures while leases are held.
func watch(ctx context.Context, t *measurement, l Locker, d time.Duration, servers []*server.Server) error {
	renewed := renewals(l)
	cpu, info, start := processCPU(), readInfo(servers), time.Now()
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return ctx.Err()
	}
	took := time.Since(start).Seconds()
	if _, ok := l.(client); ok { // the others do not count them
		t.add("renewals", figures.PerSecond, float64(renewals(l)-renewed)/took)
	}
	t.add("client CPU", figures.Percent, 100*(processCPU()-cpu).Seconds()/took)
	if len(servers) > 0 {
		t.add("server CPU", figures.Percent, 100*(readInfo(servers).cpu-info.cpu)/took)
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

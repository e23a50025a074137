package redlock_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/drivers/redlock"
	"github.com/redlock-go/redlock/drivers/valkeygo"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

var restartTrials = flag.Int("redlock.restarts", 0, "how many locks are held while nodes restart, for each way in which they forget; 0: 20, or 150 in the deep depth (300 were run many times)")

var began = time.Now()

// limit is when a test gives up a wait whose duration depends on the machine: a little before the
// test binary's own deadline.
func limit() time.Time {
	d, err := time.ParseDuration(flag.Lookup("test.timeout").Value.String())
	if err != nil || d == 0 {
		d = time.Hour
	}
	return began.Add(d - min(d/10, 10*time.Second))
}

// A fleet is a number of servers, alternately Redis and Valkey, from which quorums for any
// prefix are made.
type fleet struct {
	t       testing.TB
	servers []*server.Server
	closed  []*fault.Proxy // one for each server, which refuses connections
}

func newFleet(t testing.TB, n int, opts ...server.Option) *fleet {
	t.Helper()
	f := &fleet{t: t}
	for i := range n {
		s := server.StartFor(t, []server.Kind{server.KindRedis, server.KindValkey}[i%2], opts...)
		p := fault.NewProxy(t, s.Addr())
		if err := p.Refuse(); err != nil {
			t.Fatal(err)
		}
		f.servers, f.closed = append(f.servers, s), append(f.closed, p)
	}
	return f
}

// quorum opens a quorum of these servers. Its client reaches only the first of them, as many as sight.
func (f *fleet) quorum(prefix string, servers []*server.Server, sight int, o redlock.Options) *redlock.Backend {
	f.t.Helper()
	o.Prefix = prefix
	if o.NodeTimeout == 0 {
		o.NodeTimeout = time.Second // the machine may be busy
	}
	nodes := make([]driver.Backend, len(servers))
	for i, s := range servers {
		addr := s.Addr()
		if i >= sight {
			addr = f.closed[i].Addr()
		}
		var err error
		cfg := &driver.Config{DSN: fmt.Sprintf("redis://%s?dial_timeout=10s&call_timeout=%v", addr, max(o.NodeTimeout, time.Second)), Prefix: prefix, Notify: o.Notify}
		if i%2 == 0 {
			nodes[i], err = goredis.Driver{}.Open(cfg)
		} else {
			cfg.DSN = strings.Replace(cfg.DSN, "redis:", "valkey:", 1)
			nodes[i], err = valkeygo.Driver{}.Open(cfg)
		}
		if err != nil {
			f.t.Fatal(err)
		}
	}
	b, err := redlock.New(nodes, &o)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = b.Close()
		for _, n := range nodes {
			_ = n.Close()
		}
	})
	return b
}

func (f *fleet) do(i int, args ...string) any {
	f.t.Helper()
	reply, err := f.servers[i].Do(args...)
	if err != nil {
		f.t.Fatalf("%v: %v", args, err)
	}
	return reply
}

// each calls do for the first n servers concurrently.
func (f *fleet) each(n int, do func(i int, s *server.Server) error) {
	f.t.Helper()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i, s := range f.servers[:n] {
		wg.Go(func() { errs[i] = do(i, s) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		f.t.Fatal(err)
	}
}

// An amnesia is a way in which servers forget locks. before is called while no lock is held,
// forget while all are held, and then after the rivals' first attempt. before and then may be
// nil.
type amnesia struct {
	options []server.Option
	before  func(f *fleet, i int, s *server.Server) error
	forget  func(f *fleet, i int, s *server.Server) error
	then    func(f *fleet, i int, s *server.Server) error
}

func crash(_ *fleet, _ int, s *server.Server) error {
	if err := s.Kill(); err != nil {
		return err
	}
	return s.Start()
}

func command(args ...string) func(*fleet, int, *server.Server) error {
	return func(_ *fleet, _ int, s *server.Server) error {
		_, err := s.Do(args...)
		return err
	}
}

// appended returns the append-only file to which a server currently writes.
func appended(s *server.Server) (string, error) {
	files, err := filepath.Glob(filepath.Join(s.Dir(), "appendonlydir", "*.incr.aof"))
	if err != nil {
		return "", err
	}
	if len(files) != 1 {
		return "", fmt.Errorf("the append only files are %v", files)
	}
	return files[0], nil
}

func amnesias() map[string]*amnesia {
	var size sync.Map // size of the file, by server
	return map[string]*amnesia{
		"no memory": {forget: crash},
		"an old RDB": {
			before: command("SAVE"),
			forget: crash,
		},
		"AOF everysec and lost writes": {
			options: []server.Option{server.WithAppendOnly("everysec")},
			before: func(_ *fleet, _ int, s *server.Server) error {
				name, err := appended(s)
				if err != nil {
					return err
				}
				file, err := os.Stat(name)
				if err == nil {
					size.Store(s, file.Size())
				}
				return err
			},
			forget: func(_ *fleet, _ int, s *server.Server) error {
				if err := s.Kill(); err != nil {
					return err
				}
				name, err := appended(s)
				if err != nil {
					return err
				}
				most, _ := size.Load(s)
				if err := os.Truncate(name, most.(int64)); err != nil {
					return err
				}
				return s.Start()
			},
		},
		"FLUSHALL": {forget: command("FLUSHALL")},
		"a boot with the clock an hour behind, and NTP": {
			options: []server.Option{server.WithClock()},
			forget: func(_ *fleet, _ int, s *server.Server) error {
				if err := s.Kill(); err != nil {
					return err
				}
				return errors.Join(s.SetClock(-time.Hour), s.Start())
			},
			then: func(_ *fleet, _ int, s *server.Server) error { return s.SetClock(0) },
		},
	}
}

// Each held lock is a trial: it is on three of five nodes, of which one, two or all forget it.
// These nodes and the other two could then grant it to another client.
func TestNodesThatForgotHeldLocksGiveThemToNobodyElse(t *testing.T) {
	long(t)
	t.Parallel()
	want := cmp.Or(*restartTrials, redlock.Amount(20, 150))
	if redlock.Race {
		want /= 8
	}
	ways := amnesias()
	for i, name := range slices.Sorted(maps.Keys(ways)) {
		a := ways[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, 5, a.options...)
			for n := 1; n <= 3; n++ {
				if !server.IsDeep() && n != 1+i%3 {
					continue // another way of forgetting has this number of nodes
				}
				trials, second, guard := 0, 0, 1500*time.Millisecond
				for round := 0; trials < want; round++ {
					if time.Now().After(limit()) {
						t.Fatalf("%d of %d trials: the machine is too busy for leases of %v", trials, want, guard)
					}
					asked, got := f.trial(a, n, fmt.Sprintf("%d-%d:", n, round), guard, min(150, want))
					trials, second = trials+asked, second+got
					if asked < min(30, want) {
						guard = min(2*guard, redlock.DefaultGuard) // a round takes longer than that
					}
				}
				t.Logf("%d of 5 nodes forgot: %d trials, %d second holders", n, trials, second)
				if second > 0 {
					t.Errorf("%d of 5 nodes forgot, and of %d locks that were held %d were given to another", n, trials, second)
				}

				// Without the guard such trials find second holders.
				second = 0
				for round := 0; second == 0; round++ {
					if time.Now().After(limit()) {
						t.Fatalf("%d of 5 nodes forgot: with the guard off no second holder was found", n)
					}
					_, second = f.trial(a, n, fmt.Sprintf("%d-%d-off:", n, round), -guard, 20)
					if round%4 == 3 {
						guard = min(2*guard, redlock.DefaultGuard)
					}
				}
			}
		})
	}
}

// trial takes locks on the first three nodes, makes n of them forget, and lets rivals try. It
// returns how many locks the rivals asked for while they were held, and how many of these they
// got. The leases are as long as the guard; a negative guard is off.
func (f *fleet) trial(a *amnesia, n int, prefix string, guard time.Duration, locks int) (asked, second int) {
	f.t.Helper()
	ttl := guard.Abs()
	o := redlock.Options{Guard: guard, Bootstrap: guard > 0}
	rivals := []*redlock.Backend{f.quorum(prefix, f.servers, 5, o), f.quorum(prefix, f.servers, 5, o)}
	defer func() {
		for _, b := range rivals {
			_ = b.Close()
		}
	}()
	for _, b := range rivals { // first contact
		f.await(b, "first", ttl)
	}
	o.Bootstrap = false
	holder := f.quorum(prefix, f.servers, 3, o)
	defer holder.Close() //nolint:errcheck // its nodes are closed later
	f.await(holder, "first of all", ttl)
	if a.before != nil {
		f.each(n, func(i int, s *server.Server) error { return a.before(f, i, s) })
	}

	held := make([]driver.Lease, locks)
	parallel(16, locks, func(i int) {
		held[i], _ = holder.Acquire(context.Background(), ask(fmt.Sprint("k", i), ttl))
	})
	f.each(n, func(i int, s *server.Server) error { return a.forget(f, i, s) })

	// An attempt is one vote of all nodes. The context cuts the further rounds of a split vote
	// short.
	var verdicts, given atomic.Int64
	over := make([]atomic.Bool, locks)
	attempt := func(i int) {
		if held[i] == nil || over[i].Load() {
			over[i].Store(true)
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 150*time.Millisecond)
		defer cancel()
		l, err := rivals[i%2].Acquire(ctx, ask(fmt.Sprint("k", i), ttl))
		switch held := time.Now().Before(held[i].Grant().Expires); {
		case !held && err == nil:
			_ = l.Release(context.Background())
			fallthrough
		case !held:
			over[i].Store(true)
		case err == nil:
			given.Add(1)
			over[i].Store(true)
		case errors.As(err, new(*quorum.Error)), errors.Is(err, context.DeadlineExceeded): // a split vote may take all of its time
			verdicts.Add(1)
		}
	}
	parallel(16, locks, attempt)
	asked = min(int(verdicts.Load()+given.Load()), locks)
	if a.then != nil {
		f.each(n, func(i int, s *server.Server) error { return a.then(f, i, s) })
	}
	for left := true; left; {
		parallel(16, locks, attempt)
		left = false
		for i := range over {
			left = left || !over[i].Load()
		}
	}
	if given.Load() == 0 {
		f.await(rivals[0], "k0", ttl) // and then it goes on
	}
	return asked, int(given.Load())
}

// await takes a lock, waiting as long as it must, and releases it.
func (f *fleet) await(b driver.Backend, key string, ttl time.Duration) {
	f.t.Helper()
	for end := limit(); ; {
		l, err := b.Acquire(context.Background(), ask(key, ttl))
		if err == nil {
			_ = l.Release(context.Background())
			return
		}
		if time.Now().After(end) {
			f.t.Fatal(err)
		}
		pause(err)
	}
}

// pause waits for an error's RetryAfter, but at most for a moment.
func pause(err error) {
	var r *driver.RefusedError
	d := 5 * time.Millisecond
	if errors.As(err, &r) {
		d = min(max(r.RetryAfter, d), 100*time.Millisecond)
	}
	time.Sleep(d)
}

// parallel calls f for 0 to n-1, in this many goroutines.
func parallel(workers, n int, f func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}

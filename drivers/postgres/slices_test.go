package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/postgres"
)

// A program migrates under a lease, and the others wait for it.
func TestAnIndexBuildAndVacuumEndBesideWaiters(t *testing.T) {
	t.Parallel()
	const rows = 50_000
	waiters := 4
	s := database(t)
	db := admin(t, s.URL())
	run(t, db, "CREATE TABLE t WITH (autovacuum_enabled = off) AS SELECT generate_series(1, 100000) AS n")
	build := func(name string) time.Duration {
		start := time.Now()
		run(t, db, "CREATE INDEX CONCURRENTLY "+name+" ON t (n)")
		return time.Since(start)
	}
	alone := build("one")
	holder := opener(t, s.URL())
	l := must(t, holder, request("k", time.Minute))
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() { // the lease renews
		for {
			select {
			case <-stop:
				return
			case <-time.After(300 * time.Millisecond):
				if _, err := renew(l, time.Minute); err != nil {
					t.Errorf("Renew: %v", err)
				}
			}
		}
	})
	defer wg.Wait()
	defer cancel()
	defer close(stop)
	for range waiters { // each a process's
		b := opener(t, s.URL())
		wg.Go(func() {
			if l, err := awaited(ctx, b, request("k", 10*time.Second)); err == nil {
				_ = l.Release(ctx)
			}
		})
	}
	eventually(t, "all wait", func() bool { return count(t, db, advisory+" AND NOT granted") == int64(waiters) })
	done := make(chan time.Duration)
	go func() { done <- build("two") }()
	select {
	case beside := <-done:
		t.Logf("an index build took %v alone, %v beside %d waiters", alone, beside, waiters)
	case <-ctx.Done():
		t.Fatal("the index build never ended")
	}
	run(t, db, fmt.Sprintf("DELETE FROM t WHERE n <= %d", rows))
	removed := func() bool {
		run(t, db, "VACUUM t")
		return count(t, db, "SELECT n_dead_tup FROM pg_stat_get_dead_tuples('t'::regclass) AS n_dead_tup") == 0
	}
	start := time.Now()
	eventually(t, "VACUUM removes the dead rows", removed)
	t.Logf("VACUUM removed them %v after the deletion", time.Since(start))
}

// A wait that its caller gives up ends no server process.
func TestWaitsThatTimeOutCostNoConnections(t *testing.T) {
	t.Parallel()
	s := database(t)
	a := opener(t, s.URL())
	var opened atomic.Int64
	pool, err := pgxpool.New(context.Background(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	b, err := postgres.New(counted(&opened, postgres.FromPool(pool)), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close() //nolint:errcheck // the test's own
	const waits = 300
	for w := range 4 {
		must(t, a, request(fmt.Sprint("k", w), time.Hour))
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for range waits / 4 {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
				r := request(fmt.Sprint("k", w), time.Minute)
				r.Wait = true
				_, err := b.Acquire(ctx, r)
				cancel()
				if verdict(err) && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a wait gave %v", err)
				}
			}
		})
	}
	wg.Wait()
	db := admin(t, s.URL())
	eventually(t, "nobody waits on the server", func() bool { return count(t, db, advisory+" AND NOT granted") == 0 })
	t.Logf("%d waits that ended with their context opened %d connections", waits, opened.Load())
	if n := opened.Load(); n > waits/4 { // in the place of some that did not answer for a while others are opened
		t.Errorf("%d connections", n)
	}
}

// A process waits for more keys than it has connections for waiting, beside another that
// always has waiters of its own in the server's queue: nobody starves.
func TestMoreWaitedKeysThanConnections(t *testing.T) {
	t.Parallel()
	const conns = 5
	const keys = 40
	s := database(t)
	holder := opener(t, s.URL())
	leases := make([]driver.Lease, keys)
	for i := range keys {
		leases[i] = must(t, holder, request(fmt.Sprint("k", i), time.Hour))
	}
	b := opener(t, fmt.Sprintf("%s&max_conns=%d", s.URL(), conns))
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var got atomic.Int64
	most := 0
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			l, err := awaited(ctx, b, request(fmt.Sprint("k", i), time.Minute))
			if err != nil {
				t.Errorf("k%d: %v", i, err)
				return
			}
			got.Add(1)
			if err := release(l); err != nil && !errors.Is(err, driver.ErrLost) {
				t.Errorf("k%d: %v", i, err)
			}
		})
	}
	eventually(t, "all wait", func() bool {
		n := 0
		for i := range keys {
			n += b.Queued(fmt.Sprint("k", i))
		}
		most = max(most, b.Conns())
		return n == keys
	})
	var took []time.Duration
	for i := range keys {
		before, start := got.Load(), time.Now()
		if err := release(leases[i]); err != nil {
			t.Fatal(err)
		}
		eventually(t, fmt.Sprintf("k%d is handed over", i), func() bool { most = max(most, b.Conns()); return got.Load() > before })
		took = append(took, time.Since(start))
	}
	wg.Wait()
	slices.Sort(took)
	t.Logf("%d keys on %d connections: handed over in p50 %v, max %v", keys, most, took[keys/2], took[keys-1])
	if most > conns {
		t.Errorf("%d connections", most)
	}
}

// Readers that come and go, in the writer's process or in others, let a writer in when those
// that were there have gone.
func TestAWriterWaitsForTheReadersThatWereThere(t *testing.T) {
	t.Parallel()
	const hold = 70 * time.Millisecond
	s := database(t)
	for _, readers := range []int{8, 32}[:rounds(2, 1)] {
		for _, processes := range []int{1, 8} {
			t.Run(fmt.Sprintf("%d readers in %d processes", readers, processes), func(t *testing.T) {
				t.Parallel()
				var all []*postgres.Backend
				for range processes {
					all = append(all, opener(t, s.URL()))
				}
				for name, writer := range map[string]*postgres.Backend{"elsewhere": opener(t, s.URL()), "in a reader's process": all[0]} {
					took, passed := writerBeside(t, all, writer, readers, hold)
					slices.Sort(took)
					slices.Sort(passed)
					t.Logf("a writer %s waited for p50 %v, max %v, while p50 %d, max %d reads began", name, took[len(took)/2], took[len(took)-1], passed[len(passed)/2], passed[len(passed)-1])
					if passed[len(passed)/2] > 10*int64(readers) {
						t.Errorf("a writer %s waited while %d reads of %d readers began", name, passed[len(passed)/2], readers)
					}
				}
			})
		}
	}
}

// writerBeside returns how long a writer waited and how many reads began meanwhile, beside
// readers that take the key again and again, in turns, so that the key is never free.
func writerBeside(t *testing.T, all []*postgres.Backend, writer *postgres.Backend, readers int, hold time.Duration) (took []time.Duration, passed []int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	stop := make(chan struct{})
	var reads atomic.Int64
	var wg sync.WaitGroup
	for i := range readers {
		wg.Go(func() {
			<-time.After(hold * time.Duration(i) / time.Duration(readers))
			for {
				select {
				case <-stop:
					return
				default:
				}
				r := request(t.Name(), 10*time.Second)
				r.Mode, r.Wait = driver.Shared, true
				l, _, err := answer(ctx, all[i%len(all)], r)
				if err != nil {
					t.Errorf("a reader: %v", err)
					return
				}
				reads.Add(1)
				<-time.After(hold/2 + rand.N(hold)) // otherwise they would all pause together
				_ = l.Release(ctx)
			}
		})
	}
	eventually(t, "all read", func() bool { return reads.Load() > 2*int64(readers) })
	for range rounds(5, 3) {
		r := request(t.Name(), 10*time.Second)
		r.Wait = true
		start, before := time.Now(), reads.Load()
		l, _, err := answer(ctx, writer, r)
		if err != nil {
			t.Errorf("the writer: %v", err)
			break
		}
		took, passed = append(took, time.Since(start)), append(passed, reads.Load()-before)
		_ = l.Release(ctx)
		<-time.After(4 * hold) // until the readers are out of step
	}
	close(stop)
	wg.Wait()
	return took, passed
}

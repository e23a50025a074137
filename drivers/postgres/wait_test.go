package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/postgres"
	"github.com/redlock-go/redlock/redlocktest/fault"
)

// Of one process's waiters only the first is in the server's queue, and a release of another lock
// does not wait behind it.
func TestAProcessWaitsForAKeyOnOneConnection(t *testing.T) {
	t.Parallel()
	const n = 20
	s := database(t)
	db := admin(t, s.URL())
	a, b := opener(t, s.URL()), opener(t, s.URL())
	l, mine := must(t, a, request("k", time.Minute)), must(t, b, request("mine", time.Minute))
	got := make(chan driver.Lease)
	for range n {
		next := drivertest.Waiter(t, b, request("k", time.Minute))
		go func() { got <- <-next }()
	}
	eventually(t, "all callers are in the queue", func() bool { return b.Queued("k") == n })
	eventually(t, "one waits on the server", func() bool { return count(t, db, queued) == 1 })
	if got := b.Conns(); got > 2 {
		t.Errorf("%d connections", got)
	}
	drivertest.Release(t, mine)
	drivertest.Release(t, l)
	for range n { // in any order here: redlocktest checks it
		drivertest.Release(t, <-got)
	}
}

// A program migrates under a lease, and the others wait for it.
func TestAnIndexBuildAndVacuumEndBesideWaiters(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	run(t, db, "CREATE TABLE t WITH (autovacuum_enabled = off) AS SELECT generate_series(1, 20000) AS n")
	l := must(t, opener(t, s.URL()), request("k", patience))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	const waiters = 4 // each a process's
	for range waiters {
		b := opener(t, s.URL())
		wg.Go(func() {
			if l, err := b.Acquire(ctx, waiting("k", 10*time.Second)); err == nil {
				_ = l.Release(ctx)
			}
		})
	}
	eventually(t, "all wait", func() bool { return count(t, db, queued) == waiters })
	if _, err := db.Exec(ctx, "CREATE INDEX CONCURRENTLY i ON t (n)"); err != nil {
		t.Fatalf("the index build does not end: %v", err)
	}
	run(t, db, "DELETE FROM t WHERE n <= 10000")
	eventually(t, "VACUUM removes the dead rows", func() bool {
		run(t, db, "VACUUM t")
		return count(t, db, "SELECT pg_stat_get_dead_tuples('t'::regclass)") == 0
	})
	drivertest.Release(t, l)
}

// Between two slices a waiting writer is not in the server's queue, and has its second lock alone.
func TestReadersWaitForAWriterBetweenItsSlices(t *testing.T) {
	t.Parallel()
	s := database(t)
	db, b := admin(t, s.URL()), opener(t, s.URL())
	writer := postgres.WritersLock(b.LockID("k"))
	run(t, db, "SELECT pg_advisory_lock("+writer+")")
	drivertest.WantHeld(t, b, sharing("k", time.Minute))
	drivertest.Release(t, must(t, b, request("k", time.Minute)))
	next := drivertest.Waiter(t, b, sharing("k", time.Minute))
	drivertest.AwaitWaiters(t, b, "k", 1)
	run(t, db, "SELECT pg_advisory_unlock("+writer+")")
	drivertest.Release(t, <-next)
}

// A wait that its caller gives up ends no server process. The connections are those of a pool, which no
// longer counts them.
func TestWaitsThatTimeOutCostNoConnections(t *testing.T) {
	t.Parallel()
	s := database(t)
	a := opener(t, s.URL())
	p := fault.NewProxy(t, shared.s.Addr())
	pool, err := pgxpool.New(context.Background(), through(s.URL(), p.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	const waits, conns = 120, 6
	b := built(t, postgres.FromPool(pool), &postgres.Options{MaxConns: conns})
	for w := range 4 {
		must(t, a, request(fmt.Sprint("k", w), time.Hour))
	}
	each(4, func(w int) {
		for range waits / 4 {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
			_, err := b.Acquire(ctx, waiting(fmt.Sprint("k", w), time.Minute))
			cancel()
			if drivertest.Verdict(err) != "unknown" && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a wait gave %v", err)
			}
		}
	})
	db := admin(t, s.URL())
	eventually(t, "nobody waits on the server", func() bool { return count(t, db, queued) == 0 })
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections count against the pool", n)
	}
	if n := p.Stats().Conns; n > 2*conns { // in the place of some that did not answer for a while others are opened
		t.Errorf("%d connections", n)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := pool.Ping(context.Background()); err != nil {
		t.Errorf("the pool after Close: %v", err)
	}
}

// All connections wait for keys that are held for long, as a notice says. A key that other processes hand
// from waiter to waiter, so that a try never finds it free, is not out of reach, nor one that another
// process shares without a gap.
func TestABusyKeyIsHadWithoutAConnectionToSpare(t *testing.T) {
	t.Parallel()
	s := database(t)
	const conns = 3
	var notices drivertest.NoticeLog
	b := built(t, connector(s.URL()), &postgres.Options{MaxConns: conns, Notify: notices.Add})
	db, others := admin(t, s.URL()), []*postgres.Backend{opener(t, s.URL()), opener(t, s.URL())}
	leases := takeMany(t, others[0], conns, time.Hour)
	var got []<-chan driver.Lease
	for i := range leases {
		key := fmt.Sprint("k", i)
		got = append(got, drivertest.Waiter(t, b, request(key, time.Minute)))
		eventually(t, "it waits", func() bool { return b.Queued(key) == 1 })
	}
	busy := request("busy", time.Minute)
	l := must(t, others[0], busy)
	ours, start := drivertest.Waiter(t, b, busy), time.Now()
	for i, had := 1, false; !had; i++ {
		next := drivertest.Waiter(t, others[i%2], busy)
		eventually(t, "another process waits", func() bool {
			return count(t, db, queued+" AND (classid::int8 << 32 | objid::int8) = $1", b.LockID("busy")) > 0
		})
		drivertest.Release(t, l)
		select {
		case l = <-ours:
			had = true
			drivertest.Release(t, l)
			l = <-next
		case l = <-next:
			if time.Since(start) > patience {
				t.Fatal("it is never had")
			}
		}
	}
	drivertest.Release(t, l)
	l = must(t, others[0], sharing("read", time.Minute))
	ours = drivertest.Waiter(t, b, request("read", time.Minute))
	for start = time.Now(); l != nil; <-time.After(10 * time.Millisecond) {
		next, err := drivertest.Acquire(t, others[0], sharing("read", time.Minute))
		if drivertest.Release(t, l); err == nil && time.Since(start) > patience {
			t.Fatal("it is never had")
		}
		l = next
	}
	drivertest.Release(t, <-ours)
	for i, wait := range got {
		drivertest.Release(t, leases[i])
		drivertest.Release(t, <-wait)
		if n := b.Conns(); n > conns {
			t.Errorf("%d connections", n)
		}
	}
	if len(notices.Of(driver.NoticeDegraded, "max_conns")) != 1 {
		t.Errorf("notices: %+v", notices.All())
	}
}

// The server has no connection for a waiter: the wait polls on the existing session, and does
// not request a connection all the time.
func TestARefusedConnectionMeansPolling(t *testing.T) {
	t.Parallel()
	s := database(t)
	l := must(t, opener(t, s.URL()), request("k", time.Hour))
	p := fault.NewProxy(t, shared.s.Addr())
	s.role(t, "app", "CONNECTION LIMIT 1")
	once(t, s.URL(), "GRANT USAGE, UPDATE ON SEQUENCE dlock_fence TO app")
	b := opener(t, through(s.URLFor("app", ""), p.Addr()))
	drivertest.Release(t, must(t, b, request("warm", time.Minute)))
	before, start := p.Stats().Conns, time.Now()
	got := drivertest.Waiter(t, b, request("k", time.Minute))
	eventually(t, "it asks for a connection", func() bool { return p.Stats().Conns > before })
	<-time.After(500 * time.Millisecond)
	// One in five seconds, unless the session itself is silent for two seconds and has to be replaced.
	if n := p.Stats().Conns - before; n > 1 && time.Since(start) < 2*time.Second {
		t.Errorf("%d connections were asked for, and refused", n)
	}
	drivertest.Release(t, l)
	drivertest.Release(t, <-got)
}

// answered waits for a key, again after an unknown outcome unless over is set, and returns the error.
func answered(ctx context.Context, b driver.Backend, key string, ttl time.Duration, over *atomic.Bool) error {
	for {
		_, err := b.Acquire(ctx, waiting(key, ttl))
		if drivertest.Verdict(err) != "unknown" || ctx.Err() != nil || over.Load() {
			return err
		}
	}
}

// A handoff is the waiter's statement and the holder's unlock. One that takes as long as half a slice
// is not counted, nor are the next ones of its lock: a slice that ends costs more, as do an attempt
// before the wait and a slice that shows a writer.
func TestAHandoffTakesTwoMessages(t *testing.T) {
	t.Parallel()
	s := database(t)
	var sent atomic.Int64
	p := fault.NewProxy(t, shared.s.Addr())
	p.Judge(fault.ToServer, func(_ int64, chunk []byte) (int, fault.Action) {
		sent.Add(1)
		return len(chunk), fault.Pass
	})
	url := through(s.URL(), p.Addr())
	both := []*postgres.Backend{opener(t, url), opener(t, url)}
	db := admin(t, s.URL())
	var took []int64
	for lock := 0; len(took) < 20; lock++ {
		req := request(fmt.Sprint("k", lock), time.Minute)
		holder := must(t, both[0], req)
		for i, quick := 1, true; quick && len(took) < 20; i++ {
			before, began := sent.Load(), time.Now()
			next := drivertest.Waiter(t, both[i%2], req)
			eventually(t, "it waits", func() bool { return count(t, db, queued) == 1 })
			if err := holder.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			if holder = <-next; holder == nil {
				return
			}
			if quick = time.Since(began) < postgres.SliceTime/2; quick && i > 2 { // each client has waited
				took = append(took, sent.Load()-before)
			}
		}
		drivertest.Release(t, holder)
	}
	slices.Sort(took)
	if took[len(took)/2] != 2 {
		t.Errorf("handoffs take %v messages", took)
	}
}

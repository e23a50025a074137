package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/postgres"
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

// A wait that its caller gives up ends no server process. The connections are those of a pool, which no
// longer counts them.
func TestWaitsThatTimeOutCostNoConnections(t *testing.T) {
	t.Parallel()
	s := database(t)
	a := opener(t, s.URL())
	var opened atomic.Int64
	pool, err := pgxpool.New(context.Background(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	b := built(t, counted(&opened, postgres.FromPool(pool)), nil)
	const waits = 120
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
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := pool.Ping(context.Background()); err != nil {
		t.Errorf("the pool after Close: %v", err)
	}
	if n := opened.Load(); n > waits/4 { // in the place of some that did not answer for a while others are opened
		t.Errorf("%d connections", n)
	}
}

// A process waits for more keys than it has connections for waiting: nobody starves, and a notice says
// so.
func TestMoreWaitedKeysThanConnections(t *testing.T) {
	t.Parallel()
	const conns, keys = 4, 24
	s := database(t)
	holder := opener(t, s.URL())
	leases := takeMany(t, holder, keys, time.Hour)
	var notices drivertest.NoticeLog
	b := built(t, connector(s.URL()), &postgres.Options{MaxConns: conns, Notify: notices.Add})
	var got []<-chan driver.Lease
	for i := range keys {
		got = append(got, drivertest.Waiter(t, b, request(fmt.Sprint("k", i), time.Minute)))
	}
	eventually(t, "a notice says that it polls", func() bool { return len(notices.Of(driver.NoticeDegraded, "max_conns")) > 0 })
	for i := range keys {
		drivertest.Release(t, leases[i])
		drivertest.Release(t, <-got[i])
		if n := b.Conns(); n > conns {
			t.Errorf("%d connections", n)
		}
	}
}

// All connections wait for keys that are held for long. A key that other processes hand from waiter to
// waiter, so that a try never finds it free, is not out of reach, nor one that another process shares
// without a gap.
func TestABusyKeyIsHadWithoutAConnectionToSpare(t *testing.T) {
	t.Parallel()
	s := database(t)
	b, others := opener(t, s.URL()+"&max_conns=3"), []*postgres.Backend{opener(t, s.URL()), opener(t, s.URL())}
	leases := takeMany(t, others[0], 3, time.Hour)
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
		drivertest.AwaitWaiters(t, others[0], "busy", 1)
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
	}
}

// The server has no connection for a waiter: the wait polls on the existing session, and does
// not request a connection all the time.
func TestARefusedConnectionMeansPolling(t *testing.T) {
	t.Parallel()
	s := database(t)
	l := must(t, opener(t, s.URL()), request("k", time.Hour))
	var opened atomic.Int64
	s.role(t, "app", "CONNECTION LIMIT 1")
	once(t, s.URL(), "GRANT USAGE, UPDATE ON SEQUENCE dlock_fence TO app")
	b := built(t, counted(&opened, connector(s.URLFor("app", ""))), nil)
	drivertest.Release(t, must(t, b, request("warm", time.Minute)))
	pids, before, start := b.Pids(), opened.Load(), time.Now()
	got := drivertest.Waiter(t, b, request("k", time.Minute))
	eventually(t, "it asks for a connection", func() bool { return opened.Load() > before })
	<-time.After(500 * time.Millisecond)
	// One in five seconds, unless the session itself had to be replaced.
	if n := opened.Load() - before; n > 1+int64(time.Since(start)/(5*time.Second)) && b.Conns() == 1 && slices.Equal(b.Pids(), pids) {
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

// countingConn counts what is sent.
type countingConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c countingConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

// A new connection looks at the server, and sets the session up; the lock is the third trip.
func TestFirstContactTakesTwoRoundTrips(t *testing.T) {
	t.Parallel()
	s := database(t)
	drivertest.Release(t, must(t, opener(t, s.URL()), request("k", time.Minute))) // makes the sequence
	var writes atomic.Int64
	connect := wrapped(t, s.URL(), func(c net.Conn) net.Conn { return countingConn{c, &writes} })
	// On a machine that stands still for a moment the session sends more, so one of ten
	// attempts must need three round trips.
	for range 10 {
		b := built(t, func(ctx context.Context) (*pgx.Conn, error) {
			c, err := connect(ctx)
			writes.Store(0)
			return c, err
		}, nil)
		l := must(t, b, request("k", time.Minute))
		trips := writes.Load()
		drivertest.Release(t, l)
		if trips == 3 {
			return
		}
	}
	t.Error("the first lock of a connection never takes three round trips")
}

// A handoff is the waiter's statement and the holder's unlock. One that takes as long as half a slice
// is not counted, nor are the next ones of its lock: a slice that ends costs more, as do an attempt
// before the wait and a slice that shows a writer.
func TestAHandoffTakesTwoMessages(t *testing.T) {
	t.Parallel()
	s := database(t)
	var writes atomic.Int64
	connect := wrapped(t, s.URL(), func(c net.Conn) net.Conn { return countingConn{c, &writes} })
	both := []*postgres.Backend{built(t, connect, nil), built(t, connect, nil)}
	db := admin(t, s.URL())
	var took []int64
	for lock := 0; len(took) < 20; lock++ {
		req := request(fmt.Sprint("k", lock), time.Minute)
		holder := must(t, both[0], req)
		for i, quick := 1, true; quick && len(took) < 20; i++ {
			before, began := writes.Load(), time.Now()
			next := drivertest.Waiter(t, both[i%2], req)
			eventually(t, "it waits", func() bool { return count(t, db, queued) == 1 })
			if err := holder.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			if holder = <-next; holder == nil {
				return
			}
			if quick = time.Since(began) < postgres.SliceTime/2; quick && i > 2 { // each client has waited
				took = append(took, writes.Load()-before)
			}
		}
		drivertest.Release(t, holder)
	}
	slices.Sort(took)
	if took[len(took)/2] != 2 {
		t.Errorf("handoffs take %v messages", took)
	}
}

package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/postgres"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// takeMany takes n keys, many at a time.
func takeMany(t *testing.T, b driver.Backend, n int, ttl time.Duration) []driver.Lease {
	t.Helper()
	leases := make([]driver.Lease, n)
	each(64, func(w int) {
		for i := w; i < n; i += 64 {
			var err error
			if leases[i], err = drivertest.Acquire(t, b, request(fmt.Sprint("k", i), ttl)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	return leases
}

// proxied returns a database, and a backend that reaches it through a proxy.
func proxied(t *testing.T) (testDatabase, *fault.Proxy, *postgres.Backend) {
	t.Helper()
	s, p := database(t), fault.NewProxy(t, shared.s.Addr())
	return s, p, opener(t, through(s.URL(), p.Addr()))
}

// alter replaces a text in what is sent by another one of the same length.
func alter(p *fault.Proxy, old, text string) {
	p.Judge(fault.ToServer, func(_ int64, chunk []byte) (int, fault.Action) {
		if at := bytes.Index(chunk, []byte(old)); at >= 0 {
			copy(chunk[at:], text)
		}
		return len(chunk), fault.Pass
	})
}

// each runs f n times at once.
func each(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

func TestTenThousandLocksLiveOnFourConnectionsAndFourHeartbeats(t *testing.T) {
	t.Parallel()
	s, p, b := proxied(t)
	const ttl = 10 * time.Minute
	n := rounds(10_000, 1000)
	leases := takeMany(t, b, n, ttl)
	if b.Conns() > 4 {
		t.Errorf("%d connections", b.Conns())
	}
	db := admin(t, s.URL())
	if got := count(t, db, advisory); got != int64(n) {
		t.Fatalf("%d locks on the server", got)
	}
	sent := p.Stats().ToServer
	each(n, func(i int) {
		before := leases[i].Grant().Expires
		if err := renew(leases[i], ttl); err != nil || !leases[i].Grant().Expires.After(before) {
			t.Errorf("renewal of %d: %v", i, err)
		}
	})
	// A heartbeat has some ten bytes. Callers that ask while one is under way share the next
	// one. So if it takes long to start all goroutines, there are more heartbeats.
	if bytes := p.Stats().ToServer - sent; bytes > int64(n)/4 {
		t.Errorf("the renewals sent %d bytes, more than some heartbeats", bytes)
	}
	each(n, func(i int) {
		if err := release(leases[i]); err != nil {
			t.Errorf("release of %d: %v", i, err)
		}
	})
	nothingLeft(t, s)
}

func TestALeaseThatIsNotRenewedEndsAloneOnALivelySession(t *testing.T) {
	t.Parallel()
	s := database(t)
	a, b := opener(t, s.URL()), opener(t, s.URL())
	const ttl = time.Second
	kept, left := must(t, a, request("kept", time.Minute)), must(t, a, request("left", time.Minute))
	if err := renew(left, ttl); err != nil {
		t.Fatal(err)
	}
	end := left.Grant().Expires
	next := must(t, b, waiting("left", time.Minute))
	if time.Now().Before(end) {
		t.Error("freed before its end")
	}
	if _, err := left.Renew(context.Background(), &driver.Renewal{TTL: ttl}); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew of the lease that was left: %v", err)
	}
	if err := release(left); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release of it: %v", err)
	}
	drivertest.Release(t, next)
	drivertest.Release(t, kept)
}

// What a statement has done is unknown if it fails, or has not the rows that it must have: its session ends.
func TestAnAnswerThatTellsNothingEndsTheSession(t *testing.T) {
	t.Parallel()
	for text, old := range map[string]string{
		"EXECUTE no_such(": "EXECUTE dlock_u(", "VALUES (1),(2)--": "EXECUTE dlock_u(",
		"SELECT no_such_name(12)": "SELECT pg_backend_pid()", "SELECT 1 WHERE false   ": "SELECT pg_backend_pid()",
	} {
		s, p, b := proxied(t)
		l := must(t, b, request("k", time.Minute))
		alter(p, old, text)
		_ = renew(l, time.Minute)
		_ = l.Release(t.Context())
		select {
		case <-l.Grant().Lost:
		case <-time.After(patience):
			t.Errorf("%s: the session goes on", text)
		}
		nothingLeft(t, s)
	}
}

// The first Release has no answer in time; the unlock is answered later. The lock was not lost.
func TestAReleaseThatIsAnsweredLateIsNoLoss(t *testing.T) {
	t.Parallel()
	_, p, b := proxied(t)
	l := must(t, b, request("k", time.Hour))
	p.Pause()
	if err := l.Release(context.Background()); drivertest.Verdict(err) != "unknown" {
		t.Fatalf("Release without an answer: %v", err)
	}
	p.Resume()
	if err := release(l); err != nil {
		t.Errorf("Release: %v", err)
	}
}

// A lease that is over costs its caller no wait for a server that does not answer.
func TestReleaseOfALostLeaseDoesNotWaitForASilentServer(t *testing.T) {
	t.Parallel()
	_, p, b := proxied(t)
	short, long := must(t, b, request("short", time.Second)), must(t, b, request("long", time.Hour))
	lost := long.Grant().Lost
	p.Pause()
	<-time.After(time.Until(short.Grant().Expires))
	start := time.Now()
	if err := short.Release(context.Background()); err == nil {
		t.Error("Release: nil, and the server has not answered")
	}
	if took := time.Since(start); took > 5*time.Second/2 { // half of what it takes before the end
		t.Errorf("Release of a lease that is over took %v", took)
	}
	<-short.Grant().Lost // the session is given up, and the server has its locks for a while
	if err := short.Release(context.Background()); err == nil || errors.Is(err, driver.ErrLost) {
		t.Errorf("Release says that the lock is free, and the server has it: %v", err)
	}
	select {
	case <-lost:
		t.Error("the other session was given up, too")
	default:
	}
}

// A connection breaks, and its server process lives on: each try to release asks for it once.
func TestALostSessionIsAskedForSeldom(t *testing.T) {
	if testing.Short() {
		t.Skip("short: it waits for seconds")
	}
	t.Parallel()
	_, p, b := proxied(t)
	l := must(t, b, request("k", time.Minute))
	p.HalfOpen(fault.ToClient)
	<-l.Grant().Lost
	before, start := p.Stats().Conns, time.Now()
	if err := l.Release(context.Background()); err == nil || errors.Is(err, driver.ErrLost) {
		t.Errorf("Release says that the lock is free, and the server has it: %v", err)
	}
	<-time.After(2 * time.Second)
	n := p.Stats().Conns - before
	if most := 10 + int64(time.Since(start)/time.Second); n > most { // with pauses of up to a second
		t.Errorf("%d connections, not %d, ask for a session", n, most)
	}
}

// A shared lease that is not its session's last of the key needs no statement. So many are released
// while a statement is under way that one round does not take them all.
func TestManySharedLeasesAreReleasedAtOnce(t *testing.T) {
	t.Parallel()
	_, p, b := proxied(t)
	const together, delay = 300, 50 * time.Millisecond
	_ = must(t, b, sharing("k", time.Hour))      // so that no other one is the last
	for late, began := true, time.Now(); late; { // a busy machine may need longer
		leases := make([]driver.Lease, together)
		each(together, func(i int) { leases[i] = must(t, b, sharing("k", time.Hour)) })
		p.Delay(fault.ToClient, delay, 0)
		start := time.Now()
		go func() { _, _ = b.Acquire(context.Background(), request(fmt.Sprint("at ", start), time.Hour)) }()
		<-time.After(delay / 5) // until it is under way
		each(together, func(i int) { drivertest.Release(t, leases[i]) })
		took := time.Since(start)
		p.Delay(fault.ToClient, 0, 0)
		if late = took > 5*delay; late && time.Since(began) > patience { // a tick of the session is half a second
			t.Fatalf("%d shared leases are released in %v", together, took)
		}
	}
}

// The lock is taken before the token. If there is no token, the driver gives back this lock and
// no other.
func TestALockWithoutATokenIsGivenBack(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	b, c := opener(t, s.URL()), opener(t, s.URL())
	first, held := must(t, b, sharing("shared", time.Hour)), must(t, c, request("waited for", time.Hour))
	waited := make(chan error, 1)
	go func() {
		_, err := drivertest.Acquire(t, b, waiting("waited for", time.Minute))
		waited <- err
	}()
	eventually(t, "it waits", func() bool { return count(t, db, queued) == 1 })
	run(t, db, "DO $$ BEGIN EXECUTE 'ALTER SEQUENCE dlock_fence MAXVALUE ' || (SELECT last_value FROM dlock_fence); END $$")
	try := func(r *driver.Request) {
		_, err := drivertest.Acquire(t, b, r)
		drivertest.WantRefused(t, "Acquire", err, "sequence")
	}
	try(request("lone", time.Minute))
	try(sharing("shared", time.Minute))
	each(200, func(i int) { try(request(fmt.Sprint("one of many ", i), time.Minute)) })
	drivertest.Release(t, held)
	drivertest.WantRefused(t, "Acquire", <-waited, "sequence")
	eventually(t, "the first share alone is left", func() bool { return count(t, db, advisory) == 1 })
	drivertest.Release(t, first)
}

func TestAFullLockTableNamesTheSetting(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a server of its own")
	}
	t.Parallel()
	s := server.Postgres(t, server.WithSetting("max_locks_per_transaction", "10"), server.WithSetting("max_connections", "20"))
	full := func(err error) bool {
		var no *driver.RefusedError
		return errors.As(err, &no) && no.RetryAfter > 0 && strings.Contains(err.Error(), "max_locks_per_transaction")
	}
	b := opener(t, s.URL())
	token(t, b)
	// Another program fills the table.
	db := admin(t, s.URL())
	run(t, db, "DO $$BEGIN FOR n IN 1..100000 LOOP PERFORM pg_advisory_lock(n); END LOOP; EXCEPTION WHEN out_of_memory THEN END$$")
	for i := range 2 {
		r := request("k", time.Minute)
		r.Mode = driver.Mode(i)
		if _, err := drivertest.Acquire(t, b, r); !full(err) {
			t.Errorf("%v: %v", r.Mode, err)
		}
	}
	run(t, db, "SELECT pg_advisory_unlock_all()")
	drivertest.Release(t, must(t, b, request("k", time.Minute)))
	eventually(t, "no lock is left", func() bool { return count(t, db, advisory) == 0 })
}

// A renewal that needs another timeout of the session ends if that cannot be set, whoever reads the answer.
func TestARenewalEndsIfTheTimeoutCannotBeSet(t *testing.T) {
	t.Parallel()
	_, p, b := proxied(t)
	l := must(t, b, request("k", 10*time.Second))
	time.Sleep(4 * postgres.IdleRead) // then the connection's own goroutine reads
	alter(p, "SET idle", "LET idle")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := l.Renew(ctx, &driver.Renewal{TTL: time.Minute}); !errors.Is(err, driver.ErrLost) || ctx.Err() != nil {
		t.Errorf("Renew: %v", err)
	}
}

// A session behind a dead network with a long TTL blocks its own process's requests for a key
// only until it counts as silent.
func TestADeadConnectionBlocksNoKeyForATTL(t *testing.T) {
	t.Parallel()
	s := database(t)
	p := fault.NewProxy(t, shared.s.Addr())
	via, direct := connector(through(s.URL(), p.Addr())), connector(s.URL())
	var dead atomic.Bool
	b := built(t, func(ctx context.Context) (*pgx.Conn, error) {
		if dead.Load() { // new connections work
			return direct(ctx)
		}
		return via(ctx)
	}, nil)
	l := must(t, b, request("held", time.Hour))
	dead.Store(true)
	p.Pause()
	released := make(chan struct{})
	go func() { _ = l.Release(context.Background()); close(released) }()
	for _, key := range []string{"asked", "free"} {
		drivertest.Release(t, must(t, b, request(key, time.Minute)))
	}
	// The server still keeps the locks of the dead session: it answers that they are held.
	isHeld(t, b, "held")
	isHeld(t, opener(t, s.URL()), "held")
	<-released
	p.Resume()
	drivertest.Release(t, must(t, b, waiting("held", time.Minute)))
}

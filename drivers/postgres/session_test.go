package postgres_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/postgres"
	"github.com/redlock-go/redlock/redlocktest/fault"
)

// count returns the number that a query selects.
func count(t testing.TB, c *pgx.Conn, sql string, args ...any) int64 {
	t.Helper()
	var n int64
	if err := c.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// The advisory locks of a database: all, and those of keys that are no pairs.
const (
	anyAdvisory = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
	advisory    = anyAdvisory + " AND objsubid = 1"
)

// eventually repeats f until it holds; the test's own timeout is the limit.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	end := time.Now().Add(patience)
	for !f() {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
		<-time.After(20 * time.Millisecond) // f is often a query, which costs the server time
	}
}

func TestTenThousandLocksLiveOnFourConnectionsAndFourHeartbeats(t *testing.T) {
	t.Parallel()
	s := database(t)
	p := fault.NewProxy(t, s.Addr())
	b := opener(t, through(s, p))
	const ttl = 10 * time.Minute
	n := rounds(10_000, 3000)
	leases := make([]driver.Lease, n)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := time.Now()
	var wg sync.WaitGroup
	for w := range 64 {
		wg.Go(func() {
			for i := w; i < n; i += 64 {
				l, err := take(b, request(fmt.Sprintf("k%d", i), ttl))
				if err != nil {
					t.Error(err)
					return
				}
				leases[i] = l
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	took := time.Since(start)
	runtime.GC()
	runtime.ReadMemStats(&after)
	t.Logf("%d locks in %v, %d bytes each, on %d connections", n, took.Round(time.Millisecond), (after.HeapAlloc-before.HeapAlloc)/uint64(n), b.Conns())
	if b.Conns() > 4 {
		t.Errorf("%d connections", b.Conns())
	}
	db := admin(t, s.URL())
	if got := count(t, db, advisory); got != int64(n) {
		t.Fatalf("%d locks on the server", got)
	}
	sent := p.Stats()
	for i := range leases {
		wg.Go(func() {
			before := leases[i].Grant().Expires
			g, err := renew(leases[i], ttl)
			if err != nil || !g.Expires.After(before) {
				t.Errorf("renewal of %d: %v, Expires %v later", i, err, g.Expires.Sub(before))
			}
		})
	}
	wg.Wait()
	// A heartbeat has some ten bytes. Callers that ask while one is under way share the next
	// one. So if it takes long to start all goroutines, there are more heartbeats.
	bytes := p.Stats().ToServer - sent.ToServer
	t.Logf("the renewals sent %d bytes", bytes)
	if bytes > int64(n)/4 {
		t.Errorf("the renewals sent %d bytes, more than some heartbeats", bytes)
	}
	for i := range leases {
		wg.Go(func() {
			if err := release(leases[i]); err != nil {
				t.Errorf("release of %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	eventually(t, "no lock is left on the server", func() bool { return count(t, db, advisory) == 0 })
}

func TestATerminatedSessionLosesItsLeasesAtOnceAndNoOthers(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	bystander := opener(t, s.URL())
	other := must(t, bystander, request("other", time.Hour))
	b := opener(t, s.URL())
	var late []time.Duration
	last := map[string]uint64{}
	for range rounds(8, 3) {
		var leases []driver.Lease
		for i := range 30 {
			leases = append(leases, must(t, b, request(fmt.Sprint("k", i), time.Hour)))
		}
		for i, l := range leases {
			if f := l.Grant().Fence; f <= last[fmt.Sprint("k", i)] {
				t.Fatalf("token %d after %d", f, last[fmt.Sprint("k", i)])
			}
			last[fmt.Sprint("k", i)] = l.Grant().Fence
		}
		stop := make(chan struct{})
		var load sync.WaitGroup
		for i := range 4 {
			load.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					if l, err := b.Acquire(context.Background(), request(fmt.Sprint("load", i, n), time.Minute)); err == nil {
						_ = l.Release(context.Background())
					}
				}
			})
		}
		for _, pid := range b.Pids() { // more than one if a session was silent for a while
			count(t, db, "SELECT pg_terminate_backend($1, 20000)::int", int64(pid))
		}
		gone := time.Now() // the process has ended: its locks are free
		for _, l := range leases {
			select {
			case <-l.Grant().Lost:
			case <-time.After(patience): // a heartbeat, which would notice it too, comes later
				t.Fatal("the loss was not noticed")
			}
			late = append(late, time.Since(gone))
			if _, err := l.Renew(context.Background(), &driver.Renewal{TTL: time.Hour}); !errors.Is(err, driver.ErrLost) {
				t.Fatalf("Renew: %v", err)
			}
		}
		close(stop)
		load.Wait()
	}
	slices.Sort(late)
	// The 99th percentile is 5 ms on an idle machine.
	t.Logf("lost after p50 %v, p99 %v, max %v", late[len(late)/2], late[len(late)*99/100], late[len(late)-1])
	if _, err := renew(other, time.Hour); err != nil {
		t.Errorf("another session's lease: %v", err)
	}
}

// A server process says that it ends before it frees its locks. Release says that a lock
// is lost when it is free.
func TestALossIsToldByReleaseWhenTheLockIsFree(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	a := opener(t, s.URL())
	leases := make([]driver.Lease, rounds(8000, 2000)) // so many that it takes the server a while to free them
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := w; i < len(leases); i += 16 {
				var err error
				if leases[i], err = take(a, request(fmt.Sprint("k", i), 5*time.Minute)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	if wg.Wait(); t.Failed() {
		return
	}
	pids := a.Pids()
	for _, pid := range pids {
		count(t, db, "SELECT pg_terminate_backend($1)::int", int64(pid))
	}
	<-leases[0].Grant().Lost
	// Until the locks are free, which takes a slow server some time, the outcome of Release
	// is unknown.
	eventually(t, "Release says that the lock is lost", func() bool {
		err := leases[0].Release(context.Background())
		if err == nil {
			t.Fatal("Release of a lost lock: nil")
		}
		return errors.Is(err, driver.ErrLost)
	})
	if got := count(t, db, advisory); got != 0 && len(pids) == 1 { // no session was silent for a while
		t.Fatalf("Release says that the lock was lost, and %d of the session's are not free", got)
	}
}

func TestDeadlineIsNeverLaterThanTheServersRelease(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	// The TTL is a class, so that the server keeps the lock no longer than it must.
	const ttl = 500 * time.Millisecond
	together := rounds(24, 6)
	for round := range rounds(2, 1) {
		var wg sync.WaitGroup
		for i := range together {
			wg.Go(func() { deadlineTrial(t, s, fmt.Sprintf("t%d-%d", round, i), i, ttl) })
		}
		wg.Wait()
	}
	eventually(t, "no lock is left", func() bool { return count(t, db, advisory) == 0 })
}

// deadlineTrial takes a key, renews it while the link to the server fails, and watches from
// another connection when the server frees it.
func deadlineTrial(t *testing.T, s place, key string, i int, ttl time.Duration) {
	p, err := fault.Start(s.Addr())
	if err != nil {
		t.Error(err)
		return
	}
	defer p.Close() //nolint:errcheck // the test's own
	b, err := open(through(s, p))
	if err != nil {
		t.Error(err)
		return
	}
	defer b.Close() //nolint:errcheck // the test's own
	l, err := b.Acquire(context.Background(), request(key, ttl))
	if err != nil {
		return // a machine so slow that the grant was over: nothing to see
	}
	watch, err := pgx.Connect(context.Background(), s.URL())
	if err != nil {
		t.Error(err)
		return
	}
	defer watch.Close(context.Background()) //nolint:errcheck // the test's own
	switch i % 3 {
	case 0:
		p.Delay(fault.ToClient, time.Duration(i)*ttl/50, 0)
	case 1:
		p.DropReplies(1)
	case 2:
		p.Pause()
	}
	ctx, cancel := context.WithTimeout(context.Background(), ttl)
	_, _ = l.Renew(ctx, &driver.Renewal{TTL: ttl})
	cancel()
	for {
		var free bool
		asked := time.Now() // before the server is asked
		if err := watch.QueryRow(context.Background(), "SELECT pg_try_advisory_lock($1)", b.Number(key)).Scan(&free); err != nil {
			t.Error(err)
			return
		}
		answered := time.Now()
		if free {
			if e := l.Grant().Expires; answered.Before(e) {
				t.Errorf("the server freed the lock before %v, and Expires is %v later", answered.Sub(asked), e.Sub(answered))
			}
			return
		}
		<-time.After(2 * time.Millisecond)
	}
}

// An attempt is bounded by the driver itself. The session's leases are not given up: they may
// outlast the pause.
func TestAnAttemptOnASilentServerIsBounded(t *testing.T) {
	t.Parallel()
	s := database(t)
	p := fault.NewProxy(t, s.Addr())
	b := opener(t, through(s, p))
	l := must(t, b, request("held", time.Hour))
	var wg sync.WaitGroup
	begun := make(chan struct{})
	wg.Go(func() { // alone, and so it reads its own answers
		for n := 0; ; n++ {
			l, err := b.Acquire(context.Background(), request("alone", 200*time.Millisecond))
			if err == nil {
				err = l.Release(context.Background())
			}
			if n == 100 {
				close(begun)
			}
			if err != nil && n >= 100 { // before, this machine stood still
				return
			}
		}
	})
	<-begun
	p.Pause()
	wg.Wait()
	for i := range 3 {
		wg.Go(func() {
			if _, err := b.Acquire(context.Background(), request(fmt.Sprint("k", i), 200*time.Millisecond)); err == nil || errors.Is(err, driver.ErrHeld) {
				t.Errorf("Acquire from a server that stands still: %v", err)
			}
		})
	}
	wg.Wait()
	p.Resume()
	if _, err := renew(l, time.Hour); err != nil {
		t.Errorf("Renew after the pause: %v", err)
	}
	for i := range 3 { // the late grant is given back
		eventually(t, "the key is free", func() bool {
			l, err := b.Acquire(context.Background(), request(fmt.Sprint("k", i), time.Second))
			return err == nil && l.Release(context.Background()) == nil
		})
	}
}

func TestALeaseThatIsNotRenewedEndsAloneOnALivelySession(t *testing.T) {
	t.Parallel()
	s := database(t)
	a, b := opener(t, s.URL()), opener(t, s.URL())
	const ttl = 2 * time.Second
	kept, left := must(t, a, request("kept", ttl)), must(t, a, request("left", ttl))
	end := left.Grant().Expires
	for expires := kept.Grant().Expires; ; {
		g, err := kept.Renew(context.Background(), &driver.Renewal{TTL: ttl})
		switch {
		case err == nil:
			expires = g.Expires
		case time.Now().After(expires):
			t.Skip("this machine stands still")
		case verdict(err):
			t.Fatalf("the renewed lease: %v", err)
		}
		if l, err := b.Acquire(context.Background(), request("left", ttl)); err == nil {
			if time.Now().Before(end) {
				t.Error("freed before its end")
			}
			_ = l.Release(context.Background())
			break
		}
		if time.Since(end) > patience {
			t.Fatal("never freed, since the other lease keeps the session alive")
		}
		<-time.After(20 * time.Millisecond)
	}
	if _, err := left.Renew(context.Background(), &driver.Renewal{TTL: ttl}); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew of the lease that was left: %v", err)
	}
	if err := release(left); err != nil && !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release of it: %v", err)
	}
}

func TestSharedLeasesOfOneSessionAreCountedApart(t *testing.T) {
	t.Parallel()
	s := database(t)
	a, b := opener(t, s.URL()), opener(t, s.URL())
	share := func() driver.Lease {
		r := request("k", time.Hour)
		r.Mode = driver.Shared
		return must(t, a, r)
	}
	leases := []driver.Lease{share(), share(), share()}
	if _, _, err := answer(context.Background(), a, request("k", time.Minute)); !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("upgraded inside a session: %v", err)
	}
	for _, l := range leases {
		if _, _, err := answer(context.Background(), b, request("k", time.Minute)); !errors.Is(err, driver.ErrHeld) {
			t.Fatalf("exclusive beside a share: %v", err)
		}
		if err := release(l); err != nil {
			t.Fatal(err)
		}
	}
	_ = must(t, b, request("k", time.Minute)).Release(context.Background())
}

// thiefConn unlocks all locks of a session just before the session unlocks one itself.
type thiefConn struct{ net.Conn }

func (c thiefConn) Write(b []byte) (int, error) {
	if !bytes.Contains(b, []byte("EXECUTE dlock_u(")) {
		return c.Conn.Write(b)
	}
	sql := append([]byte("DO $$BEGIN PERFORM pg_advisory_unlock_all(); END$$; "), b[5:]...)
	_, err := c.Conn.Write(append(binary.BigEndian.AppendUint32([]byte{'Q'}, uint32(len(sql)+4)), sql...))
	return len(b), err
}

func TestAnUnlockOfWhatIsNotThereIsALoss(t *testing.T) {
	t.Parallel()
	cfg, err := pgx.ParseConfig(database(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return thiefConn{c}, err
	}
	b := built(t, func(ctx context.Context) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, cfg.Copy()) }, nil)
	l := must(t, b, request("k", time.Minute))
	if err := release(l); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release of a lock that the session does not have: %v", err)
	}
	if err := l.Release(context.Background()); err != nil {
		t.Errorf("a second Release: %v", err)
	}
}

// The first Release has no answer in time; the unlock is answered later, and the session, which was
// silent for too long, ends. The lock was not lost.
func TestAReleaseThatIsAnsweredLateIsNoLoss(t *testing.T) {
	t.Parallel()
	s := database(t)
	p := fault.NewProxy(t, s.Addr())
	b := opener(t, through(s, p))
	l := must(t, b, request("k", time.Hour))
	p.Pause()
	if err := l.Release(context.Background()); verdict(err) {
		t.Fatalf("Release without an answer: %v", err)
	}
	p.Resume()
	eventually(t, "the session ends", func() bool { return len(b.Pids()) == 0 })
	if err := release(l); err != nil {
		t.Errorf("Release: %v", err)
	}
}

// The lock is taken before the token. If there is no token, the driver gives back this lock and
// no other.
func TestALockWithoutATokenIsGivenBack(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	b, c := opener(t, s.URL()), opener(t, s.URL())
	share := request("shared", time.Hour)
	share.Mode = driver.Shared
	first := must(t, b, share)
	held := must(t, c, request("waited for", time.Hour))
	waited := make(chan error, 1)
	go func() {
		_, err := awaited(context.Background(), b, request("waited for", time.Minute))
		waited <- err
	}()
	eventually(t, "it waits", func() bool { return count(t, db, advisory+" AND NOT granted") == 1 })
	if _, err := db.Exec(context.Background(), "DO $$ BEGIN EXECUTE 'ALTER SEQUENCE dlock_fence MAXVALUE ' || (SELECT last_value FROM dlock_fence); END $$"); err != nil {
		t.Fatal(err)
	}
	refuse := func(what string, err error) {
		var no *driver.RefusedError
		if !errors.As(err, &no) || no.RetryAfter != 0 || !strings.Contains(err.Error(), "sequence") {
			t.Errorf("%s without a token: %v", what, err)
		}
	}
	_, _, err := answer(context.Background(), b, request("lone", time.Minute))
	refuse("a lone lock", err)
	again := *share
	again.Owner = "test/again"
	_, _, err = answer(context.Background(), b, &again)
	refuse("a second share", err)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			_, _, err := answer(context.Background(), b, request(fmt.Sprint("one of many ", i), time.Minute))
			refuse("one of many", err)
		})
	}
	wg.Wait()
	_ = release(held)
	refuse("a wait", <-waited)
	eventually(t, "the first share alone is left", func() bool { return count(t, db, advisory) == 1 })
	if err := release(first); err != nil {
		t.Errorf("Release of the first share: %v", err)
	}
}

// The session of a lone caller has stored the sequence's object id; a sequence that is made
// anew has another id.
func TestASequenceThatIsMadeAnewServesTheSessionsThatWereThere(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	b := opener(t, s.URL())
	first := must(t, b, request("k", time.Minute))
	if err := release(first); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(context.Background(), fmt.Sprintf("DROP SEQUENCE dlock_fence; CREATE SEQUENCE dlock_fence START %d", first.Grant().Fence+1000), pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		l := must(t, b, request("k", time.Minute))
		if f := l.Grant().Fence; f < first.Grant().Fence+1000 {
			t.Errorf("token %d is not from the new sequence", f)
		}
		if got := count(t, db, advisory); got != 1 {
			t.Errorf("%d locks on the server", got)
		}
		if err := release(l); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "no lock is left", func() bool { return count(t, db, advisory) == 0 })
	if n := b.Conns(); n > 1 {
		t.Errorf("%d connections", n)
	}
}

// Polling for a held lock uses up no tokens, of which the server writes every thirty-second to
// its disk.
func TestARefusedAttemptDrawsNoTokenBeyondTheFirst(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	a, b := opener(t, s.URL()), opener(t, s.URL())
	l := must(t, a, request("k", time.Hour))
	_ = must(t, b, request("other", time.Minute)).Release(context.Background())
	// So far ahead of the clock that no new session raises it.
	before := count(t, db, "SELECT setval('dlock_fence', $1)", time.Now().Add(time.Hour).UnixMicro())
	for range 50 {
		if _, _, err := answer(context.Background(), b, request("k", time.Minute)); !errors.Is(err, driver.ErrHeld) {
			t.Fatalf("Acquire of a lock that is held: %v", err)
		}
	}
	if drawn := count(t, db, "SELECT last_value FROM dlock_fence") - before; drawn > 10 { // one per session
		t.Errorf("50 refused attempts drew %d tokens", drawn)
	}
	if err := release(l); err != nil {
		t.Fatal(err)
	}
	next := must(t, b, request("k", time.Minute))
	if next.Grant().Fence <= l.Grant().Fence {
		t.Errorf("token %d after %d", next.Grant().Fence, l.Grant().Fence)
	}
	_ = next.Release(context.Background())
}

func TestConnectionsOfAPoolAreTakenOver(t *testing.T) {
	t.Parallel()
	s := database(t)
	pool, err := pgxpool.New(context.Background(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	b, err := postgres.New(postgres.FromPool(pool), nil)
	if err != nil {
		t.Fatal(err)
	}
	l := must(t, b, request("k", time.Minute))
	if pool.Stat().AcquiredConns() != 0 {
		t.Error("the session counts against the pool")
	}
	if err := release(l); err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := pool.Ping(context.Background()); err != nil {
		t.Errorf("the pool after Close: %v", err)
	}
}

// A lease that is over costs its caller no wait for a server that does not answer.
func TestReleaseOfALostLeaseDoesNotWaitForASilentServer(t *testing.T) {
	t.Parallel()
	s := database(t)
	p := fault.NewProxy(t, s.Addr())
	b := opener(t, through(s, p))
	short, long := must(t, b, request("short", time.Second)), must(t, b, request("long", time.Hour))
	lost := long.Grant().Lost
	p.Pause()
	<-time.After(time.Until(short.Grant().Expires))
	releaseWithin(t, "its deadline has passed", short)
	<-short.Grant().Lost // the session is given up
	releaseWithin(t, "its session has ended", short)
	select {
	case <-lost:
		t.Error("the other session was given up, too")
	default:
	}
}

// releaseWithin releases a lease that is over.
func releaseWithin(t *testing.T, when string, l driver.Lease) {
	t.Helper()
	start := time.Now()
	if err := l.Release(context.Background()); err == nil {
		t.Errorf("Release when %s: nil, and the server has not answered", when)
	}
	if took := time.Since(start); took > releaseTimeout/2 {
		t.Errorf("Release when %s took %v", when, took)
	}
}

const releaseTimeout = 5 * time.Second // of a lease that is not over

// A shared lease that is not its session's last of the key needs no statement. So many are released
// while a statement is under way that one round does not take them all.
func TestManySharedLeasesAreReleasedAtOnce(t *testing.T) {
	t.Parallel()
	s := database(t)
	p := fault.NewProxy(t, s.Addr())
	b := opener(t, through(s, p))
	const together = 300
	leases := make([]driver.Lease, 5*together)
	for i := range leases {
		r := request("k", time.Hour)
		r.Mode = driver.Shared
		leases[i] = must(t, b, r)
	}
	const delay = 50 * time.Millisecond
	p.Delay(fault.ToClient, delay, 0)
	quickest := time.Hour
	for part := range slices.Chunk(leases, together) {
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = b.Acquire(context.Background(), request(fmt.Sprint("at ", start), time.Hour)) })
		<-time.After(delay / 5) // until it is under way
		for _, l := range part {
			wg.Go(func() {
				if err := release(l); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		quickest = min(quickest, time.Since(start))
	}
	if quickest > 5*delay { // a tick of the session is half a second
		t.Errorf("%d shared leases are released in %v at the best", together, quickest)
	}
}

package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // database/sql

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/postgres"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// refused acquires, and asserts a permanent refusal whose text contains all of want.
func refused(t *testing.T, b driver.Backend, want ...string) {
	t.Helper()
	_, _, err := answer(context.Background(), b, request("k", time.Minute))
	var no *driver.RefusedError
	if !errors.As(err, &no) || no.RetryAfter != 0 {
		t.Fatalf("want a permanent refusal, got %v", err)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not say %q: %v", w, err)
		}
	}
}

// bouncer returns the URL of a database by way of a PgBouncer.
func bouncer(t *testing.T, s testDatabase, mode string) string {
	t.Helper()
	return strings.Replace(server.PgBouncer(t, shared.s, mode).URL(), "/postgres?", "/"+s.name+"?", 1)
}

func TestAPoolerOfTransactionsIsRefused(t *testing.T) {
	t.Parallel()
	refused(t, opener(t, bouncer(t, database(t), "transaction")), "pooler", "pooler=session")
}

func TestAPoolerOfSessionsServes(t *testing.T) {
	t.Parallel()
	s := database(t)
	url := bouncer(t, s, "session")
	refused(t, opener(t, url), "pooler")
	b := opener(t, url+"&pooler=session")
	direct := opener(t, s.URL())
	l := must(t, b, request("k", time.Hour))
	if _, _, err := answer(context.Background(), direct, request("k", time.Minute)); !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("another client holds the lock through the pooler, got %v, want ErrHeld", err)
	}
	if _, err := renew(l, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := release(l); err != nil {
		t.Fatal(err)
	}
	_ = must(t, direct, request("k", time.Minute)).Release(context.Background())
}

func TestAPoolerThatLiesAboutSessionsIsFoundByTheHeartbeat(t *testing.T) {
	t.Parallel()
	url := bouncer(t, database(t), "transaction")
	b := opener(t, url+"&pooler=session")
	l := must(t, b, request("k", time.Hour))
	// Another client gets the server process that has the lock, and keeps it.
	thief, err := pgx.Connect(context.Background(), url+"&default_query_exec_mode=simple_protocol")
	if err != nil {
		t.Fatal(err)
	}
	defer thief.Close(context.Background()) //nolint:errcheck // the test's own
	if _, err := thief.Exec(context.Background(), "BEGIN"); err != nil {
		t.Fatal(err)
	}
	if _, err := renew(l, time.Hour); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew on another server process: %v", err)
	}
}

func TestAFullLockTableNamesTheSetting(t *testing.T) {
	t.Parallel()
	s := server.Postgres(t, server.WithSetting("max_locks_per_transaction", "10"), server.WithSetting("max_connections", "10"))
	b := opener(t, s.URL())
	var mu sync.Mutex
	var held []driver.Lease
	full := 0
	var wg sync.WaitGroup
	for w := range 32 { // together, so that one statement asks for many, in both modes
		wg.Go(func() {
			for i := range 500 {
				r := request(fmt.Sprint("k", w, "/", i), time.Hour)
				if i%2 == 0 {
					r.Mode = driver.Shared
				}
				l, _, err := answer(context.Background(), b, r)
				mu.Lock()
				var no *driver.RefusedError
				switch {
				case err == nil:
					held = append(held, l)
				case errors.As(err, &no) && no.RetryAfter > 0 && strings.Contains(err.Error(), "max_locks_per_transaction"):
					full++
				default:
					t.Errorf("after %d locks: %v", len(held), err)
				}
				stop := full > 100
				mu.Unlock()
				if stop {
					return
				}
			}
		})
	}
	wg.Wait()
	if full == 0 {
		t.Fatalf("the table was never full: %d locks", len(held))
	}
	// Other locks are not affected, and there is room again after a release.
	for _, l := range held {
		if err := release(l); err != nil {
			t.Fatal(err)
		}
	}
	_ = must(t, b, request("again", time.Minute)).Release(context.Background())
	db := admin(t, s.URL())
	eventually(t, "no lock is left", func() bool { return count(t, db, advisory) == 0 })
}

func TestARoleWithoutRightsGetsTheStatementToRun(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	do := func(sql string) {
		t.Helper()
		if _, err := db.Exec(context.Background(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	do("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
	s.role(t, "some body", "")
	url := s.URLFor("some body", "")
	for range 2 { // running the statement in the error is enough; the second time another role owns the sequence
		_, _, err := answer(context.Background(), opener(t, url), request("k", time.Minute))
		var no *driver.RefusedError
		if !errors.As(err, &no) || no.RetryAfter != 0 {
			t.Fatalf("without rights: %v", err)
		}
		_, sql, ok := strings.Cut(err.Error(), "must run: ")
		if !ok {
			t.Fatalf("no statement in: %v", err)
		}
		do(sql)
		_ = must(t, opener(t, url), request("k", time.Minute)).Release(context.Background())
		do("DROP SEQUENCE dlock_fence")
		do("REVOKE CREATE ON SCHEMA public FROM \"some body\"")
		do("CREATE SEQUENCE dlock_fence")
	}
	_ = must(t, opener(t, url+"&fencing=off"), request("k", time.Minute)).Release(context.Background())
}

func TestASequenceWithACacheIsRefused(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	if _, err := db.Exec(context.Background(), "CREATE SEQUENCE dlock_fence CACHE 20"); err != nil {
		t.Fatal(err)
	}
	refused(t, opener(t, s.URL()), "ALTER SEQUENCE", "CACHE 1")
}

func TestTheSequenceIsRaisedToTheClockAndNeverSetBack(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	l := must(t, opener(t, s.URL()), request("k", time.Minute))
	if f, now := l.Grant().Fence, uint64(time.Now().Add(-time.Minute).UnixMicro()); f < now {
		t.Errorf("the first token is %d, less than %d", f, now)
	}
	_ = l.Release(context.Background())
	ahead := time.Now().Add(time.Hour).UnixMicro()
	if got := count(t, db, "SELECT setval('dlock_fence', $1)", ahead); got != ahead {
		t.Fatal(got)
	}
	l = must(t, opener(t, s.URL()), request("k", time.Minute))
	if f := l.Grant().Fence; f != uint64(ahead)+1 {
		t.Errorf("token %d after %d: the sequence was set back", f, ahead)
	}
	_ = l.Release(context.Background())
}

func TestAWrongPasswordIsARefusalInWordsWithoutThePassword(t *testing.T) {
	t.Parallel()
	const canary = "s3cr3t-c4n4ry"
	s := database(t) // whose server asks alice for a password
	s.role(t, "alice", "PASSWORD 'right'")
	b := opener(t, s.URLFor("alice", canary))
	refused(t, b, "password")
	_, _, err := answer(context.Background(), b, request("k", time.Minute))
	if all := fmt.Sprintf("%v %+v %#v %s", err, err, err, b); strings.Contains(all, canary) {
		t.Errorf("the password is in %s", all)
	}
	_ = must(t, opener(t, s.URLFor("alice", "right")+"&fencing=off"), request("k", time.Minute)).Release(context.Background())
}

func TestARestartGuardKeepsAYoungServerFromGranting(t *testing.T) {
	t.Parallel()
	s := database(t)
	b := opener(t, s.URL()+"&restart_guard=60m")
	if most := b.Info().MaxTTL; most != time.Hour {
		t.Errorf("MaxTTL is %v", most)
	}
	_, _, err := answer(context.Background(), b, request("k", time.Second))
	var no *driver.RefusedError
	if !errors.As(err, &no) || no.RetryAfter <= 0 || no.RetryAfter > time.Hour {
		t.Fatalf("a server that was just started gives %v", err)
	}
	b = opener(t, s.URL()+"&restart_guard=2s")
	eventually(t, "a server that was started long ago grants", func() bool {
		l, _, err := answer(context.Background(), b, request("k", time.Second))
		return err == nil && l.Release(context.Background()) == nil
	})
}

func TestLookupAndCheckTellWhoHoldsAndWhoWaits(t *testing.T) {
	t.Parallel()
	s := database(t)
	a, b := opener(t, s.URL()), opener(t, s.URL()+"&application_name=web")
	r := request("k", time.Hour)
	r.Owner = "host/4711/abc"
	l := must(t, b, r)
	ctx, cancel := context.WithCancel(context.Background())
	waited := make(chan error)
	go func() {
		_, err := awaited(ctx, a, request("k", time.Minute))
		waited <- err
	}()
	var st *driver.State
	lookup := func(b *postgres.Backend) (err error) {
		st, err = b.Lookup(context.Background(), "k")
		return err
	}
	eventually(t, "one holder and one waiter", func() bool { return lookup(a) == nil && len(st.Holders) == 1 && st.Waiters == 1 })
	pid := slices.IndexFunc(b.Pids(), func(pid uint32) bool { return strings.Contains(st.Holders[0].Owner, fmt.Sprint(pid)) })
	if h := st.Holders[0]; !strings.Contains(h.Owner, "web host/4711") || pid < 0 || h.Address == "" || h.Since.IsZero() {
		t.Errorf("the holder is %+v", h)
	}
	eventually(t, "an answer", func() bool { return lookup(b) == nil })
	if len(st.Holders) != 1 || st.Holders[0].Owner != r.Owner || st.Fence != l.Grant().Fence {
		t.Errorf("in its own process: %+v", st)
	}
	// A wait is a sequence of statements: Check may come between two of them.
	eventually(t, "a finding that says which process waits for the holder", func() bool {
		findings, err := a.Check(context.Background())
		if err != nil {
			t.Log(err)
		}
		return slices.ContainsFunc(findings, func(f driver.Diagnostic) bool {
			return slices.ContainsFunc(b.Pids(), func(pid uint32) bool { return strings.Contains(f.Summary, fmt.Sprint("waits for process ", pid)) })
		})
	})
	eventually(t, "it still waits", func() bool { return a.Queued("k") == 1 })
	cancel()
	if err := <-waited; !errors.Is(err, context.Canceled) || !errors.Is(err, driver.ErrHeld) {
		t.Errorf("the wait gave %v", err)
	}
	_ = l.Release(context.Background())
}

func TestTheTransactionsLockExcludesLeasesAndEndsWithIt(t *testing.T) {
	t.Parallel()
	s := database(t)
	b := opener(t, s.URL())
	ctx := context.Background()
	one, two := admin(t, s.URL()), admin(t, s.URL())
	begin := func(c *pgx.Conn) pgx.Tx {
		tx, err := c.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	tx := begin(one)
	if err := b.LockTx(ctx, tx, "k"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := answer(ctx, b, request("k", time.Minute)); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("a lease beside the transaction's lock: %v", err)
	}
	other := begin(two)
	if err := b.TryLockTx(ctx, other, "k"); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("a second transaction: %v", err)
	}
	if _, err := other.Exec(ctx, "SET LOCAL lock_timeout = '20ms'"); err != nil {
		t.Fatal(err)
	}
	if err := b.LockTx(ctx, other, "k"); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("lock_timeout gives %v", err)
	}
	_ = other.Rollback(ctx)
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	l := must(t, b, request("k", time.Hour))
	other = begin(two)
	if err := b.TryLockTx(ctx, other, "k"); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("a transaction beside a lease: %v", err)
	}
	_ = release(l)
	if err := b.TryLockTx(ctx, other, "k"); err != nil {
		t.Errorf("a free key: %v", err)
	}
	_ = other.Rollback(ctx)
	for _, bad := range []string{"", strings.Repeat("x", driver.MaxKey+1)} {
		if err := b.LockTx(ctx, tx, bad); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("a key of %d bytes: %v", len(bad), err)
		}
	}
}

func TestLockTxWaitsForALeaseAndALeaseForIt(t *testing.T) {
	t.Parallel()
	s := database(t)
	b := opener(t, s.URL())
	db, ctx := admin(t, s.URL()), context.Background()
	queued := func() int64 { return count(t, db, advisory+" AND NOT granted") }
	l := must(t, b, request("k", time.Hour))
	tx, err := admin(t, s.URL()).Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	locked := make(chan error, 1)
	go func() { locked <- b.LockTx(ctx, tx, "k") }()
	eventually(t, "the transaction waits", func() bool { return queued() == 1 })
	if err := release(l); err != nil {
		t.Fatal(err)
	}
	if err := <-locked; err != nil {
		t.Fatalf("LockTx after the release: %v", err)
	}
	leased := make(chan driver.Lease, 1)
	waits(t, b, queued, "k", func(l driver.Lease, err error) {
		if err != nil {
			t.Error(err)
		}
		leased <- l
	})
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if l := <-leased; l != nil {
		_ = l.Release(ctx)
	}
}

func TestADeadlockOfTransactionsIsARefusalThatPasses(t *testing.T) {
	t.Parallel()
	s := database(t)
	b := opener(t, s.URL())
	ctx := context.Background()
	run(t, admin(t, s.URL()), "ALTER DATABASE "+s.name+" SET deadlock_timeout = '50ms'")
	var txs [2]pgx.Tx
	for i, key := range []string{"a", "b"} {
		tx, err := admin(t, s.URL()).Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		txs[i] = tx
		if err := b.LockTx(ctx, tx, key); err != nil {
			t.Fatal(err)
		}
	}
	errs := make(chan error, 2)
	for i, key := range []string{"b", "a"} {
		go func() {
			err := b.LockTx(ctx, txs[i], key)
			_ = txs[i].Rollback(ctx)
			errs <- err
		}()
	}
	one, two := <-errs, <-errs
	if one == nil {
		one, two = two, one
	}
	var no *driver.RefusedError
	if !errors.As(one, &no) || no.RetryAfter == 0 || !strings.Contains(one.Error(), "deadlock") || two != nil {
		t.Errorf("got %v and %v", one, two)
	}
}

// Parameters that providers and pools put into DATABASE_URL are accepted, and Check names those
// without effect.
func TestForeignParametersAreHarmlessAndNamed(t *testing.T) {
	t.Parallel()
	s := database(t)
	b := opener(t, s.URL()+"&channel_binding=prefer&pool_max_conns=9&default_query_exec_mode=exec&timezone=UTC&statement_timeout=1"+
		"&keepalives=1&keepalives_idle=30&sslnegotiation=postgres&search_path=nowhere&gssencmode=disable")
	_ = must(t, b, request("k", time.Minute)).Release(context.Background())
	findings, err := b.Check(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"channel_binding", "pool_max_conns", "default_query_exec_mode", "timezone", "statement_timeout", "keepalives_idle", "sslnegotiation"} {
		if !slices.ContainsFunc(findings, func(f driver.Diagnostic) bool { return strings.Contains(f.Summary, name) }) {
			t.Errorf("Check does not name %s, which is ignored", name)
		}
	}
}

// Other programs and this driver exclude each other by a lock's number, and SQL computes the
// number of a key.
func TestLocksThatExistAlreadyAreJoined(t *testing.T) {
	t.Parallel()
	s := database(t)
	db, ctx := admin(t, s.URL()), context.Background()
	b := opener(t, s.URL())
	for key, args := range map[string]string{
		postgres.Int64Key(42): "42", postgres.Int64Key(-1): "-1",
		postgres.Int32PairKey(7, -8): "7,-8", postgres.Int32PairKey(-2147483648, 2147483647): "-2147483648,2147483647",
	} {
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
			r := request(key, time.Hour)
			r.Mode = mode
			l := must(t, b, r)
			if count(t, db, "SELECT pg_try_advisory_lock("+args+")::int") != 0 {
				t.Errorf("%s: held as %v, and granted to another program", key, mode)
			}
			if err := release(l); err != nil {
				t.Error(err)
			}
		}
		if count(t, db, "SELECT pg_try_advisory_lock("+args+")::int") != 1 {
			t.Errorf("%s: not free", key)
		}
		if _, _, err := answer(ctx, b, request(key, time.Minute)); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("%s: another program has it, and we get %v", key, err)
		}
		if st, err := b.Lookup(ctx, key); err != nil || len(st.Holders) != 1 {
			t.Errorf("%s: Lookup gives %+v, %v", key, st, err)
		}
		got := make(chan error, 1)
		go func() {
			l, err := awaited(ctx, b, request(key, time.Minute))
			if err == nil {
				err = release(l)
			}
			got <- err
		}()
		eventually(t, "it waits", func() bool {
			return count(t, db, anyAdvisory+" AND NOT granted") == 1
		})
		if count(t, db, "SELECT pg_advisory_unlock("+args+")::int") != 1 {
			t.Error("not unlocked")
		}
		if err := <-got; err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	l := must(t, b, request("a key", time.Hour))
	id, pair := b.LockID("a key")
	if in := count(t, db, "SELECT ('x' || left(encode(sha256(convert_to('' || 'a key', 'UTF8')), 'hex'), 16))::bit(64)::int8"); in != id || pair {
		t.Errorf("LockID gives %d, SQL %d", id, in)
	}
	if count(t, db, "SELECT pg_try_advisory_lock($1)::int", id) != 0 {
		t.Error("LockID is not the lock's number")
	}
	_ = l.Release(ctx)
}

func TestLockSQLTxIsLockTxOfDatabaseSQL(t *testing.T) {
	t.Parallel()
	s := database(t)
	ctx := context.Background()
	b := opener(t, s.URL())
	db, err := sql.Open("pgx", s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // the test's own
	one, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.LockSQLTx(ctx, one, "k"); err != nil {
		t.Fatal(err)
	}
	two, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.TryLockSQLTx(ctx, two, "k"); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("a second transaction: %v", err)
	}
	if _, err := two.ExecContext(ctx, "SET LOCAL lock_timeout = 20"); err != nil {
		t.Fatal(err)
	}
	if err := b.LockSQLTx(ctx, two, "k"); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("lock_timeout gives %v", err)
	}
	_ = two.Rollback()
	if err := one.Commit(); err != nil {
		t.Fatal(err)
	}
	_ = must(t, b, request("k", time.Minute)).Release(ctx)
}

// The server would refuse a text that ends in the middle of a character, and with this setting it
// reads a backslash as the beginning of an escape.
func TestAnyLabelIsAnApplicationName(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	run(t, db, "ALTER DATABASE "+s.name+" SET standard_conforming_strings = off")
	for label, want := range map[string]string{
		strings.Repeat("a", 56) + "é": "dlock " + strings.Repeat("a", 56) + "?",
		strings.Repeat("é", 40):       "dlock " + strings.Repeat("?", 40),
		"\xff\x00":                    "dlock ??",
		`o'brien\`:                    `dlock o'brien\`,
	} {
		b := opener(t, s.URL())
		r := request("k", time.Minute)
		r.Owner = label + "/1"
		l := must(t, b, r)
		if got := count(t, db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1", want); got == 0 {
			t.Errorf("no session has the name %q", want)
		}
		_ = l.Release(context.Background())
		_ = b.Close()
	}
}

// One process leaves room for the others, and says which number to raise.
func TestAProcessLeavesRoomInTheLockTable(t *testing.T) {
	t.Parallel()
	s := server.Postgres(t, server.WithSetting("max_locks_per_transaction", "10"), server.WithSetting("max_connections", "20"))
	b := opener(t, s.URL())
	var no *driver.RefusedError
	n := 0
	for ; n < 1000; n++ {
		_, err := take(b, request(fmt.Sprint("k", n), time.Hour))
		if err != nil {
			if !errors.As(err, &no) || no.RetryAfter == 0 || !strings.Contains(err.Error(), "max_locks_per_transaction") || !strings.Contains(err.Error(), fmt.Sprint(n)) {
				t.Errorf("after %d locks: %v", n, err)
			}
			break
		}
	}
	if n != 100 {
		t.Errorf("the process stops at %d locks", n)
	}
	_ = must(t, opener(t, s.URL()), request("a newcomer's", time.Minute)).Release(context.Background())
}

// A store of package fence refuses a larger token, and JSON and Lua round it.
func TestNoTokenIsLargerThanTheLargest(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	b := opener(t, s.URL())
	_ = must(t, b, request("k", time.Minute)).Release(context.Background())
	run(t, db, fmt.Sprintf("SELECT setval('dlock_fence', %d)", uint64(driver.MaxFence)-1))
	l := must(t, b, request("k", time.Minute))
	if f := l.Grant().Fence; f != driver.MaxFence {
		t.Errorf("token %d, want %d", f, uint64(driver.MaxFence))
	}
	other := opener(t, s.URL())
	for range 2 {
		_ = release(l)
		refused(t, b, "sequence", "setval")
		refused(t, other, "sequence", "setval")
	}
	waiting := request("k", time.Minute)
	waiting.Wait = true
	if _, err := b.Acquire(context.Background(), waiting); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("a wait: %v", err)
	}
	eventually(t, "no lock is left", func() bool { return count(t, db, advisory) == 0 })
	findings, err := b.Check(context.Background())
	if err != nil || !slices.ContainsFunc(findings, func(d driver.Diagnostic) bool {
		return d.Code == "sequence" && strings.Contains(d.Command, "setval")
	}) {
		t.Errorf("Check: %+v, %v", findings, err)
	}
}

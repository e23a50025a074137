package postgres_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/postgres"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// bouncer returns the URL of a database by way of a PgBouncer.
func bouncer(t *testing.T, s testDatabase, mode string) string {
	t.Helper()
	return strings.Replace(server.PgBouncer(t, shared.s, mode).URL(), "/postgres?", "/"+s.name+"?", 1)
}

func TestAPoolerOfSessionsServes(t *testing.T) {
	t.Parallel()
	s := database(t)
	url := bouncer(t, s, "session")
	refused(t, opener(t, url), "pooler", "pooler=session")
	b, direct := opener(t, url+"&pooler=session"), opener(t, s.URL())
	l := must(t, b, request("k", time.Hour))
	isHeld(t, direct, "k")
	drivertest.Renew(t, l, time.Hour)
	drivertest.Release(t, l)
	l = must(t, direct, request("k", time.Hour))
	next := drivertest.Waiter(t, b, request("k", time.Minute))
	drivertest.AwaitWaiters(t, direct, "k", 1)
	drivertest.Release(t, l)
	drivertest.Release(t, <-next)
}

func TestAPoolerThatLiesAboutSessionsIsFoundByTheHeartbeat(t *testing.T) {
	t.Parallel()
	url := bouncer(t, database(t), "transaction")
	refused(t, opener(t, url), "pooler")
	l := must(t, opener(t, url+"&pooler=session"), request("k", time.Hour))
	// Another client gets the server process that has the lock, and keeps it.
	run(t, admin(t, url+"&default_query_exec_mode=simple_protocol"), "BEGIN")
	if err := renew(l, time.Hour); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew on another server process: %v", err)
	}
}

func TestAWrongPasswordIsARefusalInWordsWithoutThePassword(t *testing.T) {
	t.Parallel()
	s := database(t) // whose server asks alice for a password
	s.role(t, "alice", "PASSWORD 'right'")
	b := opener(t, s.URLFor("alice", canary))
	refused(t, b, "password")
	_, err := drivertest.Acquire(t, b, request("k", time.Minute))
	if all := fmt.Sprintf("%v %+v %#v %s", err, err, err, b); strings.Contains(all, canary) {
		t.Errorf("the password is in %s", all)
	}
	token(t, opener(t, s.URL())) // makes the sequence
	once(t, s.URL(), "GRANT USAGE, UPDATE ON SEQUENCE dlock_fence TO alice")
	token(t, opener(t, s.URLFor("alice", "right")))
}

func TestARestartGuardKeepsAYoungServerFromGranting(t *testing.T) {
	t.Parallel()
	s := database(t)
	b := opener(t, s.URL()+"&restart_guard=60m")
	if most := b.Info().MaxTTL; most != time.Hour {
		t.Errorf("MaxTTL is %v", most)
	}
	_, err := drivertest.Acquire(t, b, request("k", time.Second))
	var no *driver.RefusedError
	if !errors.As(err, &no) || no.RetryAfter <= 0 || no.RetryAfter > time.Hour {
		t.Fatalf("a server that was just started gives %v", err)
	}
	drivertest.Release(t, must(t, opener(t, s.URL()+"&restart_guard=2s"), request("k", time.Second)))
}

// begin begins a transaction on a connection of its own.
func begin(t *testing.T, url string) pgx.Tx {
	t.Helper()
	tx, err := admin(t, url).Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

func TestTheTransactionsLockExcludesLeasesAndEndsWithIt(t *testing.T) {
	t.Parallel()
	s := database(t)
	b, ctx := opener(t, s.URL()), context.Background()
	tx, other := begin(t, s.URL()), begin(t, s.URL())
	if err := b.LockTx(ctx, tx, "k"); err != nil {
		t.Fatal(err)
	}
	isHeld(t, b, "k")
	if err := b.TryLockTx(ctx, other, "k"); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("a second transaction: %v", err)
	}
	run(t, other.Conn(), "SET LOCAL lock_timeout = '20ms'")
	if err := b.LockTx(ctx, other, "k"); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("lock_timeout gives %v", err)
	}
	// A lease waits for the transaction, and a transaction for the lease.
	next := drivertest.Waiter(t, b, request("k", time.Hour))
	drivertest.AwaitWaiters(t, b, "k", 1)
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	l := <-next
	tx = begin(t, s.URL())
	locked := make(chan error, 1)
	go func() { locked <- b.LockTx(ctx, tx, "k") }()
	drivertest.AwaitWaiters(t, b, "k", 1)
	drivertest.Release(t, l)
	if err := <-locked; err != nil {
		t.Errorf("LockTx after the release: %v", err)
	}
	for _, bad := range []string{"", strings.Repeat("x", driver.MaxKey+1)} {
		if err := b.LockTx(ctx, tx, bad); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("a key of %d bytes: %v", len(bad), err)
		}
	}
}

func TestADeadlockOfTransactionsIsARefusalThatPasses(t *testing.T) {
	t.Parallel()
	s := database(t)
	b, ctx := opener(t, s.URL()), context.Background()
	once(t, s.URL(), "ALTER DATABASE "+s.name+" SET deadlock_timeout = '50ms'")
	var errs [2]error
	var both sync.WaitGroup
	both.Add(2)
	each(2, func(i int) {
		tx := begin(t, s.URL())
		errs[i] = b.LockTx(ctx, tx, fmt.Sprint(i))
		both.Done()
		both.Wait()
		if errs[i] == nil {
			errs[i] = b.LockTx(ctx, tx, fmt.Sprint(1-i))
		}
		_ = tx.Rollback(ctx)
	})
	if errs[0] == nil {
		errs[0], errs[1] = errs[1], nil
	}
	var no *driver.RefusedError
	if !errors.As(errs[0], &no) || no.RetryAfter == 0 || !strings.Contains(no.Error(), "deadlock") || errs[1] != nil {
		t.Errorf("got %v", errs)
	}
}

// Other programs and this driver exclude each other by a lock's number, and SQL computes the
// number of a key.
func TestLocksThatExistAlreadyAreJoined(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	b := opener(t, s.URL())
	does := func(function, args string) bool { return count(t, db, "SELECT "+function+"("+args+")::int") == 1 }
	for _, n := range []int64{42, -1} {
		key, args := postgres.Int64Key(n), fmt.Sprint(n)
		for _, r := range []*driver.Request{request(key, time.Hour), sharing(key, time.Hour)} {
			l := must(t, b, r)
			if does("pg_try_advisory_lock", args) {
				t.Errorf("%s: held as %v, and granted to another program", key, r.Mode)
			}
			drivertest.Release(t, l)
		}
		if !does("pg_try_advisory_lock", args) {
			t.Errorf("%s: not free", key)
		}
		isHeld(t, b, key) // by another program
		next := drivertest.Waiter(t, b, request(key, time.Minute))
		drivertest.AwaitWaiters(t, b, key, 1)
		if !does("pg_advisory_unlock", args) {
			t.Error("not unlocked")
		}
		drivertest.Release(t, <-next)
	}
	l := must(t, b, request("a key", time.Hour))
	id := b.LockID("a key")
	if in := count(t, db, "SELECT ('x' || left(encode(sha256(convert_to('' || 'a key', 'UTF8')), 'hex'), 16))::bit(64)::int8"); in != id {
		t.Errorf("LockID gives %d, SQL %d", id, in)
	}
	if does("pg_try_advisory_lock", fmt.Sprint(id)) {
		t.Error("LockID is not the lock's number")
	}
	if b.LockID("pg_advisory_lock(042)") == 42 {
		t.Error("a key that Int64Key does not give names a lock by its number")
	}
	drivertest.Release(t, l)
}

func TestNoNameIsLookedUpOnTheRolesSearchPath(t *testing.T) {
	t.Parallel()
	s := database(t)
	once(t, s.URL(), "CREATE SCHEMA app", "CREATE TABLE app.pg_class ()", "CREATE TABLE app.pg_locks ()",
		"CREATE FUNCTION app.pg_try_advisory_xact_lock(int8) RETURNS bool LANGUAGE sql AS 'SELECT true'",
		"ALTER DATABASE "+s.name+" SET search_path = app, pg_catalog")
	b := opener(t, s.URL())
	l := must(t, b, request("k", time.Hour))
	if st, err := b.Lookup(t.Context(), "k"); err != nil || len(st.Holders) != 1 {
		t.Errorf("Lookup: %+v, %v", st, err)
	}
	if err := b.TryLockTx(t.Context(), begin(t, s.URL()), "k"); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("TryLockTx: %v", err)
	}
	drivertest.Release(t, l)
}

// A holder is known by its session's application_name, which has its label. The server would refuse a text
// that ends in the middle of a character, and with this setting it reads a backslash as the beginning of an
// escape.
func TestLookupTellsWhoHoldsWhateverTheLabel(t *testing.T) {
	t.Parallel()
	s := database(t)
	once(t, s.URL(), "ALTER DATABASE "+s.name+" SET standard_conforming_strings = off")
	for label, want := range map[string]string{
		"host/4711":                    "web host/4711",
		strings.Repeat("a", 58) + "éa": "web " + strings.Repeat("a", 58) + "?",
		strings.Repeat("é", 40):        "web " + strings.Repeat("?", 40),
		"\xff\x00":                     "web ??",
		`o'brien\`:                     `web o'brien\`,
	} {
		b := opener(t, s.URL()+"&application_name=web")
		r := request("k", time.Minute)
		r.Owner = label + "/1"
		l := must(t, b, r)
		eventually(t, "an answer", func() bool {
			st, err := b.Lookup(t.Context(), "k")
			if err == nil && (len(st.Holders) != 1 || !strings.HasPrefix(st.Holders[0].Owner, want+" (process ") || st.Holders[0].Address == "" || st.Holders[0].Since.IsZero()) {
				t.Errorf("%q: Lookup gives %+v", label, st)
			}
			return err == nil
		})
		drivertest.Release(t, l)
	}
}

func TestAHolderKilledInTheMiddleOfAStatementIsNoticedByTheCheck(t *testing.T) {
	t.Parallel()
	s := database(t)
	b := opener(t, s.URL())
	blocker := must(t, b, request("other", time.Hour))
	p, err := redlocktest.StartClient(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	l := must(t, p, request("k", time.Hour))
	var killed atomic.Bool
	go answered(t.Context(), p, "other", time.Hour, &killed) //nolint:errcheck // it is killed
	drivertest.AwaitWaiters(t, b, "other", 1)
	killed.Store(true)
	p.Kill()
	next := must(t, b, waiting("k", 10*time.Second))
	if next.Grant().Fence <= l.Grant().Fence {
		t.Errorf("token %d after %d", next.Grant().Fence, l.Grant().Fence)
	}
	db := admin(t, s.URL())
	eventually(t, "its wait has gone", func() bool { return count(t, db, queued) == 0 })
	drivertest.Release(t, next)
	drivertest.Release(t, blocker)
}

// startTLSProxy is a server with TLS, which passes everything on to a server without, and returns its
// address.
func startTLSProxy(t *testing.T, target string) string {
	t.Helper()
	certified := httptest.NewTLSServer(nil) // for its certificate
	t.Cleanup(certified.Close)
	return serve(t, func(c net.Conn) {
		if _, err := io.ReadFull(c, make([]byte, 8)); err != nil { // the request for TLS
			return
		}
		_, _ = c.Write([]byte("S"))
		client := tls.Server(c, &tls.Config{Certificates: certified.TLS.Certificates})
		up, err := net.Dial("tcp", target)
		if err != nil {
			return
		}
		defer up.Close() //nolint:errcheck // the test's own
		go func() { _, _ = io.Copy(up, client); _ = up.Close() }()
		_, _ = io.Copy(client, up)
	})
}

// A caller that reads the answers gives up at any moment, and the next one reads on.
func TestCallersThatGiveUpEndNoConnection(t *testing.T) {
	t.Parallel()
	s := database(t)
	for name, url := range map[string]string{
		"without TLS": s.URL(),
		"with TLS":    strings.Replace(through(s.URL(), startTLSProxy(t, shared.s.Addr())), "sslmode=disable", "sslmode=require", 1),
	} {
		b := opener(t, url)
		held, mine := must(t, opener(t, s.URL()), request("held", time.Hour)), must(t, b, request("mine", time.Hour))
		for i := 0; i < 200; i += rounds(1, 3) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*10*time.Microsecond)
			r := request(fmt.Sprint("free", i), time.Hour)
			if i%5 == 0 {
				r = waiting("held", time.Hour)
			}
			if l, err := b.Acquire(ctx, r); err == nil {
				_, _ = l.Renew(ctx, &driver.Renewal{TTL: time.Hour})
				if err := l.Release(ctx); err != nil {
					t.Errorf("%s: Release: %v", name, err)
				}
			} else if v := drivertest.Verdict(err); v != "unknown" && v != "held" {
				t.Errorf("%s: %v", name, err)
			}
			cancel()
		}
		drivertest.Renew(t, mine, time.Hour)
		drivertest.Release(t, mine)
		drivertest.Release(t, held)
		nothingLeft(t, s)
	}
}

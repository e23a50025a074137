package sqltable_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	client "github.com/go-sql-driver/mysql"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/sqltable"
	"github.com/redlock-go/redlock/drivers/sqltable/mysql"
	"github.com/redlock-go/redlock/drivers/sqltable/pgtable"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// refusal asserts a refusal whose words contain all of want.
func refusal(t *testing.T, err error, forGood bool, want ...string) {
	t.Helper()
	var no *driver.RefusedError
	if !errors.As(err, &no) || (no.RetryAfter == 0) != forGood {
		t.Fatalf("want a refusal (for good: %v), got %v", forGood, err)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not say %q: %v", w, err)
		}
	}
}

// eventually waits for a condition; the test's own timeout bounds it.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// key returns a key's name as SQL text, for statements of the plain client.
func (p *place) key(name string) string {
	if p.dialect == sqltable.SQLite {
		return "CAST('" + name + "' AS BLOB)"
	}
	return "'" + name + "'"
}

func (p *place) rows(t *testing.T, key string) int64 {
	t.Helper()
	return p.number(t, "SELECT count(*) FROM "+p.table+" WHERE name = "+p.key(key))
}

func missingTable(t *testing.T, p *place) {
	bare := *p
	bare.url = strings.Replace(p.url, "setup=on", "setup=off", 1)
	b := bare.open(t)
	_, err := b.Acquire(t.Context(), request("k"))
	refusal(t, err, true, "an administrator must run: CREATE TABLE", p.table)
	found, err := b.Check(t.Context())
	if err != nil || len(found) == 0 || found[0].Severity != driver.SeverityUnsafe || found[0].Code != "refused" {
		t.Errorf("Check without the table: %+v, %v", found, err)
	}
	for statement := range strings.SplitSeq(b.SetupSQL(""), ";") {
		p.do(t, statement)
	}
	l := must(t, b, request("k"))
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
	p.do(t, "DROP TABLE "+p.table) // under a backend that has seen it
	_, err = b.Acquire(t.Context(), request("k"))
	refusal(t, err, true, "CREATE TABLE")
}

// looksMakeNothing: a look makes neither the table nor SQLite's file, and says that it is missing.
func looksMakeNothing(t *testing.T, p *place) {
	for _, setup := range []string{"setup=off", "setup=on"} {
		fresh := *p
		fresh.url = strings.Replace(p.url, "setup=on", setup, 1)
		what := "no table " + p.table
		made := func() bool {
			_, err := p.db.ExecContext(t.Context(), "SELECT count(*) FROM "+p.table)
			return err == nil
		}
		if p.server == nil {
			file := t.TempDir() + "/locks.db"
			fresh.url = "sqlite://" + file + "?" + setup
			what = "no file " + file
			made = func() bool {
				_, err := os.Stat(file)
				return err == nil
			}
		}
		b := fresh.open(t)
		state, err := b.Lookup(t.Context(), "k")
		listErr := b.List(t.Context(), "", func(s *driver.State) bool {
			t.Errorf("List yields %+v", s)
			return true
		})
		breakErr := b.Break(t.Context(), "k", driver.Holder{Fence: 1})
		found, checkErr := b.Check(t.Context())
		if len(found) != 1 || checkErr != nil || !strings.Contains(found[0].Summary, what) {
			t.Errorf("%s: Check gives %+v, %v", setup, found, checkErr)
		}
		if setup == "setup=off" {
			refusal(t, err, true, what, "CREATE TABLE")
			refusal(t, listErr, true, what)
			refusal(t, breakErr, true, what)
			_, err = b.Acquire(t.Context(), request("k"))
			refusal(t, err, true, what)
		} else if err != nil || len(state.Holders) > 0 || listErr != nil || !errors.Is(breakErr, driver.ErrLost) || found[0].Code != "no-table" {
			t.Errorf("Lookup gives %+v, %v, List %v, Break %v, and Check %+v", state, err, listErr, breakErr, found)
		}
		if made() {
			t.Errorf("%s: it was made", setup)
		}
		if setup == "setup=on" {
			if err := must(t, b, request("k")).Release(t.Context()); err != nil || !made() {
				t.Errorf("%v, and it was made: %v", err, made())
			}
		}
	}
}

// The counters of unused keys are deleted, and their tokens are never given again, even if they
// were far ahead of the clock.
func tokensOverACleanUp(t *testing.T, p *place) {
	b := p.open(t)
	held := must(t, b, request("held"))
	last := map[string]uint64{}
	for i := range 130 { // more than a batch
		key := fmt.Sprint("k", i)
		l := must(t, b, request(key))
		last[key] = l.Grant().Fence
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	p.do(t, fmt.Sprintf("UPDATE %s SET fence = fence + 3600000000 WHERE name = %s", p.table, p.key("k7")))
	last["k7"] += 3600000000
	eventually(t, "the rows are gone", func() bool {
		if err := b.Clean(t.Context(), time.Millisecond); err != nil {
			t.Fatal(err)
		}
		return p.number(t, "SELECT count(*) FROM "+p.table) == 2
	})
	if p.rows(t, "held") != 1 {
		t.Error("the row of a held key has gone")
	}
	for key, before := range last {
		if l := must(t, b, request(key)); l.Grant().Fence <= before {
			t.Errorf("key %q has token %d after %d", key, l.Grant().Fence, before)
		}
	}
	if _, err := held.Renew(t.Context(), &driver.Renewal{TTL: time.Minute}); err != nil {
		t.Error(err)
	}
}

// Keys come and go while rows are deleted all the time.
func cleanUpBesideUsers(t *testing.T, p *place) {
	b := p.open(t)
	ctx, cancel := context.WithCancel(t.Context())
	var cleaning sync.WaitGroup
	cleaning.Go(func() {
		for ctx.Err() == nil {
			_ = b.Clean(ctx, time.Microsecond)
		}
	})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			last := uint64(0)
			for range 25 {
				l, err := b.Acquire(t.Context(), request(fmt.Sprint("w", w)))
				if err != nil {
					var no *driver.RefusedError
					if errors.As(err, &no) && no.RetryAfter > 0 {
						continue // a busy SQLite
					}
					t.Error(err)
					return
				}
				if f := l.Grant().Fence; f <= last {
					t.Errorf("token %d after %d", f, last)
				}
				last = l.Grant().Fence
				_ = l.Release(t.Context())
			}
		})
	}
	wg.Wait()
	cancel()
	cleaning.Wait()
}

// A statement that reaches the server after its call's deadline takes nothing, even if nobody
// undoes it.
func lateStatement(t *testing.T, p *place) {
	proxy := fault.NewProxy(t, p.server.Addr())
	b, err := p.driver.Open(&driver.Config{DSN: strings.Replace(p.url, p.server.Addr(), proxy.Addr(), 1) + "&conns=1&call_timeout=150ms"})
	if err != nil {
		t.Fatal(err)
	}
	ready(t, b)
	eventually(t, "the clean-up in the background is over", func() bool {
		before := proxy.Stats().ToServer
		time.Sleep(20 * time.Millisecond)
		return proxy.Stats().ToServer == before
	})
	proxy.Pause()
	before := proxy.Stats().ToServer
	if _, err := b.Acquire(t.Context(), request("k")); err == nil || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrRefused) {
		t.Errorf("nobody answered, and yet: %v", err)
	}
	_ = b.Close() // nothing is undone any more
	proxy.Resume()
	eventually(t, "the statement arrives", func() bool { return proxy.Stats().ToServer > before })
	other := p.open(t)
	for range 20 { // whenever it takes effect
		if err := must(t, other, request("k")).Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// Close ends an attempt whose statement the server has carried out, and undoes it: no lock stays
// that nobody has.
func closedUnderAnAttempt(t *testing.T, p *place) {
	other, proxy := p.open(t), fault.NewProxy(t, p.server.Addr())
	b, err := p.driver.Open(&driver.Config{DSN: strings.Replace(p.url, p.server.Addr(), proxy.Addr(), 1) + "&conns=1&" + patient})
	if err != nil {
		t.Fatal(err)
	}
	ready(t, b)
	taken := make(chan struct{})
	var lost atomic.Bool
	proxy.Judge(fault.ToClient, func(_ int64, chunk []byte) (int, fault.Action) {
		s, err := other.Lookup(context.Background(), "k")
		if err != nil || len(s.Holders) == 0 || lost.Swap(true) {
			return len(chunk), fault.Pass
		}
		close(taken)
		return 0, fault.Mute
	})
	failed := make(chan error)
	go func() {
		_, err := b.Acquire(context.Background(), request("k"))
		failed <- err
	}()
	select {
	case <-taken:
	case err := <-failed:
		t.Fatalf("no answer was held back: %v", err)
	}
	closed := make(chan error)
	go func() { closed <- b.Close() }()
	if err := <-failed; !errors.Is(err, driver.ErrClosed) {
		t.Errorf("Acquire gives %v, not ErrClosed", err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if err := must(t, other, request("k")).Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// breaking opens connections of which some statements fail: fails returns the error of a statement,
// before it is sent or after its effect. As with pgx and the simple protocol, ErrBadConn does not
// mean that nothing was sent.
type breaking struct {
	driver sqldriver.Driver
	dsn    string
	fails  func(query string, args []sqldriver.NamedValue) (after bool, err error)
}

func (b *breaking) Driver() sqldriver.Driver { return b.driver }

func (b *breaking) Connect(context.Context) (sqldriver.Conn, error) {
	c, err := b.driver.Open(b.dsn)
	return &breakingConn{c, b}, err
}

type breakingConn struct {
	sqldriver.Conn
	of *breaking
}

func (c *breakingConn) ExecContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	after, fails := c.of.fails(query, args)
	if fails != nil && !after {
		return nil, fails
	}
	r, err := c.Conn.(sqldriver.ExecerContext).ExecContext(ctx, query, args)
	if fails != nil {
		return nil, errors.Join(fails, err)
	}
	return r, err
}

func (c *breakingConn) QueryContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	after, fails := c.of.fails(query, args)
	if fails != nil && !after {
		return nil, fails
	}
	r, err := c.Conn.(sqldriver.QueryerContext).QueryContext(ctx, query, args)
	if fails != nil && err == nil {
		for values := make([]sqldriver.Value, len(r.Columns())); err == nil; err = r.Next(values) {
		}
		_ = r.Close()
		return nil, fails
	}
	return r, err
}

// tooMany is a refusal of each database: it has too many connections, or the disk is full.
type tooMany struct{}

func (tooMany) Error() string    { return "too many" }
func (tooMany) Number() uint16   { return 1040 }
func (tooMany) SQLState() string { return "53300" }
func (tooMany) Code() int        { return 13 }

// brokenRepeat: a connection breaks under a statement that took the lock, and what is asked next
// fails too. The outcome is unknown, and the lock does not stay until its TTL.
func brokenRepeat(t *testing.T, p *place) {
	other := p.open(t)
	for key, fails := range map[string]func(n int, query string) error{
		"the repeat is refused": func(n int, _ string) error {
			if n == 1 {
				return tooMany{}
			}
			return nil
		},
		"the question after it is lost": func(_ int, query string) error {
			if strings.HasPrefix(query, "SELECT") {
				return sqldriver.ErrBadConn
			}
			return nil
		},
	} {
		t.Run(key, func(t *testing.T) {
			drivertest.Release(t, drivertest.Grant(t, other, request(key))) // the row
			var armed atomic.Bool
			var n atomic.Int64
			db := sql.OpenDB(&breaking{p.db.Driver(), p.dsn[1], func(query string, _ []sqldriver.NamedValue) (bool, error) {
				if !armed.Load() || !strings.Contains(query, "granted") { // the clean-up's
					return false, nil
				}
				i := int(n.Add(1)) - 1
				if i == 0 {
					return true, sqldriver.ErrBadConn
				}
				return false, fails(i, query)
			}})
			t.Cleanup(func() { _ = db.Close() })
			b := p.on(t, db, &sqltable.Options{Table: p.table})
			drivertest.Release(t, drivertest.Grant(t, b, request("other"))) // all is asked
			armed.Store(true)
			_, err := b.Acquire(t.Context(), drivertest.NewRequest(key, time.Hour))
			armed.Store(false)
			if v := drivertest.Verdict(err); v != "unknown" {
				t.Errorf("Acquire is %s, not unknown: %v", v, err)
			}
			if errors.Is(fails(1, ""), tooMany{}) && (!errors.Is(err, tooMany{}) || strings.Count(err.Error(), p.dialect.String()) != 1) {
				t.Errorf("the error does not wrap that of the database, or does not name it once: %v", err)
			}
			eventually(t, "the key is free", func() bool {
				l, err := other.Acquire(t.Context(), request(key))
				if err == nil {
					drivertest.Release(t, l)
				}
				return err == nil
			})
		})
	}
}

// overtaken: a connection breaks under a statement that takes the lock, which the network holds
// back. Its repeat takes the lock, and the statement arrives after the release: it does not hold
// the lock until its TTL.
func overtaken(t *testing.T, p *place) {
	other := p.open(t)
	drivertest.Release(t, drivertest.Grant(t, other, request("k"))) // the row
	var late func() int64
	db := sql.OpenDB(&breaking{p.db.Driver(), p.dsn[1], func(query string, args []sqldriver.NamedValue) (bool, error) {
		if !strings.Contains(query, "granted = ") || late != nil {
			return false, nil
		}
		values := make([]any, len(args))
		for i := range args {
			values[i] = args[i].Value
		}
		late = func() int64 {
			r, err := p.db.ExecContext(context.Background(), query, values...)
			if err != nil {
				t.Fatal(err)
			}
			n, _ := r.RowsAffected()
			return n
		}
		return false, sqldriver.ErrBadConn
	}})
	t.Cleanup(func() { _ = db.Close() })
	b := p.on(t, db, &sqltable.Options{Table: p.table, CallTimeout: 3 * time.Second})
	eventually(t, "the statement arrives in time", func() bool {
		late = nil
		drivertest.Release(t, drivertest.Grant(t, b, drivertest.NewRequest("k", time.Hour)))
		return late() > 0
	})
	eventually(t, "the key is free", func() bool {
		s, err := other.Lookup(t.Context(), "k")
		return err == nil && len(s.Holders) == 0
	})
}

// denied is the refusal of each database that a permission is missing.
type denied struct{}

func (denied) Error() string    { return "denied" }
func (denied) Number() uint16   { return 1142 }
func (denied) SQLState() string { return "42501" }
func (denied) Code() int        { return 3 }

// brokenSetup: a connection breaks under the statement that makes the table, and its repeat is
// refused. The refusal says what to do.
func brokenSetup(t *testing.T, p *place) {
	n := 0
	db := sql.OpenDB(&breaking{p.db.Driver(), p.dsn[1], func(query string, _ []sqldriver.NamedValue) (bool, error) {
		if !strings.HasPrefix(query, "CREATE TABLE") {
			return false, nil
		}
		if n++; n == 1 {
			return false, sqldriver.ErrBadConn
		}
		return false, denied{}
	}})
	t.Cleanup(func() { _ = db.Close() })
	_, err := p.on(t, db, &sqltable.Options{Table: p.table, Setup: true, CallTimeout: 30 * time.Second}).Acquire(t.Context(), request("k"))
	refusal(t, err, true, "an administrator must run: CREATE TABLE")
}

// A row that another transaction has locked delays no call beyond its timeout, and a statement
// that waited in vain leaves no lock.
func rowLocked(t *testing.T, p *place) {
	b := p.open(t, "call_timeout=200ms")
	ready(t, b)
	tx, err := p.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // the test's own
	if _, err := tx.ExecContext(t.Context(), "UPDATE "+p.table+" SET granted = 1 WHERE name = 'k'"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Acquire(t.Context(), request("k")); err == nil || errors.Is(err, driver.ErrHeld) {
		t.Errorf("the row is locked, and yet: %v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the key is free", func() bool {
		l, err := b.Acquire(t.Context(), request("k"))
		if err == nil {
			_ = l.Release(t.Context())
		}
		return err == nil
	})
}

// Callers that give up while a row is locked leave about as many statements behind as the limit of
// connections, and not one each: the database goes on serving others.
func rowLockedForLong(t *testing.T, p *place) {
	ready(t, p.open(t))
	tx, err := p.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // the test's own
	if _, err := tx.ExecContext(t.Context(), "DELETE FROM "+p.table+" WHERE name = 'k'"); err != nil {
		t.Fatal(err)
	}
	count := "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
	if p.dialect == sqltable.MySQL {
		count = "SELECT count(*) FROM information_schema.processlist"
	}
	const backends, conns = 2, 3
	before := p.number(t, count)
	var callers sync.WaitGroup
	for range backends {
		b := p.open(t, fmt.Sprintf("call_timeout=100ms&conns=%d", conns))
		for range 2 * conns {
			callers.Go(func() {
				for range 15 {
					if l, err := b.Acquire(t.Context(), request("k")); err == nil || errors.Is(err, driver.ErrHeld) {
						t.Errorf("the row is locked, and yet: %v, %v", l, err)
					}
				}
			})
		}
	}
	done := make(chan struct{})
	go func() { defer close(done); callers.Wait() }()
	for most := before + 2*backends*conns; ; { // twice, because a busy server ends late
		if n := p.number(t, count); n > most {
			t.Errorf("%d connections, and %d before: the limit of %d backends is %d each", n, before, backends, conns)
			most = n
		}
		select {
		case <-done:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// A lease is never shorter than a call may last.
func shortLeases(t *testing.T, p *place) {
	b := p.open(t)
	ready(t, b)
	least := b.Info().MinTTL
	if _, err := b.Acquire(t.Context(), drivertest.NewRequest("k", least-1)); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a TTL under %v: %v", least, err)
	}
	eventually(t, "a lease of the least TTL lasts until the call returns", func() bool {
		l, err := b.Acquire(t.Context(), drivertest.NewRequest("k", least))
		return err == nil && time.Now().Before(l.Grant().Expires)
	})
}

// A table may have any name, also one that the statements' own words are part of.
func oddNames(t *testing.T, p *place) {
	for _, name := range []string{"MARKET", "TOKENS", "NOWHERE", "TABLES", "NAMES", "LEASTS", "BYTES"} {
		own := *p
		own.url = strings.Replace(p.url, "table="+p.table, "table="+name, 1)
		b := own.open(t)
		l := must(t, b, request("k"))
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("%s: Release: %v", name, err)
		}
		time.Sleep(2 * time.Millisecond) // the server's clock goes on
		if err := b.Clean(t.Context(), time.Microsecond); err != nil {
			t.Errorf("%s: Clean: %v", name, err)
		}
	}
}

// Tables and settings with which locks do not work are refused, and the error says what to do.
func oddTables(t *testing.T, p *place) {
	acquire := func(db *sql.DB) error {
		_, err := p.on(t, db, &sqltable.Options{Table: p.table}).Acquire(t.Context(), request("k"))
		return err
	}
	name := map[sqltable.Dialect]string{sqltable.MySQL: "varbinary(512)", sqltable.Postgres: "bytea", sqltable.SQLite: "blob"}[p.dialect]
	columns := "(name " + name + " NOT NULL, owner " + name + " NOT NULL, fence bigint NOT NULL, granted bigint NOT NULL, expires bigint NOT NULL)"
	p.do(t, "CREATE TABLE "+p.table+" "+columns)
	refusal(t, acquire(p.db), true, "primary key")
	if p.dialect != sqltable.MySQL {
		return
	}
	p.do(t, "ALTER TABLE "+p.table+" ADD PRIMARY KEY (name), ENGINE=MyISAM")
	refusal(t, acquire(p.db), true, "MyISAM", "ENGINE=InnoDB")
	p.do(t, "ALTER TABLE "+p.table+" ENGINE=InnoDB")
	refusal(t, acquire(database(t, p.dsn[0], p.dsn[1]+"?sql_mode=%27EMPTY_STRING_IS_NULL%27")), true, "EMPTY_STRING_IS_NULL")
	if err := acquire(p.db); err != nil {
		t.Error(err)
	}
}

// PostgreSQL has two forms for bytes, and a database can choose the old one.
func escapedBytes(t *testing.T, p *place) {
	ready(t, p.open(t))
	b := p.on(t, database(t, p.dsn[0], p.dsn[1]+"&bytea_output=escape&default_query_exec_mode=exec"), &sqltable.Options{Table: p.table, CallTimeout: 30 * time.Second})
	must(t, b, request("k"))
	var held *driver.HeldError
	if _, err := b.Acquire(t.Context(), request("k")); !errors.As(err, &held) || held.Holder == "" {
		t.Errorf("Acquire of a held key: %v", err)
	}
	found := 0
	if err := b.List(t.Context(), "", func(*driver.State) bool { found++; return true }); err != nil || found != 1 {
		t.Errorf("List: %d keys, %v", found, err)
	}
}

// A lease that ended is never renewed and frees nothing, though its row is still as it was.
func staleHolder(t *testing.T, p *place) {
	b := p.open(t)
	var l driver.Lease
	eventually(t, "it is granted", func() (ok bool) { // half of the TTL bounds the attempt
		r := request("k")
		r.TTL = 200 * time.Millisecond
		var err error
		l, err = b.Acquire(t.Context(), r)
		return err == nil
	})
	eventually(t, "it is over", func() bool {
		s, err := b.Lookup(t.Context(), "k")
		return err == nil && len(s.Holders) == 0
	})
	if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Minute}); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew after the end: %v", err)
	}
	next := must(t, b, request("k"))
	if err := l.Release(t.Context()); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release after another's grant: %v", err)
	}
	if _, err := next.Renew(t.Context(), &driver.Renewal{TTL: time.Minute}); err != nil {
		t.Errorf("the next holder: %v", err)
	}
}

// clients uses the table through clients with various settings.
func clients(t *testing.T, p *place) {
	_ = must(t, p.open(t), request("made")).Release(t.Context()) // the table
	name, dsn := p.dsn[0], p.dsn[1]
	settings := map[sqltable.Dialect][]string{
		sqltable.MySQL: {
			"?clientFoundRows=true", "?interpolateParams=true&parseTime=true&loc=Local", "?clientFoundRows=true&interpolateParams=true",
			"?tx_isolation='READ-COMMITTED'", "?tx_isolation='SERIALIZABLE'", "?sql_mode='ANSI,ALLOW_INVALID_DATES'", "?time_zone='-11:00'",
		},
		sqltable.Postgres: {
			"", "&default_query_exec_mode=exec", "&default_query_exec_mode=simple_protocol", "&default_transaction_isolation=serializable",
			"&default_transaction_isolation=repeatable%20read", "&timezone=Asia/Kathmandu", "&standard_conforming_strings=on",
		},
		sqltable.SQLite: {"", "&_txlock=immediate", "&_pragma=synchronous(OFF)"},
	}
	for i, more := range settings[p.dialect] {
		key := fmt.Sprint("client ", i)
		b := p.on(t, database(t, name, dsn+more), &sqltable.Options{Table: p.table, CallTimeout: 30 * time.Second})
		for range 2 { // without a row, and with one
			l := must(t, b, request(key))
			first := l.Grant().Fence
			for range 5 {
				if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Minute}); err != nil {
					t.Errorf("%q: Renew: %v", more, err)
				}
			}
			var held *driver.HeldError
			r := request(key)
			if _, err := b.Acquire(t.Context(), r); !errors.As(err, &held) || held.RetryAfter < 50*time.Second || held.RetryAfter > time.Minute {
				t.Errorf("%q: held, and yet: %v", more, err)
			}
			if err := l.Release(t.Context()); err != nil {
				t.Errorf("%q: Release: %v", more, err)
			}
			l = must(t, b, r)
			if f := l.Grant().Fence; f <= first || f < uint64(time.Now().Add(-time.Minute).UnixMicro()) || f > uint64(time.Now().Add(time.Minute).UnixMicro()) {
				t.Errorf("%q: tokens %d, %d", more, first, f)
			}
			if err := b.Break(t.Context(), key, driver.Holder{Fence: l.Grant().Fence}); err != nil {
				t.Errorf("%q: Break: %v", more, err)
			}
			if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Minute}); !errors.Is(err, driver.ErrLost) {
				t.Errorf("%q: Renew of a broken lock: %v", more, err)
			}
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	if p.dialect == sqltable.MySQL {
		b := p.on(t, database(t, name, dsn+"?autocommit=0"), &sqltable.Options{Table: p.table, CallTimeout: 30 * time.Second})
		_, err := b.Acquire(t.Context(), request("k"))
		refusal(t, err, true, "autocommit")
	}
	if _, err := sqltable.New(nil, p.dialect, nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("no database: %v", err)
	}
	if _, err := sqltable.New(p.db, 9, nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("an unknown dialect: %v", err)
	}
	if _, err := sqltable.New(p.db, p.dialect, &sqltable.Options{Table: "a;b"}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a table's name with a semicolon: %v", err)
	}
}

// A hundred ask for one key on two connections, one gets it, and the others are told who has it.
func fewConnections(t *testing.T, p *place) {
	b := p.open(t, "conns=2")
	var mu sync.Mutex
	granted := 0
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			_, err := b.Acquire(t.Context(), request("k"))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				granted++
			} else if !errors.Is(err, driver.ErrHeld) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if granted != 1 {
		t.Errorf("%d of 100 were granted", granted)
	}
}

// Many programs that start together make one table.
func setUpByMany(t *testing.T, p *place) {
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			b, err := p.driver.Open(&driver.Config{DSN: p.url + "&" + patient})
			if err != nil {
				t.Error(err)
				return
			}
			defer b.Close() //nolint:errcheck // the test's own
			if l, err := b.Acquire(t.Context(), request(fmt.Sprint("k", i))); err != nil {
				t.Error(err)
			} else if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func counterAtItsEnd(t *testing.T, p *place) {
	b := p.open(t)
	_ = must(t, b, request("k")).Release(t.Context())
	p.do(t, fmt.Sprintf("UPDATE %s SET fence = %d WHERE name = %s", p.table, uint64(driver.MaxFence), p.key("k")))
	_, err := b.Acquire(t.Context(), request("k"))
	refusal(t, err, true, "token")
}

func checks(t *testing.T, p *place) {
	b := p.open(t)
	l := must(t, b, request("k"))
	found, err := b.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	said := fmt.Sprintf("%+v", found)
	want := map[sqltable.Dialect]string{
		sqltable.MySQL: "innodb_flush_log_at_trx_commit", sqltable.Postgres: "fsync is off", sqltable.SQLite: "version 3.",
	}[p.dialect]
	if !strings.Contains(said, want) || !strings.Contains(said, "has 1 keys") {
		t.Errorf("Check says nothing of %q: %s", want, said)
	}
	_ = l.Release(t.Context())
}

// wrongClock: a server whose clock is wrong is found, until the clock is right again.
func wrongClock(t *testing.T, p *place) {
	db := database(t, p.dsn[0], p.dsn[1])
	db.SetMaxOpenConns(1)
	clock := func(unix string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), "SET timestamp = "+unix); err != nil {
			t.Fatal(err)
		}
	}
	b := p.on(t, db, &sqltable.Options{Table: p.table, Setup: true, CallTimeout: 30 * time.Second})
	_ = must(t, b, request("k")).Release(t.Context()) // the table
	clock("1700000000")
	drivertest.AwaitFinding(t, b, "clock-offset")
	clock("DEFAULT")
	drivertest.AwaitMended(t, b, "clock-offset")
}

// A cluster answers as a node of a MySQL cluster does: its setting is not that of the server.
type cluster struct {
	sqldriver.Connector
	setting atomic.Pointer[string] // a query of names and values; nil: those of the server
}

func (c *cluster) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	return clusterConn{conn, c}, err
}

type clusterConn struct {
	sqldriver.Conn
	of *cluster
}

func (c clusterConn) QueryContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	if setting := c.of.setting.Load(); setting != nil && strings.HasPrefix(query, "SHOW GLOBAL VARIABLES") {
		query = *setting
	}
	return c.Conn.(sqldriver.QueryerContext).QueryContext(ctx, query, args)
}

func (c clusterConn) ExecContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	return c.Conn.(sqldriver.ExecerContext).ExecContext(ctx, query, args)
}

// clusters: where every node takes writes no lock is granted, unless all clients reach the same
// node. Check tells of such a cluster, until it is none.
func clusters(t *testing.T, p *place) {
	cfg, err := client.ParseDSN(p.dsn[1])
	if err != nil {
		t.Fatal(err)
	}
	connector, err := client.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{Connector: connector}
	db := sql.OpenDB(c)
	t.Cleanup(func() { _ = db.Close() })
	backend := func(single bool) *sqltable.Backend {
		return p.on(t, db, &sqltable.Options{Table: p.table, Setup: true, SingleWriter: single, CallTimeout: 30 * time.Second})
	}
	for setting, kind := range map[string]string{
		"SELECT 'group_replication_single_primary_mode', 'OFF'":                          "group replication",
		"SELECT 'wsrep_on', 'ON' UNION ALL SELECT 'innodb_flush_log_at_trx_commit', '1'": "Galera",
	} {
		c.setting.Store(&setting)
		b := backend(false)
		_, err = b.Acquire(t.Context(), request("k"))
		refusal(t, err, true, kind, "single_writer=true")
		drivertest.AwaitFinding(t, b, "refused")
		if err := must(t, backend(true), request("k")).Release(t.Context()); err != nil {
			t.Error(err)
		}
		if kind == "Galera" {
			b = backend(true)
			drivertest.AwaitFinding(t, b, "galera")
			c.setting.Store(nil)
			drivertest.AwaitMended(t, b, "galera")
		}
	}
}

// If the server refuses a request, the error is a refusal that says why, without the password.
func refusals(t *testing.T, p *place) {
	_ = must(t, p.open(t), request("k")).Release(t.Context()) // the table
	if p.server == nil {
		ro := database(t, p.dsn[0], p.dsn[1]+"&mode=ro")
		_, err := p.on(t, ro, &sqltable.Options{Table: p.table, CallTimeout: 30 * time.Second}).Acquire(t.Context(), request("k"))
		refusal(t, err, true, "read-only")
		b, err := p.driver.Open(&driver.Config{DSN: "sqlite:///no/such/folder/locks.db?setup=on"})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close() //nolint:errcheck // the test's own
		_, err = b.Acquire(t.Context(), request("k"))
		refusal(t, err, true, "folder")
		return
	}
	const canary = "pw-c4n4ry"
	try := func(url string) error {
		b, err := p.driver.Open(&driver.Config{DSN: url + "?table=" + p.table + "&" + patient})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close() //nolint:errcheck // the test's own
		_, err = b.Acquire(t.Context(), request("k"))
		if said := fmt.Sprintf("%v %+v %v", err, err, b); strings.Contains(said, canary) {
			t.Errorf("the error has the password: %s", said)
		}
		return err
	}
	base, _, _ := strings.Cut(p.url, "?")
	if p.dialect == sqltable.MySQL {
		p.do(t, "CREATE USER bob@'%' IDENTIFIED BY 'right'")
		bob := func(password, database string) error {
			return try(strings.Replace(withPassword(p.server.URLFor("bob", ""), password), "/test", "/"+database, 1))
		}
		refusal(t, bob(canary, "test"), true, "password")
		refusal(t, bob("right", "nothing"), true, "database")
		refusal(t, bob("right", "test"), true)
		p.do(t, "GRANT SELECT ON test.* TO bob@'%'")
		refusal(t, bob("right", "test"), true, "INSERT")
		p.do(t, "GRANT INSERT, UPDATE, DELETE ON test.* TO bob@'%'")
		p.do(t, "SET GLOBAL read_only = 1")
		refusal(t, bob("right", "test"), false, "read-only")
		p.do(t, "SET GLOBAL read_only = 0")
		if err := bob("right", "test"); err != nil {
			t.Errorf("with all that the user needs: %v", err)
		}
		return
	}
	if p.server != p.behind {
		return // the pooler lets everybody in as the superuser
	}
	p.do(t, "CREATE ROLE bob LOGIN")
	bob := strings.Replace(base, "postgres@", "bob@", 1)
	refusal(t, try(bob), true, "SELECT, INSERT, UPDATE and DELETE")
	setup, err := p.driver.Open(&driver.Config{DSN: bob + "?table=" + p.table})
	if err != nil {
		t.Fatal(err)
	}
	for statement := range strings.SplitSeq(setup.(*sqltable.Backend).SetupSQL(""), ";") {
		p.do(t, statement)
	}
	_ = setup.Close()
	if err := try(bob); err != nil {
		t.Errorf("with all that SetupSQL grants: %v", err)
	}
	refusal(t, try(strings.TrimSuffix(base, "postgres")+"nothing"), true, "database")
	p.do(t, "ALTER ROLE bob SET default_transaction_read_only = on")
	refusal(t, try(bob), false, "read-only")
}

// urls tells mistakes, refusals and failures apart.
func urls(t *testing.T, p *place) {
	const secret = "pw-c4n4ry"
	const quick = "&call_timeout=1s"
	_ = must(t, p.open(t), request("k")).Release(t.Context()) // the table
	cases := map[string]drivertest.URLCase{
		"fine":              {URL: p.url + quick, Want: "granted"},
		"another parameter": {URL: p.url + "&redlocktest=1", Want: "invalid"},
		"too short a time":  {URL: p.url + "&call_timeout=1ns", Want: "invalid"},
		"an empty table":    {URL: strings.Replace(p.url, "table="+p.table, "table=", 1), Want: "invalid"},
		"no table's name":   {URL: strings.Replace(p.url, "table="+p.table, "table=a;b", 1), Want: "invalid"},
	}
	if p.server == nil {
		cases["no folder"] = drivertest.URLCase{URL: "sqlite:///no/such/folder/locks.db?setup=on", Want: "refused", Says: "/no/such/folder: file does not exist"}
		drivertest.RunURLs(t, p.driver, "", 1500*time.Millisecond, cases)
		return
	}
	url := withPassword(p.url, secret) + quick
	hung, refusing := fault.NewProxy(t, p.server.Addr()), fault.NewProxy(t, p.server.Addr())
	hung.BlackHole()
	if err := refusing.Refuse(); err != nil {
		t.Fatal(err)
	}
	cases["it is down"] = drivertest.URLCase{URL: strings.Replace(url, p.server.Addr(), refusing.Addr(), 1), Want: "unknown"}
	cases["it hangs"] = drivertest.URLCase{URL: strings.Replace(url, p.server.Addr(), hung.Addr(), 1), Want: "unknown"}
	cases["half an address"] = drivertest.URLCase{URL: strings.Replace(url, p.server.Addr(), "[::1", 1), Want: "invalid"}
	switch {
	case p.dialect == sqltable.MySQL:
		p.do(t, "CREATE USER carol@'%' IDENTIFIED BY '"+secret+"'")
		p.do(t, "GRANT ALL ON test.* TO carol@'%'")
		p.do(t, "SET GLOBAL read_only = 1") // for all but root
		t.Cleanup(func() { p.do(t, "SET GLOBAL read_only = 0") })
		carol := strings.Replace(url, "root:", "carol:", 1)
		cases["a wrong password"] = drivertest.URLCase{URL: strings.Replace(carol, secret, secret+"x", 1), Want: "refused", Says: "password"}
		cases["an unknown user"] = drivertest.URLCase{URL: strings.Replace(url, "root:", "nobody:", 1), Want: "refused", Says: "password"}
		cases["it is read-only"] = drivertest.URLCase{URL: carol, Want: "refused", Says: "read-only"}
		cases["no database"] = drivertest.URLCase{URL: strings.Replace(carol, "/test?", "/nothing?", 1), Want: "refused", Says: "database"}
	case p.server == p.behind:
		p.do(t, "CREATE ROLE carol SUPERUSER LOGIN")
		p.do(t, "ALTER ROLE carol SET default_transaction_read_only = on")
		cases["it is read-only"] = drivertest.URLCase{URL: strings.Replace(url, "postgres:", "carol:", 1), Want: "refused", Says: "read-only"}
		cases["an unknown user"] = drivertest.URLCase{URL: strings.Replace(url, "postgres:", "nobody:", 1), Want: "refused"}
	}
	drivertest.RunURLs(t, p.driver, secret, 1500*time.Millisecond, cases)
}

// loss checks that a holder learns of a loss before another owner has the lock.
func loss(t *testing.T, p *place) { drivertest.RunLoss(t, p.harness(t), time.Second) }

// downAndHanging: a server that does not answer is neither contention nor a refusal.
func downAndHanging(t *testing.T, p *place) {
	b := p.open(t, "call_timeout=300ms")
	ready(t, b)
	unknown := func(what string) {
		t.Helper()
		_, err := b.Acquire(t.Context(), request("k"))
		if err == nil || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrRefused) || errors.Is(err, driver.ErrInvalid) || errors.Is(err, driver.ErrLost) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := p.server.Pause(); err != nil {
		t.Fatal(err)
	}
	unknown("a server that hangs")
	if err := p.server.Kill(); err != nil {
		t.Fatal(err)
	}
	unknown("a server that is down")
}

// A server that sends nonsense gets an error, and does not end the process.
func TestAHostileMySQLServerIsAnError(t *testing.T) {
	t.Parallel()
	greeting := append(append([]byte("\x0a8.0\x00\x01\x00\x00\x00abcdefgh\x00\xff\xff\x21\x02\x00\xff\xff\x15"), make([]byte, 10)...), "ijklmnopqrst\x00mysql_native_password\x00"...)
	packet := func(sequence byte, body []byte) []byte {
		return append([]byte{byte(len(body)), byte(len(body) >> 8), byte(len(body) >> 16), sequence}, body...)
	}
	streams := [][]byte{
		{0xff, 0xff, 0xff, 0}, {0, 0, 0, 0}, packet(0, []byte{0xff}), packet(0, []byte{0xff, 1, 1, '#'}),
		append(packet(0, greeting), packet(2, []byte{0xfe, 'x', 0})...),
		append(packet(0, greeting), packet(2, []byte{0, 0xfc})...),
		append(append(packet(0, greeting), packet(2, []byte{0, 0, 0, 2, 0, 0, 0})...), packet(1, []byte{0xfc})...),
		append(append(packet(0, greeting), packet(2, []byte{0, 0, 0, 2, 0, 0, 0})...), packet(1, []byte{0, 0xfd, 1})...),
	}
	for n := range greeting {
		streams = append(streams, packet(0, greeting[:n]))
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // the test is over
	stream := make(chan []byte, 1)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			bytes := <-stream
			stream <- bytes
			_, _ = conn.Write(bytes)
			go func() {
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}()
		}
	}()
	b, err := mysql.Driver{}.Open(&driver.Config{DSN: "mysql://root@" + listener.Addr().String() + "/test?call_timeout=50ms"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close() //nolint:errcheck // no database was ever reached
	for _, bytes := range streams {
		stream <- bytes
		if _, err := b.Acquire(t.Context(), request("k")); err == nil || errors.Is(err, driver.ErrHeld) {
			t.Errorf("after %q: %v", bytes, err)
		}
		<-stream
	}
}

// A process that is stopped in the middle of a statement keeps a SQLite file locked, since it has the
// locks of the file itself. Others are told so, and go on as soon as it does.
func TestAProcessStoppedInAStatementKeepsTheFileLocked(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process")
	}
	t.Parallel()
	p := sqlitePlace(t)
	busy, err := redlocktest.StartClient(p.url)
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close() //nolint:errcheck // nothing is held
	b, err := p.driver.Open(&driver.Config{DSN: p.url})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close() //nolint:errcheck // nothing is held
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if l, err := busy.Acquire(context.Background(), request("of a busy process")); err == nil {
				_ = l.Release(context.Background())
			}
		}
	}()
	ask := func() error {
		l, err := b.Acquire(t.Context(), request("k"))
		if err == nil {
			err = l.Release(t.Context())
		}
		return err
	}
	eventually(t, "a stop in the middle of a statement", func() bool {
		if err := busy.Pause(); err != nil {
			t.Fatal(err)
		}
		if err := ask(); err != nil && strings.Contains(err.Error(), "another process keeps the database locked") {
			return true
		}
		if err := busy.Resume(); err != nil {
			t.Fatal(err)
		}
		return false
	})
	if err := busy.Resume(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a lock after it", func() bool { return ask() == nil })
	close(stop)
	<-stopped
}

// A PostgreSQL that asks for a password, since the one of the other tests trusts everybody.
func TestAWrongPasswordIsRefusedByPostgres(t *testing.T) {
	if testing.Short() {
		t.Skip("a server of its own")
	}
	t.Parallel()
	const canary = "pw-c4n4ry"
	s := server.Postgres(t, server.WithSetting("synchronous_commit", "off"), server.WithHBA("host all bob 127.0.0.1/32 scram-sha-256"))
	p := place{}.client(t, "pgx", s.URL())
	p.do(t, "CREATE ROLE bob LOGIN PASSWORD 'right'")
	p.do(t, "GRANT CREATE ON SCHEMA public TO bob")
	for password, right := range map[string]bool{canary: false, "right": true} {
		backend, err := pgtable.Driver{}.Open(&driver.Config{DSN: strings.Replace(s.URLFor("bob", password), "postgres://", "pgtable://", 1) + "&setup=on&" + patient})
		if err != nil {
			t.Fatal(err)
		}
		_, err = backend.Acquire(t.Context(), request("k"))
		switch {
		case right && err != nil:
			t.Error(err)
		case right:
			drivertest.AwaitFinding(t, backend.(driver.Inspector), "synchronous-commit")
			drivertest.AwaitFinding(t, backend.(driver.Inspector), "fsync")
		case !right:
			refusal(t, err, true, "password")
			if strings.Contains(fmt.Sprintf("%+v", err), canary) {
				t.Errorf("the error has the password: %+v", err)
			}
		}
		_ = backend.Close()
	}
}

// The parameters of TLS work as in all drivers: only a server with a certificate of the given
// authority is trusted, and without TLS the parameters are refused.
func TestTLSOfMySQL(t *testing.T) {
	if testing.Short() {
		t.Skip("a server of its own")
	}
	t.Parallel()
	s := server.MariaDB(t, server.WithTLS(), server.WithSetting("log_bin", "changes"), server.WithSetting("server_id", "1"))
	url := s.URL() + "?setup=on&" + patient
	ask := func(extra string) error {
		b, err := mysql.Driver{}.Open(&driver.Config{DSN: url + extra})
		if err != nil {
			return err
		}
		defer b.Close() //nolint:errcheck // only asks
		for {
			l, err := b.Acquire(t.Context(), request("k"))
			if err == nil {
				drivertest.AwaitFinding(t, b.(driver.Inspector), "replica")
				drivertest.AwaitFinding(t, b.(driver.Inspector), "innodb-flush-log")
				return l.Release(t.Context())
			}
			if !errors.Is(err, driver.ErrHeld) {
				return err
			}
		}
	}
	if err := ask("&tls=on&ca=" + s.CAFile()); err != nil {
		t.Error(err)
	}
	if err := ask("&tls=on&insecure=true"); err != nil {
		t.Error(err)
	}
	if err := ask("&tls=on"); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("without the authority: %v", err)
	}
	if err := ask(""); err == nil {
		t.Error("a server that asks for TLS serves without it")
	}
	if err := ask("&ca=" + s.CAFile()); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("an authority without TLS: %v", err)
	}
}

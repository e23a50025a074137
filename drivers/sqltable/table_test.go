package sqltable_test

import (
	"bytes"
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/sqltable"
	"github.com/redlock-go/redlock/drivers/sqltable/mysql"
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
		drivertest.Release(t, l)
	}
	p.do(t, fmt.Sprintf("UPDATE %s SET fence = fence + 3600000000 WHERE name = %s", p.table, p.key("k7")))
	last["k7"] += 3600000000
	eventually(t, "the rows are gone", func() bool {
		if err := b.Clean(t.Context(), time.Millisecond); err != nil {
			t.Fatal(err)
		}
		return p.number(t, "SELECT count(*) FROM "+p.table) == 2
	})
	if p.number(t, "SELECT count(*) FROM "+p.table+" WHERE name = "+p.key("held")) != 1 {
		t.Error("the row of a held key has gone")
	}
	for key, before := range last {
		if l := must(t, b, request(key)); l.Grant().Fence <= before {
			t.Errorf("key %q has token %d after %d", key, l.Grant().Fence, before)
		}
	}
	drivertest.Renew(t, held, time.Minute)
}

// A statement that reaches the server after its call's deadline takes nothing, even if nobody
// undoes it.
func lateStatement(t *testing.T, p *place) {
	proxy := fault.NewProxy(t, p.server.Addr())
	b, err := p.driver.Open(&driver.Config{DSN: strings.Replace(p.url, p.server.Addr(), proxy.Addr(), 1) + "&conns=1&call_timeout=150ms"})
	if err != nil {
		t.Fatal(err)
	}
	const key = "late-statement"
	name := []byte(hex.EncodeToString([]byte(key))) // as statements have it
	other := p.open(t)
	drivertest.Release(t, must(t, other, request(key))) // there is a row
	var held atomic.Bool
	resumed := make(chan struct{})
	resume := sync.OnceFunc(func() { close(resumed) })
	t.Cleanup(resume)
	proxy.Judge(fault.ToServer, func(_ int64, chunk []byte) (int, fault.Action) {
		if held.Load() || bytes.Contains(chunk, name) {
			held.Store(true) // nor does what would undo it arrive
			<-resumed
		}
		return len(chunk), fault.Pass
	})
	ready(t, b)
	for !held.Load() { // a call that waits for the only connection until its deadline sends nothing
		if _, err := b.Acquire(t.Context(), request(key)); err == nil || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrRefused) {
			t.Fatalf("nobody answered, and yet: %v", err)
		}
	}
	_ = b.Close() // nothing is undone any more
	before := proxy.Stats().ToServer
	resume()
	eventually(t, "the statement arrives", func() bool { return proxy.Stats().ToServer > before })
	for range 20 { // whenever it takes effect
		drivertest.Release(t, must(t, other, request(key)))
	}
}

// breaking opens connections of which some statements fail: fails returns the error of a statement,
// before it is sent or after its effect. As with pgx and the simple protocol, ErrBadConn does not
// mean that nothing was sent.
type breaking struct {
	driver  sqldriver.Driver
	dsn     string
	fails   func(query string, args []sqldriver.NamedValue) (after bool, err error)
	replace func(query string) string // a query by another
}

// breaking opens a database whose statements fail.
func (p *place) breaking(t *testing.T, fails func(query string, args []sqldriver.NamedValue) (after bool, err error)) *sql.DB {
	db := sql.OpenDB(&breaking{p.db.Driver(), p.dsn[1], fails, func(query string) string { return query }})
	t.Cleanup(func() { _ = db.Close() })
	return db
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
	r, err := c.Conn.(sqldriver.QueryerContext).QueryContext(ctx, c.of.replace(query), args)
	if fails != nil && err == nil {
		for values := make([]sqldriver.Value, len(r.Columns())); err == nil; err = r.Next(values) {
		}
		_ = r.Close()
		return nil, fails
	}
	return r, err
}

// A refused statement has the number of each database.
type refused struct {
	number uint16
	state  string
	code   int
}

func (refused) Error() string      { return "too many" }
func (r refused) Number() uint16   { return r.number }
func (r refused) SQLState() string { return r.state }
func (r refused) Code() int        { return r.code }

var (
	tooMany = refused{1040, "53300", 13} // connections, or the disk is full
	denied  = refused{1142, "42501", 3}  // a permission is missing
)

// overtaken: a connection breaks under a statement that takes the lock, which the network holds
// back. Its repeat takes the lock, and the statement arrives after the release: it does not hold
// the lock until its TTL.
func overtaken(t *testing.T, p *place) {
	other := p.open(t)
	drivertest.Release(t, must(t, other, request("k"))) // the row
	var late func() int64
	db := p.breaking(t, func(query string, args []sqldriver.NamedValue) (bool, error) {
		if !strings.Contains(query, "granted = ") || late != nil {
			return false, nil
		}
		late = p.again(t, query, args)
		return false, sqldriver.ErrBadConn
	})
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

// brokenSetup: a connection breaks under the statement that makes the table, and its repeat is
// refused. The refusal says what to do.
func brokenSetup(t *testing.T, p *place) {
	n := 0
	db := p.breaking(t, func(query string, _ []sqldriver.NamedValue) (bool, error) {
		if !strings.HasPrefix(query, "CREATE TABLE") {
			return false, nil
		}
		if n++; n == 1 {
			return false, sqldriver.ErrBadConn
		}
		return false, denied
	})
	_, err := p.on(t, db, &sqltable.Options{Table: p.table, Setup: true, CallTimeout: 30 * time.Second}).Acquire(t.Context(), request("k"))
	refusal(t, err, true, "an administrator must run: CREATE TABLE")
}

// A row that another transaction has locked delays no call beyond its timeout, and a statement that
// waited in vain leaves no lock. Callers that give up leave about as many statements behind as the limit of
// connections, and not one each: the database goes on serving others.
func rowLocked(t *testing.T, p *place) {
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
	over := false
	for most := before + 2*backends*conns; !over; { // twice, because a busy server ends late
		if n := p.number(t, count); n > most {
			t.Errorf("%d connections, and %d before: the limit of %d backends is %d each", n, before, backends, conns)
			most = n
		}
		select {
		case <-done:
			over = true
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	ready(t, p.open(t))
}

// Tables and settings with which locks do not work are refused, and the error says what to do.
func oddTables(t *testing.T, p *place) {
	acquire := func(db *sql.DB) error {
		_, err := p.on(t, db, &sqltable.Options{Table: p.table}).Acquire(t.Context(), request("k"))
		return err
	}
	name := map[sqltable.Dialect]string{sqltable.MySQL: "varbinary(512)", sqltable.Postgres: "bytea", sqltable.SQLite: "blob"}[p.dialect]
	columns := "name " + name + " NOT NULL, owner " + name + " NOT NULL, fence bigint NOT NULL, granted bigint NOT NULL, expires bigint NOT NULL"
	p.do(t, "CREATE TABLE "+p.table+" ("+columns+", PRIMARY KEY (name))")
	refusal(t, acquire(p.db), true, "other columns")
	p.do(t, "DROP TABLE "+p.table)
	p.do(t, "CREATE TABLE "+p.table+" ("+columns+", readers "+name+")")
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

// Many programs that start together make one table.
func setUpByMany(t *testing.T, p *place) {
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			drivertest.Release(t, must(t, p.open(t), request(fmt.Sprint("k", i))))
		})
	}
	wg.Wait()
}

// loss checks that a holder learns of a loss before another owner has the lock.
func loss(t *testing.T, p *place) { drivertest.RunLoss(t, p.harness(t), time.Second) }

// noTable: every call says what is missing, and a statement that makes it, or makes it with setup=on.
func noTable(t *testing.T, p *place) {
	fresh := *p
	fresh.url = strings.Replace(p.url, "setup=on", "setup=off", 1)
	what := "no table " + p.table
	if p.server == nil {
		file := t.TempDir() + "/locks.db"
		fresh.url = "sqlite://" + file + "?setup=off"
		what = "no file " + file
	}
	b := fresh.open(t)
	_, lookupErr := b.Lookup(t.Context(), "k")
	_, lockErr := b.Acquire(t.Context(), request("k"))
	for _, err := range []error{
		lookupErr, lockErr, b.Break(t.Context(), "k", driver.Holder{Fence: 1}),
		b.List(t.Context(), "", func(*driver.State) bool { return true }),
	} {
		refusal(t, err, true, what, "an administrator must run: CREATE TABLE")
	}
	if found, err := b.Check(t.Context()); len(found) != 1 || err != nil || !strings.Contains(found[0].Summary, what) {
		t.Errorf("Check gives %+v, %v", found, err)
	}
	made := p.open(t)
	if s, err := made.Lookup(t.Context(), "k"); err != nil || len(s.Holders) > 0 {
		t.Errorf("Lookup with setup=on gives %+v, %v", s, err)
	}
	drivertest.Release(t, must(t, made, request("k")))
	if p.server == nil {
		return
	}
	p.do(t, "DROP TABLE "+p.table)
	for statement := range strings.SplitSeq(b.SetupSQL(""), ";") {
		p.do(t, statement)
	}
	drivertest.Release(t, must(t, b, request("k")))
	p.do(t, "DROP TABLE "+p.table) // under a backend that has seen it
	_, lockErr = b.Acquire(t.Context(), request("k"))
	refusal(t, lockErr, true, "CREATE TABLE")
}

// SQLite locks its whole file. Others are told so, and go on as soon as it is free.
func fileLocked(t *testing.T, p *place) {
	b := p.open(t, "call_timeout=100ms")
	ready(t, b)
	tx, err := p.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // the test's own
	if _, err := tx.ExecContext(t.Context(), "DELETE FROM "+p.table+" WHERE name = 'k'"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the error names the cause", func() bool {
		_, err := b.Acquire(t.Context(), request("k"))
		if drivertest.Verdict(err) == "granted" {
			t.Fatal("granted, though the file is locked")
		}
		return err != nil && strings.Contains(err.Error(), "another process keeps the database locked")
	})
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	ready(t, b)
}

// Keys come and go while rows are deleted all the time.
func cleanUpBesideUsers(t *testing.T, p *place) {
	b := p.open(t)
	ctx, cancel := context.WithCancel(t.Context())
	var cleaning, users sync.WaitGroup
	cleaning.Go(func() {
		for ctx.Err() == nil {
			_ = b.Clean(ctx, time.Microsecond)
		}
	})
	for w := range 4 {
		users.Go(func() {
			last := uint64(0)
			for range 25 {
				l := drivertest.Grant(t, b, request(fmt.Sprint("w", w)))
				if f := l.Grant().Fence; f <= last {
					t.Errorf("token %d after %d", f, last)
				}
				last = l.Grant().Fence
				_ = l.Release(t.Context())
			}
		})
	}
	users.Wait()
	cancel()
	cleaning.Wait()
}

// brokenRepeat: a connection breaks under a statement that took the lock, and what is asked next
// fails too. The outcome is unknown, and the lock does not stay until its TTL.
func brokenRepeat(t *testing.T, p *place) {
	other := p.open(t)
	for key, fails := range map[string]func(n int64, query string) error{
		"the repeat is refused": func(n int64, _ string) error {
			if n == 2 {
				return tooMany
			}
			return nil
		},
		"the question after it is lost": func(_ int64, query string) error {
			if strings.HasPrefix(query, "SELECT") {
				return sqldriver.ErrBadConn
			}
			return nil
		},
	} {
		drivertest.Release(t, must(t, other, request(key))) // the row
		var armed atomic.Bool
		var n atomic.Int64
		b := p.on(t, p.breaking(t, func(query string, _ []sqldriver.NamedValue) (bool, error) {
			if !armed.Load() || !strings.Contains(query, "granted") { // the clean-up's
				return false, nil
			}
			if i := n.Add(1); i > 1 {
				return false, fails(i, query)
			}
			return true, sqldriver.ErrBadConn
		}), &sqltable.Options{Table: p.table})
		drivertest.Release(t, must(t, b, request("other"))) // all is asked
		armed.Store(true)
		_, err := b.Acquire(t.Context(), drivertest.NewRequest(key, time.Hour))
		armed.Store(false)
		if v := drivertest.Verdict(err); v != "unknown" {
			t.Errorf("%s: Acquire is %s, not unknown: %v", key, v, err)
		}
		if key == "the repeat is refused" && (!errors.Is(err, tooMany) || !strings.HasPrefix(err.Error(), p.dialect.String()+": the database refuses: too many; ")) {
			t.Errorf("the error does not wrap that of the database, or does not say why: %v", err)
		}
		eventually(t, "the key is free", func() bool { return free(other, key) })
	}
}

// free reports whether a key can be had.
func free(b driver.Backend, key string) bool {
	l, err := b.Acquire(context.Background(), request(key))
	return err == nil && l.Release(context.Background()) == nil
}

// clients uses the table through clients with various settings.
func clients(t *testing.T, p *place) {
	ready(t, p.open(t)) // the table
	name, dsn := p.dsn[0], p.dsn[1]
	settings := map[sqltable.Dialect][]string{
		sqltable.MySQL: {
			"?clientFoundRows=true", "?interpolateParams=true&parseTime=true&loc=Local", "?clientFoundRows=true&interpolateParams=true",
			"?tx_isolation='READ-COMMITTED'", "?tx_isolation='SERIALIZABLE'", "?sql_mode='ANSI,ALLOW_INVALID_DATES'", "?time_zone='-11:00'",
		},
		sqltable.Postgres: {
			"", "&default_query_exec_mode=exec", "&default_query_exec_mode=simple_protocol", "&default_transaction_isolation=serializable",
			"&default_transaction_isolation=repeatable%20read", "&timezone=Asia/Kathmandu", "&standard_conforming_strings=on",
			"&bytea_output=escape&default_query_exec_mode=exec", // the old form of bytes
		},
		sqltable.SQLite: {"", "&_txlock=immediate", "&_pragma=synchronous(OFF)"},
	}
	for i, more := range settings[p.dialect] {
		key := fmt.Sprint("client ", i)
		b := p.on(t, database(t, name, dsn+more), &sqltable.Options{Table: p.table, CallTimeout: 30 * time.Second})
		last := uint64(time.Now().Add(-time.Minute).UnixMicro())
		for range 2 { // without a row, and with one
			l := must(t, b, request(key))
			if f := l.Grant().Fence; f <= last || f > uint64(time.Now().Add(time.Minute).UnixMicro()) {
				t.Errorf("%q: token %d after %d", more, f, last)
			}
			last = l.Grant().Fence
			for range 3 {
				drivertest.Renew(t, l, time.Minute)
			}
			var held *driver.HeldError
			if _, err := b.Acquire(t.Context(), request(key)); !errors.As(err, &held) || held.Holder == "" || held.RetryAfter < 50*time.Second || held.RetryAfter > time.Minute {
				t.Errorf("%q: held, and yet: %v", more, err)
			}
			found := 0
			if err := b.List(t.Context(), key, func(*driver.State) bool { found++; return true }); err != nil || found != 1 {
				t.Errorf("%q: List has %d keys, %v", more, found, err)
			}
			if err := b.Break(t.Context(), key, driver.Holder{Fence: last}); err != nil {
				t.Errorf("%q: Break: %v", more, err)
			}
			if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Minute}); !errors.Is(err, driver.ErrLost) {
				t.Errorf("%q: Renew of a broken lock: %v", more, err)
			}
		}
	}
	if _, err := sqltable.New(p.db, p.dialect, &sqltable.Options{Table: "a;b"}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a table with a semicolon: %v", err)
	}
}

// clusters: where every node takes writes no lock is granted, unless all clients reach the same
// node. Check tells of such a cluster, until it is none.
func clusters(t *testing.T, p *place) {
	var answers atomic.Pointer[string] // a query of names and values; nil: those of the server, and its clock
	db := sql.OpenDB(&breaking{
		p.db.Driver(), p.dsn[1], func(string, []sqldriver.NamedValue) (bool, error) { return false, nil },
		func(query string) string {
			other := answers.Load()
			switch {
			case other == nil:
				return query
			case strings.HasPrefix(query, "SHOW GLOBAL VARIABLES"):
				return *other
			}
			return strings.ReplaceAll(query, "UTC_TIMESTAMP(6)", "TIMESTAMPADD(HOUR, 1, UTC_TIMESTAMP(6))")
		},
	})
	t.Cleanup(func() { _ = db.Close() })
	o := sqltable.Options{Table: p.table, Setup: true, CallTimeout: 30 * time.Second}
	single := o
	single.SingleWriter = true
	for kind, setting := range map[string]string{
		"group replication": "SELECT 'group_replication_single_primary_mode', 'OFF'",
		"Galera":            "SELECT 'wsrep_on', 'ON' UNION ALL SELECT 'innodb_flush_log_at_trx_commit', '1'",
	} {
		answers.Store(&setting)
		b := p.on(t, db, &o)
		_, err := b.Acquire(t.Context(), request("k"))
		refusal(t, err, true, kind, "single_writer=true")
		drivertest.AwaitFinding(t, b, "refused")
		b = p.on(t, db, &single)
		drivertest.Release(t, must(t, b, request("k")))
		if kind == "Galera" {
			drivertest.AwaitFinding(t, b, "galera")
			d := drivertest.AwaitFinding(t, b, "clock-offset")
			if off, err := time.ParseDuration(d.Measured); err != nil || (off-time.Hour).Abs() > time.Minute {
				t.Errorf("Check of a server whose clock is an hour ahead: %+v", d)
			}
			answers.Store(nil)
			drivertest.AwaitMended(t, b, "galera")
		}
	}
}

// urls tells mistakes, refusals and failures apart, and no error has the password. What SetupSQL makes
// and grants is enough.
func urls(t *testing.T, p *place) {
	const secret = "pw-c4n4ry"
	ready(t, p.open(t)) // the table
	cases := map[string]drivertest.URLCase{
		"another parameter": {URL: p.url + "&redlocktest=1", Want: "invalid"},
		"too short a time":  {URL: p.url + "&call_timeout=1ns", Want: "invalid"},
		"an empty table":    {URL: strings.Replace(p.url, "table="+p.table, "table=", 1), Want: "invalid"},
	}
	add := func(name, user, password, database, want, says string) {
		u := withPassword(p.behindURL(user), password)
		if database != "" {
			u = strings.Replace(u, "/"+p.database+"?", "/"+database+"?", 1)
		}
		cases[name] = drivertest.URLCase{URL: u + "&table=" + p.table, Want: want, Says: says}
	}
	if p.server != nil {
		url := withPassword(p.url, secret) + "&call_timeout=1s"
		hung, refusing := fault.NewProxy(t, p.server.Addr()), fault.NewProxy(t, p.server.Addr())
		hung.BlackHole()
		if err := refusing.Refuse(); err != nil {
			t.Fatal(err)
		}
		cases["it is down"] = drivertest.URLCase{URL: strings.Replace(url, p.server.Addr(), refusing.Addr(), 1), Want: "unknown"}
		cases["it hangs"] = drivertest.URLCase{URL: strings.Replace(url, p.server.Addr(), hung.Addr(), 1), Want: "unknown"}
		cases["half an address"] = drivertest.URLCase{URL: strings.Replace(url, p.server.Addr(), "[::1", 1), Want: "invalid"}
		p.do(t, p.createUser("carol", secret))
		add("a user without rights", "carol", secret, "", "refused", map[sqltable.Dialect]string{sqltable.MySQL: "database", sqltable.Postgres: "SELECT, INSERT, UPDATE and DELETE"}[p.dialect])
		add("a wrong password", "carol", secret+"x", "", "refused", "password")
		add("an unknown user", "nobody", secret, "", "refused", "")
	}
	switch p.dialect {
	case sqltable.SQLite:
		cases["no folder"] = drivertest.URLCase{URL: "sqlite:///no/such/folder/locks.db?setup=on", Want: "refused", Says: "/no/such/folder: file does not exist"}
		ro := database(t, p.dsn[0], p.dsn[1]+"&mode=ro")
		_, err := p.on(t, ro, &sqltable.Options{Table: p.table, CallTimeout: 30 * time.Second}).Acquire(t.Context(), request("k"))
		refusal(t, err, true, "read-only")
	case sqltable.MySQL:
		p.do(t, p.createUser("dave", secret))
		p.do(t, "GRANT ALL ON test.* TO dave@'%'")
		p.do(t, p.createUser("erin", secret))
		p.do(t, "GRANT SELECT ON test.* TO erin@'%'")
		b, err := p.driver.Open(&driver.Config{DSN: withPassword(p.behindURL("erin"), secret) + "&table=" + p.table + "&" + patient})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close() //nolint:errcheck // it holds nothing
		_, err = b.Acquire(t.Context(), request("k"))
		refusal(t, err, true, "INSERT")
		add("no database", "dave", secret, "nothing", "refused", "database")
		p.do(t, "SET GLOBAL read_only = 1") // for all but root
		t.Cleanup(func() { p.do(t, "SET GLOBAL read_only = 0") })
		add("it is read-only", "dave", secret, "", "refused", "read-only")
	case sqltable.Postgres:
		p.do(t, p.createUser("dave", secret))
		setup, err := p.driver.Open(&driver.Config{DSN: p.behindURL("dave") + "&table=" + p.table})
		if err != nil {
			t.Fatal(err)
		}
		defer setup.Close() //nolint:errcheck // it has asked for nothing
		for statement := range strings.SplitSeq(setup.(backend).SetupSQL("dave"), ";") {
			p.do(t, statement)
		}
		add("with all that SetupSQL grants", "dave", secret, "", "granted", "")
		add("no database", "dave", secret, "nothing", "refused", "database")
		p.do(t, p.createUser("erin", secret))
		p.do(t, "ALTER ROLE erin SUPERUSER")
		p.do(t, "ALTER ROLE erin SET default_transaction_read_only = on")
		add("it is read-only", "erin", secret, "", "refused", "read-only")
	}
	drivertest.RunURLs(t, p.driver, secret, 1500*time.Millisecond, cases)
}

// The parameters of TLS work as in all drivers: only a server with a certificate of the given
// authority is trusted, and without TLS the parameters are refused.
func TestTLSOfMySQL(t *testing.T) {
	if testing.Short() {
		t.Skip("a server of its own")
	}
	t.Parallel()
	s := server.MariaDB(t, server.WithTLS())
	for extra, want := range map[string]string{
		"&tls=on&ca=" + s.CAFile(): "granted", "&tls=on&insecure=true": "granted", "&tls=on": "unknown", "": "refused", "&ca=" + s.CAFile(): "invalid",
	} {
		b, err := mysql.Driver{}.Open(&driver.Config{DSN: s.URL() + "?setup=on&" + patient + extra})
		if err == nil {
			var l driver.Lease
			if l, err = b.Acquire(t.Context(), drivertest.NewRequest("k"+extra, time.Minute)); err == nil {
				drivertest.Release(t, l)
			}
			_ = b.Close()
		}
		if got := drivertest.Verdict(err); got != want || extra == "&tls=on" && !strings.Contains(err.Error(), "certificate") {
			t.Errorf("with %q: %s, and not %s: %v", extra, got, want, err)
		}
	}
}

// A server that is past the deadline that a statement has refuses it, and the answer corrects the
// estimate of its clock.
func clockSetForward(t *testing.T, p *place) {
	b := p.on(t, p.db, &sqltable.Options{Table: p.table, Setup: true})
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		r := request("k")
		r.Mode = mode
		ready(t, b)
		b.SetClockForward(time.Hour)
		l := must(t, b, r)
		b.SetClockForward(time.Hour)
		drivertest.Renew(t, l, time.Minute)
		b.SetClockForward(time.Hour)
		drivertest.Release(t, l)
	}
}

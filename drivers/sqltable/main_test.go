package sqltable_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/sqltable"
	"github.com/redlock-go/redlock/drivers/sqltable/mysql"
	"github.com/redlock-go/redlock/drivers/sqltable/pgtable"
	"github.com/redlock-go/redlock/drivers/sqltable/sqlite"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func TestMain(m *testing.M) {
	redlocktest.ServeClient(func(url string) (driver.Backend, error) { return dlock.OpenBackend(url) })
	os.Exit(m.Run())
}

// A place is a database of one dialect that tests have to themselves.
type place struct {
	url      string // of the driver
	table    string
	driver   driver.Driver
	dialect  sqltable.Dialect
	db       *sql.DB        // a plain client
	dsn      [2]string      // of a plain client
	database string         // its name
	server   *server.Server // that the URL leads to; nil: none
	behind   *server.Server // the database, where server is a pooler
}

// places are the databases that the tests run on.
var places = map[string]func(testing.TB) *place{
	"mariadb":  mariadb,
	"sqlite":   sqlitePlace,
	"postgres": postgres,
	"bouncer":  bouncer,
}

func mariadb(t testing.TB) *place {
	s := server.MariaDB(t)
	return place{url: s.URL() + "?setup=on", driver: mysql.Driver{}, dialect: sqltable.MySQL, database: "test", server: s, behind: s}.client(t, "mysql", "root@tcp("+s.Addr()+")/test")
}

func sqlitePlace(t testing.TB) *place {
	file := t.TempDir() + "/locks.db"
	return place{url: "sqlite://" + file + "?setup=on", driver: sqlite.Driver{}, dialect: sqltable.SQLite}.client(t, "sqlite", "file:"+file+"?_pragma=busy_timeout(5000)")
}

// startPostgres starts a server that trusts everybody but some users.
func startPostgres(t testing.TB) *server.Server {
	return server.Postgres(t, server.WithHBA("host all carol 127.0.0.1/32 scram-sha-256", "host all dave 127.0.0.1/32 scram-sha-256", "host all erin 127.0.0.1/32 scram-sha-256"))
}

func postgres(t testing.TB) *place {
	s := startPostgres(t)
	return place{url: pgURL(s.URL()) + "&setup=on", driver: pgtable.Driver{}, dialect: sqltable.Postgres, database: "postgres", server: s, behind: s}.client(t, "pgx", s.URL())
}

func bouncer(t testing.TB) *place {
	pg := startPostgres(t)
	// Few connections to the server, so that clients share them.
	s := server.PgBouncer(t, pg, "transaction", server.WithSetting("default_pool_size", "4"),
		server.WithSetting("server_login_retry", "0.05")) // after the server was down
	return place{url: pgURL(s.URL()) + "&setup=on", driver: pgtable.Driver{}, dialect: sqltable.Postgres, database: "postgres", server: s, behind: pg}.client(t, "pgx", pg.URL())
}

// client opens the plain client of a place.
func (p place) client(t testing.TB, name, dsn string) *place {
	p.dsn = [2]string{name, dsn}
	p.db = database(t, name, dsn)
	return &p
}

func pgURL(url string) string { return strings.Replace(url, "postgres://", "pgtable://", 1) }

// behindURL is the URL of the database for a user, not by way of a pooler.
func (p *place) behindURL(user string) string {
	u := pgURL(p.behind.URLFor(user, ""))
	if !strings.Contains(u, "?") {
		u += "?"
	}
	return u
}

// createUser is the statement that makes a user with a password, and with no other right than to connect.
func (p *place) createUser(name, password string) string {
	if p.dialect == sqltable.MySQL {
		return "CREATE USER IF NOT EXISTS " + name + "@'%' IDENTIFIED BY '" + password + "'"
	}
	return "CREATE ROLE " + name + " LOGIN PASSWORD '" + password + "'"
}

func database(t testing.TB, client, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(client, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// patient is a call timeout that no busy machine exceeds.
const patient = "call_timeout=30s"

// A backend is a *sqltable.Backend, or one that a URL opened.
type backend interface {
	driver.Backend
	driver.Inspector
	driver.Admin
	SetupSQL(role string) string
	Clean(ctx context.Context, free time.Duration) error
}

// open opens a backend by URL.
func (p *place) open(t testing.TB, parameters ...string) backend {
	t.Helper()
	if !strings.Contains(fmt.Sprint(parameters), "call_timeout") {
		parameters = append(parameters, patient)
	}
	b, err := p.driver.Open(&driver.Config{DSN: strings.Join(append([]string{p.url}, parameters...), "&")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b.(backend)
}

// on opens a backend on the test's own client.
func (p *place) on(t testing.TB, db *sql.DB, o *sqltable.Options) *sqltable.Backend {
	t.Helper()
	b, err := sqltable.New(db, p.dialect, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// do runs a statement by the plain client.
func (p *place) do(t testing.TB, statement string, args ...any) {
	t.Helper()
	if _, err := p.db.ExecContext(context.Background(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// again returns what runs a statement once more, as one that arrives late, and tells how many rows it
// changed.
func (p *place) again(t testing.TB, query string, args []sqldriver.NamedValue) func() int64 {
	values := make([]any, len(args))
	for i := range args {
		values[i] = args[i].Value
	}
	return func() int64 {
		r, err := p.db.ExecContext(context.Background(), query, values...)
		if err != nil {
			t.Fatal(err)
		}
		n, _ := r.RowsAffected()
		return n
	}
}

// number returns the number that a query of the plain client selects.
func (p *place) number(t testing.TB, query string, args ...any) (n int64) {
	t.Helper()
	if err := p.db.QueryRowContext(context.Background(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// TestDialects runs the tests of tables on one server of each kind, each test with its own
// table.
func TestDialects(t *testing.T) {
	t.Parallel()
	for name, start := range places {
		if testing.Short() && name != "mariadb" && name != "sqlite" || name == "postgres" && !server.IsDeep() { // the pooler's includes it
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t)
			for i, test := range []struct {
				name string
				do   func(*testing.T, *place)
				on   func(*place) bool // nil: on every database
			}{
				{"no table", noTable, nil},
				{"tokens over a clean-up", tokensOverACleanUp, nil},
				{"clean-up beside users", cleanUpBesideUsers, nil},
				{"late statement", lateStatement, withServer},
				{"broken repeat", brokenRepeat, nil},
				{"overtaken", overtaken, nil},
				{"broken setup", brokenSetup, nil},
				{"row locked", rowLocked, withServer},
				{"odd tables", oddTables, nil},
				{"clients", clients, nil},
				{"set up by many", setUpByMany, nil},
				{"foreign values", foreignValues, nil},
				{"texts", texts, func(p *place) bool { return p.server == nil }},
				{"file locked", fileLocked, func(p *place) bool { return p.server == nil }},
				{"clusters", clusters, onMySQL},
				{"fence", fences, nil},
				{"urls", urls, nil},
				{"loss", loss, onMySQL},
				{"lone user", loneUser, nil},
				{"clock set forward", clockSetForward, nil},
				{"readers are seen", readersAreSeen, nil},
				{"writers are served", writersAreServed, nil},
				{"readers in doubt", readersInDoubt, nil},
			} {
				if test.on != nil && !test.on(p) {
					continue
				}
				own := *p
				own.table = fmt.Sprintf("MARKET_NOW_TOKEN_BYTES_TABLE_NAMES_LEAST_HAS_%d", i) // words of the statements
				if p.dialect == sqltable.Postgres {
					own.table = strings.ToLower(own.table) // so that tests need not quote it
				}
				own.url += "&table=" + own.table
				t.Run(test.name, func(t *testing.T) { test.do(t, &own) })
			}
		})
	}
}

// withServer: a proxy can stand before the database, and rows are locked.
func withServer(p *place) bool { return p.server != nil }

// onMySQL: the test needs what only MySQL has, or one server is enough for it.
func onMySQL(p *place) bool { return p.dialect == sqltable.MySQL }

func request(key string) *driver.Request { return drivertest.NewRequest(key, time.Minute) }

// must acquires.
func must(t testing.TB, b driver.Backend, r *driver.Request) driver.Lease {
	t.Helper()
	l, err := b.Acquire(context.Background(), r)
	if err != nil {
		t.Fatalf("Acquire of %q: %v", r.Key, err)
	}
	return l
}

// ready waits until a lock can be had, by a backend with a short call timeout.
func ready(t *testing.T, b driver.Backend) {
	t.Helper()
	eventually(t, "a lock is granted", func() bool { return free(b, "k") })
}

// withPassword is the URL with a password.
func withPassword(raw, password string) string {
	u, err := url.Parse(raw)
	if err != nil {
		panic(err)
	}
	u.User = url.UserPassword(u.User.Username(), password)
	return u.String()
}

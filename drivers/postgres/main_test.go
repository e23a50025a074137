package postgres_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/internal/ownprocess"
	"github.com/redlock-go/redlock/drivers/postgres"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// TestMain runs the tests, several at a time: most of them wait, and do not compute. It also makes
// the test's binary a process that takes locks.
func TestMain(m *testing.M) {
	redlocktest.ServeClient(func(url string) (driver.Backend, error) { return open(url) })
	flag.Parse()
	parallel := true
	flag.Visit(func(f *flag.Flag) { parallel = parallel && f.Name != "test.parallel" })
	if parallel {
		if err := flag.Set("test.parallel", "8"); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	if shared.s != nil {
		if err := shared.s.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// raced says that the race detector is on.
var raced bool

// TestConformance has a process of its own: the suite takes the goroutines of other tests for leaks.
func TestConformance(t *testing.T) {
	if testing.Short() && !raced {
		t.Skip("short: the whole suite")
	}
	ownprocess.Run(t, conform)
}

func conform(t *testing.T) {
	// After a crash this server has lost commits made without synchronous_commit.
	s := server.Postgres(t, server.WithDurable(), server.WithSetting("synchronous_commit", "off"), server.WithSetting("wal_writer_delay", "10s"))
	const secret = "pw-s3cr3t" // the server asks for none
	var notices drivertest.NoticeLog
	cfg := driver.Config{DSN: s.URLFor(server.Superuser, secret), Notify: notices.Add}
	h := fault.Harness(s.Addr(), func(addr string) (driver.Backend, error) {
		via := cfg
		via.DSN = strings.Replace(cfg.DSN, s.Addr(), addr, 1)
		return new(postgres.Driver).Open(&via)
	})
	h.Driver, h.URL, h.Secret = new(postgres.Driver), cfg.DSN, secret
	h.TTL, h.Grace = time.Duration(rounds(4, 1))*250*time.Millisecond, 200*time.Millisecond
	h.Notices = notices.All
	h.Timeout = 5 * time.Minute // for a machine that is very busy
	h.Process = func() (*redlocktest.Client, error) { return redlocktest.StartClient(h.URL) }
	h.Faults.DropReply = fault.DropAnswer(fault.ProtocolPostgres)
	h.Faults.Kill, h.Faults.Pause, h.Faults.Resume = s.Kill, s.Pause, s.Resume
	h.Faults.Restart = func(bool) error { return s.Start() } // locks are never remembered; tokens are on the disk
	h.Faults.EndSession = func(b driver.Backend) error { return terminate(s.URL(), b.(*postgres.Backend)) }
	h.Skip = map[string]string{
		"operator/list": "the server stores a hash of the key",
	}
	redlocktest.Run(t, h)
}

// terminate ends all sessions of b, as an administrator does.
func terminate(url string, b *postgres.Backend) error {
	c, err := pgx.Connect(context.Background(), url)
	if err != nil {
		return err
	}
	defer c.Close(context.Background()) //nolint:errcheck // the test goes on
	for _, pid := range b.Pids() {
		if _, err := c.Exec(context.Background(), "SELECT pg_terminate_backend($1, 5000)", int64(pid)); err != nil {
			return err
		}
	}
	return nil
}

// shared is the server of all the tests that do nothing to it. Each has a database to itself, and
// so its own locks and its own sequence.
var shared struct {
	once sync.Once
	s    *server.Server
	err  error

	mu   sync.Mutex
	db   *pgx.Conn
	free []testDatabase
	made int
}

// A testDatabase is one database of the shared server.
type testDatabase struct{ name, url string }

func (d testDatabase) URL() string { return d.url }

// URLFor is URL for another role.
func (d testDatabase) URLFor(user, password string) string {
	return strings.Replace(shared.s.URLFor(user, password), "/postgres?", "/"+d.name+"?", 1)
}

// through is a URL of the shared server by way of a proxy.
func through(url, addr string) string { return strings.Replace(url, shared.s.Addr(), addr, 1) }

// database returns a database of the shared server. After the test it is emptied, for another test:
// to make one costs the server more than most tests.
func database(t testing.TB) testDatabase {
	t.Helper()
	shared.once.Do(func() {
		shared.s, shared.err = server.Start(context.Background(), server.Config{Kind: server.KindPostgres, Settings: []server.Setting{
			{Name: "max_connections", Value: "400"},
		}, HBA: []string{"host all alice 127.0.0.1/32 scram-sha-256"}})
		if shared.err == nil {
			shared.db, shared.err = pgx.Connect(context.Background(), shared.s.URL())
		}
	})
	var missing *server.MissingError
	switch {
	case shared.err != nil && os.Getenv("CI") == "" && (errors.As(shared.err, &missing) || errors.Is(shared.err, server.ErrUnsupported)):
		t.Skip(shared.err)
	case shared.err != nil:
		t.Fatal(shared.err)
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	var d testDatabase
	if n := len(shared.free); n > 0 {
		d, shared.free = shared.free[n-1], shared.free[:n-1]
	} else {
		shared.made++
		d.name = fmt.Sprint("test", shared.made)
		d.url = strings.Replace(shared.s.URL(), "/postgres?", "/"+d.name+"?", 1)
		run(t, shared.db, "CREATE DATABASE "+d.name+" TEMPLATE template0") // to which nobody connects meanwhile
	}
	t.Cleanup(func() {
		shared.mu.Lock()
		defer shared.mu.Unlock()
		run(t, shared.db, "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = '"+d.name+"'", "ALTER DATABASE "+d.name+" RESET ALL")
		once(t, d.url, `DO $$BEGIN EXECUTE (SELECT string_agg(format('DROP SCHEMA %I CASCADE', nspname), ';') FROM pg_namespace
			WHERE nspname NOT LIKE 'pg\_%' AND nspname <> 'information_schema'); END$$`,
			"CREATE SCHEMA public", "GRANT USAGE ON SCHEMA public TO PUBLIC")
		shared.free = append(shared.free, d)
	})
	return d
}

// once runs statements on a connection of their own.
func once(t testing.TB, url string, statements ...string) {
	t.Helper()
	c, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close(context.Background()) //nolint:errcheck // it was for these statements
	run(t, c, statements...)
}

// role makes a role that may log in, and removes it after the test: roles are the whole server's.
func (d testDatabase) role(t testing.TB, name, options string) {
	t.Helper()
	name = pgx.Identifier{name}.Sanitize()
	once(t, d.url, "CREATE ROLE "+name+" LOGIN "+options)
	t.Cleanup(func() { once(t, d.url, "DROP OWNED BY "+name, "DROP ROLE "+name) })
}

// admin returns a connection of the superuser.
func admin(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// run executes statements as an administrator.
func run(t testing.TB, db *pgx.Conn, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if _, err := db.Exec(context.Background(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// count returns the number that a query selects.
func count(t testing.TB, c *pgx.Conn, sql string, args ...any) int64 {
	t.Helper()
	var n int64
	if err := c.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// The advisory locks of a database: all, those of keys, and of these those that are waited for.
const (
	anyAdvisory = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
	advisory    = anyAdvisory + " AND objsubid = 1"
	queued      = advisory + " AND NOT granted"
)

// open opens a backend by URL.
func open(url string) (*postgres.Backend, error) {
	b, err := new(postgres.Driver).Open(&driver.Config{DSN: url})
	if err != nil {
		return nil, err
	}
	return b.(*postgres.Backend), nil
}

// opener opens a backend for a test.
func opener(t testing.TB, url string) *postgres.Backend {
	t.Helper()
	b, err := open(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// A factory makes connections, as New expects it.
type factory = func(context.Context) (*pgx.Conn, error)

// connector makes connections by URL.
func connector(url string) factory {
	return func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, url) }
}

// built returns a backend that uses a factory.
func built(t testing.TB, f factory, o *postgres.Options) *postgres.Backend {
	t.Helper()
	b, err := postgres.New(f, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

var (
	request = drivertest.NewRequest
	must    = drivertest.Grant
)

// waiting is a request that waits, and sharing one for a shared lock.
func waiting(key string, ttl time.Duration) *driver.Request {
	r := request(key, ttl)
	r.Wait = true
	return r
}

func sharing(key string, ttl time.Duration) *driver.Request {
	r := request(key, ttl)
	r.Mode = driver.Shared
	return r
}

// isHeld asserts that a key is held.
func isHeld(t testing.TB, b driver.Backend, key string) {
	t.Helper()
	drivertest.WantHeld(t, b, request(key, time.Minute))
}

// refused acquires, and asserts a permanent refusal whose text contains all of want.
func refused(t testing.TB, b driver.Backend, want ...string) {
	t.Helper()
	_, err := drivertest.Acquire(t, b, request("k", time.Minute))
	drivertest.WantRefused(t, "Acquire", err, want...)
}

// patience is how long a test waits for a busy machine. It is shorter than the server keeps the
// locks of a session that has told it nothing else.
const patience = 100 * time.Second

// settled makes a call until it has an answer: no answer in time is no verdict.
func settled(call func() error) (err error) {
	for end := time.Now().Add(patience); ; <-time.After(time.Second / 2) {
		if err = call(); drivertest.Verdict(err) != "unknown" || time.Now().After(end) {
			return err
		}
	}
}

func renew(l driver.Lease, ttl time.Duration) error {
	return settled(func() error {
		_, err := l.Renew(context.Background(), &driver.Renewal{TTL: ttl})
		return err
	})
}

func release(l driver.Lease) error {
	return settled(func() error { return l.Release(context.Background()) })
}

// nothingLeft asserts that all locks of a database are given back.
func nothingLeft(t testing.TB, d testDatabase) {
	t.Helper()
	db := admin(t, d.url)
	eventually(t, "no lock is left", func() bool { return count(t, db, anyAdvisory) == 0 })
}

// eventually repeats f until it holds.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); <-time.After(20 * time.Millisecond) { // f is often a query, which costs the server time
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// rounds returns how many rounds a test runs: all, or the number for -short.
func rounds(all, short int) int {
	if testing.Short() {
		return short
	}
	return all
}

// serve accepts connections, handles each, and returns its address.
func serve(t testing.TB, handle func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close() //nolint:errcheck // the test's own
				handle(c)
			})
		}
	})
	return l.Addr().String()
}

package postgres_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/redlock-go/redlock/redlocktest/server"
)

// shared is the server of all the tests that do nothing to it. Each has a database of its own,
// and so its own locks and its own sequence.
var shared struct {
	once sync.Once
	s    *server.Server
	err  error
	made atomic.Int64
}

// A testDatabase is one database of the shared server.
type testDatabase struct{ name, url, addr string }

func (d testDatabase) URL() string  { return d.url }
func (d testDatabase) Addr() string { return d.addr }

// URLFor is URL for another role.
func (d testDatabase) URLFor(user, password string) string {
	return strings.Replace(shared.s.URLFor(user, password), "/postgres?", "/"+d.name+"?", 1)
}

// A place is a server, or a database of one.
type place interface {
	URL() string
	Addr() string
}

// database makes a database of the shared server.
func database(t testing.TB) testDatabase {
	t.Helper()
	shared.once.Do(func() {
		shared.s, shared.err = server.Start(context.Background(), server.Config{Kind: server.KindPostgres, Settings: []server.Setting{
			{Name: "max_connections", Value: "800"}, {Name: "max_locks_per_transaction", Value: "256"},
		}, HBA: []string{"host all alice 127.0.0.1/32 scram-sha-256"}})
	})
	var missing *server.MissingError
	switch {
	case shared.err != nil && os.Getenv("CI") == "" && (errors.As(shared.err, &missing) || errors.Is(shared.err, server.ErrUnsupported)):
		t.Skip(shared.err)
	case shared.err != nil:
		t.Fatal(shared.err)
	}
	name, copied := fmt.Sprintf("test%d", shared.made.Add(1)), ""
	c, err := pgx.Connect(context.Background(), shared.s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background()) //nolint:errcheck // it was for one statement
	if !strings.HasPrefix(c.PgConn().ParameterStatus("server_version"), "14.") {
		copied = " STRATEGY file_copy" // as version 14 does it: half of the work
	}
	run(t, c, "CREATE DATABASE "+name+copied)
	return testDatabase{name, strings.Replace(shared.s.URL(), "/postgres?", "/"+name+"?", 1), shared.s.Addr()}
}

// role makes a role that may log in, and removes it after the test: roles are the whole server's.
func (d testDatabase) role(t testing.TB, name, options string) {
	t.Helper()
	do := func(statements ...string) {
		c, err := pgx.Connect(context.Background(), d.URL())
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close(context.Background()) //nolint:errcheck // it was for these statements
		run(t, c, statements...)
	}
	name = pgx.Identifier{name}.Sanitize()
	do("CREATE ROLE " + name + " LOGIN " + options)
	t.Cleanup(func() { do("DROP OWNED BY "+name, "DROP ROLE "+name) })
}

// rounds returns how many rounds a test runs: all, or the number for -short.
func rounds(all, short int) int {
	if testing.Short() {
		return short
	}
	return all
}

// runTests runs the tests, several at a time: most of them wait, and do not compute.
func runTests(m *testing.M) int {
	flag.Parse()
	parallel := true
	flag.Visit(func(f *flag.Flag) { parallel = parallel && f.Name != "test.parallel" })
	if parallel {
		if err := flag.Set("test.parallel", "12"); err != nil {
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
	return code
}

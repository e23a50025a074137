package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
)

// Redis starts a redis-server for a test and closes it when the test ends. If the
// test fails the end of its log is printed.
func Redis(t testing.TB, opts ...Option) *Server {
	t.Helper()
	return StartFor(t, KindRedis, opts...)
}

// Valkey is Redis with valkey-server.
func Valkey(t testing.TB, opts ...Option) *Server {
	t.Helper()
	return StartFor(t, KindValkey, opts...)
}

// Postgres starts a postgres of version 14 or newer for a test, as Redis does, with a superuser
// "postgres" that needs no password. If the test runs as root, it runs as another user.
func Postgres(t testing.TB, opts ...Option) *Server {
	t.Helper()
	return StartFor(t, KindPostgres, opts...)
}

// MariaDB starts a mariadbd for a test, as Redis does, with a superuser "root" that needs no
// password, and a database "test".
func MariaDB(t testing.TB, opts ...Option) *Server {
	t.Helper()
	return StartFor(t, KindMariaDB, opts...)
}

// PgBouncer starts a pgbouncer for a test, as Postgres does, in front of pg; mode is "session",
// "transaction" or "statement". Every client is the superuser.
func PgBouncer(t testing.TB, pg *Server, mode string, opts ...Option) *Server {
	t.Helper()
	pool := func(c *Config) { c.PoolOf, c.PoolMode = pg, mode }
	return StartFor(t, KindPgBouncer, append([]Option{pool}, opts...)...)
}

// Sentinel starts a primary, two replicas and three sentinels for a test, as Redis
// does. Options are for the primary and its replicas.
func Sentinel(t testing.TB, kind Kind, opts ...Option) *Group {
	t.Helper()
	return groupFor(t, StartSentinel, kind, opts)
}

// Cluster starts a Cluster of three primaries for a test, as Redis does.
func Cluster(t testing.TB, kind Kind, opts ...Option) *Group {
	t.Helper()
	return groupFor(t, StartCluster, kind, opts)
}

// Etcd starts an etcd cluster of this many members for a test, as Redis does.
func Etcd(t testing.TB, members int, opts ...Option) *Group {
	t.Helper()
	start := func(ctx context.Context, cfg Config) (*Group, error) { return StartEtcd(ctx, members, cfg) }
	return groupFor(t, start, KindEtcd, opts)
}

// ZooKeeper starts a ZooKeeper ensemble of this many members for a test, as Redis does.
func ZooKeeper(t testing.TB, members int, opts ...Option) *Group {
	t.Helper()
	start := func(ctx context.Context, cfg Config) (*Group, error) { return StartZooKeeper(ctx, members, cfg) }
	return groupFor(t, start, KindZooKeeper, opts)
}

func groupFor(t testing.TB, start func(context.Context, Config) (*Group, error), kind Kind, opts []Option) *Group {
	t.Helper()
	g, err := start(context.Background(), config(kind, opts))
	require(t, err)
	for _, s := range slices.Concat(g.Nodes, g.Sentinels) {
		t.Cleanup(func() { closeFor(t, s) })
	}
	return g
}

// StartFor starts a server of any kind for a test, as Redis does.
func StartFor(t testing.TB, kind Kind, opts ...Option) *Server {
	t.Helper()
	s, err := Start(context.Background(), config(kind, opts))
	require(t, err)
	t.Cleanup(func() { closeFor(t, s) })
	return s
}

func config(kind Kind, opts []Option) Config {
	cfg := Config{Kind: kind}
	for _, o := range opts {
		o(&cfg)
	}
	return cfg
}

// closeFor closes a test's server, and shows its log if the test failed.
func closeFor(t testing.TB, s *Server) {
	if t.Failed() {
		t.Logf("the end of the log of %s at %s:\n%s", s.Kind(), s.Addr(), s.LogTail(10))
	}
	if err := s.Close(); err != nil {
		t.Errorf("close %s: %v", s.Kind(), err)
	}
}

// require ends the test on an error: a missing program skips it, unless CI is set.
func require(t testing.TB, err error) {
	t.Helper()
	var missing *MissingError
	switch {
	case err == nil:
	case os.Getenv("CI") == "" && (errors.As(err, &missing) || errors.Is(err, ErrUnsupported)):
		announce(t, err)
		t.Skip(err)
	default:
		t.Fatal(err)
	}
}

// announce prints a skipped test on a terminal, because go test shows no output of packages
// that pass, unless -v is given.
func announce(t testing.TB, err error) {
	if testing.Verbose() {
		return
	}
	tty, failed := os.OpenFile("/dev/tty", os.O_WRONLY, 0)
	if failed != nil {
		return
	}
	fmt.Fprintf(tty, "skipped %s: %v\n", t.Name(), err)
	_ = tty.Close() // the message is optional
}

// deepVar is the environment's variable that asks for the deep depth. redlocktest/all.bash --deep
// sets it.
const deepVar = "REDLOCK_DEEP"

// IsDeep reports whether the deep depth is asked for: the environment has REDLOCK_DEEP. A test that
// searches or repeats does a fixed part of its work by default, and the whole of it in this depth.
func IsDeep() bool { return os.Getenv(deepVar) != "" }

// Deep skips a test outside of the deep depth. It is for tests that search, repeat or measure at
// length; what they test must also have a quick test, which every run includes.
func Deep(t testing.TB) {
	t.Helper()
	if !IsDeep() {
		t.Skipf("belongs to the deep depth: %s=1, or redlocktest/all.bash --deep", deepVar)
	}
}

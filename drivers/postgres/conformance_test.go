package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/postgres"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
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

// admin is a connection of the superuser's.
func admin(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// through is the server's URL by way of a proxy.
func through(s place, p *fault.Proxy) string {
	return strings.Replace(s.URL(), s.Addr(), p.Addr(), 1)
}

var owners atomic.Int64

func request(key string, ttl time.Duration) *driver.Request {
	return &driver.Request{Key: key, Owner: fmt.Sprintf("test/%d", owners.Add(1)), TTL: ttl}
}

// must acquires. On a machine that stands still, an attempt may take too long.
func must(t testing.TB, b driver.Backend, r *driver.Request) driver.Lease {
	t.Helper()
	for range 3 {
		l, err := b.Acquire(context.Background(), r)
		if err == nil {
			return l
		}
		var known *driver.RefusedError
		if errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrInvalid) || errors.Is(err, driver.ErrClosed) || errors.As(err, &known) {
			t.Fatalf("Acquire of %q: %v", r.Key, err)
		}
		t.Logf("Acquire of %q: %v", r.Key, err)
		again := *r
		again.Owner = request(r.Key, r.TTL).Owner
		r = &again
	}
	t.Fatalf("Acquire of %q: no attempt was in time", r.Key)
	return nil
}

// terminate ends all sessions of b, as an administrator does.
func terminate(url string, b *postgres.Backend) error {
	ctx := context.Background()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer c.Close(ctx) //nolint:errcheck // the test goes on
	for _, pid := range b.Pids() {
		if _, err := c.Exec(ctx, "SELECT pg_terminate_backend($1, 5000)", int64(pid)); err != nil {
			return err
		}
	}
	return nil
}

func TestConformance(t *testing.T) {
	// A server whose crash forgets what was committed without synchronous_commit.
	s := server.Postgres(t, server.WithDurable(), server.WithSetting("synchronous_commit", "off"), server.WithSetting("wal_writer_delay", "10s"))
	const secret = "pw-s3cr3t" // the server asks for none
	var mu sync.Mutex
	var notices []driver.Notice
	cfg := driver.Config{DSN: s.URLFor(server.Superuser, secret), Notify: func(n driver.Notice) {
		mu.Lock()
		defer mu.Unlock()
		notices = append(notices, n)
	}}
	h := fault.Harness(s.Addr(), func(addr string) (driver.Backend, error) {
		via := cfg
		via.DSN = strings.Replace(cfg.DSN, s.Addr(), addr, 1)
		return new(postgres.Driver).Open(&via)
	})
	h.Driver, h.URL, h.Secret = new(postgres.Driver), cfg.DSN, secret
	h.TTL, h.Grace = time.Duration(rounds(2, 1))*500*time.Millisecond, 200*time.Millisecond
	h.Notices = func() []driver.Notice {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(notices)
	}
	h.Faults.Kill, h.Faults.Pause, h.Faults.Resume = s.Kill, s.Pause, s.Resume
	h.Faults.Restart = func(bool) error { return s.Start() } // locks are never remembered; tokens are on the disk
	h.Faults.EndSession = func(b driver.Backend) error { return terminate(s.URL(), fault.Unwrap(b).(*postgres.Backend)) }
	h.IgnoreGoroutines = []string{server.Goroutine} // of a server that was restarted
	h.Skip = map[string]string{
		"operator/list": "the server stores a hash of the key: only its own process can list a lock by name",
	}
	redlocktest.Run(t, h)
}

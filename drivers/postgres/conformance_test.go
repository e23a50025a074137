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

// proxied is a backend with a proxy of its own.
type proxied struct {
	*postgres.Backend
	proxy *fault.Proxy
}

// Close closes the backend, and then the proxy.
func (p *proxied) Close() error {
	err := p.Backend.Close()
	return errors.Join(err, p.proxy.Close())
}

func openProxied(s *server.Server, d driver.Driver, cfg driver.Config) (driver.Backend, error) {
	proxy, err := fault.Start(s.Addr())
	if err != nil {
		return nil, err
	}
	cfg.DSN = strings.Replace(cfg.DSN, s.Addr(), proxy.Addr(), 1)
	b, err := d.Open(&cfg)
	if err != nil {
		return nil, errors.Join(err, proxy.Close())
	}
	return &proxied{Backend: b.(*postgres.Backend), proxy: proxy}, nil
}

func faults(s *server.Server) *redlocktest.Faults {
	via := func(b driver.Backend) *fault.Proxy { return b.(*proxied).proxy }
	return &redlocktest.Faults{
		Kill: s.Kill,
		// Locks are never remembered; tokens are on the disk.
		Restart:   func(bool) error { return s.Start() },
		Pause:     s.Pause,
		Resume:    s.Resume,
		Partition: func(b driver.Backend) error { via(b).Pause(); return nil },
		Heal:      func(b driver.Backend) error { via(b).Resume(); return nil },
		Slow: func(b driver.Backend, d time.Duration) error {
			via(b).Delay(fault.ToClient, d, 0)
			return nil
		},
		DropReply:  func(b driver.Backend) error { via(b).CutReplies(1); return nil },
		EndSession: func(b driver.Backend) error { return terminate(s.URL(), b.(*proxied).Backend) },
	}
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
	redlocktest.Run(t, redlocktest.Harness{
		Open:   func() (driver.Backend, error) { return openProxied(s, new(postgres.Driver), cfg) },
		Driver: new(postgres.Driver), URL: cfg.DSN, Secret: secret,
		Notices: func() []driver.Notice {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(notices)
		},
		TTL: time.Duration(rounds(2, 1)) * 500 * time.Millisecond, Grace: 200 * time.Millisecond, Faults: faults(s),
		IgnoreGoroutines: []string{"github.com/redlock-go/redlock/redlocktest/server.(*process).run"}, // of a server that was restarted
		Skip: map[string]string{
			"operator/list": "the server stores a hash of the key: only its own process can list a lock by name",
		},
	})
}

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
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

// through is the server's URL by way of a proxy.
func through(s place, p *fault.Proxy) string {
	return strings.Replace(s.URL(), s.Addr(), p.Addr(), 1)
}

var owners atomic.Int64

func request(key string, ttl time.Duration) *driver.Request {
	return &driver.Request{Key: key, Owner: fmt.Sprintf("test/%d", owners.Add(1)), TTL: ttl}
}

// must acquires a lock, and repeats attempts that take too long on a machine that stands still.
func must(t testing.TB, b driver.Backend, r *driver.Request) driver.Lease {
	t.Helper()
	l, err := take(b, r)
	if err != nil {
		t.Fatalf("Acquire of %q: %v", r.Key, err)
	}
	return l
}

// take acquires a free key. What an attempt of its own that was not answered may hold is undone
// soon.
func take(b driver.Backend, r *driver.Request) (driver.Lease, error) {
	inDoubt := false
	for end := time.Now().Add(patience); ; {
		l, tries, err := answer(context.Background(), b, r)
		inDoubt = inDoubt || tries > 1
		if !inDoubt || !errors.Is(err, driver.ErrHeld) || time.Now().After(end) {
			return l, err
		}
		<-time.After(10 * time.Millisecond)
		r = sameWith(r)
	}
}

// patience is how long a test waits for a busy machine. It is shorter than the server keeps the
// locks of a session that has told it nothing else.
const patience = 100 * time.Second

// answer makes attempts until one has an answer, and counts them: no answer in time is no verdict.
func answer(ctx context.Context, b driver.Backend, r *driver.Request) (l driver.Lease, tries int, err error) {
	for end := (time.Time{}); ; {
		l, err = b.Acquire(ctx, r)
		tries++
		if end.IsZero() { // a wait itself may last
			end = time.Now().Add(patience)
		}
		if verdict(err) || ctx.Err() != nil || time.Now().After(end) {
			return l, tries, err
		}
		<-time.After(10 * time.Millisecond)
		r = sameWith(r)
	}
}

// verdict reports whether a call was answered.
func verdict(err error) bool {
	for _, v := range []error{driver.ErrHeld, driver.ErrLost, driver.ErrRefused, driver.ErrInvalid, driver.ErrClosed} {
		if errors.Is(err, v) {
			return true
		}
	}
	return err == nil
}

// awaited is answer for a caller that waits.
func awaited(ctx context.Context, b driver.Backend, r *driver.Request) (driver.Lease, error) {
	r.Wait = true
	l, _, err := answer(ctx, b, r)
	return l, err
}

// again is the time between tries. Thousands of leases that try at once would keep their session
// from reading its answers.
const again = time.Second / 2

// renew renews until it is answered.
func renew(l driver.Lease, ttl time.Duration) (g driver.Grant, err error) {
	for end := time.Now().Add(patience); ; {
		if g, err = l.Renew(context.Background(), &driver.Renewal{TTL: ttl}); verdict(err) || time.Now().After(end) {
			return g, err
		}
		<-time.After(again)
	}
}

// release releases until it is answered.
func release(l driver.Lease) (err error) {
	for end := time.Now().Add(patience); ; {
		if err = l.Release(context.Background()); verdict(err) || time.Now().After(end) {
			return err
		}
		<-time.After(again)
	}
}

// sameWith returns the request with an owner of its own.
func sameWith(r *driver.Request) *driver.Request {
	again := *r
	again.Owner = request(r.Key, r.TTL).Owner
	return &again
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

// TestConformance has a process of its own: the suite takes the goroutines of other tests for leaks.
func TestConformance(t *testing.T) { ownprocess.Run(t, conform) }

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
	h.Process = func() (*redlocktest.Client, error) { return redlocktest.StartClient(h.URL) }
	h.Faults.DropReply = fault.DropAnswer(fault.ProtocolPostgres)
	h.Faults.Kill, h.Faults.Pause, h.Faults.Resume = s.Kill, s.Pause, s.Resume
	h.Faults.Restart = func(bool) error { return s.Start() } // locks are never remembered; tokens are on the disk
	h.Faults.EndSession = func(b driver.Backend) error { return terminate(s.URL(), fault.Unwrap(b).(*postgres.Backend)) }
	h.Skip = map[string]string{
		"operator/list": "the server stores a hash of the key: only its own process can list a lock by name",
	}
	redlocktest.Run(t, h)
}

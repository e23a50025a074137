package redisnode_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// guards tests the restart guard of one server; more is in guard_test.go.
func (s *suite) guards(t *testing.T) {
	t.Run("a lone instance forgets, and does not vote for a guard", s.guardForgets)
	t.Run("what is refused, and in which words", s.guardMessages)
}

// guarded opens a lone instance with options of its guard.
func (s *suite) guarded(t testing.TB, srv *server.Server, options string) (driver.Backend, *drivertest.NoticeLog) {
	t.Helper()
	h := &drivertest.NoticeLog{}
	return s.openWith(t, &driver.Config{DSN: s.url(srv.Addr(), "?"+options), Notify: h.Add}), h
}

// bid makes one attempt, and further ones while the machine is too busy for an answer in time. Their
// TTL is the longest that suits all guards here: half of it bounds an attempt.
func (s *suite) bid(b driver.Backend, key string) (l driver.Lease, err error) {
	late := false
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		l, err = b.Acquire(context.Background(), s.ask(key, min(20*time.Second, b.Info().MaxTTL)))
		held := errors.Is(err, driver.ErrHeld) // maybe by an attempt whose answer came late
		if err == nil || errors.Is(err, driver.ErrRefused) || errors.Is(err, driver.ErrInvalid) || held && !late || time.Now().After(end) {
			return l, err
		}
		late = true
	}
}

// forEver fails the test unless err is a permanent refusal with these words.
func forEver(t testing.TB, err error, says ...string) {
	t.Helper()
	var r *driver.RefusedError
	if !errors.As(err, &r) || r.RetryAfter != 0 {
		t.Fatalf("got %v, want a refusal for ever", err)
	}
	for _, part := range says {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %v", part, err)
		}
	}
}

// answered bids until the server answers: connections from before a restart may fail.
func answered(t testing.TB, bid func() (driver.Lease, error)) error {
	t.Helper()
	var err error
	eventually(t, func() error {
		_, err = bid()
		if err == nil || errors.Is(err, driver.ErrRefused) || errors.Is(err, driver.ErrHeld) {
			return nil
		}
		return err
	})
	return err
}

func crash(t testing.TB, srv *server.Server) {
	t.Helper()
	drivertest.Must(t, errors.Join(srv.Kill(), srv.Start()))
}

func (s *suite) guardForgets(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	b, h := s.guarded(t, srv, "restart_guard=2s&bootstrap=true")
	if most := b.Info().MaxTTL; most != 2*time.Second {
		t.Errorf("MaxTTL is %v", most)
	}
	if _, err := b.Acquire(context.Background(), s.ask("k", 3*time.Second)); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a TTL over the guard: %v", err)
	}
	l, err := b.Acquire(context.Background(), s.ask("kept", 2*time.Second))
	heard := err == nil
	if !heard { // on a busy machine, whose client does not know then that it has made the server's first handshake
		l, err = s.bid(b, "kept")
		drivertest.Must(t, err)
	}
	if n := len(h.Of(quorum.NoticeBootstrapped, "votes at once")); n > 1 || n == 0 && heard {
		t.Errorf("%d notices say that it is new", n)
	}
	do(t, srv, "SAVE")
	lost, err := s.bid(b, "lost")
	drivertest.Must(t, err)
	crash(t, srv)
	up := time.Now()
	_, err = s.bid(b, "lost")
	var refusal *driver.RefusedError
	if !errors.As(err, &refusal) || refusal.RetryAfter <= 0 || refusal.RetryAfter > 3*time.Second || refusal.Clock.IsZero() || !strings.Contains(err.Error(), "restart guard") || !strings.Contains(err.Error(), "was restarted") {
		t.Errorf("after a restart, with a guard of 2s: %+v, %v", refusal, err)
	}
	// Renewals go on, because it has its memory.
	if time.Now().Before(l.Grant().Expires) {
		_, err := l.Renew(context.Background(), &driver.Renewal{TTL: 2 * time.Second})
		if err != nil && drivertest.Verdict(err) != "unknown" && time.Now().Before(l.Grant().Expires) {
			t.Errorf("a renewal in the quarantine: %v", err)
		}
	}
	eventually(t, func() error { // a busy machine may answer late
		_, err := lost.Renew(context.Background(), &driver.Renewal{TTL: 2 * time.Second})
		if !errors.Is(err, driver.ErrLost) {
			return fmt.Errorf("a renewal of a lock that the server has forgotten: %w", err)
		}
		return nil
	})
	eventually(t, func() error {
		l, err := s.bid(b, "lost")
		if err == nil {
			if took := time.Since(up); took < 2*time.Second {
				t.Errorf("it votes %v after its restart", took)
			}
			err = l.Release(context.Background())
		}
		return err
	})
	if n := len(h.Of(quorum.NoticeQuarantined, "was restarted")); n != 1 {
		t.Errorf("%d notices say that it was restarted", n)
	}
}

func (s *suite) guardMessages(t *testing.T) {
	const on = "restart_guard=30s&bootstrap=true"
	all := server.StartFor(t, s.kind,
		server.WithUser("noinfo on >"+canary+" ~* &* +@all -info"),
		server.WithUser("nomulti on >"+canary+" ~* &* +@all -multi"),
	)
	as := func(user, options string) driver.Backend {
		return s.open(t, s.Scheme+"://"+user+":"+canary+"@"+all.Addr()+"?"+options)
	}
	_, err := s.bid(as("noinfo", on), "k")
	forEver(t, err, "run_id", "INFO", "restart_guard=off", all.Addr())
	_, err = s.bid(as("nomulti", on), "k2")
	forEver(t, err, "may not run the command", "multi")

	for options, word := range map[string]string{
		"restart_guard=1ms":                          "restart_guard",
		"restart_guard=5s&topology=cluster":          "Cluster",
		"bootstrap=true":                             "Bootstrap",
		"durable=true&topology=sentinel&master=m":    "failover",
		"restart_guard=soon":                         "restart_guard",
		"restart_guard=30s&bootstrap=true&unknown=1": "unknown",
	} {
		b, err := s.Driver.Open(&driver.Config{DSN: s.url("127.0.0.1:1", "?"+options)})
		if err == nil {
			_ = b.Close()
		}
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(fmt.Sprint(err), word) {
			t.Errorf("%s: %v", options, err)
		}
	}
	cluster := s.open(t, s.url("127.0.0.1:1", "?topology=cluster"))
	req := s.ask("k", time.Second)
	req.Quorum = &quorum.Info{Terms: quorum.Terms{N: 3, Guard: 30 * time.Second}}
	_, err = cluster.Acquire(context.Background(), req)
	forEver(t, err, "Cluster", "restart_guard=off")
}

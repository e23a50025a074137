package redisnode_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// secret is part of every password of these tests.
const (
	secret = "s3cr3t"
	canary = secret + "-canary"
)

// messages: for every way in which a server refuses or fails, the error says so, is never
// contention, and shows no password.
func (s *suite) messages(t *testing.T) {
	all := server.StartFor(t, s.kind,
		server.WithUser("noeval on >"+canary+" ~* &* +@all -evalsha -eval"),
		server.WithUser("nokeys on >"+canary+" ~other:* &* +@all"),
		server.WithUser("nocounter on >"+canary+" ~k &* +@all"),
		server.WithUser("noset on >"+canary+" ~* &* +@all -set"),
		server.WithUser("notime on >"+canary+" ~* &* +@all -time"),
		server.WithUser("noinfo on >"+canary+" ~* &* +@all -info"),
	)
	locked := server.StartFor(t, s.kind, server.WithPassword(canary))
	replica := server.StartFor(t, s.kind, server.WithReplicaOf(all))
	full := server.StartFor(t, s.kind, server.WithMaxMemory("1", "noeviction"))
	node := server.StartFor(t, s.kind, server.WithCluster())
	closed := closedAddr(t)
	as := func(user string) string { return s.Scheme + "://" + user + ":" + canary + "@" + all.Addr() }
	for _, c := range []struct {
		name, url string
		refused   bool
		says      []string
	}{
		{"down", s.Scheme + "://u:" + canary + "@" + closed, false, []string{"cannot be reached", closed}},
		{"wrong password", s.Scheme + "://:" + canary + "x@" + locked.Addr(), true, []string{"does not accept"}},
		{"no password", s.url(locked.Addr(), ""), true, []string{"asks for a password"}},
		{"no eval", as("noeval"), true, []string{"may not run the command", "eval"}},
		{"no keys", as("nokeys"), true, []string{"may not use the keys", `"k"`}},
		{"no counter", as("nocounter"), true, []string{"may not use the keys", "redlock1:fence:{k}"}},
		{"no set", as("noset"), true, []string{"may not run", "set"}},
		{"no time", as("notime"), true, []string{"may not run", "time"}},
		{"replica", s.url(replica.Addr(), ""), true, []string{"read-only replica"}},
		{"out of memory", s.url(full.Addr(), ""), true, []string{"out of memory"}},
		{"Cluster", s.url(node.Addr(), ""), true, []string{"Cluster"}},
		{"no such database", s.url(all.Addr(), "/99"), true, []string{"database"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := s.open(t, c.url)
			_, err := b.Acquire(context.Background(), s.ask("k", time.Minute))
			if err == nil {
				t.Fatal("Acquire succeeded")
			}
			if errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrRefused) != c.refused {
				t.Errorf("wrong verdict: %v", err)
			}
			for _, part := range c.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			if strings.Contains(err.Error()+fmt.Sprintf("%+v %v", err, b), canary) {
				t.Errorf("the password is in %q", err)
			}
		})
	}
	t.Run("without INFO", func(t *testing.T) {
		b := s.open(t, as("noinfo"))
		l := s.lock(t, b, "free", time.Minute)
		if g := l.Grant(); g.Server != "" || g.Clock.IsZero() {
			t.Errorf("grant: %+v", g)
		}
		unlock(t, l)
	})
	t.Run("busy", func(t *testing.T) {
		srv := server.StartFor(t, s.kind, server.WithSetting("busy-reply-threshold", "1"))
		b := s.open(t, s.url(srv.Addr(), ""))
		s.warm(t, b)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = srv.Do("EVAL", "while true do end", "0")
		}()
		defer func() { _, _ = srv.Do("SCRIPT", "KILL"); <-done }()
		var refused *driver.RefusedError
		eventually(t, func() error {
			if _, err := b.Acquire(context.Background(), s.ask("k", time.Minute)); !errors.As(err, &refused) {
				return fmt.Errorf("under a slow script: %w", err)
			}
			return nil
		})
		if refused.RetryAfter <= 0 || !strings.Contains(refused.Error(), "busy") {
			t.Errorf("busy: %v", refused)
		}
	})
}

// closedAddr returns an address where nobody listens, until the test ends.
func closedAddr(t testing.TB) string {
	p := fault.NewProxy(t, "127.0.0.1:1")
	drivertest.Must(t, p.Refuse())
	return p.Addr()
}

func TestBadURLsNameThePartAndNeverThePassword(t *testing.T) {
	const n = "redis"
	d := libraries[0]
	for _, c := range []struct{ url, names string }{
		{n + "://u:" + canary + "@h/x", "database"},
		{n + "://u:" + canary + "@h/0?dbb=1", `"dbb"`},
		{n + "://u:" + canary + "@h:6379x/0", "host"},
		{n + "://u:" + canary + "/more@h/0", "URL"},
		{n + "://u:" + canary + "#more@h/0", "#"},
		{n + "://u:" + canary + "?more@h/0", "@"},
		{n + "://u:" + canary + "%zz@h/0", "percent"},
		{n + "://" + canary + "/0/1", "database"},
		{n + "://:" + canary + "@h1,h2/0", "topology"},
		{n + "://:" + canary + "@h1/0?topology=ring", `"topology"`},
		{n + "://:" + canary + "@h1/0?topology=sentinel", `"master"`},
		{n + "://:" + canary + "@h1/2?topology=cluster", "database"},
		{n + "://:" + canary + "@h1/0?sentinel_password=" + canary, `"sentinel_password"`},
		{n + "://:" + canary + "@h1/0?ca=/x", `"ca"`},
		{n + "s://:" + canary + "@h1/0?ca=/" + canary, `"ca"`},
		{n + "s://:" + canary + "@h1/0?cert=/" + canary, `"cert"`},
		{n + "://:" + canary + "@h1/0?call_timeout=" + canary, `"call_timeout"`},
		{n + "://:" + canary + "@h1/0?pool_size=0", `"pool_size"`},
		{n + "+unix://u:" + canary + "@/0?topology=cluster", `"topology"`},
		{n + "+unix://u:" + canary + "@h/run/x", "socket"},
		{n + "+unix:" + canary, "//"},
		{n + ":" + canary, "//"},
		{"http://:" + canary + "@h", "URL"},
		{canary, "URL"},
	} {
		_, err := d.Driver.Open(&driver.Config{DSN: c.url})
		if !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", strings.ReplaceAll(c.url, canary, "PW"), err)
			continue
		}
		if strings.Contains(err.Error(), canary) {
			t.Errorf("%s: the error shows the password: %v", strings.ReplaceAll(c.url, canary, "PW"), err)
		}
		if !strings.Contains(err.Error(), c.names) {
			t.Errorf("%s: %q does not name %q", strings.ReplaceAll(c.url, canary, "PW"), err, c.names)
		}
	}
	for _, prefix := range []string{"a{b", "{}", strings.Repeat("x", driver.MaxKey)} {
		if _, err := d.Driver.Open(&driver.Config{DSN: n + "://h", Prefix: prefix}); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("prefix %.10q: got %v, want ErrInvalid", prefix, err)
		}
	}
	for _, c := range []struct{ url, shows string }{
		{n + "://u:" + canary + "@h", n + "://h:6379/0"},
		{n + "s://:" + canary + "@[::1]:1/3", n + "s://[::1]:1/3"},
		{n + "://:" + canary + "@a,b:2/?topology=cluster", n + "://a:6379,b:2"},
		{n + "://:" + canary + "@a%2Cb/1?topology=sentinel&master=m&sentinel_password=" + canary, n + "://a:26379,b:26379/1?master=m"},
		{n + "+unix://:" + url.PathEscape(canary) + "@/run/r.sock?db=2", n + "+unix:///run/r.sock?db=2"},
	} {
		b, err := d.Driver.Open(&driver.Config{DSN: c.url})
		if err != nil {
			t.Errorf("%s: %v", c.shows, err)
			continue
		}
		if got := fmt.Sprint(b); got != c.shows {
			t.Errorf("String() = %q, want %q", got, c.shows)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

//go:build unix

package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// anybodys starts a redis-server as a program that this package does not know.
func anybodys(t *testing.T) *Server {
	t.Helper()
	if _, err := find(KindRedis); err != nil {
		require(t, err)
	}
	return Command(t, []string{"redis-server", "--port", "{port}", "--bind", "127.0.0.1", "--dir", "{data}", "--appendonly", "yes", "--appendfsync", "always"},
		func(_ context.Context, addr string) error {
			pong, err := ask(addr, "PING")
			if err == nil && pong != "PONG" {
				err = fmt.Errorf("PING: %v", pong)
			}
			return err
		})
}

// ask sends one command on a new connection, without logging in.
func ask(addr string, args ...string) (any, error) {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	defer nc.Close() //nolint:errcheck // this connection is only a probe
	if err := nc.SetDeadline(time.Now().Add(doTimeout)); err != nil {
		return nil, err
	}
	return newRespConn(nc).do(args...)
}

// query returns the first column of the first row, or the error's text.
func query(t *testing.T, s *Server, sql string) (answer string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	c, err := pgx.Connect(ctx, s.URL())
	must(t, err)
	defer c.Close(ctx) //nolint:errcheck // the answer was read
	if err := c.QueryRow(ctx, sql).Scan(&answer); err != nil {
		return err.Error()
	}
	return answer
}

// A store writes and reads one text on a kind of server; what is not there is empty.
type store struct {
	start   func(t *testing.T) *Server
	set     func(t *testing.T, s *Server, text string)
	get     func(t *testing.T, s *Server) string
	forgets bool // a kill loses what came after the last orderly restart
}

func respStore(start func(t *testing.T) *Server, forgets bool) store {
	return store{start: start, forgets: forgets,
		set: func(t *testing.T, s *Server, text string) { _, err := ask(s.Addr(), "SET", "k", text); must(t, err) },
		get: func(t *testing.T, s *Server) string {
			v, err := ask(s.Addr(), "GET", "k")
			must(t, err)
			text, _ := v.(string)
			return text
		}}
}

// TestTheLifeOfAServer: it is paused, stopped, killed, restarted and emptied, on one address, and what
// it then knows is what such a server knows. Close leaves nothing.
func TestTheLifeOfAServer(t *testing.T) {
	stores := map[string]store{
		"valkey":  respStore(func(t *testing.T) *Server { return Valkey(t) }, true),
		"durable": respStore(func(t *testing.T) *Server { return Valkey(t, WithAppendOnly("always")) }, false),
		"command": respStore(anybodys, false),
		"postgres": {start: func(t *testing.T) *Server { return Postgres(t, WithDurable()) },
			set: func(t *testing.T, s *Server, text string) {
				query(t, s, "CREATE TABLE IF NOT EXISTS t AS SELECT ''::text AS v")
				query(t, s, "UPDATE t SET v = '"+text+"' RETURNING v")
			},
			get: func(t *testing.T, s *Server) string {
				v := query(t, s, "SELECT v FROM t")
				if strings.Contains(v, "does not exist") {
					return ""
				}
				return v
			}},
	}
	if IsDeep() {
		stores["redis"] = respStore(func(t *testing.T) *Server { return Redis(t) }, true)
	}
	if testing.Short() { // its start copies a thousand files
		delete(stores, "postgres")
	}
	for name, st := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := st.start(t)
			addr, pid := s.Addr(), s.Pid()
			has := func(want, after string) {
				t.Helper()
				if got := st.get(t, s); got != want || s.Addr() != addr {
					t.Errorf("%s it has %q, want %q; the address %s was %s", after, got, want, s.Addr(), addr)
				}
			}
			st.set(t, s, "one")
			must(t, s.Restart())
			if has("one", "after a restart"); s.Pid() == pid {
				t.Error("it was not restarted")
			}
			st.set(t, s, "two")
			must(t, s.Kill())
			if c, err := net.Dial("tcp", addr); err == nil {
				_ = c.Close()
				t.Error("a killed server accepts connections")
			}
			must(t, s.Start())
			if st.forgets {
				has("one", "after a kill, from the dump of the restart")
			} else {
				has("two", "after a kill")
			}
			must(t, s.Pause())
			answered := make(chan string, 1)
			go func() { answered <- st.get(t, s) }()
			if stopped, err := isStopped(s.Pid()); err != nil || !stopped {
				t.Errorf("a paused server is stopped: %v, %v", stopped, err)
			}
			select {
			case got := <-answered:
				t.Errorf("a paused server answers %q", got)
			case <-time.After(50 * time.Millisecond):
			}
			must(t, s.Resume())
			<-answered // on the connection that waited
			must(t, s.RestartEmpty())
			has("", "after it was emptied")
			for _, end := range []func() error{s.Stop, s.Kill} { // both work on a paused server
				must(t, s.Pause())
				must(t, end())
				if err := s.Pause(); err == nil || s.Pid() != 0 {
					t.Errorf("a server that ended was paused: %v, pid %d", err, s.Pid())
				}
				must(t, s.Start())
			}
			pid = s.Pid()
			must(t, s.Close())
			must(t, s.Close())
			if _, err := os.Stat(s.Dir()); !errors.Is(err, os.ErrNotExist) || alive(pid) {
				t.Errorf("after Close the process is there: %v, and its folder: %v", alive(pid), err)
			}
			if err := s.Start(); err == nil || !strings.Contains(err.Error(), "closed") {
				t.Errorf("Start after Close: %v", err)
			}
		})
	}
}

func TestACommandThatCannotStartSaysWhy(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		says string
	}{
		{Config{Kind: KindCommand}, "Config.Command"},
		{Config{Kind: KindCommand, Command: []string{"no-such-server-anywhere"}}, "no-such-server-anywhere"},
		{Config{Kind: KindCommand, Command: []string{"sh", "-c", "echo the-reason >&2; exit 3"}}, "the-reason"},
		{Config{Kind: KindRedis, Settings: []Setting{{"no_such_setting", "1"}}}, "no_such_setting"},
		{Config{Kind: KindPostgres, Settings: []Setting{{"no_such_setting", "1"}}}, "no_such_setting"},
		{Config{Kind: KindPostgres, Clock: true}, "clock of its own"},
		{Config{Kind: "etcd-2"}, "etcd-2"},
	} {
		s, err := Start(t.Context(), c.cfg)
		if err == nil {
			must(t, s.Close())
			t.Fatalf("%+v: it was started", c.cfg)
		}
		if missing := new(MissingError); errors.As(err, &missing) && c.cfg.Kind != KindCommand {
			require(t, err)
		}
		if !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c.cfg, err)
		}
	}
}

// TestStartAgainNeedsAServerThatKeepsItsData: a test that relies on it must not blame the client.
func TestStartAgainNeedsAServerThatKeepsItsData(t *testing.T) {
	forgetful := Command(t, []string{"redis-server", "--port", "{port}", "--bind", "127.0.0.1", "--dir", "{data}", "--save", ""}, nil)
	for _, s := range []*Server{forgetful, Redis(t)} {
		must(t, s.Kill())
		if err := s.StartAgain(true); err == nil || !strings.Contains(err.Error(), "ppend") {
			t.Errorf("%s keeps nothing, and StartAgain(true) gives %v", s.Kind(), err)
		}
		must(t, s.StartAgain(false))
	}
}

//go:build unix

package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

func TestURLsNameSchemeUserAndAddress(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		tls  bool
		want string // for the server's own password, and for alice
	}{
		{Config{Kind: KindRedis}, false, "redis://127.0.0.1:7/0 redis://alice:pw@127.0.0.1:7/0"},
		{Config{Kind: KindValkey, Password: "s3 cret"}, true, "valkeys://:s3%20cret@127.0.0.1:7/0 valkeys://alice:pw@127.0.0.1:7/0"},
		{Config{Kind: KindRedis, UnixOnly: true}, false, "redis+unix:///d/sock redis+unix://alice:pw@/d/sock"},
		{Config{Kind: KindPostgres}, false, "postgres://postgres@127.0.0.1:7/postgres?sslmode=disable postgres://alice:pw@127.0.0.1:7/postgres?sslmode=disable"},
		{Config{Kind: KindMariaDB}, true, "mysql://root@127.0.0.1:7/test mysql://alice:pw@127.0.0.1:7/test"},
		{Config{Kind: KindEtcd}, true, "etcds://127.0.0.1:7/ etcds://alice:pw@127.0.0.1:7/"},
		{Config{Kind: KindNATS}, true, "tls://127.0.0.1:7 tls://alice:pw@127.0.0.1:7"},
		{Config{Kind: KindZooKeeper}, false, "zk://127.0.0.1:7 zk://alice:pw@127.0.0.1:7"},
	} {
		kind, err := flavourOf(c.cfg.Kind)
		must(t, err)
		s := &Server{cfg: c.cfg, kind: kind, port: 7, dir: "/d"}
		if c.tls {
			s.certs = &certificates{}
		}
		if got := s.URL() + " " + s.URLFor("alice", "pw"); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}

func TestPasswordIsAskedForAndInNoProcessList(t *testing.T) {
	const secret = "s3cr3t-canary"
	kinds(t, func(t *testing.T, kind Kind) {
		s := StartFor(t, kind, WithPassword(secret))
		do(t, s, "PING")
		if _, err := plain(t, s.Addr(), "PING"); err == nil || !strings.HasPrefix(err.Error(), "NOAUTH") {
			t.Errorf("without the password: %v", err)
		}
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.Pid())); err == nil && bytes.Contains(line, []byte(secret)) {
			t.Errorf("the process list has the password: %q", line)
		}
	})
}

// plain sends one command without logging in.
func plain(t *testing.T, addr string, args ...string) (any, error) {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	must(t, err)
	defer nc.Close() //nolint:errcheck // this connection is only a probe
	must(t, nc.SetDeadline(time.Now().Add(doTimeout)))
	return newRespConn(nc).do(args...)
}

func TestReplicaWithoutItsPrimarysTLSIsRefused(t *testing.T) {
	t.Parallel()
	primary := Redis(t, WithTLS())
	s, err := Start(t.Context(), Config{Kind: KindRedis, ReplicaOf: primary})
	if err == nil {
		must(t, s.Close())
		t.Fatal("it was started")
	}
}

func TestPausedServerKeepsConnectionsAndAnswersLater(t *testing.T) {
	kinds(t, func(t *testing.T, kind Kind) {
		s := StartFor(t, kind)
		must(t, s.Pause())
		nc, err := net.Dial("tcp", s.Addr())
		must(t, err)
		defer nc.Close() //nolint:errcheck // this connection is only a probe
		c := newRespConn(nc)
		_, err = io.WriteString(c, "PING\r\n")
		must(t, err)
		must(t, nc.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
		if _, err := c.reply(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("paused: %v", err)
		}
		must(t, s.Resume())
		must(t, nc.SetDeadline(time.Now().Add(doTimeout)))
		if pong, err := c.reply(); pong != "PONG" || err != nil {
			t.Errorf("resumed: %v, %v", pong, err)
		}
	})
}

func TestStopWorksOnAPausedServer(t *testing.T) {
	t.Parallel()
	for _, kind := range []Kind{KindRedis, KindPostgres} {
		s := StartFor(t, kind)
		must(t, s.Pause())
		must(t, s.Stop())
		if err := s.Pause(); err == nil {
			t.Error("a stopped server was paused")
		}
		must(t, s.Start())
		must(t, s.Pause())
		must(t, s.Kill())
		must(t, s.Start())
	}
}

func TestSentinelsReplaceADeadPrimary(t *testing.T) {
	kinds(t, func(t *testing.T, kind Kind) {
		g := Sentinel(t, kind, WithPassword("pw"))
		old, err := g.Primary(t.Context())
		must(t, err)
		if old != g.Nodes[0] || len(g.Addrs()) != 3 {
			t.Errorf("primary %s, sentinels %v", old.Addr(), g.Addrs())
		}
		if testing.Short() {
			return // the nodes wait three seconds before they declare it dead
		}
		must(t, old.Kill())
		ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
		defer cancel()
		next, err := g.AwaitFailover(ctx, old)
		must(t, err)
		do(t, next, "SET", "k", "v")
	})
}

func TestSettingsReachTheServer(t *testing.T) {
	kinds(t, func(t *testing.T, kind Kind) {
		s := StartFor(t, kind, WithMaxMemory("7mb", "noeviction"), WithArgs("--hz", "17"))
		for name, want := range map[string]string{"maxmemory": "7340032", "maxmemory-policy": "noeviction", "hz": "17"} {
			if got := fmt.Sprint(do(t, s, "CONFIG", "GET", name)); got != fmt.Sprintf("[%s %s]", name, want) {
				t.Errorf("%s: %s", name, got)
			}
		}
	})
	pg := Postgres(t, WithSetting("max_locks_per_transaction", "17"))
	if got := query(t, pg.Addr(), "SHOW max_locks_per_transaction"); got != "17" {
		t.Errorf("max_locks_per_transaction = %s", got)
	}
}

func TestBadSettingIsInTheError(t *testing.T) {
	t.Parallel()
	for _, kind := range []Kind{KindRedis, KindPostgres} {
		s, err := Start(t.Context(), Config{Kind: kind, Settings: []Setting{{"no_such_setting", "1"}}})
		if err == nil {
			must(t, s.Close())
			t.Fatalf("%s: it was started", kind)
		}
		if missing := new(MissingError); errors.As(err, &missing) {
			require(t, err)
		}
		if !strings.Contains(err.Error(), "no_such_setting") {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// query runs one postgres query with the simple protocol and returns the first column of the
// first row, or the error's text.
func query(t *testing.T, addr, sql string) string {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	must(t, err)
	defer nc.Close() //nolint:errcheck // this connection is only a probe
	must(t, nc.SetDeadline(time.Now().Add(startTimeout)))
	params := "\x00\x03\x00\x00user\x00postgres\x00database\x00postgres\x00\x00"
	_, err = nc.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(params)+4)), params...))
	must(t, err)
	answer := ""
	for asked := false; ; {
		head := make([]byte, 5)
		_, err := io.ReadFull(nc, head)
		must(t, err)
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		_, err = io.ReadFull(nc, body)
		must(t, err)
		switch {
		case head[0] == 'E':
			answer = string(body)
			if !asked {
				return answer
			}
		case head[0] == 'D':
			answer = string(body[6:])
		case head[0] == 'Z' && asked:
			return answer
		case head[0] == 'Z':
			asked = true
			_, err = nc.Write(append(append([]byte{'Q'}, binary.BigEndian.AppendUint32(nil, uint32(len(sql)+5))...), sql+"\x00"...))
			must(t, err)
		}
	}
}

func TestPostgresKeepsItsDataOverRestartAndCrash(t *testing.T) {
	t.Parallel()
	s := Postgres(t, WithDurable())
	query(t, s.Addr(), "CREATE TABLE t (n int); INSERT INTO t VALUES (7)")
	must(t, s.Restart())
	query(t, s.Addr(), "UPDATE t SET n = 8")
	must(t, s.Kill())
	must(t, s.Start())
	if got := query(t, s.Addr(), "SELECT n FROM t"); got != "8" {
		t.Errorf("after a crash: %s", got)
	}
	must(t, s.RestartEmpty())
	if got := query(t, s.Addr(), "SELECT n FROM t"); !strings.Contains(got, "does not exist") {
		t.Errorf("after an empty restart: %s", got)
	}
}

func TestUnknownKindIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := Start(t.Context(), Config{Kind: "etcd"}); err == nil {
		t.Error("it was started")
	}
}

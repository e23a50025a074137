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
	kinds(t, func(t *testing.T, kind Kind) {
		scheme := strings.TrimSuffix(string(kind), "-server")
		s := StartFor(t, kind, WithPassword("s3 cret"))
		if want := fmt.Sprintf("%s://:s3%%20cret@%s/0", scheme, s.Addr()); s.URL() != want {
			t.Errorf("URL %s, want %s", s.URL(), want)
		}
		if want := fmt.Sprintf("%s://alice:pw@%s/0", scheme, s.Addr()); s.URLFor("alice", "pw") != want {
			t.Errorf("URL %s, want %s", s.URLFor("alice", "pw"), want)
		}
		u := StartFor(t, kind, WithUnixOnly())
		if want := scheme + "+unix://" + u.Socket(); u.URL() != want {
			t.Errorf("URL %s, want %s", u.URL(), want)
		}
		e := StartFor(t, kind, WithTLS())
		if want := fmt.Sprintf("%ss://%s/0", scheme, e.Addr()); e.URL() != want {
			t.Errorf("URL %s, want %s", e.URL(), want)
		}
	})
}

func TestUnixOnlyListensOnTheSocketAlone(t *testing.T) {
	kinds(t, func(t *testing.T, kind Kind) {
		s := StartFor(t, kind, WithUnixOnly())
		if pong := do(t, s, "PING"); pong != "PONG" {
			t.Errorf("PING: %v", pong)
		}
		if s.Addr() != s.Socket() {
			t.Errorf("Addr %s, Socket %s", s.Addr(), s.Socket())
		}
		if _, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.Port())); err == nil {
			t.Error("it listens on TCP as well") // nobody else gets its port
		}
	})
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

func TestUsersHaveTheirRightsAndDoHasAll(t *testing.T) {
	kinds(t, func(t *testing.T, kind Kind) {
		s := StartFor(t, kind, WithUser("default off"), WithUser("alice on >pw ~a* +get"))
		do(t, s, "SET", "a", "1")
		if _, err := plain(t, s.Addr(), "PING"); err == nil {
			t.Error("the default user is not off")
		}
		nc, err := net.Dial("tcp", s.Addr())
		must(t, err)
		defer nc.Close() //nolint:errcheck // this connection is only a probe
		must(t, nc.SetDeadline(time.Now().Add(doTimeout)))
		c := newRespConn(nc)
		_, err = c.do("AUTH", "alice", "pw")
		must(t, err)
		if v, err := c.do("GET", "a"); v != "1" || err != nil {
			t.Errorf("GET a: %v, %v", v, err)
		}
		if _, err := c.do("SET", "a", "2"); err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
			t.Errorf("SET a: %v", err)
		}
	})
}

func TestTLSIsVerifiedAndPlainTextRefused(t *testing.T) {
	kinds(t, func(t *testing.T, kind Kind) {
		s := StartFor(t, kind, WithTLS())
		if pong := do(t, s, "PING"); pong != "PONG" {
			t.Errorf("PING: %v", pong)
		}
		if _, err := plain(t, s.Addr(), "PING"); err == nil {
			t.Error("plain text is answered")
		}
		if text, err := os.ReadFile(s.CAFile()); err != nil || !bytes.Contains(text, []byte("BEGIN CERTIFICATE")) {
			t.Errorf("CAFile: %v", err)
		}
	})
}

func TestClientCertificatesAreAskedFor(t *testing.T) {
	kinds(t, func(t *testing.T, kind Kind) {
		s := StartFor(t, kind, WithClientCerts())
		do(t, s, "PING")
		s.certs.client.Certificates = nil
		if _, err := s.Do("PING"); err == nil {
			t.Error("a client without a certificate is answered")
		}
	})
}

func TestReplicaFollowsItsPrimary(t *testing.T) {
	kinds(t, func(t *testing.T, kind Kind) {
		primary := StartFor(t, kind, WithTLS(), WithPassword("pw"))
		replica := StartFor(t, kind, WithTLS(), WithPassword("pw"), WithReplicaOf(primary))
		if _, err := replica.Do("SET", "k", "v"); err == nil || !strings.HasPrefix(err.Error(), "READONLY") {
			t.Errorf("SET on a replica: %v", err)
		}
		do(t, primary, "SET", "k", "v")
		ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
		defer cancel()
		must(t, poll(ctx, func(ctx context.Context) error {
			v, err := replica.do(ctx, "GET", "k")
			if err == nil && v != "v" {
				err = fmt.Errorf("k = %v", v)
			}
			return err
		}))
		// A replica restarts while its primary is down.
		must(t, primary.Kill())
		must(t, replica.Restart())
	})
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

func TestClusterServesEverySlot(t *testing.T) {
	alsoIn(t, "drivers/goredis")
	kinds(t, func(t *testing.T, kind Kind) {
		g := Cluster(t, kind, WithTLS())
		homes := map[int]int{}
		const keys = 20 // each is three TLS handshakes
		for k := range keys {
			for i, s := range g.Nodes {
				var moved ReplyError
				switch _, err := s.Do("SET", fmt.Sprint(k), "v"); {
				case err == nil:
					homes[i]++
				case !errors.As(err, &moved) || !strings.HasPrefix(string(moved), "MOVED"):
					t.Fatalf("key %d on node %d: %v", k, i, err)
				}
			}
		}
		if homes[0] == 0 || homes[1] == 0 || homes[2] == 0 || homes[0]+homes[1]+homes[2] != keys {
			t.Errorf("keys by node: %v", homes)
		}
		must(t, g.Nodes[1].RestartEmpty())
		ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
		defer cancel()
		must(t, poll(ctx, g.whole))
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

func TestStandbyIsReadOnly(t *testing.T) {
	alsoIn(t, "drivers/postgres")
	t.Parallel()
	s := Postgres(t, WithStandby())
	if got := query(t, s.Addr(), "SELECT pg_is_in_recovery()"); got != "t" {
		t.Errorf("pg_is_in_recovery() = %s", got)
	}
}

func TestStandbyFollowsItsPrimaryAndIsPromoted(t *testing.T) {
	alsoIn(t, "drivers/postgres")
	t.Parallel()
	primary := Postgres(t, WithSetting("synchronous_standby_names", "standby"), WithSetting("synchronous_commit", "remote_apply"))
	standby := Postgres(t, WithReplicaOf(primary))
	query(t, primary.Addr(), "CREATE TABLE t AS SELECT 7 AS n")
	if got := query(t, standby.Addr(), "SELECT n FROM t"); got != "7" {
		t.Errorf("the standby says %q", got)
	}
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(); err != nil {
		t.Fatal(err)
	}
	if got := query(t, standby.Addr(), "SELECT pg_is_in_recovery()"); got != "f" {
		t.Errorf("in recovery after its promotion: %q", got)
	}
}

func TestHBAComesBeforeTrust(t *testing.T) {
	alsoIn(t, "drivers/postgres")
	t.Parallel()
	s := Postgres(t, WithHBA("host all postgres 127.0.0.1/32 reject"))
	if got := query(t, s.Addr(), "SELECT 1"); !strings.Contains(got, "rejects") {
		t.Errorf("a rejected user gets: %s", got)
	}
	if want := "postgres://alice:pw@" + s.Addr() + "/postgres?sslmode=disable"; s.URLFor("alice", "pw") != want {
		t.Errorf("URL %s, want %s", s.URLFor("alice", "pw"), want)
	}
}

// greeting returns the version that a mariadbd sends to a new connection.
func greeting(t *testing.T, addr string) string {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	must(t, err)
	defer nc.Close() //nolint:errcheck // this connection is only a probe
	must(t, nc.SetDeadline(time.Now().Add(startTimeout)))
	head := make([]byte, 5) // length, number, protocol
	_, err = io.ReadFull(nc, head)
	must(t, err)
	body := make([]byte, int(head[0])|int(head[1])<<8-1)
	_, err = io.ReadFull(nc, body)
	must(t, err)
	version, _, _ := bytes.Cut(body, []byte{0})
	return string(version)
}

func TestMariaDBServesAfterACrashAndWithoutItsMemory(t *testing.T) {
	t.Parallel()
	forOtherModules(t)
	s := MariaDB(t, WithTLS())
	for _, again := range []func() error{s.Restart, func() error { return errors.Join(s.Kill(), s.Start()) }, s.RestartEmpty} {
		if got := greeting(t, s.Addr()); !strings.Contains(got, "MariaDB") {
			t.Errorf("it greets with %q", got)
		}
		must(t, again())
	}
	if want := "mysql://alice:pw@" + s.Addr() + "/test"; s.URLFor("alice", "pw") != want {
		t.Errorf("URL %s, want %s", s.URLFor("alice", "pw"), want)
	}
}

func TestPgBouncerPools(t *testing.T) {
	alsoIn(t, "drivers/postgres")
	t.Parallel()
	pg := Postgres(t)
	b := PgBouncer(t, pg, "transaction")
	if got := query(t, b.Addr(), "SELECT 6*7"); got != "42" {
		t.Errorf("through the pooler: %s", got)
	}
	must(t, b.Restart())
	if got := query(t, b.Addr(), "SELECT 6*7"); got != "42" {
		t.Errorf("after a restart: %s", got)
	}
	if _, err := Start(t.Context(), Config{Kind: KindPgBouncer}); err == nil {
		t.Error("it was started without a postgres")
	}
}

func TestUnknownKindIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := Start(t.Context(), Config{Kind: "etcd"}); err == nil {
		t.Error("it was started")
	}
}

//go:build unix

package server

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
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
		{Config{Kind: KindConsul}, true, "consuls://127.0.0.1:7 consuls://alice:pw@127.0.0.1:7"},
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
		if _, err := ask(s.Addr(), "PING"); err == nil || !strings.HasPrefix(err.Error(), "NOAUTH") {
			t.Errorf("without the password: %v", err)
		}
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.Pid())); err == nil && bytes.Contains(line, []byte(secret)) {
			t.Errorf("the process list has the password: %q", line)
		}
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
	if testing.Short() {
		return
	}
	pg := Postgres(t, WithSetting("max_locks_per_transaction", "17"))
	if got := query(t, pg, "SHOW max_locks_per_transaction"); got != "17" {
		t.Errorf("max_locks_per_transaction = %s", got)
	}
}

//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	faults "github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// examine runs dlock doctor, and checks that its exit code is that of the gravest finding.
func (w *world) examine(flags ...string) map[string]driver.Diagnostic {
	w.t.Helper()
	var code int
	var out, stderr string
	for end := time.Now().Add(patient); ; {
		code, out, stderr = w.run(append([]string{"doctor", "--json"}, flags...)...)
		if out != "" || !late.MatchString(stderr) || time.Now().After(end) {
			break
		}
	}
	var all []driver.Diagnostic
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		w.t.Fatalf("exit code %d, %v: %s%s", code, err, out, stderr)
	}
	found, want := map[string]driver.Diagnostic{}, 0
	for _, f := range all {
		switch {
		case f.Code == "" || f.Summary == "":
			w.t.Errorf("a finding says nothing: %+v", f)
		case f.Severity == driver.SeverityUnsafe:
			want = exitUnsafe
		case f.Severity == driver.SeverityWarning:
			want = max(want, exitWarnings)
		}
		if _, graver := found[f.Code]; !graver {
			found[f.Code] = f
		}
	}
	if code != want {
		w.t.Errorf("the exit code is %d, want %d: %s", code, want, out)
	}
	return found
}

// A misconfiguration is made on purpose on real servers.
type misconfiguration struct {
	code     string // of the finding
	severity string
	measured string // a part of it
	make     func(w *world) (url string, mend func(command string) error)
	slow     bool // not with -short
	manual   bool // no command can mend it
}

// shell runs the command that the finding prints.
func (w *world) shell(command string) error {
	if command == "" {
		return errors.New("no command is printed")
	}
	if tool := strings.Fields(command)[0]; tool != "dlock" && os.Getenv("CI") == "" {
		if _, err := exec.LookPath(tool); err != nil {
			w.t.Skip(err) // it was found, at least
		}
	}
	var out []byte
	var err error
	for end := time.Now().Add(patient); ; {
		c := exec.Command("sh", "-c", command)
		c.Env = append(w.env, "PATH="+os.Getenv("PATH")+":"+w.dir)
		if out, err = c.CombinedOutput(); err == nil || !late.Match(out) || time.Now().After(end) {
			break
		}
	}
	if err == nil && strings.Contains(string(out), "ERR ") {
		err = errors.New("refused by the server")
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", command, err, out)
	}
	return nil
}

// shellAndRestart is for settings that a restart makes valid.
func (w *world) shellAndRestart(s *server.Server) func(string) error {
	return func(command string) error {
		if err := w.shell(command); err != nil {
			return err
		}
		return s.Restart()
	}
}

// alone returns a function that starts one server with options, and returns its URL and the
// function that runs a printed command.
func alone(kind server.Kind, query string, options ...server.Option) func(*world) (string, func(string) error) {
	return func(w *world) (string, func(string) error) {
		return server.StartFor(w.t, kind, options...).URL() + query, w.shell
	}
}

func (w *world) do(s *server.Server, args ...string) {
	w.t.Helper()
	if _, err := s.Do(args...); err != nil {
		w.t.Fatal(err)
	}
}

// psql runs statements on a database.
func (w *world) psql(s *server.Server, statements ...string) {
	w.t.Helper()
	for _, statement := range statements {
		if err := w.shell("psql '" + s.URL() + "' -c \"" + statement + "\""); err != nil {
			w.t.Fatal(err)
		}
	}
}

// among starts a quorum; change may modify its URLs.
func among(n int, change func(w *world, urls []string, nodes []*server.Server) (options string, mend func(string) error)) func(*world) (string, func(string) error) {
	return func(w *world) (string, func(string) error) {
		url, nodes := quorumOf(w.t, n)
		urls := strings.Split(strings.TrimPrefix(url, "redlock:"), ",")[:n]
		options, mend := change(w, urls, nodes)
		if !strings.Contains(options, "node_timeout") {
			options += ",node_timeout=2s"
		}
		return "redlock:" + strings.Join(urls, ",") + ",bootstrap=true" + options, mend
	}
}

var misconfigurations = map[string]misconfiguration{
	"eviction":        {code: "maxmemory-policy", severity: "unsafe", measured: "allkeys-lru", make: alone(server.KindRedis, "", server.WithMaxMemory("100mb", "allkeys-lru"))},
	"eviction valkey": {code: "maxmemory-policy", severity: "unsafe", make: alone(server.KindValkey, "", server.WithMaxMemory("100mb", "allkeys-lru")), slow: true},
	"memory":          {code: "memory-low", severity: "warning", make: alone(server.KindRedis, "", server.WithMaxMemory("1mb", "noeviction"))},
	"no persistence":  {code: "appendonly", severity: "warning", measured: "no", make: alone(server.KindRedis, "")},
	"not durable": {code: "durable-not-persistent", severity: "unsafe", measured: "appendfsync everysec",
		make: alone(server.KindRedis, "?restart_guard=10s&durable=true", server.WithAppendOnly("everysec")), slow: true},
	"cluster": {code: "cluster-node", severity: "unsafe", make: func(w *world) (string, func(string) error) {
		return server.Redis(w.t, server.WithCluster()).URL(), nil
	}, slow: true},
	"replica": {code: "replica", severity: "unsafe", make: func(w *world) (string, func(string) error) {
		primary := server.Redis(w.t)
		return server.Redis(w.t, server.WithReplicaOf(primary)).URL(), w.shell
	}},
	"replicas": {code: "has-replicas", severity: "warning", measured: "1", make: func(w *world) (string, func(string) error) {
		primary := server.Valkey(w.t)
		server.Valkey(w.t, server.WithReplicaOf(primary))
		return primary.URL(), w.shell
	}, slow: true},
	"sentinel": {code: "sentinel-watched", severity: "warning", make: func(w *world) (string, func(string) error) {
		return server.Sentinel(w.t, server.KindRedis).Nodes[0].URL(), nil
	}, slow: true},
	"rights":  {code: "acl-command", severity: "warning", measured: "ZPOPMIN", make: lacks("-zpopmin", "app")},
	"no eval": {code: "acl-command", severity: "unsafe", measured: "EVAL", make: lacks("-eval", "other"), slow: true},
	"slow scripts": {code: "slow-scripts", severity: "warning", make: func(w *world) (string, func(string) error) {
		s := server.Redis(w.t)
		w.do(s, "CONFIG", "SET", "slowlog-log-slower-than", "0")
		w.want(0, "run", "--url", s.URL(), "k", "--", "true")
		w.do(s, "CONFIG", "SET", "slowlog-log-slower-than", "1000000")
		return s.URL(), w.shell
	}},
	"even": {code: "quorum-size", severity: "warning", measured: "4", make: among(4, func(w *world, _ []string, _ []*server.Server) (string, func(string) error) {
		return "", nil
	}), slow: true},
	"two": {code: "quorum-size", severity: "warning", measured: "2", make: among(2, func(w *world, _ []string, _ []*server.Server) (string, func(string) error) {
		return "", nil
	}), slow: true},
	"one host": {code: "same-host", severity: "warning", make: among(3, func(w *world, _ []string, _ []*server.Server) (string, func(string) error) {
		return "", nil
	}), slow: true},
	"one server twice": {code: "same-server", severity: "unsafe", make: among(3, func(w *world, urls []string, nodes []*server.Server) (string, func(string) error) {
		urls[2] = fmt.Sprintf("redis://localhost:%d/0", nodes[0].Port())
		return "", nil
	})},
	"failover inside": {code: "not-independent", severity: "unsafe", measured: "sentinel", make: among(3, func(w *world, urls []string, _ []*server.Server) (string, func(string) error) {
		g := server.Sentinel(w.t, server.KindRedis)
		urls[1] = "redis://" + strings.Join(g.Addrs(), "%2C") + "/0?topology=sentinel&master=" + g.Name
		return "", nil
	}), slow: true},
	"node down": {code: "node-unreachable", severity: "warning", make: among(3, func(w *world, _ []string, nodes []*server.Server) (string, func(string) error) {
		if err := nodes[1].Kill(); err != nil {
			w.t.Fatal(err)
		}
		return "", func(string) error { return nodes[1].Start() }
	}), slow: true},
	"terms": {code: "terms-differ", severity: "warning", measured: "restart_guard=10s", make: among(3, func(w *world, urls []string, _ []*server.Server) (string, func(string) error) {
		before := "redlock:" + strings.Join(urls, ",") + ",bootstrap=true,node_timeout=2s,restart_guard=10s"
		w.want(0, "run", "--url", before, "--ttl", "5s", "k", "--", "true")
		return ",restart_guard=1m", w.shell
	})},
	"quarantine": {code: "quarantine", severity: "warning", make: among(3, func(w *world, urls []string, nodes []*server.Server) (string, func(string) error) {
		w.want(0, "run", "--url", "redlock:"+strings.Join(urls, ",")+",bootstrap=true,node_timeout=2s,restart_guard=2m", "k", "--", "true")
		if err := nodes[1].RestartEmpty(); err != nil {
			w.t.Fatal(err)
		}
		w.want(0, "run", "--url", "redlock:"+strings.Join(urls, ",")+",node_timeout=2s,restart_guard=2m", "k", "--", "true")
		return ",restart_guard=2m", nil // it ends by itself
	}), slow: true},
	"more nodes": {code: "terms-differ", severity: "warning", measured: "3 nodes", make: among(5, func(w *world, urls []string, _ []*server.Server) (string, func(string) error) {
		w.want(0, "run", "--url", "redlock:"+strings.Join(urls[:3], ",")+",bootstrap=true,node_timeout=2s", "k", "--", "true")
		return "", w.shell
	}), slow: true},
	"versions": {code: "versions-differ", severity: "note", measured: "Valkey", make: among(3, func(w *world, _ []string, _ []*server.Server) (string, func(string) error) {
		return "", nil
	}), slow: true},
	"far away": {code: "round-trip-slow", severity: "warning", make: among(3, func(w *world, urls []string, nodes []*server.Server) (string, func(string) error) {
		p := faults.NewProxy(w.t, nodes[0].Addr())
		p.RTT(100 * time.Millisecond)
		urls[0] = "redis://" + p.Addr() + "/0"
		return ",node_timeout=150ms", func(string) error { p.RTT(0); return nil }
	}), slow: true},

	"fsync": {code: "fsync", severity: "unsafe", measured: "off", make: alone(server.KindPostgres, "")},
	"pooler": {code: "pooler", severity: "unsafe", make: func(w *world) (string, func(string) error) {
		return server.PgBouncer(w.t, server.Postgres(w.t), "transaction").URL(), nil
	}, slow: true},
	"standby": {code: "standby", severity: "unsafe", make: alone(server.KindPostgres, "", server.WithStandby()), slow: true, manual: true},
	"lock table": {code: "lock-table", severity: "warning", make: func(w *world) (string, func(string) error) {
		s := server.Postgres(w.t, server.WithSetting("max_locks_per_transaction", "10"), server.WithSetting("max_connections", "20"))
		if _, err := exec.LookPath("psql"); err != nil && os.Getenv("CI") == "" {
			w.t.Skip(err)
		}
		holder := exec.Command("psql", s.URL(), "-c", "SELECT count(pg_advisory_lock(n)) FROM generate_series(1, 150) AS n", "-c", `\echo held`, "-c", "SELECT pg_sleep(3600)")
		var out buffer
		holder.Stdout = &out
		if err := holder.Start(); err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() { _ = holder.Process.Kill(); _ = holder.Wait() })
		eventually(w.t, "150 locks are held", func() bool { return strings.Contains(out.String(), "held") })
		return s.URL(), w.shellAndRestart(s)
	}, slow: true},
	"two sequences": {code: "two-sequences", severity: "unsafe", measured: "other.dlock_fence", make: func(w *world) (string, func(string) error) {
		s := server.Postgres(w.t)
		w.want(0, "run", "--url", s.URL(), "k", "--", "true")
		w.psql(s, "CREATE SCHEMA other", "CREATE SEQUENCE other.dlock_fence AS int8")
		return s.URL(), w.shell
	}, slow: true},
	"cached sequence": {code: "sequence", severity: "unsafe", make: func(w *world) (string, func(string) error) {
		s := server.Postgres(w.t)
		w.psql(s, "CREATE SEQUENCE public.dlock_fence AS int8 CACHE 20")
		return s.URL(), w.shell
	}, slow: true},
	"asynchronous standby": {code: "replication-async", severity: "warning", make: func(w *world) (string, func(string) error) {
		primary := server.Postgres(w.t)
		server.Postgres(w.t, server.WithReplicaOf(primary))
		return primary.URL(), w.shell
	}, slow: true},
	"local commits": {code: "synchronous-commit", severity: "warning", measured: "local", make: func(w *world) (string, func(string) error) {
		primary := server.Postgres(w.t, server.WithSetting("synchronous_standby_names", "'*'"), server.WithSetting("synchronous_commit", "local"))
		server.Postgres(w.t, server.WithReplicaOf(primary))
		return primary.URL(), nil
	}, slow: true},
	"few connections": {code: "connections", severity: "warning", make: func(w *world) (string, func(string) error) {
		s := server.Postgres(w.t, server.WithSetting("max_connections", "15"))
		return s.URL(), w.shellAndRestart(s)
	}, slow: true},

	"folder without sticky bit": {code: "folder-not-sticky", severity: "warning", measured: "0777", make: func(w *world) (string, func(string) error) {
		folder := filepath.Join(w.dir, "a folder")
		if err := os.Mkdir(folder, 0o700); err != nil {
			w.t.Fatal(err)
		}
		if err := os.Chmod(folder, 0o777); err != nil {
			w.t.Fatal(err)
		}
		return "file://" + strings.ReplaceAll(folder, " ", "%20"), w.shell
	}},
}

// lacks starts a server whose user lacks a right. An administrator runs the printed command.
func lacks(right, user string) func(*world) (string, func(string) error) {
	return func(w *world) (string, func(string) error) {
		s := server.Redis(w.t, server.WithUser(user+" on >secret ~* &* +@all "+right))
		return s.URLFor(user, "secret"), func(command string) error {
			return asAdministrator(s, command)
		}
	}
}

// asAdministrator runs a command line of redis-cli.
func asAdministrator(s *server.Server, command string) error {
	_, rest, ok := strings.Cut(command, fmt.Sprintf("-p %d ", s.Port()))
	if !ok {
		return errors.New("it names another server: " + command)
	}
	_, err := s.Do(strings.Fields(strings.ReplaceAll(rest, "'", ""))...)
	return err
}

func TestDoctorFindsEachMisconfigurationAndItsCommandMendsIt(t *testing.T) {
	t.Parallel()
	for name, c := range misconfigurations {
		if testing.Short() && c.slow {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.env = append(w.env, "PGUSER="+server.Superuser)
			if err := os.Symlink(w.exe, w.path("dlock")); err != nil { // for the commands that are printed
				t.Fatal(err)
			}
			url, mend := c.make(w)
			w.env = append(w.env, envURL+"="+url)
			var f driver.Diagnostic
			eventually(t, "found: "+c.code, func() bool { f = w.examine()[c.code]; return f.Code != "" }) // a standby, say, comes by and by
			if f.Severity.String() != c.severity || !strings.Contains(f.Measured, c.measured) {
				t.Fatalf("found %+v, want %s: %s", f, c.severity, c.measured)
			}
			if c.severity != "note" && f.Remedy == "" {
				t.Errorf("the finding has no remedy: %+v", f)
			}
			if left := w.examine("--ignore", c.code); left[c.code].Code != "" {
				t.Errorf("it is not ignored: %+v", left[c.code])
			}
			if mend == nil || c.manual {
				return
			}
			if err := mend(f.Command); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it is mended", func() bool { f := w.examine()[c.code]; return f.Severity == driver.SeverityNote })
		})
	}
}

// Several things are wrong with one deployment, or worth a note.
type mess struct {
	make  func(w *world) (url string, mend func(f driver.Diagnostic) error)
	found map[string]string // the severity of each code
	slow  bool              // not with -short
}

var messes = map[string]mess{
	"rights": {func(w *world) (string, func(driver.Diagnostic) error) {
		s := server.Redis(w.t, server.WithUser("app on >secret ~other:* resetchannels &other:* +@all -config -mget"))
		return s.URLFor("app", "secret"), func(f driver.Diagnostic) error {
			if f.Code == "unknown-setting" {
				f.Command = fmt.Sprintf("redis-cli -p %d ACL SETUSER app +config|get", s.Port()) // its remedy says so
			}
			return asAdministrator(s, f.Command)
		}
	}, map[string]string{"acl-key": "unsafe", "acl-channel": "warning", "acl-command": "warning", "unknown-setting": "note"}, false},
	"persistence": {func(w *world) (string, func(driver.Diagnostic) error) {
		s := server.Valkey(w.t, server.WithAppendOnly("everysec"))
		dump := filepath.Join(s.Dir(), "dump.rdb", "in the way")
		if err := os.MkdirAll(dump, 0o700); err != nil {
			w.t.Fatal(err)
		}
		w.do(s, "BGSAVE")
		return s.URL(), func(f driver.Diagnostic) error {
			if f.Code == "appendfsync" {
				return w.shell(f.Command)
			}
			if err := os.RemoveAll(filepath.Dir(dump)); err != nil {
				return err
			}
			w.do(s, "BGSAVE")
			return nil
		}
	}, map[string]string{"save-failed": "warning", "appendfsync": "note"}, true},
	"another release": {func(w *world) (string, func(driver.Diagnostic) error) {
		s := server.Redis(w.t)
		w.do(s, "SET", "redlock1:meta", "3 of the future")
		return s.URL(), nil
	}, map[string]string{"guard-layout": "warning"}, true},
	"notes of PostgreSQL": {func(w *world) (string, func(driver.Diagnostic) error) {
		s := server.Postgres(w.t, server.WithSetting("idle_session_timeout", "60000"))
		return s.URL() + separator(s.URL()) + "keepalives_idle=30", nil
	}, map[string]string{"idle-timeout": "note", "keepalives": "note", "ignored-parameter": "note", "no-sequence": "note"}, true},
	"a pooler of whole sessions": {func(w *world) (string, func(driver.Diagnostic) error) {
		url := server.PgBouncer(w.t, server.Postgres(w.t), "session").URL()
		return url + separator(url) + "pooler=session", nil
	}, map[string]string{"pooler": "warning"}, true},
	"a file for a folder": {func(w *world) (string, func(driver.Diagnostic) error) {
		return "file://" + w.put("plain", ""), func(driver.Diagnostic) error { return os.Remove(w.path("plain")) }
	}, map[string]string{"folder": "unsafe"}, false},
	"a folder of another user": {func(w *world) (string, func(driver.Diagnostic) error) {
		folder := w.path("another's")
		if err := os.Mkdir(folder, 0o755); err != nil {
			w.t.Fatal(err)
		}
		if err := os.Chown(folder, 12345, -1); err != nil {
			w.t.Skip("only root can make it: ", err)
		}
		return "file://" + folder, func(driver.Diagnostic) error { return os.Chown(folder, os.Getuid(), -1) }
	}, map[string]string{"folder-owner": "warning"}, false},
	"no home": {func(w *world) (string, func(driver.Diagnostic) error) {
		w.env = append(w.env, "HOME=", "TMPDIR="+w.dir)
		return "file:", nil
	}, map[string]string{"no-home": "note"}, false},
}

func separator(url string) string {
	if strings.Contains(url, "?") {
		return "&"
	}
	return "?"
}

func TestDoctorFindsSeveralThingsAtOnce(t *testing.T) {
	t.Parallel()
	for name, m := range messes {
		if testing.Short() && m.slow {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.env = append(w.env, "PGUSER="+server.Superuser)
			url, mend := m.make(w)
			w.env = append(w.env, envURL+"="+url)
			var found map[string]driver.Diagnostic
			for code, severity := range m.found {
				eventually(t, "found: "+code, func() bool { found = w.examine(); return found[code].Code != "" }) // a save, say, fails by and by
				if f := found[code]; f.Severity.String() != severity || severity != "note" && f.Remedy == "" {
					t.Errorf("found %+v, want %s and a remedy", f, severity)
				}
			}
			if mend == nil {
				return
			}
			for code := range m.found {
				if err := mend(found[code]); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "all is mended", func() bool {
				found = w.examine()
				for code := range m.found {
					if found[code].Code != "" {
						return false
					}
				}
				return true
			})
		})
	}
}

// A server that refuses this client is not examined: that is no good report. An observer does not
// end as if all were well either.
func TestAServerThatRefusesTheClientIsNoGoodReport(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options []server.Option
		user    string
	}{
		"no password":      {[]server.Option{server.WithPassword("s3cr3t")}, ""},
		"a wrong password": {[]server.Option{server.WithPassword("s3cr3t")}, ":wr0ng@"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, kind := range []server.Kind{server.KindRedis, server.KindValkey} {
				s := server.StartFor(t, kind, c.options...)
				w := newWorld(t)
				w.env = append(w.env, envURL+"="+strings.TrimSuffix(string(kind), "-server")+"://"+c.user+s.Addr())
				for _, args := range [][]string{{"doctor"}, {"doctor", "--json"}, {"elect", "--observe", "k"}} {
					stdout, stderr := w.want(exitUnavailable, args...)
					if !strings.Contains(stderr, "password") || strings.Contains(stdout+stderr, "wr0ng") || strings.Contains(stdout+stderr, "s3cr3t") {
						t.Errorf("%s: %v: stdout %q, stderr %q", kind, args, stdout, stderr)
					}
				}
			}
		})
	}
}

// A clock that is set back after a grant is found, until it is right again.
func TestDoctorFindsAClockThatWasSetBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := server.Redis(t, server.WithClock())
	w.env = append(w.env, envURL+"="+s.URL()+"?restart_guard=10s&bootstrap=true")
	if err := s.SetClock(time.Hour); err != nil {
		t.Fatal(err)
	}
	w.want(0, "run", "--ttl", "5s", "k", "--", "true")
	if f := w.examine()["clock-set-back"]; f.Code != "" {
		t.Errorf("before it is set back: %+v", f)
	}
	if err := s.SetClock(0); err != nil {
		t.Fatal(err)
	}
	if f := w.examine()["clock-set-back"]; f.Severity != driver.SeverityUnsafe || !strings.Contains(f.Measured, "m") {
		t.Errorf("an hour back: %+v", f)
	}
	if err := s.SetClock(time.Hour); err != nil {
		t.Fatal(err)
	}
	if f := w.examine()["clock-set-back"]; f.Code != "" {
		t.Errorf("set right: %+v", f)
	}
}

func TestDoctorComparesClocks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	urls := make([]string, 3)
	var wrong *server.Server
	for i := range urls {
		wrong = server.Redis(t, server.WithClock())
		urls[i] = wrong.URL()
	}
	w.env = append(w.env, envURL+"=redlock:"+strings.Join(urls, ",")+",bootstrap=true,node_timeout=2s")
	var found map[string]driver.Diagnostic
	allAnswer := func() { // a node that is late has no clock to compare
		eventually(t, "answers of all nodes", func() bool { found = w.examine(); return found["node-unreachable"].Code == "" })
	}
	if allAnswer(); found["clock-apart"].Code != "" {
		t.Errorf("good clocks: %+v", found)
	}
	if err := wrong.SetClock(5 * time.Minute); err != nil {
		t.Fatal(err)
	}
	allAnswer()
	if f := found["clock-apart"]; f.Severity != driver.SeverityUnsafe || !strings.Contains(f.Node, fmt.Sprint(wrong.Port())) || !strings.Contains(f.Measured, "m") {
		t.Errorf("a wrong clock: %+v", f)
	}
	if f := found["clock-offset"]; f.Severity != driver.SeverityWarning {
		t.Errorf("a wrong clock: %+v", f)
	}
	w.want(0, "run", "k", "--", "true") // two nodes suffice
	if err := wrong.SetClock(0); err != nil {
		t.Fatal(err)
	}
	if allAnswer(); found["clock-apart"].Code != "" {
		t.Errorf("a clock that was set right: %+v", found)
	}
}

func TestDoctorIsReadByPeople(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := server.Redis(t, server.WithMaxMemory("100mb", "allkeys-lru"))
	w.env = append(w.env, envURL+"="+s.URL())
	host, port, err := net.SplitHostPort(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	out, stderr := w.want(exitUnsafe, "doctor")
	for _, line := range []string{
		"unsafe maxmemory-policy: redis://" + s.Addr() + "/0: maxmemory-policy is allkeys-lru: the server may evict a lock that is held, or its counter\n" +
			"    fix: set maxmemory-policy noeviction\n" +
			"    run: redis-cli -h " + host + " -p " + port + " CONFIG SET maxmemory-policy noeviction\n",
		"\nNOTE ", "1 unsafe, ",
	} {
		if !strings.Contains(out, line) {
			t.Errorf("it lacks %q:\n%s", line, out)
		}
	}
	if stderr != "" {
		t.Errorf("stderr: %s", stderr)
	}
	w.want(exitWarnings, "doctor", "--ignore", "maxmemory-policy")
	w.want(0, "doctor", "--ignore", "maxmemory-policy,appendonly,slow-scripts")
}

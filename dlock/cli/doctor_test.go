//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// examine returns the findings of each code, the gravest.
func examine(t *testing.T, url string) (map[string]driver.Diagnostic, error) {
	t.Helper()
	c, err := dlock.OpenURL(url, dlock.WithLogger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // nothing is held
	i, err := optional[driver.Inspector](c, "cannot be checked")
	if err != nil {
		t.Fatal(err)
	}
	all, err := i.Check(t.Context())
	found := map[string]driver.Diagnostic{}
	for _, f := range all {
		if f.Code == "" || f.Summary == "" || f.Severity > driver.SeverityNote && f.Remedy == "" {
			t.Errorf("a finding lacks something: %+v", f)
		}
		if _, graver := found[f.Code]; !graver {
			found[f.Code] = f
		}
	}
	return found, err
}

// A misconfiguration is made on purpose on real servers.
type misconfiguration struct {
	found string // each "code severity" or "code severity part-of-what-is-measured", separated by commas
	make  func(w *world) (url string, mend mender)
	depth depth
}

// A mender mends what was found, most often with the command of the finding.
type mender func(f driver.Diagnostic) error

// A depth says which runs include a test.
type depth int

const (
	always depth = iota
	long         // not with -short
	deep         // only in the deep depth
)

func (d depth) skip() bool { return testing.Short() && d > always || d == deep && !server.IsDeep() }

// shell runs the command that the finding prints. Its tool is there: each server comes with its own.
func (w *world) shell(f driver.Diagnostic) error {
	if f.Command == "" {
		return errors.New("no command is printed")
	}
	c := exec.Command("sh", "-c", f.Command)
	c.Env = append(w.environ(), "PATH="+os.Getenv("PATH")+":"+w.dir)
	out, err := c.CombinedOutput()
	if err == nil && strings.Contains(string(out), "ERR ") {
		err = errors.New("refused by the server")
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", f.Command, err, out)
	}
	return nil
}

// alone returns a function that starts one server with options.
func alone(kind server.Kind, query string, options ...server.Option) func(*world) (string, mender) {
	return func(w *world) (string, mender) { return server.StartFor(w.t, kind, options...).URL() + query, w.shell }
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
		if err := w.shell(driver.Diagnostic{Command: "psql '" + s.URL() + "' -c \"" + statement + "\""}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// among starts a quorum; change may modify its URLs.
func among(n int, change func(w *world, urls []string, nodes []*server.Server) (options string, mend mender)) func(*world) (string, mender) {
	return func(w *world) (string, mender) {
		url, nodes := quorumOf(w.t, n)
		urls := strings.Split(strings.TrimPrefix(url, "redlock:"), ",")[:n]
		options, mend := change(w, urls, nodes)
		if !strings.Contains(options, "node_timeout") {
			options += ",node_timeout=2s"
		}
		return "redlock:" + strings.Join(urls, ",") + ",bootstrap=true" + options, mend
	}
}

// under takes a lock with terms of its own, until each of the nodes knows them.
func (w *world) under(urls []string, options string) {
	url := "redlock:" + strings.Join(urls, ",") + ",bootstrap=true,node_timeout=2s" + options
	eventually(w.t, "all nodes know the terms", func() bool {
		w.want(0, "run", "--url", url, "--ttl", "5s", "k", "--", "true")
		out, _ := w.want(0, "bootstrap", "--dry-run", "--url", url)
		return strings.Count(out, "kept: ") == len(urls)
	})
}

func unchanged(*world, []string, []*server.Server) (string, mender) { return "", nil }

var misconfigurations = map[string]misconfiguration{
	"eviction":       {"maxmemory-policy unsafe allkeys-lru", alone(server.KindRedis, "", server.WithMaxMemory("100mb", "allkeys-lru")), long},
	"no persistence": {"appendonly warning no", alone(server.KindRedis, ""), long},
	"not durable":    {"durable-not-persistent unsafe everysec", alone(server.KindRedis, "?restart_guard=10s&durable=true", server.WithAppendOnly("everysec")), long},
	"cluster": {"cluster-node unsafe", func(w *world) (string, mender) {
		return server.Redis(w.t, server.WithCluster()).URL(), nil
	}, deep},
	"replica": {"replica unsafe", func(w *world) (string, mender) {
		return server.Redis(w.t, server.WithReplicaOf(server.Redis(w.t))).URL(), w.shell
	}, long},
	"replicas": {"has-replicas warning 1", func(w *world) (string, mender) {
		primary := server.Valkey(w.t)
		server.Valkey(w.t, server.WithReplicaOf(primary))
		return primary.URL(), nil
	}, long},
	"no eval": {"acl-command unsafe EVAL", lacks("~* &* +@all -eval"), long},
	"rights":  {"acl-key unsafe,acl-channel warning,acl-command warning MGET,unknown-setting note", lacks("~other:* resetchannels &other:* +@all -config -mget"), always},
	"clock": {"clock-set-back unsafe m", func(w *world) (string, mender) {
		s := server.Redis(w.t, server.WithClock())
		set := func(ahead time.Duration) {
			if err := s.SetClock(ahead); err != nil {
				w.t.Fatal(err)
			}
		}
		set(time.Hour)
		url := s.URL() + "?restart_guard=10s&bootstrap=true"
		w.want(0, "run", "--ttl", "5s", "--url", url, "k", "--", "true")
		set(0)
		return url, func(driver.Diagnostic) error { set(time.Hour); return nil }
	}, long},

	"even": {"quorum-size warning 4,same-host warning", among(4, unchanged), long},
	"one server twice": {"same-server unsafe", among(3, func(_ *world, urls []string, nodes []*server.Server) (string, mender) {
		urls[2] = fmt.Sprintf("redis://localhost:%d/0", nodes[0].Port())
		return "", nil
	}), long},
	"failover inside": {"not-independent unsafe sentinel", among(3, func(w *world, urls []string, _ []*server.Server) (string, mender) {
		g := server.Sentinel(w.t, server.KindRedis)
		urls[1] = "redis://" + strings.Join(g.Addrs(), "%2C") + "/0?topology=sentinel&master=" + g.Name
		return "", nil
	}), deep},
	"node down": {"node-unreachable warning", among(3, func(w *world, _ []string, nodes []*server.Server) (string, mender) {
		if err := nodes[1].Kill(); err != nil {
			w.t.Fatal(err)
		}
		return "", func(driver.Diagnostic) error { return nodes[1].Start() }
	}), long},
	"terms": {"terms-differ warning restart_guard=10s", among(3, func(w *world, urls []string, _ []*server.Server) (string, mender) {
		w.under(urls, ",restart_guard=10s")
		return ",restart_guard=1m", w.shell
	}), long},
	"more nodes": {"terms-differ warning 3 nodes", among(5, func(w *world, urls []string, _ []*server.Server) (string, mender) {
		w.under(urls[:3], "")
		return "", w.shell
	}), long},
	"quarantine": {"quarantine warning", among(3, func(w *world, urls []string, nodes []*server.Server) (string, mender) {
		w.under(urls, ",restart_guard=2m")
		if err := nodes[1].RestartEmpty(); err != nil {
			w.t.Fatal(err)
		}
		w.want(0, "run", "--url", "redlock:"+strings.Join(urls, ",")+",node_timeout=2s,restart_guard=2m", "k", "--", "true")
		return ",restart_guard=2m", nil // it ends by itself
	}), long},

	"fsync": {"fsync unsafe off", alone(server.KindPostgres, ""), long},
	"pooler": {"refused unsafe", func(w *world) (string, mender) {
		return server.PgBouncer(w.t, server.Postgres(w.t), "transaction").URL(), nil
	}, deep},
	"standby": {"refused unsafe", func(w *world) (string, mender) {
		return server.StartFor(w.t, server.KindPostgres, server.WithStandby()).URL(), nil
	}, deep},
	"cached sequence": {"refused unsafe", func(w *world) (string, mender) {
		s := server.Postgres(w.t)
		w.psql(s, "CREATE SEQUENCE public.dlock_fence AS int8 CACHE 20")
		return s.URL(), w.shell
	}, deep},
	"asynchronous standby": {"replication-async warning", func(w *world) (string, mender) {
		primary := server.Postgres(w.t)
		server.Postgres(w.t, server.WithReplicaOf(primary))
		return primary.URL(), func(driver.Diagnostic) error { // its remedy says so
			w.psql(primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
			w.psql(primary, "SELECT pg_reload_conf()")
			return nil
		}
	}, deep},

	"folder without sticky bit": {"folder-not-sticky warning 0777", func(w *world) (string, mender) {
		folder := filepath.Join(w.dir, "a folder")
		if err := errors.Join(os.Mkdir(folder, 0o700), os.Chmod(folder, 0o777)); err != nil {
			w.t.Fatal(err)
		}
		return "file://" + strings.ReplaceAll(folder, " ", "%20"), w.shell
	}, always},
}

// lacks starts a server whose user lacks rights. An administrator runs the printed commands.
func lacks(rights string) func(*world) (string, mender) {
	return func(w *world) (string, mender) {
		s := server.Redis(w.t, server.WithUser("app on >secret "+rights))
		return s.URLFor("app", "secret"), func(f driver.Diagnostic) error {
			if f.Code == "unknown-setting" {
				f.Command = fmt.Sprintf("redis-cli -p %d ACL SETUSER app +config|get", s.Port()) // its remedy says so
			}
			_, rest, ok := strings.Cut(f.Command, fmt.Sprintf("-p %d ", s.Port()))
			if !ok {
				return errors.New("it names another server: " + f.Command)
			}
			_, err := s.Do(strings.Fields(strings.ReplaceAll(rest, "'", ""))...)
			return err
		}
	}
}

func TestDoctorFindsEachMisconfigurationAndItsCommandMendsIt(t *testing.T) {
	t.Parallel()
	for name, m := range misconfigurations {
		if m.depth.skip() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if err := os.Symlink(w.exe, w.path("dlock")); err != nil { // for the commands that are printed
				t.Fatal(err)
			}
			url, mend := m.make(w)
			w.url = url
			codes := map[string][]string{}
			for want := range strings.SplitSeq(m.found, ",") {
				words := append(strings.SplitN(want, " ", 3), "") // nothing measured
				codes[words[0]] = words[1:]
			}
			// A standby, say, comes by and by, and a busy server answers late.
			var found map[string]driver.Diagnostic
			var err error
			eventually(t, "found: "+m.found, func() bool {
				if found, err = examine(t, url); err != nil {
					t.Log(err)
				}
				for code, want := range codes {
					f := found[code]
					if f.Code == "" || f.Severity.String() != want[0] || !strings.Contains(f.Measured, want[1]) {
						return false
					}
				}
				return true
			})
			if mend == nil {
				return
			}
			for code := range codes {
				if err := mend(found[code]); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "it is mended", func() bool {
				found, err = examine(t, url)
				for code, was := range codes {
					if f := found[code]; f.Severity > driver.SeverityNote || f.Code != "" && was[0] == "note" {
						return false
					}
				}
				return err == nil
			})
		})
	}
}

// A server that refuses this client is not examined: that is no good report.
func TestAServerThatRefusesTheClientIsNoGoodReport(t *testing.T) {
	t.Parallel()
	s := server.StartFor(t, server.KindRedis, server.WithPassword("s3cr3t"))
	for _, user := range []string{"", ":wr0ng@"} {
		w := on(t, "redis://"+user+s.Addr())
		for _, args := range [][]string{{"doctor"}, {"doctor", "--json"}, {"status", "k"}} {
			stdout, stderr := w.want(exitUnavailable, args...)
			if !strings.Contains(stderr, "password") || strings.Contains(stdout+stderr, "wr0ng") || strings.Contains(stdout+stderr, "s3cr3t") {
				t.Errorf("%v: stdout %q, stderr %q", args, stdout, stderr)
			}
		}
	}
}

func TestDoctorIsReadByPeople(t *testing.T) {
	t.Parallel()
	s := server.Redis(t, server.WithMaxMemory("100mb", "allkeys-lru"))
	w := on(t, s.URL())
	host, port, err := net.SplitHostPort(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	out, stderr := w.want(2, "doctor")
	for _, line := range []string{
		"unsafe maxmemory-policy: redis://" + s.Addr() + "/0: maxmemory-policy is allkeys-lru: the server may evict a lock that is held, or its counter\n" +
			"    fix: set maxmemory-policy noeviction\n" +
			"    run: redis-cli -h " + host + " -p " + port + " CONFIG SET maxmemory-policy noeviction\n",
		"\nnote ", "\nunsafe: 1, warnings: 1, ",
	} {
		if !strings.Contains(out, line) {
			t.Errorf("it lacks %q:\n%s", line, out)
		}
	}
	if stderr != "" {
		t.Errorf("stderr: %s", stderr)
	}
	var all []driver.Diagnostic
	w.json(2, &all, "doctor", "--json")
	if !slices.ContainsFunc(all, func(f driver.Diagnostic) bool {
		return f.Code == "maxmemory-policy" && f.Severity == driver.SeverityUnsafe
	}) {
		t.Errorf("in JSON: %+v", all)
	}
	w.want(1, "doctor", "--ignore", "maxmemory-policy")
	w.want(0, "doctor", "--ignore", "maxmemory-policy,appendonly,slow-scripts")
}

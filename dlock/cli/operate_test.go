//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// quorum starts servers, both kinds in turns, and returns the URL of a majority of them.
func quorumOf(t *testing.T, n int, options ...string) (url string, nodes []*server.Server) {
	urls := make([]string, n)
	for i := range urls {
		kind := []server.Kind{server.KindRedis, server.KindValkey}[i%2]
		nodes = append(nodes, server.StartFor(t, kind))
		urls[i] = nodes[i].URL()
	}
	return "redlock:" + strings.Join(append(urls, append([]string{"bootstrap=true", "node_timeout=2s"}, options...)...), ","), nodes
}

// states runs dlock status --json.
func (w *world) states(keys ...string) []driver.State {
	w.t.Helper()
	var all []driver.State
	w.json(0, &all, append([]string{"status", "--json"}, keys...)...)
	return all
}

// A job hangs, and dlock with it. status names it, unlock frees the key, the next run has a
// larger token, and the hanging job is killed when it runs again.
func TestAStuckHolderIsNamedAndItsLockTakenAway(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) string{
		"file":     func(t *testing.T) string { return "file://" + t.TempDir() },
		"redis":    func(t *testing.T) string { return server.Redis(t).URL() },
		"quorum":   func(t *testing.T) string { url, _ := quorumOf(t, 3); return url },
		"postgres": func(t *testing.T) string { return server.Postgres(t).URL() },
	} {
		if testing.Short() && name != "file" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stuckHolder(t, on(t, start(t)), name)
		})
	}
}

func stuckHolder(t *testing.T, w *world, backend string) {
	args := []string{"run", "--label", "web-4"}
	if backend != "file" {
		args = append(args, "--ttl", "30s")
	}
	p := w.start(append(args, "stuck", "--", "sh", "-c", "echo $DLOCK_FENCE > fence; echo $$ > pid; exec sleep 1000")...)
	fence, pid := w.content("fence"), w.pid("pid")
	p.signal(syscall.SIGSTOP)
	all := w.states("stuck")
	if len(all) != 1 || len(all[0].Holders) != 1 || all[0].Verdict() != "held" {
		t.Fatalf("status says %+v", all)
	}
	h := all[0].Holders[0]
	if !strings.Contains(h.Owner, "web-4") || h.Since.IsZero() || backend != "file" && backend != "postgres" && h.TTL <= 0 {
		t.Errorf("the holder is %+v", h)
	}
	switch backend {
	case "postgres":
		if _, stderr := w.want(exitUsage, "unlock", "stuck", "--token", fence); !strings.Contains(stderr, "no session") {
			t.Errorf("with a token unlock says %s", stderr)
		}
		w.want(exitHeld, "unlock", "stuck", "--session", "1.2")
		w.want(0, "unlock", "stuck", "--session", h.Session)
	default:
		if strconv.FormatUint(h.Fence, 10) != fence {
			t.Errorf("the token is %s, and status says %d", fence, h.Fence)
		}
		w.want(exitHeld, "unlock", "stuck", "--token", "5")
		w.want(0, "unlock", "stuck", "--token", fence)
	}
	w.want(0, "run", "stuck", "--", "sh", "-c", "echo $DLOCK_FENCE > next")
	before, err := strconv.ParseUint(fence, 10, 64)
	after, err2 := strconv.ParseUint(w.content("next"), 10, 64)
	if err != nil || err2 != nil || after <= before {
		t.Errorf("the next token is %d, after %d (%v, %v)", after, before, err, err2)
	}
	p.signal(syscall.SIGCONT)
	p.ends(exitLost, "")
	if alive(pid) {
		t.Error("the holder's command lives on")
	}
}

// Each reader has a line with its token, by which the lock is taken away from it alone. A writer may
// have a range of tokens, with which its client passes the lock on: any of them takes it away.
func TestStatusShowsEachReaderAndUnlockTakesOneAway(t *testing.T) {
	t.Parallel()
	w := on(t, server.Redis(t).URL())
	c, err := dlock.OpenURL(w.url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // the test is over
	acquire := func(r driver.Request) uint64 {
		t.Helper()
		r.Key, r.TTL = "k", time.Minute
		l, err := c.Backend().Acquire(t.Context(), &r)
		if err != nil {
			t.Fatal(err)
		}
		return l.Grant().Fence
	}
	var tokens []string
	for _, owner := range []string{"a/1", "a/2"} {
		tokens = append(tokens, number10(acquire(driver.Request{Owner: owner, Mode: driver.Shared})))
	}
	for ; len(tokens) > 0; tokens = tokens[1:] {
		out, _ := w.want(0, "status", "k")
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if len(lines) != 1+len(tokens) || !strings.Contains(lines[1], "held, shared") {
			t.Fatalf("status of %d readers:\n%s", len(tokens), out)
		}
		for _, token := range tokens {
			if !strings.Contains(out, " "+token+" ") {
				t.Errorf("token %s is not in\n%s", token, out)
			}
		}
		w.want(0, "unlock", "--token", tokens[0], "k")
	}
	for _, before := range []uint64{0, 50, 99} {
		last := acquire(driver.Request{Owner: "a/3", Tokens: 100})
		w.want(exitHeld, "unlock", "k", "--token", number10(last-100))
		w.want(exitHeld, "unlock", "k", "--token", number10(last+1))
		w.want(0, "unlock", "k", "--token", number10(last-before))
	}
}

func TestStatusShowsHoldersAndTheQueueInItsOrder(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) string{
		"redis":    func(t *testing.T) string { return server.Redis(t).URL() },
		"quorum":   func(t *testing.T) string { url, _ := quorumOf(t, 3); return url },
		"postgres": func(t *testing.T) string { return server.Postgres(t).URL() },
	} {
		if testing.Short() && name != "redis" || name == "postgres" && !server.IsDeep() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := on(t, start(t)+map[string]string{"quorum": ",prefix=app:", "redis": "?prefix=app:"}[name])
			_, release := w.holder("k", "--label", "first")
			defer release()
			var s driver.State // a later one may fall between two statements of a waiter
			for i, label := range []string{"second", "third"} {
				w.start("run", "--label", label, "k", "--", "true")
				eventually(t, label+" is in the queue", func() bool {
					s = w.states("k")[0]
					late := slices.ContainsFunc(s.Nodes, func(n driver.NodeState) bool { return n.State == nil })
					return s.Waiters == i+1 && len(s.Queue) == i+1 && !late
				})
			}
			if s.Queue[0].Since.IsZero() || s.Queue[1].Since.Before(s.Queue[0].Since) {
				t.Errorf("the queue is %+v", s.Queue)
			}
			if name == "quorum" {
				if len(s.Nodes) != 3 || len(s.Nodes[2].State.Holders) != 1 || !strings.HasPrefix(s.Nodes[2].State.Holders[0].Owner, "first/") {
					t.Errorf("the nodes are %+v", s.Nodes)
				}
			}
			if name != "postgres" {
				eventually(t, "without keys status says the same", func() bool {
					all := w.states()
					return len(all) == 1 && all[0].Key == "k" && all[0].Waiters == 2
				})
			} else if _, stderr := w.want(exitUsage, "status"); !strings.Contains(stderr, "name them") {
				t.Errorf("without keys status says %q", stderr)
			}
			if s := w.states("free")[0]; s.Verdict() != "free" || len(s.Holders) != 0 {
				t.Errorf("a free key is %+v", s)
			}
			out, _ := w.want(0, "status", "k")
			for _, word := range []string{"KEY", "held", "first", "PLACE", "waiting for k"} {
				if !strings.Contains(out, word) {
					t.Errorf("status lacks %q:\n%s", word, out)
				}
			}
		})
	}
}

func TestTablesLineUpAndHaveNoEmptyColumn(t *testing.T) {
	var b bytes.Buffer
	writeTable(&b, "  ", [][]string{{"KEY", "NONE", "HOLDER", "LAST"}, {"kürzel", "", "a", ""}, {"b", "", "longer than that", "x"}})
	if want := "  KEY     HOLDER            LAST\n  kürzel  a\n  b       longer than that  x\n"; b.String() != want {
		t.Errorf("got\n%swant\n%s", &b, want)
	}
}

// Many locks are listed in small steps, also beside keys of other applications: none takes more
// than 5 ms of a server's processor time.
func TestStatusOfManyLocksBlocksNoServer(t *testing.T) {
	t.Parallel()
	locks, strangers := 500, 5000
	switch {
	case server.IsDeep():
		locks, strangers = 10000, 1000000
	case testing.Short():
		t.Skip("short: it takes seconds")
	}
	s := server.Redis(t)
	w := on(t, s.URL()+"?ttl=2m&prefix=app:")
	for i := range 10 { // each within the timeout of a request, on a busy machine
		w.do(s, "DEBUG", "POPULATE", strconv.Itoa(strangers/10), fmt.Sprint("other", i), "16")
	}
	keys := make([]string, locks)
	for i := range keys {
		keys[i] = fmt.Sprint("job-", i)
	}
	w.hold(w.url, keys...)
	w.do(s, "CONFIG", "SET", "hz", "1") // what the server does by itself does not count
	w.do(s, "CONFIG", "RESETSTAT")
	const used = `used_cpu_(?:sys|user):([0-9.]+)`
	before := w.info(s, "cpu", used)
	if found := w.states(); len(found) != locks {
		t.Errorf("%d of %d locks are listed", len(found), locks)
	}
	took, steps := w.info(s, "cpu", used)-before, w.info(s, "commandstats", `cmdstat_(?:scan|eval):calls=(\d+)`)
	if steps < float64(locks/256) || took/max(steps, 1) > 0.005 {
		t.Errorf("the server has used %.3f s for %v steps, want 5 ms for each at most", took, steps)
	}
}

// info returns the sum of the numbers that a pattern finds in a section of a server's INFO.
func (w *world) info(s *server.Server, section, pattern string) (sum float64) {
	w.t.Helper()
	reply, err := s.Do("INFO", section)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(fmt.Sprint(reply), -1) {
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			w.t.Fatal(err)
		}
		sum += n
	}
	return sum
}

func TestNodesWithoutAnAnswerAreNamed(t *testing.T) {
	if testing.Short() {
		t.Skip("short: it starts a quorum")
	}
	t.Parallel()
	url, nodes := quorumOf(t, 3, "restart_guard=10s")
	w := on(t, url)
	_, release := w.holder("k")
	defer release()
	if err := nodes[1].Kill(); err != nil {
		t.Fatal(err)
	}
	out, _ := w.want(0, "status", "k")
	found := false
	for line := range strings.Lines(out) {
		found = found || strings.Contains(line, fmt.Sprint(nodes[1].Port())) && strings.Count(line, "valkey://") == 1 && strings.Contains(line, "unknown") && strings.Contains(line, "refused")
	}
	if !found {
		t.Errorf("status does not name the node that is down:\n%s", out)
	}
	if err := nodes[0].Kill(); err != nil {
		t.Fatal(err)
	}
	w.want(exitUnavailable, "status", "k")
}

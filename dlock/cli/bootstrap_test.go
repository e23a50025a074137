//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/redlocktest/server"
)

func TestBootstrapStatesThatServersAreNew(t *testing.T) {
	if testing.Short() {
		t.Skip("short: it waits for a restart guard")
	}
	t.Parallel()
	w := newWorld(t)
	var three, five string
	for attempt := 1; ; attempt++ {
		urls := make([]string, 5)
		for i := range urls {
			urls[i] = "redis://" + server.Redis(t).Addr()
		}
		const options = ",restart_guard=6s,node_timeout=2s" // a busy machine answers in that
		three = "redlock:" + strings.Join(urls[:3], ",") + options
		five = "redlock:" + strings.Join(urls, ",") + options
		code, stdout, stderr := w.run("bootstrap", "--url", three)
		if code == 0 && strings.Contains(stdout, "at once") {
			break
		}
		if attempt == 5 || !late.MatchString(stdout+stderr) { // servers that may have been told already are not new
			t.Fatalf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
		}
	}
	run := func(url string) []string {
		return []string{"run", "--ttl", "4s", "--wait", "0", "--url", url, "k", "--", "true"}
	}

	w.want(0, "run", "--ttl", "4s", "--wait", "1m", "--url", three, "k", "--", "true")
	if _, stderr := w.want(exitUnavailable, "bootstrap", "--url", three); !strings.Contains(stderr, "remember") {
		t.Errorf("stderr is %q", stderr)
	}

	// Five nodes are another quorum than three, and neither works beside the other.
	if _, stderr := w.want(exitUnavailable, run(five)...); !strings.Contains(stderr, "quorum of 3") {
		t.Errorf("stderr is %q", stderr)
	}
	stated := time.Now()
	if out, _ := w.want(0, "bootstrap", "--nodes", "--url", five); !strings.Contains(out, "one restart guard") {
		t.Errorf("stdout is %q", out)
	}
	if _, stderr := w.want(exitUnavailable, run(three)...); !strings.Contains(stderr, "quorum of 5") {
		t.Errorf("stderr is %q", stderr)
	}
	if code, _, stderr := w.run(run(five)...); time.Since(stated) < 6*time.Second && !late.MatchString(stderr) && (code != exitUnavailable || !strings.Contains(stderr, "number of nodes")) {
		t.Errorf("exit code %d, stderr is %q", code, stderr)
	}
	w.want(0, "run", "--ttl", "4s", "--wait", "1m", "--url", five, "k", "--", "true")
}

func TestBootstrapShowsAndChangesTerms(t *testing.T) {
	if testing.Short() {
		t.Skip("short: it waits for two restart guards")
	}
	t.Parallel()
	w := newWorld(t)
	urls := make([]string, 3)
	for i := range urls {
		urls[i] = "redis://" + server.Redis(t).Addr()
	}
	url := func(options string) string { return "redlock:" + strings.Join(urls, ",") + ",prefix=terms/" + options }
	run := func(url, ttl string) []string {
		return []string{"run", "--ttl", ttl, "--wait", "1m", "--url", url, "k", "--", "true"}
	}
	one, six := url(",restart_guard=4s"), url(",restart_guard=6s,clock_allowance=200ms")
	says := func(out string, n int, part string) {
		t.Helper()
		if got := strings.Count(out, part); got != n {
			t.Errorf("%q is said %d times, want %d: %s", part, got, n, out)
		}
	}

	out, _ := w.want(0, "bootstrap", "--dry-run", "--url", one)
	says(strings.ReplaceAll(out, "unused", "new"), 3, "new") // or not so new any more
	if _, stderr := w.want(exitUnavailable, "bootstrap", "--terms", "--url", one); !strings.Contains(stderr, "has no terms to change") {
		t.Errorf("stderr is %q", stderr)
	}
	eventually(t, "the servers count as new", func() bool { // the answer to a statement may be late
		code, _, stderr := w.run("bootstrap", "--url", one)
		return code == 0 || strings.Contains(stderr, "remember")
	})
	w.want(0, run(one, "4s")...)
	if _, stderr := w.want(exitUnavailable, "run", "--ttl", "6s", "--wait", "0", "--url", six, "k", "--", "true"); !strings.Contains(stderr, "restart_guard is 6s") || !strings.Contains(stderr, "4s") || !strings.Contains(stderr, "dlock bootstrap --terms") {
		t.Errorf("stderr is %q", stderr)
	}
	out, _ = w.want(0, "bootstrap", "--terms", "--dry-run", "--url", six)
	says(out, 3, "kept: 3 nodes, restart_guard 4s, clock_allowance 100ms")
	says(out, 1, "this URL: 3 nodes, restart_guard 6s, clock_allowance 200ms")
	says(out, 0, "become")

	out, _ = w.want(0, "bootstrap", "--terms", "--url", six)
	says(out, 3, "; set")
	eventually(t, "the terms have changed", func() bool { // when every lease that was granted before has ended
		code, _, _ := w.run("run", "--ttl", "6s", "--wait", "0", "--url", six, "k", "--", "true")
		return code == 0
	})
	out, _ = w.want(0, "bootstrap", "--dry-run", "--url", one)
	says(out, 3, "restart_guard 6s")
	for _, bad := range []string{",restart_guard=4s,clock_allowance=5s", ",restart_guard=4s,node_timeout=5s"} {
		if _, stderr := w.want(exitUsage, "bootstrap", "--terms", "--url", url(bad)); !strings.Contains(stderr, "restart guard, 4s") {
			t.Errorf("%s: %q", bad, stderr)
		}
	}
}

//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/redlocktest/server"
)

// New servers vote at once when that is stated; then their number and their terms are changed.
func TestBootstrapStatesThatServersAreNew(t *testing.T) {
	if testing.Short() {
		t.Skip("short: it waits for restart guards")
	}
	t.Parallel()
	w := newWorld(t)
	const options = ",node_timeout=2s" // a busy machine answers in that
	var urls []string
	three := func(more string) string { return "redlock:" + strings.Join(urls[:3], ",") + options + more }
	five := func(more string) string { return "redlock:" + strings.Join(urls, ",") + options + more }
	for attempt := 1; ; attempt++ {
		urls = nil
		for range 5 {
			urls = append(urls, "redis://"+server.Redis(t).Addr())
		}
		code, stdout, stderr := w.run(0, "bootstrap", "--url", three(",restart_guard=6s"))
		if code == 0 && strings.Contains(stdout, "at once") {
			break
		}
		if attempt == 5 || !late.MatchString(stdout+stderr) { // servers that may have been told already are not new
			t.Fatalf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
		}
	}
	// try is a run with a TTL; it ends with a code, and says something.
	try := func(code int, url, ttl, wait, says string) {
		t.Helper()
		if _, stderr := w.want(code, "run", "--ttl", ttl, "--wait", wait, "--url", url, "k", "--", "true"); !strings.Contains(stderr, says) {
			t.Errorf("stderr is %q, want %q in it", stderr, says)
		}
	}
	// state is a bootstrap; it ends with a code, and says something so many times.
	state := func(code int, url string, n int, says string, flags ...string) {
		t.Helper()
		stdout, stderr := w.want(code, append([]string{"bootstrap", "--url", url}, flags...)...)
		if got := strings.Count(stdout+stderr, says); got != n {
			t.Errorf("%q: %q is said %d times, want %d: %s%s", flags, says, got, n, stdout, stderr)
		}
	}
	try(0, three(",restart_guard=6s"), "4s", "1m", "")
	state(exitUnavailable, three(",restart_guard=6s"), 1, "remember")

	// Five nodes are another quorum than three, and neither works beside the other.
	try(exitUnavailable, five(",restart_guard=6s"), "4s", "0", "quorum of 3")
	stated := time.Now()
	state(0, five(",restart_guard=6s"), 1, "one restart guard", "--changed")
	try(exitUnavailable, three(",restart_guard=6s"), "4s", "0", "quorum of 5")
	code, _, stderr := w.run(0, "run", "--ttl", "4s", "--wait", "0", "--url", five(",restart_guard=6s"), "k", "--", "true")
	if time.Since(stated) < 6*time.Second && !late.MatchString(stderr) && (code != exitUnavailable || !strings.Contains(stderr, "nodes or their terms")) {
		t.Errorf("exit code %d, stderr is %q", code, stderr)
	}
	try(0, five(",restart_guard=6s"), "4s", "1m", "")

	longer := five(",restart_guard=8s,clock_allowance=200ms")
	try(exitUnavailable, longer, "8s", "0", "dlock bootstrap --changed")
	state(0, longer, 5, "kept: 5 nodes, restart_guard 6s, clock_allowance 100ms", "--changed", "--dry-run")
	state(0, longer, 1, "this URL: 5 nodes, restart_guard 8s, clock_allowance 200ms", "--changed", "--dry-run")
	state(0, longer, 5, "; set", "--changed")
	try(0, longer, "8s", "1m", "")
	state(0, five(",restart_guard=6s"), 5, "restart_guard 8s", "--dry-run")
	state(exitUsage, five(",restart_guard=4s,clock_allowance=5s"), 1, "restart guard, 4s", "--changed")
}

//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"strings"
	"testing"

	"github.com/redlock-go/redlock/redlocktest/server"
)

func TestBootstrapStatesThatServersAreNew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	urls := make([]string, 5)
	for i := range urls {
		urls[i] = "redis://" + server.Redis(t).Addr()
	}
	three := "redlock:" + strings.Join(urls[:3], ",") + ",restart_guard=6s"
	five := "redlock:" + strings.Join(urls, ",") + ",restart_guard=6s"
	run := func(url string) []string {
		return []string{"run", "--ttl", "4s", "--wait", "0", "--url", url, "k", "--", "true"}
	}

	if out, _ := w.want(0, "bootstrap", "--url", three); !strings.Contains(out, "at once") {
		t.Errorf("stdout is %q", out)
	}
	w.want(0, run(three)...)
	if _, stderr := w.want(exitUnavailable, "bootstrap", "--url", three); !strings.Contains(stderr, "remember") {
		t.Errorf("stderr is %q", stderr)
	}

	// Five nodes are another quorum than three, and neither works beside the other.
	if _, stderr := w.want(exitUnavailable, run(five)...); !strings.Contains(stderr, "quorum of 3") {
		t.Errorf("stderr is %q", stderr)
	}
	if out, _ := w.want(0, "bootstrap", "--nodes", "--url", five); !strings.Contains(out, "one restart guard") {
		t.Errorf("stdout is %q", out)
	}
	if _, stderr := w.want(exitUnavailable, run(three)...); !strings.Contains(stderr, "quorum of 5") {
		t.Errorf("stderr is %q", stderr)
	}
	if _, stderr := w.want(exitUnavailable, run(five)...); !strings.Contains(stderr, "number of nodes") {
		t.Errorf("stderr is %q", stderr)
	}
	w.want(0, "run", "--ttl", "4s", "--wait", "1m", "--url", five, "k", "--", "true")
}

func TestBootstrapSaysWhereThereIsNothingToState(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, url := range []string{"memory:", "file:" + w.dir, "redis://" + server.Redis(t).Addr()} {
		if _, stderr := w.want(exitUsage, "bootstrap", "--url", url); !strings.Contains(stderr, "no restart guard") {
			t.Errorf("%s: stderr is %q", url, stderr)
		}
	}
	if _, stderr := w.want(exitUnavailable, "bootstrap", "--url", "redlock:redis://127.0.0.1:1,redis://127.0.0.1:2,redis://127.0.0.1:3"); !strings.Contains(stderr, "127.0.0.1:1") {
		t.Errorf("stderr is %q", stderr)
	}
}

func TestBootstrapPrintsTheSQLOfADatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	out, _ := w.want(0, "bootstrap", "--sql", "--url", "postgres://app@127.0.0.1:1/db")
	for _, part := range []string{"CREATE SEQUENCE", `"public".dlock_fence`, "GRANT USAGE, UPDATE ON SEQUENCE", `TO "app"`} {
		if !strings.Contains(out, part) {
			t.Errorf("no %s in %q", part, out)
		}
	}
	if _, stderr := w.want(exitUsage, "bootstrap", "--sql", "--url", "memory:"); !strings.Contains(stderr, "nothing to prepare") {
		t.Errorf("stderr is %q", stderr)
	}
}

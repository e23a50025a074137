// Package ownprocess runs a test in a process of its own, beside the other tests of its package.
// Only tests use it.
package ownprocess

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// inside is set in the environment of such a process.
const inside = "REDLOCK_TEST_OWN_PROCESS"

// Run runs f in a process of its own whose only test is t, with these additions to its environment,
// in parallel with the tests of this process. t passes, fails or is skipped as it does there, and
// logs what it wrote there. The flags -run (for t's subtests), -short, -v and -timeout apply there too.
func Run(t *testing.T, f func(*testing.T), env ...string) {
	t.Helper()
	if os.Getenv(inside) != "" {
		f(t)
		return
	}
	t.Parallel()
	given := func(name string) string { return flag.Lookup("test." + name).Value.String() }
	names := strings.Split(t.Name(), "/")
	depth := len(names)
	for i, name := range names {
		names[i] = "^" + regexp.QuoteMeta(name) + "$"
	}
	if parts := strings.SplitN(given("run"), "/", depth+1); len(parts) > depth {
		names = append(names, parts[depth])
	}
	args := []string{"-test.run=" + strings.Join(names, "/"), fmt.Sprintf("-test.short=%t", testing.Short()), "-test.v=" + given("v")}
	if end, ok := t.Deadline(); ok { // ends before this process, so that it is heard
		args = append(args, "-test.timeout="+(time.Until(end)*9/10).String())
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), inside+"=1"), env...)
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP: "+t.Name()+" "):
		t.Skipf("%s", out)
	default:
		t.Logf("%s", out)
	}
}

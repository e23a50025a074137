package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// events writes what go test -json would of tests of one package that failed with these outputs.
func events(pkg string, failed map[string]string) string {
	var b strings.Builder
	write := func(e event) {
		line, _ := json.Marshal(e)
		b.Write(append(line, '\n'))
	}
	for test, output := range failed {
		for line := range strings.Lines("=== RUN   " + test + "\n" + output) {
			write(event{"output", pkg, test, line})
		}
		write(event{"output", pkg, test, "--- FAIL: " + test + " (1.00s)\n"})
		write(event{"fail", pkg, test, ""})
	}
	write(event{"output", pkg, "", "FAIL\n"})
	write(event{"fail", pkg, "", ""})
	return b.String()
}

const (
	slow = "    a_test.go:34: Lock: 0 of 3 nodes granted: redis://127.0.0.1:1/0: no answer within 209ms\n"
	logs = "    testing.go:98: the end of the log of redis-server at 127.0.0.1:1:\n        Redis is starting, token leak\n"
)

func TestOnlyWhatRanOutOfTimeIsRunAgain(t *testing.T) {
	for name, c := range map[string]struct {
		failed map[string]string
		more   string // events
		want   string // the tests; if none is said they are not run again
	}{
		"late":                  {failed: map[string]string{"TestA": slow}, want: "[TestA]"},
		"late in a subtest":     {failed: map[string]string{"TestA": logs, "TestA/b/c": "    " + slow}, want: "[TestA]"},
		"continued":             {failed: map[string]string{"TestA": "    a_test.go:3: failed:\n        context deadline exceeded\n"}, want: "[TestA]"},
		"silent":                {failed: map[string]string{"TestA": ""}},
		"logs alone":            {failed: map[string]string{"TestA": logs}},
		"a wrong answer":        {failed: map[string]string{"TestA": "    a_test.go:3: got 3, want 4\n"}},
		"a wrong answer beside": {failed: map[string]string{"TestA": slow + "    a_test.go:3: got 3, want 4\n"}},
		"in another subtest":    {failed: map[string]string{"TestA": "", "TestA/b": slow, "TestA/c": "    a_test.go:3: got 3, want 4\n"}},
		"two holders":           {failed: map[string]string{"TestA": "    a_test.go:3: two holders, and context deadline exceeded\n"}},
		"a data race":           {failed: map[string]string{"TestA": slow + "==================\nWARNING: DATA RACE\n"}},
		"a panic":               {failed: map[string]string{"TestA": slow}, more: `{"Action":"output","Package":"q","Output":"panic: x\n"}` + "\n" + `{"Action":"fail","Package":"q"}` + "\n"},
		"a build":               {failed: map[string]string{"TestA": slow}, more: `{"Action":"build-fail","ImportPath":"q"}` + "\n"},
		"four":                  {failed: map[string]string{"TestA": slow, "TestB": slow, "TestC": slow, "TestD": slow}},
	} {
		t.Run(name, func(t *testing.T) {
			tests, err := ranOutOfTime(strings.NewReader(events("p", c.failed) + c.more))
			got := ""
			if err == nil {
				got = fmt.Sprint(tests["p"])
			}
			if got != c.want {
				t.Errorf("got %q (%v), want %q", got, err, c.want)
			}
		})
	}
	both, err := ranOutOfTime(strings.NewReader(events("p", map[string]string{"TestA": slow}) + events("q", map[string]string{"TestA": slow})))
	if err != nil || len(both) != 2 {
		t.Errorf("of two packages: %v, %v", both, err)
	}
}

// The tests of this package that are run again are these two.
func TestThatPasses(*testing.T) {}

func TestThatFailsIfTold(t *testing.T) {
	if os.Getenv("REDLOCK_TEST_FAIL") != "" {
		t.Error("told so")
	}
}

func TestWhatFailsAgainFails(t *testing.T) {
	t.Chdir(filepath.Join("..", "..", "..")) // where all.bash runs it
	file := filepath.Join(t.TempDir(), "events")
	said := events(module+"/redlocktest/internal/again", map[string]string{"TestThatPasses": slow, "TestThatFailsIfTold": slow})
	if err := os.WriteFile(file, []byte(said), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := again(file, nil); err != nil {
		t.Error(err)
	}
	t.Setenv("REDLOCK_TEST_FAIL", "1")
	if err := again(file, nil); err == nil {
		t.Error("a test failed again, and that is no failure")
	}
}

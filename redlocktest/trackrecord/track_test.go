package trackrecord

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func init() {
	dlock.Register("redsync", library{open: openRedsync})
	dlock.Register("redislock", library{open: openRedislock})
	dlock.Register("valkeylock", library{open: openValkeylock, session: true})
}

// A subject is a library with the parameters of one way to use it.
type subject struct {
	scheme, parameters string
	nodes              int
	// known maps each case that fails, or the stress, to a part of its message: the table of README.md.
	known map[string]string
	// process opens clients in processes of their own as well, whose wall clocks are wrong.
	process bool
}

// Parts of the cases' messages.
const (
	ownRetry = "gives ErrHeld, and its outcome is unknown"
	tooLate  = "Acquire granted after its deadline"
	leftKey  = "keys on the server"
	noWinner = "none won"
	notTold  = "granted while the lease that is cut off has"
	two      = "two owners are in the critical section at once"
	each     = "60 leases that are held have"
	inStress = "explains their answers"
)

var subjects = []subject{
	{scheme: "redsync", nodes: 1,
		known: map[string]string{"fault/lost-reply-acquire": ownRetry, "fault/slow-deadline": tooLate, "stress": inStress}},
	{scheme: "redsync", parameters: "?context_timeout=true", nodes: 1,
		known: map[string]string{"fault/slow-deadline": leftKey}},
	{scheme: "redsync", nodes: 3,
		known: map[string]string{"exclusion/race": noWinner, "cancel/during": leftKey}},
	{scheme: "redislock", nodes: 1,
		known: map[string]string{"fault/slow-deadline": tooLate, "stress": inStress}},
	{scheme: "redislock", parameters: "?context_timeout=true", nodes: 1,
		known: map[string]string{"fault/slow-deadline": leftKey}},
	{scheme: "valkeylock", parameters: "?validity=500ms", nodes: 1,
		known: map[string]string{"fault/partition": notTold, "process/exclude": two, "fault/lost-reply-acquire": ownRetry, "leak/goroutines-lease": each}, process: true},
}

func (s *subject) String() string { return fmt.Sprintf("%s%s/%d", s.scheme, s.parameters, s.nodes) }

// harness makes a harness with a proxy for each server of each backend, and all faults.
func (s *subject) harness(t *testing.T) redlocktest.Harness {
	var servers []*server.Server
	var addrs []string
	for range s.nodes {
		each := server.Redis(t, server.WithAppendOnly("always"))
		servers, addrs = append(servers, each), append(addrs, each.Addr())
	}
	h := fault.HarnessOf(addrs, func(via []string) (driver.Backend, error) {
		return dlock.OpenBackend(s.scheme + "://" + strings.Join(via, ",") + s.parameters)
	})
	nodes := server.Group{Nodes: servers}
	h.Faults.Pause, h.Faults.Resume = nodes.Pause, nodes.Resume
	h.Faults.Kill, h.Faults.Restart = nodes.Kill, nodes.StartAgain
	h.Residue = func(context.Context) (found []string, err error) {
		for _, s := range servers {
			keys, err := s.Do("KEYS", "*")
			if err != nil {
				return nil, err
			}
			for _, k := range keys.([]any) {
				found = append(found, fmt.Sprint(k))
			}
		}
		return found, nil
	}
	h.Short = true
	if s.process {
		h.Process = func() (*redlocktest.Client, error) {
			return redlocktest.StartClient(s.scheme + "://" + strings.Join(addrs, ",") + s.parameters)
		}
	}
	return h
}

func TestMain(m *testing.M) {
	redlocktest.ServeClient(func(url string) (driver.Backend, error) { return dlock.OpenBackend(url) })
	m.Run()
}

// TestKnownFailures runs the cases of README.md's table. A case that passes now is reported:
// the library was fixed, and the table must say so. -v prints the cases' messages.
func TestKnownFailures(t *testing.T) {
	server.Deep(t)
	for _, s := range subjects {
		t.Run(s.String(), func(t *testing.T) {
			h := s.harness(t)
			for name, says := range s.known {
				t.Run(name, func(t *testing.T) {
					if strings.HasPrefix(name, "process/") && runtime.GOOS+"/"+runtime.GOARCH != "linux/amd64" {
						t.Skip("a process has a wall clock of its own only on linux/amd64")
					}
					h.Only = name
					fails(t, h, says)
				})
			}
		})
	}
}

// fails runs a case ten times, because only a race shows some failures, and asserts that it fails with
// this message at least once; the log says how often.
func fails(t *testing.T, h redlocktest.Harness, says string) {
	t.Setenv("TMPDIR", t.TempDir()) // failures name files in it
	const runs = 10
	h.Timeout = 4 * time.Second
	var shown, last *redlocktest.Failure
	times := 0
	for range runs {
		var all []*redlocktest.Failure
		if h.Only == "stress" {
			all = stressed(t, h)
		} else {
			report, err := redlocktest.Examine(t.Context(), h, nil)
			if err != nil {
				t.Fatal(err)
			}
			all = report.Failures()
		}
		for _, f := range all {
			last = f
		}
		if i := slices.IndexFunc(all, func(f *redlocktest.Failure) bool { return strings.Contains(f.Text, says) }); i >= 0 {
			shown = all[i]
			times++
		}
	}
	if shown == nil {
		t.Fatalf("the known failure %q is gone in %d runs, the last of which says %v: take it out of the table, here and in README.md", says, runs, last)
	}
	t.Logf("in %d of %d runs: %v", times, runs, shown)
}

// stressed runs the stress, with faults, instead of a case.
func stressed(t *testing.T, h redlocktest.Harness) []*redlocktest.Failure {
	h.Only = ""
	report, err := redlocktest.ExamineStress(t.Context(), h, redlocktest.StressOptions{Duration: h.Timeout})
	if err != nil {
		t.Fatal(err)
	}
	return report.Failures
}

// testCommand matches the command of a row about our drivers: a folder and a test.
var testCommand = regexp.MustCompile("`go test (?:-C |\\./)(\\S+) (?:-race )?-run (\\w+)\\S*` \\|$")

// TestTheTableIsWhole: README.md has a row for each known failure, and in each row about our
// drivers a command whose test exists.
func TestTheTableIsWhole(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := strings.Split(string(text), "\n")
	for _, s := range subjects {
		url := s.scheme + "://127.0.0.1:6379" + strings.Repeat(",…", min(1, s.nodes-1)) + s.parameters
		for _, name := range slices.Sorted(maps.Keys(s.known)) {
			if !slices.ContainsFunc(rows, func(r string) bool {
				return strings.HasPrefix(r, "| `"+url+"` |") && strings.Contains(r, "`"+name+"`")
			}) {
				t.Errorf("README.md has no row for %s with %s", url, name)
			}
		}
	}
	_, ours, _ := strings.Cut(string(text), "\n## In ours\n")
	found := 0
	for row := range strings.Lines(ours) {
		if !strings.HasPrefix(row, "| ") || strings.HasPrefix(row, "| driver |") {
			continue
		}
		m := testCommand.FindStringSubmatch(strings.TrimSpace(row))
		if m == nil {
			t.Errorf("no command in %s", row)
			continue
		}
		found++
		files, _ := filepath.Glob(filepath.Join("..", "..", m[1], "*_test.go"))
		if !slices.ContainsFunc(files, func(name string) bool {
			code, err := os.ReadFile(name)
			return err == nil && strings.Contains(string(code), "\nfunc "+m[2]+"(")
		}) {
			t.Errorf("%s has no test %s", m[1], m[2])
		}
	}
	if found < 20 {
		t.Errorf("%d rows were found", found)
	}
}

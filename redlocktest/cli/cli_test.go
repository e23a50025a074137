package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	_ "github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/drivers/memory"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func TestMain(m *testing.M) {
	dlock.Register("generous", &planted{space: memory.New(), generous: true})
	dlock.Register("unlisted", unlisted{})
	dlock.Register("forgetful", &planted{space: memory.New()})
	redlocktest.ServeClient(func(url string) (driver.Backend, error) { return dlock.OpenBackend(url) })
	if os.Getenv(asCommand) != "" {
		os.Exit(Main(os.Args, os.Stdout, os.Stderr))
	}
	_ = flag.Set("test.parallel", "8") // that flag exists, and the tests wait more than they compute
	m.Run()
}

// planted is a driver over memory that grants held locks, or whose Release does nothing.
type planted struct {
	space    *memory.Backend
	generous bool
}

func (p *planted) Open(*driver.Config) (driver.Backend, error) {
	return &plantedBackend{p.space.Peer(), p.generous}, nil
}

type plantedBackend struct {
	*memory.Backend
	generous bool
}

func (b *plantedBackend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	own := *req
	if b.generous {
		own.Key += req.Owner
	}
	l, err := b.Backend.Acquire(ctx, &own)
	if err != nil {
		return nil, err
	}
	return plantedLease{l, b.generous}, nil
}

type plantedLease struct {
	driver.Lease
	releases bool
}

func (l plantedLease) Release(ctx context.Context) error {
	if !l.releases {
		return nil
	}
	return l.Lease.Release(ctx)
}

// asCommand makes the test binary the command.
const asCommand = "REDLOCKTEST_COMMAND"

// redlocktestMain runs the command in a process of its own, because it counts goroutines.
func redlocktestMain(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", asCommand+"=1")
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func TestASoundBackendPassesAndNothingIsLeft(t *testing.T) {
	t.Parallel()
	code, out, progress := redlocktestMain(t, "--short", "--stress", "0", "--only", "exclusion/race", "memory:sound")
	if code != exitOK || !strings.Contains(out, "exclusion/race  ok") || !strings.Contains(out, "Left behind: nothing") || !strings.HasSuffix(out, "\nok\n") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if !strings.Contains(progress, "suite\tok\texclusion/race") {
		t.Errorf("the progress is %q", progress)
	}
}

// TestTheStressIsPartOfTheReport: the report also has the tables of rules and faults. If other
// processes can share the locks, some clients run in processes.
func TestTheStressIsPartOfTheReport(t *testing.T) {
	t.Parallel()
	all := "open request exclusion verdict expiry cancel wait watch fence node shared operator close leak history"
	args := []string{"--short", "--json", "--stress", "300ms", "--seed", "7"}
	for _, group := range strings.Fields(all) {
		args = append(args, "--skip", group)
	}
	code, out, _ := redlocktestMain(t, append(args, "memory:stressed", "redis://"+server.Redis(t).Addr())...)
	var reports []report
	if err := json.Unmarshal([]byte(out), &reports); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if code != exitOK || len(reports) != 2 {
		t.Fatalf("exit code %d: %s", code, out)
	}
	for i, r := range reports {
		if r.Stress == nil || r.Stress.Seed != 7 || r.StressOperations == 0 || !strings.Contains(r.Stress.Command, "--stress 300ms") || r.Alone != (i == 0) {
			t.Errorf("the stress of %s is %+v", r.Backend, r.Stress)
		}
		row := slices.IndexFunc(r.Table, func(r ruleReport) bool { return strings.HasPrefix(r.Rule, "exclusion") })
		if row < 0 || r.Table[row].Violations != 0 || r.Table[row].Operations < r.StressOperations || !slices.Contains(r.Table[row].Cases, "stress") {
			t.Errorf("the table of rules is %+v", r.Table)
		}
		if len(r.Faults) < len(faultCases) || r.Faults[0].Result != "not injected: asked for by -faults" {
			t.Errorf("the table of faults is %+v", r.Faults)
		}
	}
}

// TestFaultsBreakTheCommandsOwnLinks: each kind of fault has a result, or a reason why there is
// none.
func TestFaultsBreakTheCommandsOwnLinks(t *testing.T) {
	t.Parallel()
	_, out, _ := redlocktestMain(t, "--faults", "--short", "--json", "--stress", "0", "--only", "fault", "--skip", "fault/outage", "--skip", "fault/outage-release",
		"redis://"+server.Redis(t).Addr()+"?call_timeout=10s", "memory:")
	var reports []report
	if err := json.Unmarshal([]byte(out), &reports); err != nil || len(reports) != 2 {
		t.Fatalf("%v: %s", err, out)
	}
	for i, r := range reports {
		if !r.OK || len(r.Faults) != len(faultCases) {
			t.Errorf("%s: %s", r.Backend, out)
		}
		for _, f := range r.Faults[:4] {
			if want := []string{"passed", "not injected: the URL has no host with a port"}[i]; f.Result != want {
				t.Errorf("%s, %s: %s, want %s", r.Backend, f.Fault, f.Result, want)
			}
		}
		for j, f := range r.Faults {
			if why := faultCases[j].why; why != "" && (f.Cases != 0 || f.Result != "not injected: "+why) {
				t.Errorf("%s, %s: %s", r.Backend, f.Fault, f.Result)
			}
		}
	}
}

func TestTheServersOfAURLAreFound(t *testing.T) {
	for _, c := range []struct{ url, through string }{
		{"redis://h:1/0", "redis://via:1/0"},
		{"valkey://user:12@h.example:1?prefix=a:2", "valkey://user:12@via:1?prefix=a:2"},
		{"redlock:redis://a:1,valkey://u:1@[::1]:2,call_timeout=1s", "redlock:redis://via:1,valkey://u:1@via:2,call_timeout=1s"},
		{"etcd://a:1,b:2,c:3/path", "etcd://via:1,via:2,via:3/path"},
		{"zk://a:1,b:2/path", "zk://via:1,via:2/path"},
		{"postgres://u:p@h:5432/db?sslmode=disable", "postgres://u:p@via:1/db?sslmode=disable"},
		{"mysql://u:p@h:3306/db", "mysql://u:p@via:1/db"},
		{"memory:", ""}, {"file:///tmp/locks", ""}, {"sqlite:///tmp/locks.db", ""}, {"redis+unix:///tmp/sock", ""},
		{"rediss://h:1", ""}, {"redlock:redis://a:1,rediss://b:1", ""}, {"postgres://h:1/db?sslmode=verify-full", ""}, {"redis://h:1?topology=cluster", ""},
	} {
		servers, why := links(c.url)
		via := []string{"via:1", "via:2", "via:3"}
		if got := through(c.url, servers, via); (why == "") != (c.through != "") || why == "" && got != c.through {
			t.Errorf("%s becomes %s (%s), want %s", c.url, got, why, c.through)
		}
	}
}

// A server keeps a lock for a grace beyond its TTL, which a URL does not tell. Locks that a
// case leaves on it end with a TTL, for which the test waits.
func TestASoundServerPassesAndNothingIsLeft(t *testing.T) {
	t.Parallel()
	url := "redis://" + server.Redis(t).Addr()
	for only, ttl := range map[string]string{"close/busy": "500ms", "close/leases": "250ms", "verdict/held": "500ms", "expiry/retry-after": "500ms"} {
		if testing.Short() && !strings.HasPrefix(only, "close/") {
			continue
		}
		t.Run(only, func(t *testing.T) {
			t.Parallel()
			code, out, _ := redlocktestMain(t, "--short", "--stress", "0", "--ttl", ttl, "--only", only, url)
			if code != exitOK || !strings.Contains(out, "Left behind: nothing") {
				t.Errorf("exit code %d: %s", code, out)
			}
		})
	}
}

func TestTheReportIsJSON(t *testing.T) {
	t.Parallel()
	code, out, progress := redlocktestMain(t, "--short", "--json", "--quiet", "--stress", "0", "--only", "exclusion", "--skip", "exclusion/reentrancy", "memory:json", "memory:more")
	var reports []report
	if err := json.Unmarshal([]byte(out), &reports); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if code != exitOK || len(reports) != 2 || progress != "" {
		t.Fatalf("exit code %d, %d reports, and this progress: %q", code, len(reports), progress)
	}
	r := reports[0]
	skipped := slices.IndexFunc(r.Cases, func(c caseReport) bool { return c.Name == "exclusion/reentrancy" && c.Result == "skipped" })
	if !r.OK || r.Operations == 0 || len(r.Left) != 0 || len(r.Rules) != 0 || skipped < 0 {
		t.Errorf("the report is %+v", r)
	}
}

func TestABrokenPromiseIsNamedWithItsCase(t *testing.T) {
	t.Parallel()
	code, out, _ := redlocktestMain(t, "--short", "--stress", "0", "--only", "basic", "generous:")
	if code != exitFailed || !strings.Contains(out, "basic/held") || !strings.Contains(out, "FAILED") || !strings.Contains(out, "Broken rules, and the cases that found it:\n- exclusion:") || !strings.Contains(out, "exclusion\n") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

func TestWhatIsLeftBehindIsNamed(t *testing.T) {
	t.Parallel()
	code, out, _ := redlocktestMain(t, "--short", "--stress", "0", "--ttl", "20ms", "--only", "basic/held", "forgetful:")
	if code != exitFailed || !strings.Contains(out, "still held; \"redlocktest/basic/held") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

// unlisted is a backend that cannot list its locks.
type unlisted struct{ driver.Backend }

var unlistedSpace = memory.New()

func (unlisted) Open(*driver.Config) (driver.Backend, error) {
	return unlisted{unlistedSpace.Peer()}, nil
}

func TestWhatNobodyCanListIsNotCalledNothing(t *testing.T) {
	t.Parallel()
	code, out, _ := redlocktestMain(t, "--short", "--stress", "0", "--only", "basic/held", "unlisted:")
	if code != exitOK || !strings.Contains(out, "Left behind: unknown: its driver cannot list locks") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

func TestWrongUsageIsNamed(t *testing.T) {
	t.Setenv(envURL, "")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, exitUsage, "no URL"},
		{[]string{"--nonsense", "memory:"}, exitUsage, "nonsense"},
		{[]string{"--stress", "-1s", "memory:"}, exitUsage, "negative"},
		{[]string{"redis://user:s3cret@127.0.0.1:1"}, exitUsage, envURL},
		{[]string{"zk://h"}, exitUsage, `redlocktest: driver: this command is built without "zk"`},
		{[]string{"--only", "no/case", "memory:"}, exitUsage, "no/case"},
		{[]string{"redis://127.0.0.1:1?call_timeout=100ms&dial_timeout=100ms"}, exitUnavailable, "127.0.0.1:1"},
	} {
		code, _, stderr := redlocktestMain(t, c.args...)
		if code != c.code || !strings.Contains(stderr, c.says) || strings.Contains(stderr, "s3cret") || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: exit code %d, want %d; stderr must be a line with %q: %s", c.args, code, c.code, c.says, stderr)
		}
	}
	t.Setenv(envURL, "memory:a memory:b")
	if o, _ := parse(nil, &bytes.Buffer{}, &bytes.Buffer{}); o == nil || len(o.urls) != 2 {
		t.Errorf("%s holds two URLs, and this was read: %+v", envURL, o)
	}
	if code, out, _ := redlocktestMain(t, "--help"); code != exitOK || !strings.Contains(out, "-stress") || !strings.Contains(out, "usage: redlocktest") {
		t.Errorf("--help: exit code %d: %s", code, out)
	}
}

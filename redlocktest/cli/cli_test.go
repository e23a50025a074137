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
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	_ "github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/drivers/memory"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func TestMain(m *testing.M) {
	dlock.Register("generous", generous{memory.New()})
	dlock.Register("refusing", refusing{memory.New()})
	dlock.Register("slow", slow{memory.New(&memory.Options{Info: driver.Info{
		Name: "slow", Features: driver.FeatureFencing, MinTTL: 2 * time.Second, MaxTTL: time.Hour,
	}})})
	redlocktest.ServeClient(func(url string) (driver.Backend, error) { return dlock.OpenBackend(url) })
	if os.Getenv(asCommand) != "" {
		os.Exit(Main(os.Args, os.Stdout, os.Stderr))
	}
	_ = flag.Set("test.parallel", "8") // that flag exists, and the tests wait more than they compute
	m.Run()
}

// generous is a driver over memory that grants held locks.
type generous struct{ space *memory.Backend }

func (g generous) Open(*driver.Config) (driver.Backend, error) {
	return generousBackend{g.space.Peer()}, nil
}

type generousBackend struct{ *memory.Backend }

func (b generousBackend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	other := *req
	other.Key += req.Owner
	return b.Backend.Acquire(ctx, &other)
}

// slow is a driver whose TTLs are longer than the command's, as those of etcd and ZooKeeper are.
type slow struct{ space *memory.Backend }

func (s slow) Open(*driver.Config) (driver.Backend, error) { return s.space.Peer(), nil }

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

// reported runs the command with --json.
func reported(t *testing.T, args ...string) (code int, reports []report, out string) {
	t.Helper()
	code, out, _ = redlocktestMain(t, append([]string{"--json", "--short"}, args...)...)
	if err := json.Unmarshal([]byte(out), &reports); err != nil {
		t.Fatalf("exit code %d, %v: %s", code, err, out)
	}
	return code, reports, out
}

// stressAlone are flags that leave out all cases that take more than a moment.
func stressAlone(long string) []string {
	args := []string{"--stress", long}
	for group := range strings.FieldsSeq("open request exclusion verdict expiry cancel wait watch fence node shared operator close leak fault link process history") {
		args = append(args, "--skip", group)
	}
	return args
}

func TestASoundBackendPasses(t *testing.T) {
	t.Parallel()
	code, out, progress := redlocktestMain(t, "--short", "--stress", "0", "--only", "exclusion/race", "memory:sound")
	if code != exitOK || !strings.Contains(out, "exclusion/race  ok") || !strings.HasSuffix(out, "\nok\n") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if !strings.Contains(progress, "suite\tok\texclusion/race") {
		t.Errorf("the progress is %q", progress)
	}
}

// TestABackendWithLongTTLsPasses: no TTL is below the backend's minimum.
func TestABackendWithLongTTLsPasses(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"case": {"--only", "expiry/free"}, "stress": stressAlone("300ms")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if code, out, _ := redlocktestMain(t, slices.Concat([]string{"--short"}, args, []string{"slow:"})...); code != exitOK {
				t.Errorf("exit code %d: %s", code, out)
			}
		})
	}
}

// TestTheStressIsPartOfTheReport: if other processes can share the locks, some clients run in
// processes.
func TestTheStressIsPartOfTheReport(t *testing.T) {
	t.Parallel()
	code, reports, out := reported(t, append(stressAlone("300ms"), "--seed", "7", "memory:stressed", "redis://"+server.Redis(t).Addr())...)
	if code != exitOK || len(reports) != 2 {
		t.Fatalf("exit code %d: %s", code, out)
	}
	for i, r := range reports {
		if r.Stress == nil || r.Stress.Seed != 7 || r.Stress.Operations == 0 || (r.NoProcesses != "") != (i == 0) {
			t.Errorf("the stress of %s is %+v, in this process because %q", r.Backend, r.Stress, r.NoProcesses)
		}
		if r.NoLinks == "" {
			t.Errorf("the links of %s were broken without --faults", r.Backend)
		}
	}
}

// TestFaultsBreakTheCommandsOwnLinks: a case that was not run has a reason.
func TestFaultsBreakTheCommandsOwnLinks(t *testing.T) {
	t.Parallel()
	_, reports, out := reported(t, "--faults", "--stress", "0", "--only", "fault", "--skip", "fault/outage", "--skip", "fault/outage-release",
		"redis://"+server.Redis(t).Addr()+"?call_timeout=10s", "memory:")
	for i, r := range reports {
		partition := slices.IndexFunc(r.Cases, func(c redlocktest.CaseResult) bool { return c.Name == "fault/partition" })
		if !r.OK || (partition >= 0) != (i == 0) || (r.NoLinks == "") != (i == 0) || r.Inapplicable["fault/restart"] == "" {
			t.Errorf("%s: %s", r.Backend, out)
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

// TestASoundServerPasses, though it keeps a lock for a grace beyond its TTL, which a URL does not tell.
func TestASoundServerPasses(t *testing.T) {
	t.Parallel()
	code, out, _ := redlocktestMain(t, "--short", "--stress", "0", "--only", "expiry/free", "redis://"+server.Redis(t).Addr())
	if code != exitOK {
		t.Errorf("exit code %d: %s", code, out)
	}
}

func TestTheReportIsJSON(t *testing.T) {
	t.Parallel()
	code, reports, out := reported(t, "--stress", "0", "--only", "exclusion", "--skip", "exclusion/reentrancy", "memory:json", "memory:more")
	if code != exitOK || len(reports) != 2 {
		t.Fatalf("exit code %d: %s", code, out)
	}
	r := reports[0]
	skipped := slices.IndexFunc(r.Cases, func(c redlocktest.CaseResult) bool { return c.Name == "exclusion/reentrancy" && c.Skipped != "" })
	if !r.OK || skipped < 0 {
		t.Errorf("the report is %+v", r)
	}
}

func TestEveryCaseIsListed(t *testing.T) {
	t.Parallel()
	if code, out, _ := redlocktestMain(t, "--list"); code != exitOK || out != strings.Join(redlocktest.Cases(), "\n")+"\n" {
		t.Errorf("exit code %d: %s", code, out)
	}
}

// TestRule9IsCheckedIfThereIsAPassword: an error can quote the password of the URL, and no other.
func TestRule9IsCheckedIfThereIsAPassword(t *testing.T) {
	const password = "s3cret-word"
	addr := server.Redis(t, server.WithPassword(password)).Addr()
	t.Setenv(envURL, "redis://:"+password+"@"+addr+" memory:")
	code, reports, out := reported(t, "--stress", "0", "--only", "open")
	if code != exitOK || len(reports) != 2 {
		t.Fatalf("exit code %d: %s", code, out)
	}
	for i, r := range reports {
		shown := slices.IndexFunc(r.Cases, func(c redlocktest.CaseResult) bool { return c.Name == "open/shown-secret" })
		if (shown >= 0) != (i == 0) {
			t.Errorf("%s: is it checked whether the password is shown? %s", r.Backend, out)
		}
		if strings.Contains(out, password) {
			t.Errorf("the report has the password: %s", out)
		}
	}
}

// TestTheSecretOfAURL: only a password that stands in no error by chance.
func TestTheSecretOfAURL(t *testing.T) {
	for url, want := range map[string]string{
		"redis://user:s3cret-word@h:1/0": "s3cret-word", "redis://:s3cret%2Fword@h:1": "s3cret/word", "redlock:redis://a:1,valkey://:s3cret-word@b:2": "s3cret-word",
		"etcd://user:s3cret-word@a:1,b:2": "s3cret-word", "postgres:///db?host=/run&password=s3cret-word&x=1": "s3cret-word", "redis://u:pässwört-1@h": "pässwört-1",
		"redis://h:1": "", "redis://u:s3cret@h:1": "", "redis://u:wrongpassword@h": "", "redis://u:1234567890@h": "", "redis://h-host-1:h-host-1@h:1": "", "memory:": "",
		"zk://a:1,b:2/path@x": "", "redis://user@h:6379": "",
	} {
		if got := secretOf(url); got != want {
			t.Errorf("%s: %q, want %q", url, got, want)
		}
	}
}

// TestThePrefixOfAURL: the suite's keys are shorter by it, and its URLs get others.
func TestThePrefixOfAURL(t *testing.T) {
	for url, want := range map[string][2]string{
		"redis://h:1?prefix=a%3A":               {"redis://h:1", "a:"},
		"redis://h:1?prefix=a,b&call_timeout=1": {"redis://h:1?call_timeout=1", "a,b"},
		"redis://h:1?x=1&prefix=a":              {"redis://h:1?x=1", "a"},
		"redlock:prefix=a,redis://a,redis://b":  {"redlock:redis://a,redis://b", "a"},
		"redlock:redis://a,redis://b,prefix=a":  {"redlock:redis://a,redis://b", "a"},
		"memory:":                               {"memory:", ""}, "memory:?sub_prefix=x": {"memory:?sub_prefix=x", ""},
	} {
		if rest, prefix := cutPrefix(url); rest != want[0] || prefix != want[1] {
			t.Errorf("%s: %s and %q, want %q", url, rest, prefix, want)
		}
	}
	for _, only := range []string{"request/long-key", "open"} {
		if code, out, _ := redlocktestMain(t, "--short", "--stress", "0", "--only", only, "memory:?prefix=app%3A"); code != exitOK || strings.Contains(out, "skipped  ") {
			t.Errorf("exit code %d: %s", code, out)
		}
	}
}

// TestTheGravestResultCounts: in any order of the URLs. All URLs are in the report.
func TestTheGravestResultCounts(t *testing.T) {
	t.Parallel()
	const away, wrong, broken = "redis://127.0.0.1:1?call_timeout=100ms&dial_timeout=100ms", "memory:?wrong=1", "generous:"
	for _, c := range []struct {
		urls []string
		code int
	}{
		{[]string{away, wrong}, exitUnavailable}, {[]string{wrong, away}, exitUnavailable}, {[]string{"memory:", wrong}, exitUsage},
		{[]string{broken, away}, exitFailed}, {[]string{away, broken, wrong}, exitFailed},
	} {
		code, reports, out := reported(t, append([]string{"--only", "basic/held"}, c.urls...)...)
		if code != c.code || len(reports) != len(c.urls) {
			t.Fatalf("%q: exit code %d, want %d: %s", c.urls, code, c.code, out)
		}
		for i, r := range reports {
			if url := c.urls[i]; (r.Error != "") != (url == away || url == wrong) || r.OK != (url == "memory:") {
				t.Errorf("%s has this report: %+v", url, r)
			}
		}
	}
}

func TestABrokenPromiseIsNamedWithItsCase(t *testing.T) {
	t.Parallel()
	code, out, _ := redlocktestMain(t, "--short", "--stress", "0", "--only", "basic", "generous:")
	if code != exitFailed || !strings.Contains(out, "basic/held") || !strings.Contains(out, "FAILED") || !strings.Contains(out, "breaks exclusion:") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

// refusing is a driver whose DSN says which attempts fail: all of this process ("here"), those of
// other processes ("there"), the first ("once", for a moment), or all without an answer ("silent").
type refusing struct{ space *memory.Backend }

type refusingBackend struct {
	*memory.Backend
	which string
}

var attempts atomic.Int64

func (r refusing) Open(cfg *driver.Config) (driver.Backend, error) {
	_, which, _ := strings.Cut(cfg.DSN, ":")
	return refusingBackend{r.space.Peer(), which}, nil
}

func (b refusingBackend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	n := attempts.Add(1)
	_, other := os.LookupEnv("REDLOCKTEST_CLIENT")
	switch {
	case b.which == "here", b.which == "there" && other:
		return nil, &driver.RefusedError{Reason: "the replica is read-only"}
	case b.which == "once" && n == 1 && !other:
		return nil, &driver.RefusedError{Reason: "loading", RetryAfter: time.Millisecond}
	case b.which == "silent":
		return nil, errors.New("no answer")
	}
	return b.Backend.Acquire(ctx, req)
}

// TestARefusalSaysWhyProcessesAreNotUsed: it is not asked again, unless it is for a moment or there
// was no answer.
func TestARefusalSaysWhyProcessesAreNotUsed(t *testing.T) {
	for _, c := range []struct {
		which, says string
		tries       int64 // of this process
	}{
		{"here", "whether processes share the locks of memory: the replica is read-only", 1},
		{"there", "whether processes share the locks of memory: the replica is read-only", 1},
		{"once", "another process has other locks behind this URL", 2},
		{"silent", "whether processes share the locks of memory: no answer", 5},
	} {
		attempts.Store(0)
		if why := separate(t.Context(), "refusing:"+c.which); why != c.says || attempts.Load() != c.tries {
			t.Errorf("%s: after %d attempts the reason is %q, want %q after %d", c.which, attempts.Load(), why, c.says, c.tries)
		}
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
		{[]string{"zk://h"}, exitUsage, `redlocktest: driver: "zk" is unknown to this command (github.com/redlock-go/redlock/drivers/everything/cmd/redlocktest has all drivers`},
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

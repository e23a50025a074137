package cli

import (
	"bytes"
	"context"
	"encoding/json"
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
	dlock.Register("forgetful", &planted{space: memory.New()})
	redlocktest.ServeClient(func(url string) (driver.Backend, error) { return dlock.OpenBackend(url) })
	m.Run()
}

// planted is a driver over memory that grants what is held, or whose Release does nothing.
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

func redlocktestMain(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = Main(append([]string{"redlocktest"}, args...), &out, &err)
	return code, out.String(), err.String()
}

func TestASoundBackendPassesAndNothingIsLeft(t *testing.T) {
	code, out, progress := redlocktestMain("--short", "--stress", "0", "--only", "exclusion/race", "memory:sound")
	if code != exitOK || !strings.Contains(out, "exclusion/race  ok") || !strings.Contains(out, "Left behind: nothing") || !strings.HasSuffix(out, "\nok\n") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if !strings.Contains(progress, "suite\tok\texclusion/race") {
		t.Errorf("the progress is %q", progress)
	}
}

// TestTheStressIsPartOfTheReport, with clients in processes of their own where they share the
// locks, and the tables of rules and faults.
func TestTheStressIsPartOfTheReport(t *testing.T) {
	all := "open request exclusion verdict expiry cancel wait watch fence node shared operator close leak history"
	args := []string{"--short", "--json", "--stress", "300ms", "--seed", "7"}
	for _, group := range strings.Fields(all) {
		args = append(args, "--skip", group)
	}
	code, out, _ := redlocktestMain(append(args, "memory:stressed", "redis://"+server.Redis(t).Addr())...)
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
		if len(r.Faults) < len(faultCases) || !strings.HasPrefix(r.Faults[0].Result, "not injected") {
			t.Errorf("the table of faults is %+v", r.Faults)
		}
	}
}

// A server keeps a lock for a grace beyond its TTL, which a URL does not tell. What a case leaves
// on it ends with a TTL that is waited for.
func TestASoundServerPassesAndNothingIsLeft(t *testing.T) {
	url := "redis://" + server.Redis(t).Addr()
	for _, only := range []string{"verdict/held", "expiry/retry-after", "close/leases"} {
		code, out, _ := redlocktestMain("--short", "--stress", "0", "--only", only, url)
		if code != exitOK || !strings.Contains(out, "Left behind: nothing") {
			t.Errorf("%s: exit code %d: %s", only, code, out)
		}
	}
}

func TestTheReportIsJSON(t *testing.T) {
	code, out, progress := redlocktestMain("--short", "--json", "--quiet", "--stress", "0", "--only", "exclusion", "--skip", "exclusion/reentrancy", "memory:json", "memory:more")
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
	code, out, _ := redlocktestMain("--short", "--stress", "0", "--only", "basic", "generous:")
	if code != exitFailed || !strings.Contains(out, "basic/held") || !strings.Contains(out, "FAILED") || !strings.Contains(out, "Broken rules, and the cases that found it:\n- exclusion:") || !strings.Contains(out, "exclusion\n") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

func TestWhatIsLeftBehindIsNamed(t *testing.T) {
	code, out, _ := redlocktestMain("--short", "--stress", "0", "--ttl", "20ms", "--only", "basic/held", "forgetful:")
	if code != exitFailed || !strings.Contains(out, "still held; \"redlocktest/basic/held") {
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
		{[]string{"--only", "no/case", "memory:"}, exitUsage, "no/case"},
		{[]string{"redis://127.0.0.1:1?call_timeout=100ms&dial_timeout=100ms"}, exitUnavailable, "127.0.0.1:1"},
	} {
		code, _, stderr := redlocktestMain(c.args...)
		if code != c.code || !strings.Contains(stderr, c.says) || strings.Contains(stderr, "s3cret") || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: exit code %d, want %d; stderr must be a line with %q: %s", c.args, code, c.code, c.says, stderr)
		}
	}
	t.Setenv(envURL, "memory:a memory:b")
	if o, _ := parse(nil, &bytes.Buffer{}, &bytes.Buffer{}); o == nil || len(o.urls) != 2 {
		t.Errorf("%s holds two URLs, and this was read: %+v", envURL, o)
	}
	if code, out, _ := redlocktestMain("--help"); code != exitOK || !strings.Contains(out, "-stress") || !strings.Contains(out, "usage: redlocktest") {
		t.Errorf("--help: exit code %d: %s", code, out)
	}
}

package redlocktest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

// TestMain keeps the pictures of histories that must fail in a temporary folder.
func TestMain(m *testing.M) {
	ServeClient(openForProcess)
	dir, err := os.MkdirTemp("", "redlocktest")
	if err != nil {
		panic(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // because a server may run as another user
		panic(err)
	}
	for _, name := range []string{"TMPDIR", "TMP"} {
		if err := os.Setenv(name, dir); err != nil {
			panic(err)
		}
	}
	flag.Parse()
	if testing.Short() {
		_ = flag.Set("test.parallel", "8") // that flag exists, and the tests wait more than they compute
		debug.SetGCPercent(400)            // a small heap, of which collecting was a fifth of the work
	}
	code := m.Run()
	if code == 0 { // failures name files in this folder
		if err := os.RemoveAll(dir); err != nil {
			panic(err)
		}
	}
	os.Exit(code)
}

// Check is Examine with a single error: all failures, joined.
func Check(h Harness) error {
	report, err := Examine(context.Background(), h, nil)
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range report.Failures() {
		errs = append(errs, f)
	}
	return errors.Join(errs...)
}

// memoryHarness opens clients of one lock space in this process.
func memoryHarness() Harness {
	space := memory.New()
	return Harness{
		Open: func() (driver.Backend, error) { return space.Peer(), nil },
		TTL:  200 * time.Millisecond,
	}
}

func TestMemory(t *testing.T) {
	if inOwnProcess(t) {
		Run(t, memoryHarness())
	}
}

// inOwnProcess runs the test again in a process of its own, beside other tests, and reports whether
// this is that process: where goroutines and sockets are counted, those of other tests are leaks.
func inOwnProcess(t *testing.T) bool {
	t.Helper()
	const own = "REDLOCKTEST_OWN_PROCESS"
	if os.Getenv(own) != "" {
		return true
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", fmt.Sprintf("-test.short=%v", testing.Short()))
	if end, ok := t.Deadline(); ok {
		cmd.Args = append(cmd.Args, "-test.timeout="+time.Until(end).String())
	}
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", own+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	} else {
		t.Logf("%s", out)
	}
	return false
}

func TestABasicFailureStopsTheRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := brokenHarness(func(b *broken) {
			b.acquire = func(context.Context, *driver.Request) (driver.Lease, error) {
				return nil, driver.ErrClosed
			}
		})
		all := failures(t, Check(h))
		caught(t, all, "basic/grant", "rule 1")
		if len(all) != 1 {
			t.Errorf("a backend that does nothing fails %d times: %v", len(all), all)
		}
	})
}

func TestHarnessIsChecked(t *testing.T) {
	open := memoryHarness().Open
	for says, h := range map[string]Harness{
		"Harness.Open is nil":        {},
		`"wait/disorder"`:            {Open: open, Skip: map[string]string{"wait/disorder": "because"}},
		`no reason for "wait/order"`: {Open: open, Skip: map[string]string{"wait/order": ""}},
		`"waits", which is no case`:  {Open: open, Only: "waits"},
	} {
		if err := Check(h); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("the error does not say %q: %v", says, err)
		}
	}
}

func TestSkippedCasesAreNotRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := brokenHarness(planted("MinFence is ignored"))
		h.Timeout, h.Only = 0, "node" // no case may fail
		h.Skip = map[string]string{"node/raise": "it does not raise"}
		if err := Check(h); err != nil {
			t.Errorf("a skipped case fails: %v", err)
		}
		h.Skip = map[string]string{"node": "it is none"}
		if err := Check(h); err != nil {
			t.Errorf("a case of a skipped group fails: %v", err)
		}
	})
}

// failingRun runs a test again in another process, where Run must fail, and returns the output.
func failingRun(t *testing.T, flags ...string) string {
	t.Helper()
	t.Parallel()
	cmd := exec.Command(os.Args[0], append(flags, "-test.run=^"+t.Name()+"$", "-test.v", fmt.Sprintf("-test.short=%v", testing.Short()))...)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", runFails+"=1")
	out, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); !errors.As(err, &exit) {
		t.Fatalf("Run of a broken backend: %v\n%s", err, out)
	}
	return string(out)
}

const runFails = "REDLOCKTEST_BROKEN"

// TestRunTellsWhatCheckTells: Run is tested in another process, because it must fail.
func TestRunTellsWhatCheckTells(t *testing.T) {
	if os.Getenv(runFails) != "" {
		h := brokenHarness(planted("MinFence is ignored"))
		h.Timeout, h.Virtual = 0, true // no other test may fail
		Run(t, h)
		return
	}
	out := failingRun(t)
	for _, want := range []string{"--- FAIL: TestRunTellsWhatCheckTells/node/raise", "breaks driver.Renewal.MinFence", "node.go:", "--- PASS: TestRunTellsWhatCheckTells/expiry/free"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if n := strings.Count(out, "--- FAIL: TestRunTellsWhatCheckTells/node/"); n != 1 {
		t.Errorf("%d cases of the group fail:\n%s", n, out)
	}
}

// neverSignals is a backend whose watches are silent.
func neverSignals() Harness {
	return overUnqueuing(func(b *broken) {
		b.watch = func(context.Context, string) (<-chan struct{}, error) { return make(chan struct{}, 1), nil }
	})
}

// TestNoMessageIsLostThoughATestHasLittleTime: one defect keeps many cases waiting, and Run tells of
// it before go test's -timeout ends the process.
func TestNoMessageIsLostThoughATestHasLittleTime(t *testing.T) {
	if os.Getenv(runFails) != "" {
		h := neverSignals()
		h.Short, h.Skip = true, map[string]string{}
		for _, group := range strings.Fields("request exclusion verdict expiry cancel wait") {
			h.Skip[group] = "it would take the time of the group with the defect"
		}
		Run(t, h)
		return
	}
	out := failingRun(t, "-test.timeout=7s")
	for _, want := range []string{"the first failure, told at once", "breaks driver.Watcher", "cases were not run, because the time of the test was over"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if strings.Contains(out, "panic: test timed out") || t.Failed() {
		t.Errorf("the output is\n%s", out)
	}
}

// TestASecondVainWaitIsShort: the same defect makes further cases wait, and one long wait is enough.
func TestASecondVainWaitIsShort(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := neverSignals()
		h.Short, h.quiet, h.Timeout, h.Only = true, true, 2*time.Minute, "watch"
		start := time.Now()
		all := failures(t, Check(h))
		if took := time.Since(start); len(all) < 4 || took > 3*time.Minute {
			t.Errorf("%d failures in %v", len(all), took)
		}
	})
}

package redlocktest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
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

func TestCheckOfMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := memoryHarness()
		h.Short, h.quiet = testing.Short(), true
		if err := Check(h); err != nil {
			t.Fatal(err)
		}
	})
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

// TestALeakIsNamed: a goroutine that outlives Close is reported once, with the case that left
// it.
func TestALeakIsNamed(t *testing.T) {
	if !inOwnProcess(t) {
		return
	}
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	h := brokenHarness(func(b *broken) {
		b.watch = func(ctx context.Context, key string) (<-chan struct{}, error) {
			go func() { <-stop }()
			return b.Backend.Watch(ctx, key)
		}
	})
	h.quiet, h.Only, h.Timeout = false, "watch", 2*time.Second
	all := failures(t, Check(h))
	caught(t, all, "watch/wakes", "rule 7")
	if len(all) != 1 {
		t.Errorf("one leak is told %d times: %v", len(all), all)
	}
}

// TestKeptWorkersAreNoLeak: a backend may keep its workers for later requests, even if a slow
// moment started many. That is not one goroutine for each lease.
func TestKeptWorkersAreNoLeak(t *testing.T) {
	if !inOwnProcess(t) {
		return
	}
	h := brokenHarness(func(b *broken) {
		closed := make(chan struct{})
		var once sync.Once
		var grants atomic.Int64
		b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
			if n := grants.Add(1); n > 70 && n <= 110 {
				go func() { <-closed }()
			}
			return b.Backend.Acquire(ctx, req)
		}
		b.close = func() error {
			once.Do(func() { close(closed) })
			return b.Backend.Close()
		}
	})
	brief(&h)
	h.quiet, h.Only = false, "leak/goroutines-lease"
	if err := Check(h); err != nil {
		t.Error(err)
	}
}

// TestTheWatchdogEndsAHang: a call that ignores its context and ends only with Close is
// reported, with the goroutines, and the suite goes on. It shows at most 64 kB of goroutines, so no
// other test may run meanwhile.
func TestTheWatchdogEndsAHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := brokenHarness(func(b *broken) {
			done := make(chan struct{})
			var once sync.Once
			b.close = func() error {
				once.Do(func() { close(done) })
				return b.Backend.Close()
			}
			b.renew = func(ctx context.Context, l *brokenLease, r *driver.Renewal) (driver.Grant, error) {
				if ctx.Err() != nil {
					<-done
				}
				return l.Lease.Renew(ctx, r)
			}
		})
		h.Timeout = 3 * time.Second
		all := failures(t, Check(h))
		caught(t, all, "cancel/renew", "driver.Backend.Acquire")
		for _, f := range all {
			if f.Case == "cancel/renew" && strings.Contains(f.Text, "hangs") && strings.Contains(f.Text, "cancelledRenew") {
				return
			}
		}
		t.Errorf("no failure shows the goroutine that hangs: %v", all)
	})
}

// TestACaseThatNeverEndsIsAbandoned: even Close does not end it.
func TestACaseThatNeverEndsIsAbandoned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		t.Cleanup(func() { close(stop) })
		h := brokenHarness(func(b *broken) {
			b.renew = func(ctx context.Context, l *brokenLease, r *driver.Renewal) (driver.Grant, error) {
				if ctx.Err() != nil {
					<-stop
				}
				return l.Lease.Renew(ctx, r)
			}
		})
		h.Timeout = 3 * time.Second
		caught(t, failures(t, Check(h)), "cancel/renew", "driver.Backend.Acquire")
	})
}

// TestAPanicIsAFailure of its case alone.
func TestAPanicIsAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := brokenHarness(func(b *broken) {
			b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
				if req.Mode == driver.Shared {
					panic("not yet")
				}
				return b.Backend.Acquire(ctx, req)
			}
		})
		caught(t, failures(t, Check(h)), "shared/excluded", "driver.Backend.Acquire")
	})
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
		h.Timeout = 0 // no case may fail
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

// unqueued is a backend that says at once that a key is held, even to a request that may wait,
// on a machine that sometimes stalls.
type unqueued struct {
	*broken
	restarts int // stalls that are still to come
}

func (u *unqueued) Info() driver.Info {
	i := u.broken.Info()
	i.Features &^= driver.FeatureQueueing
	return i
}

func (u *unqueued) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	once := *req
	once.Wait = false
	l, err := u.broken.Acquire(context.WithoutCancel(ctx), &once)
	if req.Wait && u.restarts > 0 {
		u.restarts--
		<-ctx.Done() // the answer came before the stall
	}
	return l, err
}

// TestAnAnswerIsNoEndOfAWaitThoughTheDeadlinePassedMeanwhile: the answer of a backend that does
// not wait is independent of its context.
func TestAnAnswerIsNoEndOfAWaitThoughTheDeadlinePassedMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		space := memory.New()
		h := func(restarts int) Harness {
			skip := map[string]string{}
			for _, g := range groups {
				for _, c := range g.cases {
					if g.name+"/"+c.name != "cancel/waiting" {
						skip[g.name+"/"+c.name] = "not what this is about"
					}
				}
			}
			open := func() (driver.Backend, error) { return &unqueued{&broken{Backend: space.Peer()}, restarts}, nil }
			return Harness{Open: open, Skip: skip, Timeout: 10 * time.Second, quiet: true}
		}
		if err := Check(h(2)); err != nil {
			t.Errorf("the machine stood still twice: %v", err)
		}
		caught(t, failures(t, Check(h(1000))), "cancel/waiting", "driver.Request.Wait") // that is a wait
	})
}

// TestRunTellsWhatCheckTells: Run is tested in another process, because it must fail.
func TestRunTellsWhatCheckTells(t *testing.T) {
	if os.Getenv("REDLOCKTEST_BROKEN") != "" {
		h := brokenHarness(planted("MinFence is ignored"))
		h.Timeout, h.Virtual = 0, true // no other test may fail
		Run(t, h)
		return
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^TestRunTellsWhatCheckTells$", "-test.v", fmt.Sprintf("-test.short=%v", testing.Short()))
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "REDLOCKTEST_BROKEN=1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("Run of a broken backend: %v\n%s", err, out)
	}
	for _, want := range []string{"--- FAIL: TestRunTellsWhatCheckTells/node/raise", "breaks driver.Renewal.MinFence", "node.go:", "--- PASS: TestRunTellsWhatCheckTells/expiry/free"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if n := strings.Count(string(out), "--- FAIL: TestRunTellsWhatCheckTells/node/"); n != 1 {
		t.Errorf("%d cases of the group fail:\n%s", n, out)
	}
}

// TestNoMessageIsLostThoughATestHasLittleTime: one defect keeps many cases waiting, and Run tells of
// it before go test's -timeout ends the process.
func TestNoMessageIsLostThoughATestHasLittleTime(t *testing.T) {
	if os.Getenv("REDLOCKTEST_SILENT") != "" {
		h := overUnqueuing(func(b *broken) {
			b.watch = func(context.Context, string) (<-chan struct{}, error) { return make(chan struct{}, 1), nil }
		})
		h.Short = true
		Run(t, h)
		return
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^TestNoMessageIsLostThoughATestHasLittleTime$", "-test.timeout=12s")
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "REDLOCKTEST_SILENT=1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("Run of a broken backend: %v\n%s", err, out)
	}
	for _, want := range []string{"the first failure, told at once", "breaks driver.Watcher", "cases were not run, because the time of the test was over"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if strings.Contains(string(out), "panic: test timed out") || t.Failed() {
		t.Errorf("the output is\n%s", out)
	}
}

// TestASecondVainWaitIsShort: the same defect makes further cases wait, and one long wait is enough.
func TestASecondVainWaitIsShort(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := overUnqueuing(func(b *broken) {
			b.watch = func(context.Context, string) (<-chan struct{}, error) { return make(chan struct{}, 1), nil }
		})
		h.Short, h.quiet, h.Timeout, h.Only = true, true, 2*time.Minute, "watch"
		start := time.Now()
		all := failures(t, Check(h))
		if took := time.Since(start); len(all) < 4 || took > 3*time.Minute {
			t.Errorf("%d failures in %v", len(all), took)
		}
	})
}

// TestWhatABackendLacksIsSaid: a backend that passes may still leave its users without tokens.
func TestWhatABackendLacksIsSaid(t *testing.T) {
	for text, s := range map[string]*suite{
		"no store can refuse": {watcher: true}, "waiters poll": {info: driver.Info{Features: driver.FeatureFencing}},
	} {
		if got := s.lacking(); !strings.Contains(got, text) || strings.Contains(got, "; ") {
			t.Errorf("%q does not say %q alone", got, text)
		}
	}
	if got := (&suite{watcher: true, info: driver.Info{Features: driver.FeatureFencing}}).lacking(); got != "" {
		t.Errorf("nothing is lacking, and it says %q", got)
	}
}

// TestALateCleanUpIsNoLeak: on a busy machine a case comes to its clean-up when its time is
// almost over.
func TestALateCleanUpIsNoLeak(t *testing.T) {
	for _, leaks := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			h := brokenHarness(func(*broken) {})
			h.Virtual = true
			cleaned := time.Now()
			h.Residue = func(context.Context) ([]string, error) {
				if leaks || time.Now().Before(cleaned) {
					return []string{"key"}, nil
				}
				return nil, nil
			}
			s, err := newSuite(h)
			if err != nil {
				t.Fatal(err)
			}
			rounds := 0
			r := s.runCase(group{name: "cancel", together: true}, testCase{name: "slow", do: func(r *run) {
				if rounds++; rounds == 1 {
					time.Sleep(r.left() - time.Second)
					cleaned = time.Now().Add(2 * time.Second)
				}
				r.nothingStored(r.open(), "key")
			}})
			if leaked := len(r.Failures) > 0; leaked != leaks || rounds != 2 {
				t.Errorf("%d rounds, a backend that leaks is %v: %v", rounds, leaks, r.Failures)
			}
		})
	}
}

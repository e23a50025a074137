package redlocktest

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// TestStressOfSoundBackends: the stress finds nothing in sound backends, in virtual time.
func TestStressOfSoundBackends(t *testing.T) {
	t.Parallel()
	sound := maps.Clone(soundHarnesses)
	sound["sessions"] = func() Harness { return overSessions(func(*tied) {}) }
	delete(sound, "slow link") // it waits with a mutex locked, which no virtual time survives
	for name, make := range sound {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := make()
				h.quiet, h.Timeout = true, 20*time.Second
				Stress(t, h, StressOptions{Operations: 1500})
			})
		})
	}
}

func TestStressOfMemory(t *testing.T) {
	t.Parallel()
	o := StressOptions{Operations: 10000}
	if !deep() {
		o.Operations = 3000
	}
	Stress(t, memoryHarness(), o)
}

// A run of the stress finds each of stressFinds with a probability of more than 0.3, which
// stressShares measures. Even one of 0.13 is missed by stressTries runs in a row only once in a
// million times.
const (
	leastShare  = 0.3
	stressTries = 100
)

var stressShares = flag.Int("stress.shares", 0, "run the stress this often on each planted bug, and print which share of the runs finds it")

// stressFinds are the bugs that the stress must find.
var stressFinds = []string{
	"lease/Grant goes back beside a renewal",
	"lease/no reply is dropped",
	"lease/the hooks of the harness do nothing",
	"link/a lease dies with its connection",
	"link/an outage is contention",
	"memory/ErrHeld without HeldError",
	"memory/a second release drops another's share",
	"memory/check, then set",
	"memory/keeps for half the TTL",
	"memory/keeps the caller's request",
	"memory/names the asker as holder",
	"memory/no drift",
	"memory/reentrant",
	"memory/release ignores the owner",
	"memory/releases later",
	"memory/renew extends nothing",
	"memory/renew ignores the owner",
	"memory/renew takes again",
	"memory/second release fails",
	"memory/shared lets exclusive in",
	"memory/the end of a wait is held alone",
	"memory/tokens from 1",
	"memory/tokens of whole milliseconds",
	"memory/two spaces",
	"open/a password in a notice",
	"session/Lost is closed at every renewal",
	"session/Lost is closed at the grant",
	"session/gives a smaller token after a cut",
	"session/goes on with what others get",
	"session/loses by itself",
	"session/takes the locks of others along",
	"time/a TTL is floored to tenths of a second",
	"time/a lease ends a minute too late after a renewal",
	"time/a renewal with another TTL extends by the first",
	"time/a lease ends a second too late after a wait",
	"time/keys are cut to 4 bytes of SHA-256",
	"time/keys are cut to FNV-1a of 32 bits",
	"time/keys are cut to a CRC of 32 bits",
	"time/the lock is kept 10 ms too short",
	"time/the lock is kept 10 ms too short, and nobody tells",
	"time/tokens by the client's clock",
	"waiting/one wake-up in twenty lets two in",
	"waiting/one wake-up in twenty lets two in, in a history",
	"waiting/one wake-up in twenty of a watch lets two in",
	"waiting/readers of one process starve a writer",
	"waiting/readers of several processes starve a writer",
}

// untried returns why the stress is not tried on a bug; empty: it is.
func (b bug) untried(in string) string {
	switch {
	case b.alone:
		return "it shows only in the number of goroutines or sockets, which the stress does not count"
	case in == "process":
		return "it is in another process, in real time: TestStressOfProcessesWithClocksOfTheirOwn tries two of them"
	case b.check != nil:
		return "it is in what a real server runs, in real time; bugs like it are tried in memory"
	}
	return ""
}

// TestStressFindsPlantedBugs prints which bugs in this process the stress finds, which only a
// case of the suite finds, because the stress sees only a wrong order of calls and not a wrong
// hint or a leak, and which it was not tried on. Outside of the deep depth it runs a few of those that
// it must find.
func TestStressFindsPlantedBugs(t *testing.T) {
	type line struct{ name, found string }
	var mu sync.Mutex
	var lines, untried []line
	t.Cleanup(func() {
		slices.SortFunc(lines, func(a, b line) int { return strings.Compare(a.name, b.name) })
		n, text := 0, ""
		for _, l := range lines {
			if l.found != "" {
				n++
			}
			text += fmt.Sprintf("\n%-60s | %s", l.name, cmp.Or(l.found, "by its case alone"))
		}
		for _, l := range untried {
			text += fmt.Sprintf("\n%-60s | not tried: %s", l.name, l.found)
		}
		t.Logf("stress finds %d of %d bugs, and was not tried on %d more:%s", n, len(lines), len(untried), text)
	})
	for _, in := range plantedIn {
		for _, b := range in.bugs {
			name := in.name + "/" + b.name
			if why := b.untried(in.name); why != "" {
				untried = append(untried, line{name, why})
				continue
			}
			sure := slices.Contains(stressFinds, name)
			if at := slices.Index(stressFinds, name); !deep() && (!sure || at%4 != 0) {
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				finds, tries, found := 0, 0, ""
				for tries < max(1, *stressShares) || sure && finds == 0 && tries < stressTries {
					var all []*Failure
					synctest.Test(t, func(t *testing.T) { all = stressed(t, b, StressOptions{Operations: 3000}) })
					if tries++; len(all) > 0 {
						finds++
						found, _, _ = strings.Cut(all[0].Text, "\n")
					}
				}
				if sure && finds == 0 {
					t.Errorf("the stress does not find it in %d runs", tries)
				}
				if share := float64(finds) / float64(tries); *stressShares > 0 {
					t.Logf("%.3f of %d runs find it: %s", share, tries, found)
					if sure && share < leastShare {
						t.Error("the share is too small for the table")
					}
				}
				mu.Lock()
				defer mu.Unlock()
				lines = append(lines, line{name, found})
			})
		}
	}
}

// stressed runs the stress on a bug.
func stressed(t *testing.T, b bug, o StressOptions) []*Failure {
	over := b.over
	if over == nil {
		over = overMemory
	}
	h := over(b.plant)
	h.Timeout, h.quiet = 6*time.Second, true
	if b.harness != nil {
		b.harness(&h)
	}
	report, err := ExamineStress(t.Context(), h, o)
	if err != nil {
		t.Fatal(err)
	}
	tidy(t, report.Failures)
	return report.Failures
}

// TestAStressThatShowsNothingFails: its hooks do nothing, or it has no contention, or too few
// calls.
func TestAStressThatShowsNothingFails(t *testing.T) {
	t.Parallel()
	nothing := func(driver.Backend) error { return nil }
	for name, c := range map[string]struct {
		h    Harness
		o    StressOptions
		says string
	}{
		"hooks":    {overDead(func(f *Faults) { *f = Faults{Partition: nothing, Heal: nothing} }), StressOptions{Operations: 300}, "does nothing"},
		"one hook": {overDead(func(f *Faults) { f.Partition = nothing }), StressOptions{Duration: 10 * time.Second}, "× partition"},
		"slow": {overDead(func(f *Faults) { f.Slow = func(driver.Backend, time.Duration) error { return nil } }),
			StressOptions{Duration: 10 * time.Second}, "× slow"},
		"replies": {overDead(func(f *Faults) { *f = Faults{DropReply: nothing} }), StressOptions{Operations: 300}, "none had an effect"},
		"contention": {brokenHarness(func(b *broken) { // everybody waits
			b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
				waits := *req
				waits.Wait = true
				return b.Backend.Acquire(context.WithoutCancel(ctx), &waits)
			}
		}), StressOptions{Operations: 300}, "too little contention"},
		"answers": {brokenHarness(func(b *broken) {
			var calls atomic.Int64
			b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
				if l, err := b.Backend.Acquire(ctx, req); calls.Add(1)%14 == 0 {
					return l, err
				} else if err == nil {
					_ = l.Release(context.WithoutCancel(ctx))
				}
				return nil, errTimeout
			}
		}), StressOptions{Operations: 300}, "too few answers"},
		"calls": {brokenHarness(func(b *broken) {
			b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
				<-time.After(10 * time.Second)
				return b.Backend.Acquire(context.WithoutCancel(ctx), req)
			}
		}), StressOptions{Operations: 20_000}, "of 20000 calls were made within 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c.h.quiet = true
				report, err := ExamineStress(t.Context(), c.h, c.o)
				if err != nil || len(report.Failures) != 1 || !strings.Contains(report.Failures[0].Text, c.says) {
					t.Errorf("%v: %v, %v", report, report.Failures, err)
				}
			})
		})
	}
}

// TestAWaitThatItsDeadlineEndsMayHaveHadTheLock: the driver's timer may be a moment before the
// context's, and until the attempt is undone others see it as the holder.
func TestAWaitThatItsDeadlineEndsMayHaveHadTheLock(t *testing.T) {
	t.Parallel()
	early := func() Harness {
		var waits atomic.Int64
		h := overMemory(func(b *broken) {
			b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
				l, err := b.Backend.Acquire(ctx, req)
				if _, ends := ctx.Deadline(); err != nil || !ends || !req.Wait || waits.Add(1)%5 != 1 {
					return l, err
				}
				<-time.After(100 * time.Microsecond)
				if err := l.Release(context.WithoutCancel(ctx)); err != nil {
					return nil, err
				}
				return nil, errors.Join(&driver.HeldError{}, context.DeadlineExceeded)
			}
		})
		h.quiet, h.Timeout, h.Only = true, 20*time.Second, "history"
		return h
	}
	synctest.Test(t, func(t *testing.T) { Stress(t, early(), StressOptions{Operations: 3000}) })
	synctest.Test(t, func(t *testing.T) {
		if err := Check(early()); err != nil {
			t.Error(err)
		}
	})
}

// overDead opens clients whose links the harness breaks, with some hooks that do nothing.
func overDead(plant func(*Faults)) Harness {
	h := overLinks(func(b *broken) {
		acquire := b.acquire
		b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
			<-time.After(time.Millisecond) // as a server would: calls come at all times
			return acquire(ctx, req)
		}
	})
	plant(h.Faults)
	return h
}

// TestWhatAStressTells: the failure has the shortest part in words, the file with all calls, and the
// command that runs it again.
func TestWhatAStressTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		report, err := ExamineStress(t.Context(), overMemory(planted("reentrant")), StressOptions{Operations: 3000, Seed: 7, Command: "go test ."})
		if err != nil || len(report.Failures) != 1 {
			t.Fatalf("%v: %v", report, err)
		}
		text := report.Failures[0].Text
		said := regexp.MustCompile(`two owners at once(?s:.*)\nThe shortest part of the record that shows it:\n((?:\t.* asks for the lock.*: granted, token .*\n|\t.*\n)+)` +
			`All calls of the key: (.*)\nSeed: 7\nRun it again: REDLOCKTEST_SEED=7 go test \.$`).FindStringSubmatch(text)
		if said == nil {
			t.Fatalf("it says:\n%s", text)
		}
		all, err := os.ReadFile(said[2])
		if err != nil || strings.Count(said[1], "\n") >= strings.Count(string(all), "\n") || !strings.Contains(string(all), said[1][:strings.IndexByte(said[1], '\n')]) {
			t.Errorf("%v: all calls of the key are\n%s\nand the part is\n%s", err, all, said[1])
		}
	})
}

// TestTheCommandThatRepeatsAStress has the flags that change the run.
func TestTheCommandThatRepeatsAStress(t *testing.T) {
	f := flag.Lookup("stress.shares")
	if err := flag.Set(f.Name, f.Value.String()); err != nil {
		t.Fatal(err)
	}
	got := func() string { return testCommand("TestStress/redis") }()
	for want, there := range map[string]bool{
		"go test -count=1": true, " -run '^TestStress$/^redis$' ": true, "/redlocktest -": true, " -stress.shares=" + f.Value.String(): true,
		" -short=true": testing.Short(), "testlogfile": false,
	} {
		if strings.Contains(got, want) != there {
			t.Errorf("%q has %q: %v", got, want, !there)
		}
	}
}

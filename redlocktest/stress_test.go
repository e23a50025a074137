package redlocktest

import (
	"context"
	"errors"
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
	"github.com/redlock-go/redlock/drivers/memory"
)

// TestStressOfSoundBackends: the stress finds nothing in sound backends, in virtual time.
func TestStressOfSoundBackends(t *testing.T) {
	t.Parallel()
	sound := maps.Clone(soundHarnesses)
	sound["sessions"] = func() Harness { return overSessions(func(*tied) {}) }
	sound["forgetting"] = func() Harness { return overForgetting(soundly, soundly) }
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

// stressTries is how often the stress is run on a bug that it must find: one run finds each with a
// probability of more than 0.3, and even one of 0.13 is missed by so many in a row only once in a
// million times.
const stressTries = 100

// TestStressFindsPlantedBugs prints which bugs in this process the stress finds, and which only a
// case of the suite finds, because the stress sees only a wrong order of calls and not a wrong hint or
// a leak. Outside of the deep depth it runs a few of those that it must find, and none with -short.
func TestStressFindsPlantedBugs(t *testing.T) {
	if testing.Short() {
		t.Skip("short: it searches")
	}
	var mu sync.Mutex
	var lines []string
	n, must := 0, 0
	t.Cleanup(func() {
		slices.Sort(lines)
		t.Logf("stress finds %d of %d bugs:\n%s", n, len(lines), strings.Join(lines, "\n"))
	})
	for _, in := range plantedIn {
		for _, b := range in.bugs {
			if b.alone || b.check != nil { // the number of goroutines, or other processes
				continue
			}
			if b.stress {
				must++
			}
			if !deep() && (!b.stress || must%4 != 0) {
				continue
			}
			t.Run(in.name+"/"+b.name, func(t *testing.T) {
				t.Parallel()
				var all []*Failure
				for tries := 0; tries == 0 || b.stress && len(all) == 0 && tries < stressTries; tries++ {
					synctest.Test(t, func(t *testing.T) {
						report, err := ExamineStress(t.Context(), b.harnessed(), StressOptions{Operations: 3000})
						if err != nil {
							t.Fatal(err)
						}
						all = report.Failures
					})
				}
				if b.stress && len(all) == 0 {
					t.Errorf("the stress does not find it in %d runs", stressTries)
				}
				mu.Lock()
				defer mu.Unlock()
				found := "by its case alone"
				if len(all) > 0 {
					n++
					found, _, _ = strings.Cut(all[0].Text, "\n")
				}
				lines = append(lines, fmt.Sprintf("%-9s | %-60s | %s", in.name, b.name, found))
			})
		}
	}
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
		"hooks":    {overDead(func(f *Faults) { *f = Faults{Partition: nothing, Heal: nothing} }), StressOptions{Operations: 100}, "does nothing"},
		"one hook": {overDead(func(f *Faults) { f.Partition = nothing }), StressOptions{Duration: 3 * time.Second}, "× partition"},
		"slow": {overDead(func(f *Faults) { f.Slow = func(driver.Backend, time.Duration) error { return nil } }),
			StressOptions{Duration: 3 * time.Second}, "× slow"},
		"replies": {overDead(func(f *Faults) { *f = Faults{DropReply: nothing} }), StressOptions{Operations: 100}, "none had an effect"},
		"contention": {brokenHarness(func(b *broken) { // everybody waits
			b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
				waits := *req
				waits.Wait = true
				return b.Backend.Acquire(context.WithoutCancel(ctx), &waits)
			}
		}), StressOptions{Operations: 100}, "too little contention"},
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
		}), StressOptions{Operations: 100}, "too few answers"},
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

// TestABusyMachineMakesFewerRounds: cases that repeat end with what was done in their time.
func TestABusyMachineMakesFewerRounds(t *testing.T) {
	t.Parallel()
	for only, slow := range map[string]time.Duration{
		"history": 300 * time.Millisecond, "wait/everyone": 1500 * time.Millisecond, "wait/wakes": 3 * time.Second,
		"expiry/renew-longer": 11 * time.Second, // its TTL doubles until it is longer, and the case has time for that
	} {
		synctest.Test(t, func(t *testing.T) {
			h := brokenHarness(afterAcquire(func(_ context.Context, _ *broken, _ *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
				<-time.After(slow)
				return l, err
			}))
			h.TTL, h.Only, h.Timeout = 5*time.Second, only, time.Minute
			if err := Check(h); err != nil {
				t.Error(err)
			}
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
// seed.
func TestWhatAStressTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		report, err := ExamineStress(t.Context(), overMemory(planted("reentrant")), StressOptions{Operations: 3000, Seed: 7})
		if err != nil || len(report.Failures) != 1 {
			t.Fatalf("%v: %v", report, err)
		}
		text := report.Failures[0].Text
		said := regexp.MustCompile(`two owners at once(?s:.*)\nThe shortest part of the record that shows it:\n((?:\t.* asks for the lock.*: granted, token .*\n|\t.*\n)+)` +
			`All calls of the key: (.*)\nThe seed 7 makes the same choices`).FindStringSubmatch(text)
		if said == nil {
			t.Fatalf("it says:\n%s", text)
		}
		all, err := os.ReadFile(said[2])
		if err != nil || strings.Count(said[1], "\n") >= strings.Count(string(all), "\n") || !strings.Contains(string(all), said[1][:strings.IndexByte(said[1], '\n')]) {
			t.Errorf("%v: all calls of the key are\n%s\nand the part is\n%s", err, all, said[1])
		}
	})
}

// unanswered is a backend whose server is gone after a second.
type unanswered struct {
	driver.Backend
	gone time.Time
}

func (b unanswered) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if time.Now().After(b.gone) {
		return nil, errors.New("connection refused")
	}
	return b.Backend.Acquire(ctx, r)
}

// TestAnOutageIsNotMostOfTheRecord: workers ask less and less often where nobody answers. On a busy machine
// servers and processes take long to start, and the run failed since most of its calls had no answer.
func TestAnOutageIsNotMostOfTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared, gone := memory.New(), time.Now().Add(time.Second)
		h := Harness{Open: func() (driver.Backend, error) { return unanswered{shared.Peer(), gone}, nil }, Virtual: true, TTL: time.Second}
		report, err := ExamineStress(t.Context(), h, StressOptions{Duration: 10 * time.Second})
		if err != nil || report.Unknown < 100 || report.Unknown > 1000 { // less than two a second of each of 16 workers
			t.Error(err, report, report.Failures)
		}
	})
}

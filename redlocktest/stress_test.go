package redlocktest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// TestStressOfSoundBackends: nothing is found where nothing is broken, in virtual time.
func TestStressOfSoundBackends(t *testing.T) {
	sound := maps.Clone(soundHarnesses)
	sound["sessions"] = func() Harness { return overSessions(func(*tied) {}) }
	delete(sound, "slow link") // it waits with a mutex locked, which no virtual time survives
	for name, make := range sound {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := make()
				h.quiet, h.Timeout = true, 20*time.Second
				Stress(t, h, StressOptions{Operations: 3000})
			})
		})
	}
}

func TestStressOfMemory(t *testing.T) {
	Stress(t, memoryHarness(), StressOptions{Operations: 10000})
}

// stressFinds are the bugs that stress finds in a few runs at most.
var stressFinds = []string{
	"lease/the hooks of the harness do nothing",
	"memory/check, then set",
	"memory/keeps for half the TTL",
	"memory/reentrant",
	"memory/release ignores the owner",
	"memory/releases later",
	"memory/shared lets exclusive in",
	"memory/tokens from 1",
	"memory/tokens of whole milliseconds",
	"memory/two spaces",
	"open/a password in a notice",
	"session/gives a smaller token after a cut",
	"session/loses by itself",
	"session/takes the locks of others along",
	"time/a TTL is floored to tenths of a second",
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

// TestStressFindsPlantedBugs prints which of the bugs in this process stress finds, and which
// only a case of the suite does: what is no broken order of calls, a wrong hint or a leak say,
// stress cannot see.
func TestStressFindsPlantedBugs(t *testing.T) {
	type line struct{ name, found string }
	var mu sync.Mutex
	var lines []line
	t.Cleanup(func() {
		slices.SortFunc(lines, func(a, b line) int { return strings.Compare(a.name, b.name) })
		n, text := 0, ""
		for _, l := range lines {
			if l.found != "" {
				n++
			}
			text += fmt.Sprintf("\n%-60s | %s", l.name, cmp.Or(l.found, "by its case alone"))
		}
		t.Logf("stress finds %d of %d bugs:%s", n, len(lines), text)
	})
	for _, in := range plantedIn {
		for _, b := range in.bugs {
			if in.start != nil || b.check != nil || b.alone {
				continue
			}
			name := in.name + "/" + b.name
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				var all []*Failure
				sure := slices.Contains(stressFinds, name)
				for tries := 0; tries == 0 || sure && len(all) == 0 && tries < 20; tries++ {
					synctest.Test(t, func(t *testing.T) { all = stressed(t, b, StressOptions{Operations: 3000}) })
				}
				if sure && len(all) == 0 {
					t.Error("stress does not find it")
				}
				found := ""
				if len(all) > 0 {
					found, _, _ = strings.Cut(all[0].Text, "\n")
				}
				mu.Lock()
				defer mu.Unlock()
				lines = append(lines, line{name, found})
			})
		}
	}
}

// stressed runs a stress on a bug.
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
	for _, f := range report.Failures {
		if path := regexp.MustCompile(`All calls of the key: (\S+)`).FindStringSubmatch(f.Text); path != nil {
			if err := os.Remove(path[1]); err != nil {
				t.Error(err)
			}
		}
	}
	return report.Failures
}

// TestAStressThatShowsNothingFails: hooks that do nothing, and no contention.
func TestAStressThatShowsNothingFails(t *testing.T) {
	var h Harness
	for _, in := range plantedIn {
		for _, b := range in.bugs {
			if b.name == "the hooks of the harness do nothing" {
				h = b.over(b.plant)
			}
		}
	}
	for name, c := range map[string]struct {
		h    Harness
		o    StressOptions
		says string
	}{
		"hooks": {h, StressOptions{Operations: 300}, "had an effect on any call"},
		"contention": {brokenHarness(func(b *broken) { // everybody waits
			b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
				waits := *req
				waits.Wait = true
				return b.Backend.Acquire(context.WithoutCancel(ctx), &waits)
			}
		}), StressOptions{Operations: 300}, "too little contention"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c.h.quiet = true
				report, err := ExamineStress(t.Context(), c.h, c.o)
				if err != nil || len(report.Failures) != 1 || !strings.Contains(report.Failures[0].Text, c.says) {
					t.Errorf("%v: %v", report, err)
				}
			})
		})
	}
}

package redlocktest

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
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
				Stress(t, h, StressOptions{Operations: 3000})
			})
		})
	}
}

func TestStressOfMemory(t *testing.T) {
	t.Parallel()
	o := StressOptions{Operations: 10000}
	if testing.Short() {
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

// TestStressFindsPlantedBugs prints which bugs in this process the stress finds, and which only
// a case of the suite finds: the stress sees only a wrong order of calls, not a wrong hint or a
// leak.
func TestStressFindsPlantedBugs(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
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
			sure := slices.Contains(stressFinds, name)
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

// TestAStressThatShowsNothingFails: its hooks do nothing, or it has no contention.
func TestAStressThatShowsNothingFails(t *testing.T) {
	t.Parallel()
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

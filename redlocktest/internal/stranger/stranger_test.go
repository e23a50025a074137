package stranger

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func TestMain(m *testing.M) {
	redlocktest.ServeClient(func(url string) (driver.Backend, error) {
		addr, mistake, _ := strings.Cut(url, "|")
		return open(addr, mistake), nil
	})
	os.Exit(m.Run())
}

// harness is that of the page "Test your driver in twenty lines".
func harness(t *testing.T, mistake string) redlocktest.Harness {
	s := server.Command(t, []string{"redis-server", "--port", "{port}", "--dir", "{data}", "--appendonly", "yes", "--appendfsync", "always"}, nil)
	h := fault.Harness(s.Addr(), func(addr string) (driver.Backend, error) { return open(addr, mistake), nil })
	h.Process = func() (*redlocktest.Client, error) { return redlocktest.StartClient(s.Addr() + "|" + mistake) }
	h.Faults.Kill, h.Faults.Restart = s.Kill, s.StartAgain
	h.Faults.Pause, h.Faults.Resume = s.Pause, s.Resume
	return h
}

// mistakes are those of a driver for another store that its author planted, with the case that finds
// each, and the beginning of the rule that it names.
var mistakes = []struct{ mistake, found, rule string }{
	{"Release frees the next owner's lock", "expiry/first-release", "driver.Lease.Release"},
	{"a lease that ended is revived", "expiry/revived", "driver.Lease.Renew"},
	{"tokens by the client's clock", "process/clocks", "rule 8"},
	{"ends by the client's clock", "process/clocks", ""},
	{"a watch never signals", "watch/wakes", "driver.Watcher"},
	{"a grant during Close is dropped", "close/busy", "rule 2"},
	{"a failed attempt is not undone", "cancel/cut-off", "rule 2"},
	{"an outage is contention", "fault/outage", "rule 1"},
	{"Release swallows its error", "fault/outage-release", "driver.Lease.Release"},
}

// soonest is how soon Run must tell of a mistake.
const soonest = time.Minute

// TestRunFindsAStrangersMistakes, each by the case that was made for it, and in the deep depth also
// by a run of all cases, within a minute.
func TestRunFindsAStrangersMistakes(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds for each mistake")
	}
	for _, m := range mistakes {
		t.Run(m.mistake, func(t *testing.T) {
			h := harness(t, m.mistake)
			if !server.IsDeep() {
				h.Only, h.Timeout = m.found, 8*time.Second
			}
			start := time.Now()
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var took time.Duration
			report, err := redlocktest.Examine(ctx, h, func(c redlocktest.CaseResult) {
				if len(c.Failures) > 0 && took == 0 {
					took = time.Since(start)
					t.Logf("after %.1f s: %.500v", took.Seconds(), c.Failures[0])
				}
				if c.Name == m.found {
					stop()
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if took == 0 || took > soonest {
				t.Errorf("found after %v", took)
			}
			if !slices.ContainsFunc(report.Failures(), func(f *redlocktest.Failure) bool { return f.Case == m.found && strings.HasPrefix(f.Rule, m.rule) }) {
				t.Errorf("%s does not find it by %q: %v", m.found, m.rule, report.Failures())
			}
		})
	}
}

// TestRunPassesASoundStranger.
func TestRunPassesASoundStranger(t *testing.T) {
	server.Deep(t)
	redlocktest.Run(t, harness(t, ""))
}

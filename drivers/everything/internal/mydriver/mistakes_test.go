package mydriver_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/drivers/everything/internal/mydriver"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

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

// TestRunFindsAnAuthorsMistakes, each by the case that was made for it, and in the deep depth also
// by a run of all cases, within a minute.
func TestRunFindsAnAuthorsMistakes(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds for each mistake")
	}
	for _, m := range mistakes {
		t.Run(m.mistake, func(t *testing.T) {
			t.Setenv(mydriver.Mistake, m.mistake)
			h := harness(t)
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

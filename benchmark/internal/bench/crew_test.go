package bench

import (
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/redlocktest/server"
)

// The processes are real: this test program, started again.
func TestProcessesHandOverALockAndReportTheirSpells(t *testing.T) {
	t.Parallel()
	s := server.Redis(t)
	r := NewRunner(Quick(), nil, io.Discard)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	i := slices.IndexFunc(Contestants(), func(c Contestant) bool { return c.Name == "dlock, go-redis" })
	e := &entry{contestant: Contestants()[i], setup: direct([]*server.Server{s}, 10*time.Second), servers: []*server.Server{s}}
	for range 2 { // the processes are used again
		got := handedOver(t, r, e)
		for _, d := range got.series[0].samples {
			if d < 0 {
				t.Errorf("a handoff took %v", d)
			}
		}
		for _, v := range got.values {
			if v.v <= 0 && v.name != "least of a client" {
				t.Errorf("%s is %v", v.name, v.v)
			}
		}
	}
	if len(r.crew.members) != 3 {
		t.Errorf("%d processes for three clients", len(r.crew.members))
	}
}

// handedOver returns a measurement of three processes with a handoff in it. A machine that stands
// still for most of a slice leaves none in that one: the next is twice as long.
func handedOver(t *testing.T, r *Runner, e *entry) *measurement {
	t.Helper()
	for slice := time.Second; ; slice *= 2 {
		got := r.handoffMeasurement(3)(t.Context(), e, slice)
		if got.err != nil {
			t.Fatal(got.err)
		}
		if len(got.series) > 0 && len(got.series[0].samples) > 0 {
			return got
		}
		if slice > 10*time.Second {
			t.Fatalf("three processes want a lock for %v, and there is no handoff", slice)
		}
	}
}

func TestAProcessThatCannotOpenSaysWhy(t *testing.T) {
	r := NewRunner(Quick(), nil, io.Discard)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	got := r.handoffMeasurement(2)(t.Context(), &entry{contestant: Contestant{Name: "nobody"}, setup: &Setup{}}, 10*time.Millisecond)
	if got.err == nil || !strings.Contains(got.err.Error(), `there is no "nobody"`) {
		t.Errorf("the measurement says %v", got.err)
	}
}

func TestWantEndsWithItsTime(t *testing.T) {
	const wanted, hold = 20 * time.Millisecond, 10 * time.Microsecond
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		spells, err := want(t.Context(), &fake{}, "key", hold, start.Add(wanted))
		if took := time.Since(start); err != nil || len(spells) < int(wanted/hold) || took > wanted+hold {
			t.Fatalf("%d spells in %v, error %v", len(spells), took, err)
		}
		for i, s := range spells {
			if s.To < s.From || i > 0 && s.From < spells[i-1].To {
				t.Fatalf("spells out of order: %v", spells[max(i-1, 0):i+1])
			}
		}
	})
}

package bench

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/redlocktest/server"
)

// The processes are real: this test program, started again.
func TestProcessesHandOverALockAndReportTheirSpells(t *testing.T) {
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
		got := r.handoffTurn(3)(t.Context(), e, time.Second)
		if got.err != nil {
			t.Fatal(got.err)
		}
		if len(got.series) == 0 || len(got.series[0].samples) == 0 {
			t.Fatal("three processes want a lock for a second, and there is no handoff")
		}
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

func TestAProcessThatCannotOpenSaysWhy(t *testing.T) {
	r := NewRunner(Quick(), nil, io.Discard)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	got := r.handoffTurn(2)(t.Context(), &entry{contestant: Contestant{Name: "nobody"}, setup: &Setup{}}, 10*time.Millisecond)
	if got.err == nil || !strings.Contains(got.err.Error(), `there is no "nobody"`) {
		t.Errorf("the turn says %v", got.err)
	}
}

func TestWantEndsWithItsTime(t *testing.T) {
	spells, err := want(context.Background(), &fake{}, "key", time.Microsecond, time.Now().Add(20*time.Millisecond))
	if err != nil || len(spells) == 0 {
		t.Fatalf("%d spells, error %v", len(spells), err)
	}
	for i, s := range spells {
		if s.To < s.From || i > 0 && s.From < spells[i-1].To {
			t.Fatalf("spells out of order: %v", spells[max(i-1, 0):i+1])
		}
	}
}

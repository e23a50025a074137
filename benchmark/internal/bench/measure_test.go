package bench

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// fake is a contestant whose locks do nothing.
type fake struct {
	fails  error
	closed atomic.Bool
}

func (f *fake) Lock(context.Context, string, bool) (Held, error) {
	if f.fails != nil {
		return nil, f.fails
	}
	return free{}, nil
}

func (f *fake) Close() error {
	f.closed.Store(true)
	return nil
}

type free struct{}

func (free) Unlock() error { return nil }

func fakeContestant(name string, l Locker, openErr error) Contestant {
	return Contestant{
		Name: name, Kind: Ours,
		Serves: func(server.Kind, int) bool { return true },
		Open:   func(context.Context, *Setup) (Locker, error) { return l, openErr },
	}
}

func testRunner() *Runner {
	p := Quick()
	p.For, p.Fewest = time.Hour, 100
	return NewRunner(p, nil, io.Discard)
}

func TestEveryContestantHasATurnInEveryRound(t *testing.T) {
	r := testRunner()
	var measurements []string
	s := &Section{Key: "n"}
	a, b := &fake{}, &fake{}
	c := &testCase{
		section: s, name: "case", clients: 1, rounds: 4, setup: &Setup{},
		contestants: []Contestant{fakeContestant("a", a, nil), fakeContestant("b", b, nil)},
		measurement: func(_ context.Context, e *entry, _ time.Duration) *measurement {
			measurements = append(measurements, e.contestant.Name)
			t := &measurement{}
			t.add("n", figures.Count, float64(len(measurements)))
			return t
		},
	}
	if err := r.compare(context.Background(), c, time.Minute); err != nil {
		t.Fatal(err)
	}
	if len(measurements) != 2*5 { // one more round is the warm-up
		t.Fatalf("%d measurements: %v", len(measurements), measurements)
	}
	for i := 0; i < len(measurements); i += 2 {
		if measurements[i] == measurements[i+1] {
			t.Errorf("round %d gave %s two measurements", i/2, measurements[i])
		}
	}
	if m, ok := s.Rows[0].metric("n"); !ok || m.Median <= 2 {
		t.Errorf("the round that warms up counts: %+v", s.Rows[0])
	}
	if !a.closed.Load() || !b.closed.Load() {
		t.Error("a client was left open")
	}
}

func TestWhatFailsInAContestantIsInItsRowAndEndsNothing(t *testing.T) {
	r := testRunner()
	s := &Section{Key: pair + " p50"}
	c := &testCase{
		section: s, name: "case", clients: 1, rounds: 2, setup: &Setup{}, measurement: locking(1),
		contestants: []Contestant{
			fakeContestant("away", nil, errors.New("no way in")),
			fakeContestant("broken", &fake{fails: errors.New("out of order")}, nil),
			fakeContestant("well", &fake{}, nil),
		},
	}
	if err := r.compare(context.Background(), c, 0); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(s.Rows[0].Error, "no way in") {
		t.Errorf("row of the contestant that cannot be opened: %+v", s.Rows[0])
	}
	if !strings.Contains(s.Rows[1].Error, "out of order") || s.Rows[1].Failed == 0 {
		t.Errorf("row of the contestant that fails: %+v", s.Rows[1])
	}
	if _, ok := s.Rows[2].metric(pair + " p50"); !ok || s.Rows[2].Error != "" {
		t.Errorf("row of the sound contestant: %+v", s.Rows[2])
	}
}

// A contestant that takes too long has one round, and its row says so.
func TestASlowContestantHasOneRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := testRunner()
		s := &Section{Key: "n"}
		c := &testCase{
			section: s, name: "case", clients: 1, rounds: 3, setup: &Setup{}, patience: time.Second,
			contestants: []Contestant{fakeContestant("slow", &fake{}, nil), fakeContestant("quick", &fake{}, nil)},
		}
		hangs := false
		c.ready = func() func() { hangs = true; return func() { hangs = false } }
		c.measurement = func(_ context.Context, e *entry, slice time.Duration) *measurement {
			if hangs && e.contestant.Name == "slow" {
				time.Sleep(slice + 2*time.Second)
			}
			t := &measurement{}
			t.add("n", figures.Count, 1)
			return t
		}
		if err := r.compare(context.Background(), c, time.Second); err != nil {
			t.Fatal(err)
		}
		for i, want := range []int{1, 3} {
			if row := s.Rows[i]; row.rounds() != want || row.Slow != (want == 1) || row.Error != "" {
				t.Errorf("%+v, want %d rounds", row, want)
			}
		}
		if hangs {
			t.Error("the fault did not end")
		}
	})
}

func TestWhatHasNotBegunWhenTheTimeIsOverIsLeftOut(t *testing.T) {
	r := testRunner()
	r.plan.For = time.Nanosecond
	never := func(context.Context, *Runner) []*testCase {
		return []*testCase{{
			section: &Section{Title: "Late"}, name: "case", setup: &Setup{}, contestants: []Contestant{fakeContestant("a", &fake{}, nil)},
			measurement: func(context.Context, *entry, time.Duration) *measurement {
				t.Error("it was measured")
				return &measurement{}
			},
		}}
	}
	report, err := r.Run(context.Background(), []Scenario{{Name: "late", plan: never}})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Notes) != 1 || !strings.Contains(report.Notes[0], "Late, case") {
		t.Errorf("notes %q", report.Notes)
	}
}

func TestRoundsEndWithTheTimeOfTheCase(t *testing.T) {
	for _, want := range []struct {
		budget         time.Duration
		fewest, rounds int
	}{
		{50 * time.Millisecond, 4, 4},   // the least number of rounds, within twice the time
		{100 * time.Millisecond, 2, 4},  // as many rounds as fit the time
		{50 * time.Millisecond, 100, 4}, // cut off at twice the time
		{-time.Second, 100, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := testRunner()
			r.plan.Fewest = want.fewest
			measurements := 0
			c := &testCase{
				section: &Section{}, clients: 1, rounds: 1000, setup: &Setup{}, contestants: []Contestant{fakeContestant("a", &fake{}, nil)},
				measurement: func(context.Context, *entry, time.Duration) *measurement {
					time.Sleep(21 * time.Millisecond)
					measurements++
					return &measurement{}
				},
			}
			if err := r.compare(context.Background(), c, want.budget); err != nil {
				t.Fatal(err)
			}
			if measurements != 1+want.rounds {
				t.Errorf("%+v: %d measurements, of which one warms up", want, measurements)
			}
		})
	}
}

// The rounds fit the time for any number of contestants, and even if measurements take longer
// than their slices.
func TestSlicesFitTheTimeWhateverTheNumberOfContestants(t *testing.T) {
	for _, n := range []int{1, 3, 20} {
		for _, overhead := range []time.Duration{0, 3 * time.Millisecond} {
			const all, rounds, least = 10 * time.Second, 12, time.Millisecond
			left := all
			for round := range rounds {
				left -= time.Duration(n) * (slice(left, rounds-round, n, overhead, least) + overhead)
			}
			if left < -time.Millisecond || left > all/10 {
				t.Errorf("%d contestants, %v beyond each slice: %v are left of %v", n, overhead, left, all)
			}
		}
	}
	if got := slice(time.Second, 0, 5, 0, time.Millisecond); got != time.Millisecond {
		t.Errorf("slice %v without rounds", got)
	}
}

// A handoff measurement reports a lock that excludes nobody.
func TestTwoHoldersAtOnceAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := testRunner()
		r.plan.Hold = time.Millisecond
		l := &fake{}
		e := &entry{contestant: fakeContestant("everybody", l, nil), setup: &Setup{}, lockers: []Locker{l, l, l}}
		got := r.handoffMeasurement(context.Background(), e, 300*time.Millisecond)
		if got.err == nil || !strings.Contains(got.err.Error(), "two clients held the lock") {
			t.Errorf("three clients hold a lock that excludes nobody, and the measurement says %v", got.err)
		}
	})
}

func TestHandoffsAreCountedFromOneClientToAnother(t *testing.T) {
	// Client 0 has the lock twice, then client 1, client 0 and client 1 again.
	got := runRelay([][]Hold{{{10, 20}, {21, 30}, {52, 60}}, {{35, 50}, {68, 70}}}, time.Unix(0, 20))
	want := &Relay{got: []int{2, 2}, Handoffs: []time.Duration{5, 2, 8}, passings: []time.Duration{15, 2, 8}, all: 3}
	if !slices.Equal(got.got, want.got) || !slices.Equal(got.Handoffs, want.Handoffs) || !slices.Equal(got.passings, want.passings) || got.all != want.all || got.overlaps != 0 {
		t.Errorf("relay %+v, want %+v", got, want)
	}
	// The second hold lies within the first, and the third begins before the first has ended.
	if got := runRelay([][]Hold{{{10, 40}}, {{20, 25}}, {{30, 50}}}, time.Unix(0, 0)); got.overlaps != 2 {
		t.Errorf("%d overlaps, want 2", got.overlaps)
	}
}

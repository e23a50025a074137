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

// fake is a contestant whose locks cost nothing.
type fake struct {
	fails  error
	closed bool
}

func (f *fake) Lock(context.Context, string, bool) (Held, error) {
	if f.fails != nil {
		return nil, f.fails
	}
	return free{}, nil
}

func (f *fake) Close() error {
	f.closed = true
	return nil
}

type free struct{}

func (free) Renew(context.Context) error { return nil }
func (free) Unlock() error               { return nil }

func fakeContestant(name string, l Locker, openErr error) Contestant {
	return Contestant{
		Name: name, Kind: Ours, Renews: true,
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
	if len(measurements) != 2*5 { // one round warms up
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
	if !a.closed || !b.closed {
		t.Error("a client was left open")
	}
}

func TestWhatFailsInAContestantIsInItsRowAndEndsNothing(t *testing.T) {
	r := testRunner()
	s := &Section{Key: pair + " p50"}
	c := &testCase{
		section: s, name: "case", clients: 1, rounds: 2, setup: &Setup{}, measurement: r.latencyMeasurement,
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
		t.Errorf("row of who cannot be opened: %+v", s.Rows[0])
	}
	if !strings.Contains(s.Rows[1].Error, "out of order") || s.Rows[1].Failed == 0 {
		t.Errorf("row of who fails: %+v", s.Rows[1])
	}
	if _, ok := s.Rows[2].metric(pair + " p50"); !ok || s.Rows[2].Error != "" {
		t.Errorf("row of who is well: %+v", s.Rows[2])
	}
}

func TestContestantsThatHaveTheirTurnsTogetherMeet(t *testing.T) {
	r := testRunner()
	meet := make(chan string)
	s := &Section{Key: "n"}
	c := &testCase{
		section: s, name: "case", rounds: 1, cold: true, together: true, setup: &Setup{},
		contestants: []Contestant{fakeContestant("a", &fake{}, nil), fakeContestant("b", &fake{}, nil)},
		measurement: func(ctx context.Context, e *entry, _ time.Duration) *measurement {
			select { // one sends, the other receives
			case meet <- e.contestant.Name:
			case <-meet:
			case <-ctx.Done():
			}
			t := &measurement{}
			t.add("n", figures.Count, 1)
			return t
		},
	}
	if err := r.compare(context.Background(), c, time.Hour); err != nil {
		t.Fatal(err)
	}
	for _, row := range s.Rows {
		if m, ok := row.metric("n"); !ok || m.Median != 1 {
			t.Errorf("row %+v", row)
		}
	}
}

// One that waits for its node does not keep the others from their turns.
func TestWhatWaitsGoesOnBesideTheOthers(t *testing.T) {
	r := testRunner()
	r.plan.Fewest, r.plan.Silence = 2, time.Minute // both rounds, however long the first takes
	var others atomic.Int64
	s := &Section{Key: "n"}
	c := &testCase{
		section: s, name: "case", clients: 1, rounds: 2, cold: true, waits: true, setup: &Setup{},
		contestants: []Contestant{fakeContestant("slow", &fake{}, nil), fakeContestant("quick", &fake{}, nil)},
	}
	enough, back := make(chan struct{}), make(chan struct{})
	c.measurement = func(ctx context.Context, e *entry, _ time.Duration) *measurement {
		t := &measurement{}
		wait := func(c <-chan struct{}) {
			select {
			case <-c:
			case <-ctx.Done():
				t.fail(ctx.Err())
			}
		}
		if e.contestant.Name == "slow" {
			wait(enough)
			defer close(back)
		} else if n := others.Add(1); n == 2 {
			close(enough)
			wait(back)
		}
		t.add("n", figures.Count, 1)
		return t
	}
	if err := r.compare(context.Background(), c, time.Second); err != nil {
		t.Fatal(err)
	}
	if others.Load() < 2 {
		t.Errorf("the others had %d measurements", others.Load())
	}
	for _, row := range s.Rows {
		if m, ok := row.metric("n"); !ok || m.Median != 1 || row.Error != "" {
			t.Errorf("row %+v", row)
		}
	}
}

// What still waits at the end is cut short, and has its row.
func TestWhatNeverComesBackIsCutShort(t *testing.T) {
	r := testRunner()
	r.plan.Fewest, r.plan.Silence = 1, time.Millisecond
	s := &Section{Key: "n"}
	c := &testCase{
		section: s, name: "case", clients: 1, rounds: 1, cold: true, waits: true, setup: &Setup{},
		contestants: []Contestant{fakeContestant("stuck", &fake{}, nil)},
		measurement: func(ctx context.Context, _ *entry, _ time.Duration) *measurement {
			<-ctx.Done()
			t := &measurement{}
			t.fail(ctx.Err())
			return t
		},
	}
	if err := r.compare(context.Background(), c, 0); err != nil {
		t.Fatal(err)
	}
	if len(s.Rows) != 1 || !s.Rows[0].Cut || !strings.Contains(s.Rows[0].Error, "canceled") {
		t.Errorf("rows %+v", s.Rows)
	}
}

func TestWhatHasNotBegunWhenTheTimeIsOverIsLeftOut(t *testing.T) {
	r := testRunner()
	r.plan.For = time.Nanosecond
	never := func(context.Context, *Runner) ([]*testCase, error) {
		return []*testCase{{
			section: &Section{Title: "Late"}, name: "case", setup: &Setup{}, contestants: []Contestant{fakeContestant("a", &fake{}, nil)},
			measurement: func(context.Context, *entry, time.Duration) *measurement {
				t.Error("it was measured")
				return &measurement{}
			},
		}}, nil
	}
	report, err := r.Run(context.Background(), []Scenario{{Name: "late", plan: never}})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Notes) != 1 || !strings.Contains(report.Notes[0], "Late, case") {
		t.Errorf("notes %q", report.Notes)
	}
}

func TestAVerySlowContestantHasFewerMeasurements(t *testing.T) {
	e := &entry{spent: time.Second, measurements: []*measurement{{}}}
	if e.hasHadEnough(2, time.Nanosecond) {
		t.Error("it has had one measurement of at least two")
	}
	e.measurements = append(e.measurements, &measurement{})
	if !e.hasHadEnough(2, time.Nanosecond) {
		t.Error("it goes on although it is slow")
	}
	e.spent = 0
	if e.hasHadEnough(2, time.Nanosecond) {
		t.Error("it is quick, and has no more measurements")
	}
}

func TestRoundsEndWithTheTimeOfTheCase(t *testing.T) {
	r := testRunner()
	r.plan.Fewest = 3
	measurements := 0
	c := &testCase{
		section: &Section{}, clients: 1, rounds: 1000, setup: &Setup{}, contestants: []Contestant{fakeContestant("a", &fake{}, nil)},
		measurement: func(context.Context, *entry, time.Duration) *measurement { measurements++; return &measurement{} },
	}
	if err := r.compare(context.Background(), c, -time.Second); err != nil {
		t.Fatal(err)
	}
	if measurements != 1+3 {
		t.Errorf("%d measurements when there was no time, want the one that warms up and the fewest", measurements)
	}
}

func TestTheTimeIsDividedByWeightBesideWhatIsFixed(t *testing.T) {
	three := make([]Contestant, 3)
	cases := []*testCase{
		{contestants: three, heavy: 2},                // 6
		{contestants: three[:1], heavy: 4},            // 4
		{contestants: three, fixed: 10 * time.Second}, // 0
	}
	if got := budget(20*time.Second, cases); got != 6*time.Second {
		t.Errorf("the first has %v of the 10 s that are left, want 6 s", got)
	}
	if got := budget(20*time.Second, cases[1:]); got != 10*time.Second {
		t.Errorf("the next has %v, want all of the 10 s", got)
	}
	if got := budget(20*time.Second, cases[2:]); got != 0 {
		t.Errorf("what is fixed has %v besides", got)
	}
	if got := budget(time.Second, cases); got != 0 {
		t.Errorf("there is %v when the time is over", got)
	}
}

// However many contestants there are, and however long their measurements take beyond what they
// are to: slices and rounds fit the time.
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

// Both modes of the handoff report a lock that excludes nobody.
func TestTwoHoldersAtOnceAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := testRunner()
		r.plan.Hold = time.Millisecond
		everybody := fakeContestant("everybody", &fake{}, nil)
		everybody.Local = true
		e := &entry{contestant: everybody, setup: &Setup{}}
		got := r.handoffMeasurement(3)(context.Background(), e, 300*time.Millisecond)
		if got.err == nil || !strings.Contains(got.err.Error(), "two clients held the lock") {
			t.Errorf("three clients hold a lock that excludes nobody, and the measurement says %v", got.err)
		}
	})
}

func TestHandoffsAreCountedFromOneClientToAnother(t *testing.T) {
	// Client 0 has the lock twice, then client 1, client 0 and client 1 again.
	got := runRelay([][]hold{{{10, 20}, {21, 30}, {52, 60}}, {{35, 50}, {68, 70}}}, time.Unix(0, 20))
	want := &relay{got: []int{2, 2}, handoffs: []time.Duration{5, 2, 8}, passings: []time.Duration{15, 2, 8}, all: 3}
	if !slices.Equal(got.got, want.got) || !slices.Equal(got.handoffs, want.handoffs) || !slices.Equal(got.passings, want.passings) || got.all != want.all || got.overlaps != 0 {
		t.Errorf("relay %+v, want %+v", got, want)
	}
	// One hold lies in another, and a third begins before the first has ended.
	if got := runRelay([][]hold{{{10, 40}}, {{20, 25}}, {{30, 50}}}, time.Unix(0, 0)); got.overlaps != 2 {
		t.Errorf("%d overlaps, want 2", got.overlaps)
	}
}

func TestInParallelCallsEachOnceAndReturnsAnError(t *testing.T) {
	seen := make([]int, 1000)
	if err := inParallel(len(seen), func(i int) error { seen[i]++; return nil }); err != nil {
		t.Fatal(err)
	}
	if slices.Min(seen) != 1 || slices.Max(seen) != 1 {
		t.Error("not every index was called once")
	}
	want := errors.New("no")
	if err := inParallel(10, func(i int) error {
		if i == 3 {
			return want
		}
		return nil
	}); !errors.Is(err, want) {
		t.Errorf("error %v", err)
	}
}

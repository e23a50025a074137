package bench

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

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
	p.Slice, p.Fewest = time.Microsecond, 100
	return NewRunner(p, nil, io.Discard)
}

func TestEveryContestantHasATurnInEveryRound(t *testing.T) {
	r := testRunner()
	var turns []string
	c := &testCase{name: "case", clients: 1, rounds: 4, setup: &Setup{}, turn: func(_ context.Context, e *entry) *turn {
		turns = append(turns, e.contestant.Name)
		t := &turn{}
		t.add("n", Count, float64(len(turns)))
		return t
	}}
	s := &Section{Key: "n"}
	a, b := &fake{}, &fake{}
	if err := r.compare(context.Background(), s, c, []Contestant{fakeContestant("a", a, nil), fakeContestant("b", b, nil)}); err != nil {
		t.Fatal(err)
	}
	if len(turns) != 2*5 { // one round warms up
		t.Fatalf("%d turns: %v", len(turns), turns)
	}
	for i := 0; i < len(turns); i += 2 {
		if turns[i] == turns[i+1] {
			t.Errorf("round %d gave %s two turns", i/2, turns[i])
		}
	}
	if m, ok := s.Rows[0].metric("n"); !ok || m.Value <= 2 {
		t.Errorf("the round that warms up counts: %+v", s.Rows[0])
	}
	if !a.closed || !b.closed {
		t.Error("a client was left open")
	}
}

func TestWhatFailsInAContestantIsInItsRowAndEndsNothing(t *testing.T) {
	r := testRunner()
	s := &Section{Key: pair + " p50"}
	c := &testCase{name: "case", clients: 1, rounds: 2, setup: &Setup{}, turn: r.latencyTurn()}
	err := r.compare(context.Background(), s, c, []Contestant{
		fakeContestant("away", nil, errors.New("no way in")),
		fakeContestant("broken", &fake{fails: errors.New("out of order")}, nil),
		fakeContestant("well", &fake{}, nil),
	})
	if err != nil {
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

func TestAVerySlowContestantHasFewerTurns(t *testing.T) {
	r := testRunner()
	r.plan.Slice, r.plan.Fewest = time.Nanosecond, 2
	e := &entry{spent: time.Second, turns: []*turn{{}}}
	c := &testCase{rounds: 10}
	if r.hasHadEnough(e, c) {
		t.Error("it has had one turn of at least two")
	}
	e.turns = append(e.turns, &turn{})
	if !r.hasHadEnough(e, c) {
		t.Error("it goes on although it is slow")
	}
	e.spent = 0
	if r.hasHadEnough(e, c) {
		t.Error("it is quick, and has no more turns")
	}
}

// overlapping hands the same lock to everybody.
func TestTwoHoldersAtOnceAreReported(t *testing.T) {
	r := testRunner()
	r.plan.Hold = time.Millisecond
	e := &entry{lockers: []Locker{&fake{}, &fake{}, &fake{}}}
	got := r.handoffTurn(300*time.Millisecond, nil)(context.Background(), e)
	if got.err == nil || !strings.Contains(got.err.Error(), "two clients held the lock") {
		t.Errorf("three clients hold a lock that excludes nobody, and the turn says %v", got.err)
	}
}

func TestHandoffsAreCountedFromOneClientToAnother(t *testing.T) {
	b := &baton{from: -1, got: make([]int, 2)}
	now := time.Now()
	b.take(0, now)
	b.give(0)
	b.take(0, now) // to itself
	b.give(0)
	b.take(1, time.Now())
	b.give(1)
	if len(b.handoffs) != 1 || b.overlaps != 0 || !slices.Equal(b.got, []int{2, 1}) {
		t.Errorf("handoffs %v, overlaps %d, locks %v", b.handoffs, b.overlaps, b.got)
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

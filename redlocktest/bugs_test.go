package redlocktest

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A bug is planted in a sound backend, and the case that was made for it must find it. One
// command runs all bugs:
//
//	go test -run TestPlantedBugs -v ./redlocktest
//
// It prints a table of the bugs, the cases, the times and the messages. Outside of the deep depth it
// runs a third of the bugs that need a server, but none in SQL, and half of those that run alone;
// -planted.third says which.
type bug struct {
	name string
	want string // the case that must find it
	rule string // the beginning of the rule that the failure names; " | " separates several
	says string // another part of the message
	// over makes the harness; nil: overMemory.
	over  func(plant func(*broken)) Harness
	plant func(b *broken)
	// harness changes the harness.
	harness func(h *Harness)
	// tries is the number of runs that surely show the bug, if one run shows it only by chance.
	// Zero: one.
	tries int
	// alone says that the case counts goroutines or sockets, so it runs in real time, with
	// nothing beside it.
	alone bool
	// check runs the suite on a bug outside of this process; then the fields above are unused.
	check func(t *testing.T, only string) error
}

// plantedIn lists the tables of bugs, by the place where they are planted.
var plantedIn = []struct {
	name  string
	bugs  []bug
	start func(t *testing.T) // starts a server
	none  func() bug         // returns the sound backend, without a bug
}{
	{"memory", memoryBugs, nil, nil},
	{"waiting", waitingBugs, nil, nil},
	{"time", timeBugs, nil, nil},
	{"lease", leaseBugs, nil, nil},
	{"open", openBugs, nil, nil},
	{"link", linkBugs, nil, nil},
	{"session", sessionBugs, nil, nil},
	{"operator", operatorBugs, nil, nil},
	{"process", processBugs, startProcesses, soundProcess},
}

// whole runs the whole suite on each bug, not only the case that was made for it.
var whole = flag.Bool("planted.whole", false, "run the whole suite on each planted bug in memory, to see which other cases fail")

var plantedShares = flag.Int("planted.shares", 0, "run the case of each planted bug this often, and print how many runs find it")

// thirdBugs says which third of the bugs in real servers a short run uses.
var thirdBugs = flag.Uint64("planted.third", 0, "which third of the bugs in real servers, and which half of those that run alone, are run outside of the deep depth: 0, 1 or 2")

func deep() bool { return server.IsDeep() }

// some returns the bugs to run: those that run alone, or all others. Outside of the deep depth these
// are a third of those that need a server, without leaks, and half of those that run alone: the suite
// waits for seconds before it calls something a leak.
func some(t *testing.T, bugs []bug, remote, alone bool) (run []bug) {
	all := 0
	for i, b := range bugs {
		if b.alone != alone {
			continue
		}
		all++
		n := uint64(i)
		if !deep() && (remote && (n%3 != *thirdBugs%3 || strings.HasPrefix(b.want, "leak/")) || alone && n%2 != *thirdBugs%2) {
			continue
		}
		run = append(run, b)
	}
	if len(run) < all {
		t.Logf("%d of %d bugs are run; -planted.third=%d runs the same", len(run), all, *thirdBugs)
	}
	return run
}

// finding is a line of the table.
type finding struct {
	in, name, want string
	took           time.Duration
	said           string
}

// TestPlantedBugs: each bug is found by the case that was made for it.
func TestPlantedBugs(t *testing.T) {
	t.Parallel()
	plantBugs(t, false)
}

// TestPlantedBugsThatRunAlone is TestPlantedBugs for the cases that count goroutines or sockets.
func TestPlantedBugsThatRunAlone(t *testing.T) {
	if inOwnProcess(t) {
		plantBugs(t, true)
	}
}

// plantBugs finds the bugs that run alone, or all others.
func plantBugs(t *testing.T, alone bool) {
	var mu sync.Mutex
	var table []finding
	t.Cleanup(func() {
		found := 0
		var text strings.Builder
		slices.SortStableFunc(table, func(a, b finding) int { return strings.Compare(a.in, b.in) })
		for _, f := range table {
			if f.said != "" {
				found++
			}
			fmt.Fprintf(&text, "\n%-8s | %-50s | %-26s | %6.3f s | %s", f.in, f.name, f.want, f.took.Seconds(), f.said)
		}
		t.Logf("%d bugs are planted, %d are found:%s", len(table), found, text.String())
	})
	for _, in := range plantedIn {
		t.Run(in.name, func(t *testing.T) {
			if !alone {
				t.Parallel()
			}
			bugs := some(t, in.bugs, in.start != nil, alone)
			if in.start != nil && !alone {
				in.start(t)
				sound(t, bugs, in.none())
			}
			for _, b := range bugs {
				t.Run(b.name, func(t *testing.T) {
					if !b.alone {
						t.Parallel()
					}
					start := time.Now()
					all := b.find(t)
					f := finding{in: in.name, name: b.name, want: b.want, took: time.Since(start), said: found(t, b, all)}
					mu.Lock()
					defer mu.Unlock()
					table = append(table, f)
				})
			}
		})
	}
}

// find runs the suite on a backend with the bug.
func (b bug) find(t *testing.T) []*Failure {
	only := b.want
	if *whole {
		only = ""
	}
	over := b.over
	if over == nil {
		over = overMemory
	}
	once, runs := func() error { return b.once(over, only) }, max(1, b.tries)
	if b.check != nil {
		once = func() error { return b.check(t, b.want) }
	}
	if b.check != nil || b.alone { // in real time the machine may stand still
		runs = max(5, runs)
	}
	if *plantedShares > 0 {
		runs = *plantedShares
	}
	var all []*Failure
	finds := 0
	check := func() {
		for range runs {
			found := failures(t, once())
			tidy(t, found)
			if all == nil || b.shownBy(found) != nil {
				all = found
			}
			if b.shownBy(found) == nil {
				continue
			}
			if finds++; *plantedShares == 0 {
				return
			}
		}
	}
	if b.alone || b.check != nil {
		check()
	} else {
		synctest.Test(t, func(*testing.T) { check() })
	}
	if *plantedShares > 0 {
		t.Logf("%d of %d runs find it", finds, runs)
	}
	return all
}

func (b bug) once(over func(func(*broken)) Harness, only string) error {
	h := over(b.plant)
	h.Timeout, h.Short, h.quiet, h.Only = 6*time.Second, true, true, only
	if b.alone {
		h.quiet, h.Only = false, b.want
	}
	if b.tries > 0 {
		h.Short, h.steps = false, 20_000 // another try costs less than a long search
	}
	if b.harness != nil {
		b.harness(&h)
	}
	return Check(h)
}

// mostCases is how many cases a single bug may fail: more would be too many to read.
const mostCases = 16

// shownBy returns the failure that shows the bug, or nil.
func (b bug) shownBy(all []*Failure) *Failure {
	for _, f := range all {
		names := func(rule string) bool { return strings.HasPrefix(f.Rule, rule) }
		if f.Case == b.want && slices.ContainsFunc(strings.Split(b.rule, " | "), names) && strings.Contains(f.Text, b.says) {
			return f
		}
	}
	return nil
}

// found asserts that the case that was made for a bug failed, that its message says enough to
// repair the bug, and that few other cases failed. It returns the message.
func found(t *testing.T, b bug, all []*Failure) (said string) {
	t.Helper()
	cases := map[string]bool{}
	for _, f := range all {
		cases[f.Case] = true
	}
	if f := b.shownBy(all); f != nil {
		said, _, _ = strings.Cut(f.Text, "\n")
		if !strings.Contains(f.Pos, ".go:") && !strings.HasPrefix(f.Pos, "the ") && f.Pos != "a panic" {
			t.Errorf("a failure does not say where it was found: %v", f)
		}
	}
	if said == "" {
		t.Errorf("%s did not fail for %q with %q; the failures are: %v", b.want, b.rule, b.says, all)
	}
	if len(cases) > mostCases {
		t.Errorf("one bug fails %d cases: %v", len(cases), cases)
	}
	return said
}

// caught is like found, for a bug that is not in a table.
func caught(t *testing.T, all []*Failure, want, rule string) {
	t.Helper()
	found(t, bug{want: want, rule: rule}, all)
}

// overMemory opens clients of one lock space that are all broken in the same way.
func overMemory(plant func(*broken)) Harness {
	space := memory.New()
	return Harness{
		Open: func() (driver.Backend, error) {
			b := &broken{Backend: space.Peer()}
			plant(b)
			return b, nil
		},
		TTL: 200 * time.Millisecond,
	}
}

// brokenHarness is like overMemory, for a bug that is not in a table.
func brokenHarness(plant func(*broken)) Harness {
	h := overMemory(plant)
	h.Timeout, h.Short, h.quiet = 6*time.Second, true, true
	return h
}

// failures returns the failures in Check's error.
func failures(t *testing.T, err error) []*Failure {
	t.Helper()
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("Check returned %T: %v", err, err)
	}
	var all []*Failure
	for _, err := range joined.Unwrap() {
		var f *Failure
		if !errors.As(err, &f) {
			t.Fatalf("Check returned a %T: %v", err, err)
		}
		all = append(all, f)
	}
	return all
}

// planted returns the function that plants this bug of memoryBugs.
func planted(name string) func(*broken) {
	for _, b := range memoryBugs {
		if b.name == name {
			return b.plant
		}
	}
	panic(name)
}

// caseTime returns the time of a case on a real server: with a bug, whose name this is, as long
// as the case needs to find it; without one long enough for any busy machine.
func caseTime(name string, find time.Duration) time.Duration {
	if name == "" {
		return time.Minute
	}
	return find
}

// sound runs the cases that find these bugs on a backend without a bug, and in full runs the
// whole groups of these cases.
func sound(t *testing.T, bugs []bug, none bug) {
	t.Helper()
	cases := map[string]bool{}
	for _, b := range bugs {
		only := b.want
		if group, _, _ := strings.Cut(b.want, "/"); deep() && group != "leak" {
			only = group
		}
		cases[only] = true
	}
	for only := range cases {
		t.Run("sound-"+strings.ReplaceAll(only, "/", "-"), func(t *testing.T) {
			t.Parallel()
			if err := none.check(t, only); err != nil {
				t.Error(err)
			}
		})
	}
}

// unplanted are the cases for which no bug is planted, and why.
var unplanted = func() map[string]string {
	const (
		race    = "only a race of many goroutines shows its bugs, and not in each run"
		alike   = "its bugs are those of other cases, at another moment"
		feature = "it needs a backend without a feature or a TTL that the planted backends have"
		servers = "its bugs are in what a driver does when its server restarts, hangs or loses an answer, or a process dies; the planted backends have no such server"
	)
	return map[string]string{
		"open/concurrent": race, "fence/rises-concurrently": race, "shared/race": race,
		"exclusion/bystanders": alike, "verdict/release-at-once": alike, "wait/cancelled-gets-nothing": alike, "wait/order-clients": alike,
		"request/no-shared-mode": feature, "request/session-ttl": feature, "request/not-a-node": feature,
		"close/session": "the sessions of the planted backends do not end with Close",
		"fault/restart": servers, "fault/restart-forgets": servers, "fault/restart-waiter": servers, "fault/pause": servers,
		"fault/partition-renewed": servers, "fault/lost-reply-renew": servers, "process/killed-waiter": servers,
	}
}()

// TestEachCaseHasAPlantedBugOrAReason: a case that finds no planted bug may find none at all, and
// one that fails for another reason has not found the bug.
func TestEachCaseHasAPlantedBugOrAReason(t *testing.T) {
	planted := map[string]bool{}
	for _, in := range plantedIn {
		for _, b := range in.bugs {
			planted[b.want] = true
			if b.rule == "" {
				t.Errorf("%s, %q: which rule must the failure name?", in.name, b.name)
			}
		}
	}
	cases := map[string]bool{}
	for _, g := range groups {
		for _, c := range g.cases {
			name := g.name + "/" + c.name
			cases[name] = true
			if why := unplanted[name]; planted[name] == (why != "") {
				t.Errorf("%s: has a planted bug: %v; the reason for none: %q", name, planted[name], why)
			}
		}
	}
	for name := range unplanted {
		if !cases[name] {
			t.Errorf("there is no case %s", name)
		}
	}
}

package redlocktest

import (
	"errors"
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

// A bug is planted in a sound backend, and the case that was made for it must find it, in the default
// depth; the stress must find some of them too, each fourth in the default depth and all in the deep
// one. One command prints a table of the bugs, with the case that finds each, the time and the message:
//
//	go test -run TestPlantedBugs -v ./redlocktest
type bug struct {
	name string
	want string // the case that must find it
	rule string // the beginning of the rule that the failure names; " | " separates several
	says string // another part of the message
	// stress says that the stress must find it, too.
	stress bool
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
	name string
	bugs []bug
}{
	{"memory", memoryBugs}, {"waiting", waitingBugs}, {"time", timeBugs}, {"lease", leaseBugs}, {"open", openBugs},
	{"link", linkBugs}, {"session", sessionBugs}, {"operator", operatorBugs}, {"process", processBugs},
}

func deep() bool { return server.IsDeep() }

// TestPlantedBugs: each bug is found by the case that was made for it.
func TestPlantedBugs(t *testing.T) {
	t.Parallel()
	plantBugs(t, false)
}

// TestPlantedBugsThatRunAlone is TestPlantedBugs for the cases that count goroutines or sockets.
func TestPlantedBugsThatRunAlone(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds before it calls something a leak")
	}
	if inOwnProcess(t) {
		plantBugs(t, true)
	}
}

// plantBugs finds the bugs that run alone, or all others.
func plantBugs(t *testing.T, alone bool) {
	var mu sync.Mutex
	var table []string
	found := 0
	t.Cleanup(func() {
		slices.Sort(table)
		t.Logf("%d bugs are planted, and %d are found by Run in the default depth:\n%s", len(table), found, strings.Join(table, "\n"))
	})
	for _, in := range plantedIn {
		t.Run(in.name, func(t *testing.T) {
			if !alone {
				t.Parallel()
			}
			if in.name == "process" && !alone {
				if testing.Short() {
					t.Skip("starts processes")
				}
				startProcesses(t)
				soundProcesses(t)
			}
			for _, b := range in.bugs {
				if b.alone != alone {
					continue
				}
				t.Run(b.name, func(t *testing.T) {
					if !b.alone {
						t.Parallel()
					}
					start := time.Now()
					said := b.said(t, b.find(t))
					mu.Lock()
					defer mu.Unlock()
					if said != "" {
						found++
					}
					stress := "     -"
					if b.stress {
						stress = "Stress"
					}
					table = append(table, fmt.Sprintf("%-8s | %-72s | Run: %-28s | %s | %6.3f s | %s", in.name, b.name, b.want, stress, time.Since(start).Seconds(), said))
				})
			}
		})
	}
}

// find runs the case that was made for the bug on a backend with it, until it fails.
func (b bug) find(t *testing.T) (all []*Failure) {
	once, runs := func() error { return b.once() }, max(1, b.tries)
	if b.check != nil {
		once = func() error { return b.check(t, b.want) }
	}
	if b.check != nil || b.alone { // in real time the machine may stand still
		runs = max(5, runs)
	}
	check := func() {
		for i := 0; i < runs && b.shownBy(all) == nil; i++ {
			all = failures(t, once())
		}
	}
	if b.alone || b.check != nil {
		check()
	} else {
		synctest.Test(t, func(*testing.T) {
			check()
			time.Sleep(3 * time.Minute) // what hangs comes to its end
		})
	}
	return all
}

// harnessed returns the harness of a backend with the bug.
func (b bug) harnessed() Harness {
	over := b.over
	if over == nil {
		over = overMemory
	}
	h := over(b.plant)
	h.Timeout, h.quiet = 6*time.Second, true
	if b.harness != nil {
		b.harness(&h)
	}
	return h
}

func (b bug) once() error {
	h := b.harnessed()
	h.Short, h.quiet, h.Only = b.tries == 0, !b.alone, b.want
	if b.tries > 0 {
		h.steps = 20_000 // another try costs less than a long search
	}
	return Check(h)
}

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

// said asserts that the case that was made for a bug failed, and that its message says enough to
// repair the bug. It returns the message.
func (b bug) said(t *testing.T, all []*Failure) string {
	t.Helper()
	f := b.shownBy(all)
	if f == nil {
		t.Errorf("%s did not fail for %q with %q; the failures are: %v", b.want, b.rule, b.says, all)
		return ""
	}
	if !strings.Contains(f.Pos, ".go:") && !strings.HasPrefix(f.Pos, "the ") && f.Pos != "a panic" {
		t.Errorf("a failure does not say where it was found: %v", f)
	}
	first, _, _ := strings.Cut(f.Text, "\n")
	return first
}

// caught is said for a bug that is not in a table.
func caught(t *testing.T, all []*Failure, want, rule string) {
	t.Helper()
	bug{want: want, rule: rule}.said(t, all)
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

// unplanted are the cases for which no bug is planted, and why.
var unplanted = func() map[string]string {
	const (
		race    = "only a race of many goroutines shows its bugs, and not in each run"
		alike   = "its bugs are those of other cases, at another moment"
		servers = "its bugs are in what a driver does when its server restarts, hangs or loses an answer, or a process dies; the planted backends have no such server"
	)
	return map[string]string{
		"open/concurrent": race, "wait/cancelled-gets-nothing": alike, "wait/order-clients": alike,
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

package redlocktest

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

// A bug is planted in a sound backend, and the case that was made for it must find it. All
// of them are run by one command:
//
//	go test -run TestPlantedBugs -v ./redlocktest
//
// It prints a table of the bugs, the cases, the times and the messages. With -short a third
// of the bugs that need a server is run, and -planted.third says which.
type bug struct {
	name string
	want string // the case
	rule string // how the rule that it names begins
	says string // what else the message says
	// over makes the harness; nil: overMemory.
	over  func(plant func(*broken)) Harness
	plant func(b *broken)
	// harness changes the harness.
	harness func(h *Harness)
	// tries: chance decides whether one run shows it; so many do. Zero: one.
	tries int
	// alone: it counts goroutines or sockets, and so runs in real time, beside nothing.
	alone bool
	// check runs the suite on what is not in this process; then the fields above are not used.
	check func(t *testing.T, only string) error
}

// plantedIn are the tables of bugs, by what they are planted in.
var plantedIn = []struct {
	name  string
	bugs  []bug
	start func(t *testing.T) // a server
	none  func() bug         // sound: no bug
}{
	{"memory", memoryBugs, nil, nil},
	{"waiting", waitingBugs, nil, nil},
	{"time", timeBugs, nil, nil},
	{"lease", leaseBugs, nil, nil},
	{"open", openBugs, nil, nil},
	{"link", linkBugs, nil, nil},
	{"session", sessionBugs, nil, nil},
	{"redis", redisBugs, startRedis, soundScripts},
	{"sql", sqlBugs, startSQL, soundTable},
}

// whole has each bug meet the whole suite, and not only the case that was made for it.
var whole = flag.Bool("planted.whole", false, "run the whole suite on each planted bug in memory, to see which other cases fail")

// thirdBugs is which third of the bugs meets a server in short runs.
var thirdBugs = flag.Uint64("planted.third", rand.Uint64N(3), "which third of the bugs in real servers -short runs: 0, 1 or 2")

// some returns the bugs that are run: in short runs a third of those that need a server.
func some(t *testing.T, bugs []bug, server bool) (run []bug) {
	if !testing.Short() || !server {
		return bugs
	}
	t.Logf("short: a third of the %d bugs is run; -planted.third=%d runs the same", len(bugs), *thirdBugs)
	for i, b := range bugs {
		if uint64(i)%3 == *thirdBugs%3 {
			run = append(run, b)
		}
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
			bugs := some(t, in.bugs, in.start != nil)
			if in.start != nil {
				t.Parallel()
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
					tidyPictures(t, all)
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
	if b.check != nil {
		var err error
		for n := 0; n < max(1, b.tries) && err == nil; n++ {
			err = b.check(t, b.want)
		}
		return failures(t, err)
	}
	over := b.over
	if over == nil {
		over = overMemory
	}
	var err error
	check := func() {
		for range max(1, b.tries) {
			if err = b.once(over, only); err != nil {
				return
			}
		}
	}
	if b.alone {
		check()
	} else {
		synctest.Test(t, func(*testing.T) { check() })
	}
	return failures(t, err)
}

func (b bug) once(over func(func(*broken)) Harness, only string) error {
	h := over(b.plant)
	h.Timeout, h.Short, h.quiet, h.Only = 6*time.Second, true, true, only
	if b.alone {
		h.quiet, h.Only = false, b.want
	}
	if b.tries > 0 {
		h.Short = false
	}
	if b.harness != nil {
		b.harness(&h)
	}
	return Check(h)
}

// mostCases is how many cases a single bug may fail before the reader drowns.
const mostCases = 16

// found asserts that the case that was made for a bug failed, and says what is needed to
// repair it, and that few other cases did. It returns the message.
func found(t *testing.T, b bug, all []*Failure) (said string) {
	t.Helper()
	cases := map[string]bool{}
	for _, f := range all {
		cases[f.Case] = true
		if f.Case == b.want && strings.HasPrefix(f.Rule, b.rule) && strings.Contains(f.Text, b.says) && said == "" {
			said, _, _ = strings.Cut(f.Text, "\n")
			if !strings.Contains(f.Pos, ".go:") && !strings.HasPrefix(f.Pos, "the ") && f.Pos != "a panic" {
				t.Errorf("a failure does not say where it was found: %v", f)
			}
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

// caught is found for a test of its own.
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

// brokenHarness is overMemory for a test of its own.
func brokenHarness(plant func(*broken)) Harness {
	h := overMemory(plant)
	h.Timeout, h.Short, h.quiet = 6*time.Second, true, true
	return h
}

// failures takes Check's error apart.
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

// planted returns what plants a bug in memory.
func planted(name string) func(*broken) {
	for _, b := range memoryBugs {
		if b.name == name {
			return b.plant
		}
	}
	panic(name)
}

// sound runs the cases that bugs are found by on what has none, and in full runs the groups
// of these cases too.
func sound(t *testing.T, bugs []bug, none bug) {
	t.Helper()
	cases := map[string]bool{}
	for _, b := range bugs {
		cases[b.want] = true
		if group, _, _ := strings.Cut(b.want, "/"); !testing.Short() && group != "leak" {
			cases[group] = true
		}
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

package redlocktest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/redlock-go/redlock/driver"
)

// Run checks the backend that h opens, one subtest a case, in the order of the table. The basic
// cases come first, and if one fails nothing else is run. Cases that do not apply to the
// backend are no subtests; one line of the log counts them.
//
// Cases that mostly wait run side by side as parallel subtests, so that a test that
// calls Run must not use t.Setenv or t.Chdir. No other test may run in the
// process meanwhile: its goroutines would count as leaks.
func Run(t *testing.T, h Harness) {
	t.Helper()
	h.Short = h.Short || testing.Short()
	h.end = timeOf(t)
	var first sync.Once
	h.told = func(f *Failure) {
		first.Do(func() { fmt.Fprintf(os.Stderr, "%s: the first failure, told at once: %v\n", t.Name(), f) })
	}
	s, err := newSuite(h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.conclude(t) })
	for _, g := range s.groups {
		t.Run(g.name, func(t *testing.T) { s.runGroup(t, g) })
	}
}

// runGroup makes each case of g a subtest. Those that mostly wait are parallel subtests, which all
// begin at once: so how many of them wait together does not depend on the number of processors.
func (s *suite) runGroup(t *testing.T, g group) {
	together := g.together && !s.h.Virtual
	if together {
		before := s.goroutines()
		t.Cleanup(func() {
			if f := s.leaks(g.name, before); f != nil {
				t.Error(f)
			}
		})
	}
	for _, c := range g.cases {
		t.Run(c.name, func(t *testing.T) {
			result := make(chan CaseResult, 1)
			switch {
			case s.h.Virtual:
				synctest.Test(t, func(*testing.T) { result <- s.runCase(g, c) })
			case together:
				go func() { result <- s.runCase(g, c) }()
				t.Parallel()
			default:
				result <- s.runCase(g, c)
			}
			(<-result).report(t)
		})
	}
}

// timeOf returns when a test must end, so that its messages are printed before go test's -timeout
// ends the process; zero: never.
func timeOf(t *testing.T) (limit time.Time) {
	defer func() { _ = recover() }() // in a bubble of testing/synctest, whose clock is another, Deadline panics
	end, ok := t.Deadline()
	if ok {
		limit = end.Add(-min(20*time.Second, time.Until(end)/5))
	}
	return limit
}

// conclude says what ran, and whether the time sufficed.
func (s *suite) conclude(t *testing.T) {
	t.Log(s.summary())
	if s.late > 0 {
		t.Errorf("%d cases were not run, because the time of the test was over: raise go test's -timeout, lower Harness.Timeout, or set Harness.Only", s.late)
	}
}

// A group has the cases for one part of the contract.
type group struct {
	name     string
	basic    bool // if one fails, later groups would show nothing new
	together bool // the cases run concurrently, because they mostly wait
	cases    []testCase
}

// A testCase checks one sentence of the contract.
type testCase struct {
	name  string
	after string // if that case of an earlier group failed, this one would only repeat it
	do    func(*run)

	// A case whose conditions are not met does not apply, and is not run.
	features driver.Features // features that the backend must have
	without  driver.Features // features that it must not have
	ttl      bool            // the backend has TTLs
	needs    []condition     // further conditions
}

// groups lists all cases, in groups, in the order in which they run.
var groups = []group{
	{name: "basic", basic: true, cases: basicCases},
	{name: "open", cases: openCases},
	{name: "request", cases: requestCases},
	{name: "exclusion", cases: exclusionCases},
	{name: "verdict", cases: verdictCases},
	{name: "expiry", together: true, cases: expiryCases},
	{name: "cancel", cases: cancelCases},
	{name: "wait", together: true, cases: waitCases},
	{name: "watch", cases: watchCases},
	{name: "fence", cases: fenceCases},
	{name: "node", cases: nodeCases},
	{name: "shared", cases: sharedCases},
	{name: "operator", cases: operatorCases},
	{name: "close", cases: closeCases},
	{name: "leak", cases: leakCases},
	{name: "fault", cases: faultCases},
	{name: "link", together: true, cases: linkCases},
	{name: "process", together: true, cases: processCases},
	{name: "history", cases: historyCases},
}

// A condition returns what the backend or its harness lacks for a case; empty if it lacks nothing.
type condition func(*suite) string

func offers(what string, there func(s *suite) bool) condition {
	return func(s *suite) string {
		if there(s) {
			return ""
		}
		return what
	}
}

// The conditions of cases besides features.
var (
	watches  = offers("driver.Watcher", func(s *suite) bool { return s.watcher })
	inspects = offers("driver.Inspector", func(s *suite) bool { return s.inspector })
	admins   = offers("driver.Admin", func(s *suite) bool { return s.admin })
	opens    = offers("Harness.Driver and URL", func(s *suite) bool { return s.h.Driver != nil && s.h.URL != "" })
	counts   = offers("Harness.Connections", func(s *suite) bool { return s.connections() != nil })
	realTime = offers("real time", func(s *suite) bool { return !s.h.Virtual && !s.h.quiet })

	restarts   = offers("Faults.Kill and Restart", func(s *suite) bool { return s.h.Faults.Kill != nil && s.h.Faults.Restart != nil })
	pauses     = offers("Faults.Pause and Resume", func(s *suite) bool { return s.h.Faults.Pause != nil && s.h.Faults.Resume != nil })
	partitions = offers("Faults.Partition and Heal", func(s *suite) bool { return s.h.Faults.Partition != nil && s.h.Faults.Heal != nil })
	slows      = offers("Faults.Slow", func(s *suite) bool { return s.h.Faults.Slow != nil })
	drops      = offers("Faults.DropReply", func(s *suite) bool { return s.h.Faults.DropReply != nil })
	resets     = offers("Faults.Reset", func(s *suite) bool { return s.h.Faults.Reset != nil })
	cuts       = offers("Faults.EndSession", func(s *suite) bool { return s.h.Faults.EndSession != nil })

	processes = offers("Harness.Process", func(s *suite) bool { return s.h.Process != nil && !s.h.Virtual })
	clocked   = offers("Harness.OpenWithClock", func(s *suite) bool { return s.h.OpenWithClock != nil })
	layouts   = offers("Harness.FutureLayout", func(s *suite) bool { return s.h.FutureLayout != nil })
	outages   = anyOf(restarts, pauses, partitions)
	spoilable = anyOf(drops, slows, partitions, pauses, cuts)
)

// anyOf is met if one of them is.
func anyOf(all ...condition) condition {
	return func(s *suite) string {
		var missing []string
		for _, c := range all {
			what := c(s)
			if what == "" {
				return ""
			}
			missing = append(missing, what)
		}
		return strings.Join(missing, " or ")
	}
}

// missing returns what the backend or its harness lacks for a case.
func (s *suite) missing(c testCase) string {
	switch {
	case !s.info.Features.Has(c.features):
		return (c.features &^ s.info.Features).String()
	case s.info.Features&c.without != 0:
		return "no " + (c.without & s.info.Features).String()
	case c.ttl && s.info.MaxTTL == 0:
		return "TTLs"
	}
	for _, n := range c.needs {
		if what := n(s); what != "" {
			return what
		}
	}
	return ""
}

// probe learns what the backend can do.
func (s *suite) probe() error {
	b, err := s.h.Open()
	if err != nil {
		return fmt.Errorf("redlocktest: open the backend: %w", err)
	}
	s.info = b.Info()
	_, s.watcher = b.(driver.Watcher)
	_, s.inspector = b.(driver.Inspector)
	_, s.admin = b.(driver.Admin)
	return errors.Join(b.Close(), s.h.closed(b))
}

// choose keeps the cases that apply.
func (s *suite) choose() {
	for _, g := range groups {
		var cases []testCase
		for _, c := range g.cases {
			if s.h.Only != "" && s.h.Only != g.name && s.h.Only != g.name+"/"+c.name {
				continue
			}
			if what := s.missing(c); what != "" {
				s.lacks[g.name+"/"+c.name] = what
				continue
			}
			cases = append(cases, c)
		}
		if len(cases) > 0 {
			g.cases = cases
			s.groups = append(s.groups, g)
		}
	}
}

// summary says how many cases ran, were left out, and did not apply.
func (s *suite) summary() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf("%d cases ran", s.ran)
	if len(s.left) > 0 {
		text += fmt.Sprintf(", %d were skipped (%s)", len(s.left), strings.Join(slices.Sorted(slices.Values(s.left)), "; "))
	}
	if needs := needs(s.lacks); needs != "" {
		text += fmt.Sprintf(", %d do not apply (%s)", len(s.lacks), needs)
	}
	return text
}

// suite is one run of the table.
type suite struct {
	h      Harness
	groups []group           // the cases that apply
	lacks  map[string]string // by case: what it needs

	info                      driver.Info
	watcher, inspector, admin bool

	mu     sync.Mutex
	ran    int
	left   []string // skipped, with the reason
	failed map[string]bool
	broken string // the failed basic case
	leaked bool   // reported once: a leak in one case is a leak in most
	vain   bool   // a case has failed because it waited in vain
	late   int    // cases for which there was no time
}

func newSuite(h Harness) (*suite, error) {
	h, err := h.complete()
	if err != nil {
		return nil, err
	}
	s := &suite{h: h, failed: map[string]bool{}, lacks: map[string]string{}}
	if err := s.probe(); err != nil {
		return nil, err
	}
	s.choose()
	return s, nil
}

// maxRestarts is how often a case is begun anew, with twice the TTL, because the machine
// stood still for so long that a lease ended under it.
const maxRestarts = 6

// maxSuspicions is how often a suspicion, which may come from a slow machine, must be found to
// count as a failure.
const maxSuspicions = 3

// runCase runs one case, and searches for leaks.
func (s *suite) runCase(g group, c testCase) (result CaseResult) {
	start := time.Now()
	result.Name = g.name + "/" + c.name
	defer func() { result.Took = time.Since(start) }()
	if why := s.skipReason(g, c); why != "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.left = append(s.left, result.Name+": "+why)
		result.Skipped = why
		return result
	}
	before := []goleak.Option(nil)
	if !g.together || s.h.Virtual {
		before = s.goroutines()
	}
	r := s.decided(result.Name, c)
	if r == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.late++
		result.Skipped = "not run: the time of the test is over"
		return result
	}
	s.noteResult(g, result.Name, r)
	result.Failures, result.Notes = r.failures, r.notes
	if (!g.together || s.h.Virtual) && !r.abandoned {
		if f := s.leaks(result.Name, before); f != nil {
			result.Failures = append(result.Failures, f)
		}
	}
	return result
}

// decided runs a case, again with longer TTLs as long as it could not decide. It returns nil if the
// time of the test is over.
func (s *suite) decided(name string, c testCase) *run {
	for scale := 1; s.patience() > 0; scale *= 2 {
		r := s.attempt(name, c, scale)
		switch {
		case r.late && s.patience() <= 0: // the test's time ended the case's
			return nil
		case r.startOverReason == "" || len(r.failures) > 0:
			return r
		case r.suspected != nil && 2*scale == 1<<maxSuspicions:
			r.failures = append(r.failures, r.suspected)
			return r
		case 2*scale == 1<<maxRestarts:
			r.note("could not be decided in %d rounds: %s", maxRestarts, r.startOverReason)
			return r
		}
	}
	return nil
}

// patience returns how long a case may take. If one has waited in vain, others will, too: so many
// messages come early, and none is lost because the time of the whole test is over.
func (s *suite) patience() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.h.Timeout
	if s.vain {
		d = max(d/6, min(d, 4*time.Second))
	}
	if !s.h.end.IsZero() {
		d = min(d, time.Until(s.h.end))
	}
	return d
}

// ttl returns the shortest TTL of cases that wait for the end of a lock.
func (s *suite) ttl() time.Duration { return max(cmp.Or(s.h.TTL, defaultTTL), s.info.MinTTL) }

// noteResult remembers failures that make later cases pointless.
func (s *suite) noteResult(g group, name string, r *run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ran++
	if len(r.failures) == 0 {
		return
	}
	s.failed[name] = true
	s.vain = s.vain || r.late
	if g.basic && s.broken == "" {
		s.broken = name
	}
}

// skipReason returns why a case is not run, and "" where it is.
func (s *suite) skipReason(g group, c testCase) string {
	if reason := s.h.skipped(g.name, c.name); reason != "" {
		return reason
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.broken != "":
		return "not run, since " + s.broken + " failed"
	case c.after != "" && s.failed[c.after]:
		return "not run, since " + c.after + " failed"
	}
	return ""
}

// attempt runs a case once, under the watchdog, and cleans up after it.
func (s *suite) attempt(name string, c testCase, scale int) *run {
	// The contexts of the case's own calls end before the watchdog acts, so that a call that
	// hangs differs from one that is only not granted.
	limit := s.patience()
	if scale > 1 { // longer TTLs need more time
		limit += time.Duration(8*scale) * s.ttl()
	}
	if !s.h.end.IsZero() {
		limit = min(limit, time.Until(s.h.end))
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit*3/4)
	defer cancel()
	r := &run{suite: s, h: &s.h, name: name, ctx: ctx, stop: cancel, scale: scale, limit: limit}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer r.end()
		defer r.recoverPanic()
		r.begin(c)
	}()
	watchdog := time.NewTimer(limit)
	defer watchdog.Stop()
	select {
	case <-done:
	case <-watchdog.C:
		r.recordAt("the watchdog", acquiring, "hangs for %v and ignores that its context ended; the goroutines are:\n%s", limit, stacks())
		r.endFaults()
		r.closeAll()
		select {
		case <-done:
		case <-time.After(s.h.cleanupTimeout()):
			r.abandoned = true // it may still write to r: use a copy
			return r.snapshot()
		}
	}
	r.cleanUp()
	r.notices()
	return r
}

// stacks returns the stacks of all goroutines, or of many.
func stacks() string {
	for size := 1 << 16; ; size *= 2 {
		buf := make([]byte, size)
		if n := runtime.Stack(buf, true); n < size || size == 1<<22 {
			return string(buf[:n])
		}
	}
}

// serverGoroutine is server.Goroutine; the suite does not import the package for it. A case that
// restarts a server of package server would find a leak (drivers/everything/internal/mydriver) if they
// differed.
const serverGoroutine = "github.com/redlock-go/redlock/redlocktest/server.(*process).run"

// goroutines returns the options that make goleak ignore the goroutines that exist now, and those
// of servers that a fault starts again.
func (s *suite) goroutines() []goleak.Option {
	if s.h.quiet {
		return nil
	}
	options := []goleak.Option{goleak.IgnoreCurrent(), goleak.IgnoreAnyFunction(serverGoroutine)}
	for _, f := range s.h.IgnoreGoroutines {
		options = append(options, goleak.IgnoreAnyFunction(f))
	}
	return options
}

// leaks returns a failure if goroutines are left after patience. Only the first case that leaks
// reports one.
func (s *suite) leaks(name string, before []goleak.Option) *Failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.h.quiet || s.leaked {
		return nil
	}
	end := time.Now().Add(s.h.cleanupTimeout())
	for {
		err := goleak.Find(before...)
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			s.leaked = true
			return &Failure{Case: name, Rule: string(noLeaks), Pos: "the end of the case", Text: fmt.Sprintf("goroutines are left after Close: %v", err)}
		}
	}
}

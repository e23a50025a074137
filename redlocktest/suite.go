package redlocktest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/redlock-go/redlock/driver"
)

// Run checks the backend that h opens, one subtest a case, in the order of the
// table: what is basic comes first, and if that fails nothing else is run.
//
// Cases that mostly wait run side by side as parallel subtests, so that a test that
// calls Run must not use t.Setenv or t.Chdir. No other test may run in the
// process meanwhile: its goroutines would count as leaks.
func Run(t *testing.T, h Harness) {
	t.Helper()
	s, err := newSuite(h)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			if g.together {
				s.runTogether(t, g)
				return
			}
			for _, c := range g.cases {
				t.Run(c.name, func(t *testing.T) { s.one(g, c).tell(t) })
			}
		})
	}
}

// runTogether starts every case of g that the test's flags select, and then lets
// the parallel subtests only wait for the verdicts: how many cases wait at once does
// not depend on the number of processors.
func (s *suite) runTogether(t *testing.T, g group) {
	before := s.goroutines()
	t.Cleanup(func() {
		if f := s.leaks(g.name, before); f != nil {
			t.Error(f)
		}
	})
	for _, c := range g.cases {
		t.Run(c.name, func(t *testing.T) {
			verdict := make(chan *result, 1)
			go func() { verdict <- s.one(g, c) }()
			t.Parallel()
			(<-verdict).tell(t)
		})
	}
}

// Check is Run without a testing.T: it returns everything that failed, joined, each
// an error of type *Failure, or nil.
func Check(h Harness) error {
	s, err := newSuite(h)
	if err != nil {
		return err
	}
	var errs []error
	for _, g := range groups {
		for _, f := range s.group(g) {
			errs = append(errs, f)
		}
	}
	return errors.Join(errs...)
}

func (s *suite) group(g group) []*Failure {
	var failures []*Failure
	if !g.together {
		for _, c := range g.cases {
			failures = append(failures, s.one(g, c).failures...)
		}
		return failures
	}
	before := s.goroutines()
	results := make([]*result, len(g.cases))
	var wg sync.WaitGroup
	for i, c := range g.cases {
		wg.Go(func() { results[i] = s.one(g, c) })
	}
	wg.Wait()
	for _, r := range results {
		failures = append(failures, r.failures...)
	}
	if f := s.leaks(g.name, before); f != nil {
		failures = append(failures, f)
	}
	return failures
}

// A group of cases is about one part of the contract.
type group struct {
	name     string
	basic    bool // if one fails, nothing that follows would tell more
	together bool // the cases run side by side, since they mostly wait
	cases    []testCase
}

// A testCase checks one sentence.
type testCase struct {
	name  string
	needs driver.Features // without these it is skipped
	ttl   bool            // needs a backend with TTLs
	after string          // if that case of an earlier group failed, this one would only repeat it
	do    func(*run)
}

// groups is the table, in order.
var groups = []group{
	{name: "basic", basic: true, cases: basicCases},
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
	{name: "fault", cases: faultCases},
	{name: "history", cases: historyCases},
}

// suite is one run of the table.
type suite struct {
	h Harness

	mu     sync.Mutex
	failed map[string]bool
	broken string // the basic case that failed
	leaked bool   // told once: what leaks in one case leaks in most
}

func newSuite(h Harness) (*suite, error) {
	h, err := h.complete()
	if err != nil {
		return nil, err
	}
	return &suite{h: h, failed: map[string]bool{}}, nil
}

// result is the verdict of one case.
type result struct {
	failures []*Failure
	notes    []string
	skipped  string // why it was not run, or could not be decided
}

func (r *result) tell(t *testing.T) {
	t.Helper()
	for _, note := range r.notes {
		t.Log(note)
	}
	for _, f := range r.failures {
		t.Error(f)
	}
	if len(r.failures) == 0 && r.skipped != "" {
		t.Skip(r.skipped)
	}
}

// stalls is how often a case is begun anew, with twice the TTL, because the machine
// stood still for so long that a lease ended under it.
const stalls = 6

// one runs one case, and searches for what it left behind.
func (s *suite) one(g group, c testCase) *result {
	name := g.name + "/" + c.name
	if why := s.pointless(g, c); why != "" {
		return &result{skipped: why}
	}
	before := []goleak.Option(nil)
	if !g.together {
		before = s.goroutines()
	}
	r := s.attempt(name, c, 1)
	for scale := 2; r.stalled != "" && len(r.failures) == 0; scale *= 2 {
		if scale == 1<<stalls {
			r.record(expires, "could not be decided in %d rounds: %s", stalls, r.stalled)
			break
		}
		r = s.attempt(name, c, scale)
	}
	s.remember(g, name, r)
	res := &result{failures: r.failures, notes: r.notes, skipped: r.skipped}
	if !g.together && !r.abandoned {
		if f := s.leaks(name, before); f != nil {
			res.failures = append(res.failures, f)
		}
	}
	return res
}

// remember keeps what makes later cases pointless.
func (s *suite) remember(g group, name string, r *run) {
	if len(r.failures) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed[name] = true
	if g.basic && s.broken == "" {
		s.broken = name
	}
}

// pointless returns why a case is not run, and "" where it is.
func (s *suite) pointless(g group, c testCase) string {
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

// attempt runs a case once, under the watchdog, and tidies up after it.
func (s *suite) attempt(name string, c testCase, scale int) *run {
	// The case's own calls end before the watchdog barks, so that what hangs is told
	// from what is merely not granted.
	ctx, cancel := context.WithTimeout(context.Background(), s.h.Timeout*3/4)
	defer cancel()
	r := &run{h: &s.h, name: name, ctx: ctx, stop: cancel, scale: scale}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer r.end()
		defer r.caught()
		r.begin(c)
	}()
	watchdog := time.NewTimer(s.h.Timeout)
	defer watchdog.Stop()
	select {
	case <-done:
	case <-watchdog.C:
		r.recordAt("the watchdog", acquiring, "hangs for %v and ignores that its context ended; the goroutines are:\n%s", s.h.Timeout, stacks())
		r.mend()
		r.closeAll()
		select {
		case <-done:
		case <-time.After(s.h.patience()):
			r.abandoned = true // it may still write to r: use a copy
			return r.frozen()
		}
	}
	r.tidy()
	return r
}

// stacks returns what all goroutines do, as far as a person can read it.
func stacks() string {
	buf := make([]byte, 1<<16)
	return string(buf[:runtime.Stack(buf, true)])
}

// goroutines returns what makes goleak look at new goroutines alone.
func (s *suite) goroutines() []goleak.Option {
	if s.h.quiet {
		return nil
	}
	options := []goleak.Option{goleak.IgnoreCurrent()}
	for _, f := range s.h.IgnoreGoroutines {
		options = append(options, goleak.IgnoreAnyFunction(f))
	}
	return options
}

// leaks returns the failure that goroutines are left, once patience is over. Only the
// first case that leaks is told.
func (s *suite) leaks(name string, before []goleak.Option) *Failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.h.quiet || s.leaked {
		return nil
	}
	end := time.Now().Add(s.h.patience())
	for {
		err := goleak.Find(before...)
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			s.leaked = true
			return &Failure{Case: name, Rule: noLeaks.String(), Pos: "the end of the case", Text: fmt.Sprintf("goroutines are left after Close: %v", err)}
		}
	}
}

package redlocktest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// A CaseResult is the result of one case.
type CaseResult struct {
	// Name is that of the case, "expiry/free", or of a group if the failure was found at its end.
	Name string `json:"name"`
	// Took includes repetitions on a busy machine, and the clean-up.
	Took     time.Duration `json:"nanoseconds"`
	Failures []*Failure    `json:"failures,omitempty"` // empty: the case passed, or was not run
	Skipped  string        `json:"skipped,omitempty"`  // why it was not run; empty: it was
	Notes    []string      `json:"notes,omitempty"`    // observations that may explain a failure
	// Operations is how often a lock was granted, and Renew and Release were called.
	Operations int64 `json:"operations"`
	_          struct{}
}

// A Report is the result of a run of the suite.
type Report struct {
	Info  driver.Info
	Cases []CaseResult // in the order of the table
	// Inapplicable has the cases that do not apply, by their names, and what each needs of the
	// backend or its harness.
	Inapplicable map[string]string
	// Operations is how often a lock was granted, and Renew and Release were called.
	Operations int64
	_          struct{}
}

// Cases returns the names of all cases, in the order in which they run.
func Cases() []string {
	var all []string
	for _, g := range groups {
		for _, c := range g.cases {
			all = append(all, g.name+"/"+c.name)
		}
	}
	return all
}

// Failures returns all failures.
func (r *Report) Failures() []*Failure {
	var all []*Failure
	for _, c := range r.Cases {
		all = append(all, c.Failures...)
	}
	return all
}

// Examine is Run without a testing.T: it runs the cases that apply and returns their results.
// It calls progress, unless that is nil, at the end of each case, one call at a time. If ctx
// ends, it leaves out the groups of cases that have not begun. The error says that h is
// invalid, or that no backend can be opened; a failure of the backend is no error.
func Examine(ctx context.Context, h Harness, progress func(CaseResult)) (*Report, error) {
	s, err := newSuite(h)
	if err != nil {
		return nil, err
	}
	report := &Report{Info: s.info, Inapplicable: s.lacks}
	var mu sync.Mutex
	told := func(c CaseResult) {
		mu.Lock()
		defer mu.Unlock()
		if progress != nil {
			progress(c)
		}
	}
	for _, g := range s.groups {
		if ctx.Err() != nil {
			break
		}
		report.Cases = append(report.Cases, s.group(g, told)...)
	}
	report.Operations = s.calls.Load()
	return report, nil
}

// group runs the cases of a group.
func (s *suite) group(g group, told func(CaseResult)) []CaseResult {
	run := func(c testCase) CaseResult {
		start := time.Now()
		r := s.runCase(g, c)
		result := CaseResult{Name: g.name + "/" + c.name, Took: time.Since(start), Failures: r.failures, Skipped: r.skipped, Notes: r.notes, Operations: r.calls}
		told(result)
		return result
	}
	results := make([]CaseResult, len(g.cases))
	if !g.together {
		for i, c := range g.cases {
			results[i] = run(c)
		}
		return results
	}
	before := s.goroutines()
	var wg sync.WaitGroup
	for i, c := range g.cases {
		wg.Go(func() { results[i] = run(c) })
	}
	wg.Wait()
	if f := s.leaks(g.name, before); f != nil {
		end := CaseResult{Name: g.name, Failures: []*Failure{f}}
		told(end)
		results = append(results, end)
	}
	return slices.Clip(results)
}

package redlocktest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
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
	_        struct{}
}

// A Report is the result of a run of the suite.
type Report struct {
	Info  driver.Info  `json:"info"`
	Cases []CaseResult `json:"cases"` // in the order of the table
	// Inapplicable has the cases that do not apply, by their names, and what each needs of the
	// backend or its harness.
	Inapplicable map[string]string `json:"inapplicable"`
	_            struct{}
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

// Needs sums up Inapplicable: how many cases need what.
func (r *Report) Needs() string { return needs(r.Inapplicable) }

func needs(inapplicable map[string]string) string {
	count := map[string]int{}
	for _, what := range inapplicable {
		count[what]++
	}
	var all []string
	for _, what := range sortedKeys(count) {
		all = append(all, fmt.Sprintf("%d need %s", count[what], what))
	}
	return strings.Join(all, ", ")
}

// report makes the result of a case that of a test.
func (c CaseResult) report(t *testing.T) {
	t.Helper()
	for _, note := range c.Notes {
		t.Log(note)
	}
	for _, f := range c.Failures {
		t.Error(f)
	}
	if len(c.Failures) == 0 && c.Skipped != "" {
		t.Skip(c.Skipped)
	}
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
	for _, g := range s.groups {
		if ctx.Err() == nil {
			report.Cases = append(report.Cases, s.group(g, progress)...)
		}
	}
	return report, nil
}

// group runs the cases of a group.
func (s *suite) group(g group, progress func(CaseResult)) []CaseResult {
	var mu sync.Mutex
	told := func(c CaseResult) CaseResult {
		mu.Lock()
		defer mu.Unlock()
		if progress != nil {
			progress(c)
		}
		return c
	}
	before := s.goroutines()
	results := make([]CaseResult, len(g.cases))
	var all sync.WaitGroup
	for i, c := range g.cases {
		run := func() { results[i] = told(s.runCase(g, c)) }
		if g.together {
			all.Go(run)
		} else {
			run()
		}
	}
	all.Wait()
	if !g.together {
		return results
	}
	if f := s.leaks(g.name, before); f != nil {
		results = append(results, told(CaseResult{Name: g.name, Failures: []*Failure{f}}))
	}
	return results
}

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/redlock-go/redlock/redlocktest"
)

// A report is what --json writes, for one URL. Names stay; new ones may come.
type report struct {
	Backend     string         `json:"backend"` // without a password
	OK          bool           `json:"ok"`
	Interrupted bool           `json:"interrupted,omitempty"`
	Cases       []caseReport   `json:"cases"`
	Rules       []brokenRule   `json:"broken_rules"`
	NotNeeded   map[string]int `json:"inapplicable"` // cases, by what they need
	// Operations is how often a lock was granted, and Renew and Release were called.
	Operations       int64    `json:"operations"`
	StressOperations int64    `json:"stress_operations"`
	StressSeconds    float64  `json:"stress_seconds"`
	Left             []string `json:"left"` // keys of locks of this command that are still held
	LeftUnknown      string   `json:"left_unknown,omitempty"`
}

type caseReport struct {
	Name     string          `json:"name"`
	Result   string          `json:"result"` // "ok", "FAILED", "skipped"
	Seconds  float64         `json:"seconds"`
	Skipped  string          `json:"skipped,omitempty"` // why
	Failures []failureReport `json:"failures,omitempty"`
}

type failureReport struct {
	Rule string `json:"rule"`
	Pos  string `json:"position"`
	Text string `json:"text"`
}

// A brokenRule is a row of the table of rules and cases.
type brokenRule struct {
	Rule  string   `json:"rule"`
	Cases []string `json:"cases"` // that found it broken
}

// verdict is the result of a case in a word.
func verdict(c redlocktest.CaseResult) string {
	switch {
	case len(c.Failures) > 0:
		return "FAILED"
	case c.Skipped != "":
		return "skipped"
	}
	return "ok"
}

func newReport(name string, suite *redlocktest.Report) *report {
	r := &report{Backend: name, OK: true, NotNeeded: suite.Inapplicable, Operations: suite.Operations, Rules: []brokenRule{}, Left: []string{}}
	for _, c := range suite.Cases {
		r.add(c)
	}
	return r
}

func (r *report) add(c redlocktest.CaseResult) {
	line := caseReport{Name: c.Name, Result: verdict(c), Seconds: c.Took.Seconds(), Skipped: c.Skipped}
	for _, f := range c.Failures {
		r.OK = false
		line.Failures = append(line.Failures, failureReport{f.Rule, f.Pos, f.Text})
		r.broken(f.Rule, c.Name)
	}
	r.Cases = append(r.Cases, line)
}

func (r *report) broken(rule, name string) {
	i := slices.IndexFunc(r.Rules, func(b brokenRule) bool { return b.Rule == rule })
	if i < 0 {
		i = len(r.Rules)
		r.Rules = append(r.Rules, brokenRule{Rule: rule})
	}
	if !slices.Contains(r.Rules[i].Cases, name) {
		r.Rules[i].Cases = append(r.Rules[i].Cases, name)
	}
}

// addStress adds what a repetition found; one that passed only counts.
func (r *report) addStress(again *redlocktest.Report) {
	r.StressOperations += again.Operations
	for _, c := range again.Cases {
		if len(c.Failures) > 0 {
			c.Name = "stress " + c.Name
			r.add(c)
		}
	}
}

// text writes the report for people.
func (r *report) text(w io.Writer) {
	fmt.Fprintf(w, "%s\n\n", r.Backend)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	count := map[string]int{}
	for _, c := range r.Cases {
		count[c.Result]++
		fmt.Fprintf(table, "%s\t%s\t%.2f s\t%s\n", c.Name, c.Result, c.Seconds, c.Skipped)
	}
	_ = table.Flush() // the writer behind it keeps the error
	for _, c := range r.Cases {
		for _, f := range c.Failures {
			fmt.Fprintf(w, "\n%s: %s\n\tfound at %s\n\tbreaks %s\n", c.Name, f.Text, f.Pos, f.Rule)
		}
	}
	if len(r.Rules) > 0 {
		fmt.Fprintf(w, "\nBroken rules, and the cases that found it:\n")
		for _, b := range r.Rules {
			fmt.Fprintf(w, "- %s\n  %s\n", b.Rule, strings.Join(b.Cases, ", "))
		}
	}
	fmt.Fprintf(w, "\n%d passed, %d failed, %d skipped; %d operations\n", count["ok"], count["FAILED"], count["skipped"], r.Operations)
	if len(r.NotNeeded) > 0 {
		var needs []string
		for _, what := range slices.Sorted(maps.Keys(r.NotNeeded)) {
			needs = append(needs, fmt.Sprintf("%d need %s", r.NotNeeded[what], what))
		}
		fmt.Fprintf(w, "Cases that do not apply: %s\n", strings.Join(needs, ", "))
	}
	if r.StressOperations > 0 {
		fmt.Fprintf(w, "Stress: %d operations in %.1f s\n", r.StressOperations, r.StressSeconds)
	}
	switch {
	case r.LeftUnknown != "":
		fmt.Fprintf(w, "Left behind: unknown: %s\n", r.LeftUnknown)
	case len(r.Left) > 0:
		fmt.Fprintf(w, "Left behind: %d locks are still held; %q is one of them\n", len(r.Left), r.Left[0])
	default:
		fmt.Fprintf(w, "Left behind: nothing; no lock of this command is held (counters of tokens end by themselves)\n")
	}
	switch {
	case r.Interrupted:
		fmt.Fprintf(w, "INTERRUPTED\n")
	case r.OK:
		fmt.Fprintf(w, "ok\n")
	default:
		fmt.Fprintf(w, "FAILED\n")
	}
}

// A checkedWriter keeps the first error.
type checkedWriter struct {
	w   io.Writer
	err error
}

func (c *checkedWriter) Write(p []byte) (int, error) {
	if c.err == nil {
		_, c.err = c.w.Write(p)
	}
	return len(p), nil
}

func writeText(w io.Writer, reports []*report) error {
	out := &checkedWriter{w: w}
	for _, r := range reports {
		r.text(out)
	}
	return out.err
}

func writeJSON(w io.Writer, reports []*report) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if reports == nil {
		reports = []*report{}
	}
	return e.Encode(reports)
}

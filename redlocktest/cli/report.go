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

// A report is the JSON that --json writes for one URL. Later releases keep its names, and may
// add others.
type report struct {
	Backend     string            `json:"backend"` // without a password
	OK          bool              `json:"ok"`
	Error       string            `json:"error,omitempty"` // why nothing was tested, or not all; empty: all was
	Interrupted bool              `json:"interrupted,omitempty"`
	Cases       []caseReport      `json:"cases"`
	Rules       []ruleReport      `json:"rules"`             // that the cases that were run, and the stress, can find broken
	Unchecked   []string          `json:"rules_not_checked"` // all others
	Faults      []faultReport     `json:"faults"`            // what the suite did to the servers and their links
	NotNeeded   map[string]string `json:"inapplicable"`      // cases, and what they need
	// Operations is how often a lock was granted, and Renew and Release were called.
	Operations       int64                     `json:"operations"`
	StressOperations int64                     `json:"stress_operations"`
	StressSeconds    float64                   `json:"stress_seconds"`
	Stress           *redlocktest.StressReport `json:"stress,omitempty"`
	NoProcesses      string                    `json:"no_processes,omitempty"` // why all clients were in this process
	Left             []string                  `json:"left"`                   // keys of locks of this command that are still held: not ok
	LeftUnknown      string                    `json:"left_unknown,omitempty"`
	Kept             string                    `json:"kept"` // what the driver keeps besides locks
}

type caseReport struct {
	Name       string          `json:"name"`
	Result     string          `json:"result"` // "ok", "FAILED", "skipped"
	Seconds    float64         `json:"seconds"`
	Operations int64           `json:"operations"`
	Skipped    string          `json:"skipped,omitempty"` // why
	Failures   []failureReport `json:"failures,omitempty"`
}

type failureReport struct {
	Rule string `json:"rule"`
	Pos  string `json:"position"`
	Text string `json:"text"`
}

// A ruleReport is a row of the table of rules and cases.
type ruleReport struct {
	Rule       string       `json:"rule"`
	Operations int64        `json:"operations"`
	Violations int          `json:"violations"`
	Cases      []cellReport `json:"cases"` // that were run and can find it broken
}

// A cellReport is a cell of that table.
type cellReport struct {
	Case       string `json:"case"`
	Operations int64  `json:"operations"`
	Violations int    `json:"violations"`
}

// cell returns the cell of a rule and a case, and the rule's row.
func (r *report) cell(rule, name string) (*ruleReport, *cellReport) {
	row := slices.IndexFunc(r.Rules, func(t ruleReport) bool { return t.Rule == rule })
	if row < 0 {
		row = len(r.Rules)
		r.Rules = append(r.Rules, ruleReport{Rule: rule})
	}
	t := &r.Rules[row]
	at := slices.IndexFunc(t.Cases, func(c cellReport) bool { return c.Case == name })
	if at < 0 {
		at = len(t.Cases)
		t.Cases = append(t.Cases, cellReport{Case: name})
	}
	return t, &t.Cases[at]
}

// broken returns the rules that were found broken.
func (r *report) broken() []ruleReport {
	return slices.DeleteFunc(slices.Clone(r.Rules), func(t ruleReport) bool { return t.Violations == 0 })
}

// verdict returns the result of a case in one word.
func verdict(c redlocktest.CaseResult) string {
	switch {
	case len(c.Failures) > 0:
		return "FAILED"
	case c.Skipped != "":
		return "skipped"
	}
	return "ok"
}

// emptyReport returns the report of a URL that was not tested.
func emptyReport(name string) *report {
	return &report{Backend: name, Cases: []caseReport{}, Rules: []ruleReport{}, Unchecked: []string{}, Faults: []faultReport{}, NotNeeded: map[string]string{}, Left: []string{}}
}

func newReport(name string, suite *redlocktest.Report) *report {
	r := emptyReport(name)
	r.OK, r.NotNeeded, r.Operations = true, suite.Inapplicable, suite.Operations
	for _, c := range suite.Cases {
		r.add(c)
	}
	return r
}

// add adds the result of a case, or of the stress.
func (r *report) add(c redlocktest.CaseResult) {
	line := caseReport{Name: c.Name, Result: verdict(c), Seconds: c.Took.Seconds(), Operations: c.Operations, Skipped: c.Skipped}
	if c.Skipped == "" {
		for _, rule := range c.Checks {
			row, cell := r.cell(rule, c.Name)
			row.Operations += c.Operations
			cell.Operations = c.Operations
		}
	}
	for _, f := range c.Failures {
		r.OK = false
		line.Failures = append(line.Failures, failureReport{f.Rule, f.Pos, f.Text})
		row, cell := r.cell(f.Rule, c.Name)
		row.Violations++
		cell.Violations++
	}
	r.Cases = append(r.Cases, line)
}

// addStress adds the results of a stress.
func (r *report) addStress(h redlocktest.Harness, s *redlocktest.StressReport) {
	r.Stress, r.StressOperations, r.StressSeconds = s, s.Operations, s.Took.Seconds()
	r.add(redlocktest.CaseResult{Name: "stress", Took: s.Took, Operations: s.Operations, Checks: redlocktest.StressChecks(h, s), Failures: s.Failures})
}

// finish fills what follows from the rest.
func (r *report) finish(why reasons) {
	r.matrix(why)
	r.OK = r.OK && len(r.Left) == 0
	for _, c := range redlocktest.Cases() {
		for _, rule := range c.Checks {
			if !slices.Contains(r.Unchecked, rule) && !slices.ContainsFunc(r.Rules, func(t ruleReport) bool { return t.Rule == rule }) {
				r.Unchecked = append(r.Unchecked, rule)
			}
		}
	}
}

// short returns the beginning of a rule's text, which names it.
func short(rule string) string {
	name, _, _ := strings.Cut(rule, ":")
	return name
}

// text writes the report for people, with the cases of each rule if they are wanted.
func (r *report) text(w io.Writer, cells bool) {
	fmt.Fprintf(w, "%s\n\n", r.Backend)
	if r.Error != "" {
		fmt.Fprintf(w, "%s\n\n", r.Error)
		if len(r.Cases) == 0 {
			return
		}
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	count := map[string]int{}
	for _, c := range r.Cases {
		count[c.Result]++
		fmt.Fprintf(table, "%s\t%s\t%.2f s\t%s\n", c.Name, c.Result, c.Seconds, c.Skipped)
	}
	_ = table.Flush() // w keeps the error
	for _, c := range r.Cases {
		for _, f := range c.Failures {
			fmt.Fprintf(w, "\n%s: %s\n\tfound at %s\n\tbreaks %s\n", c.Name, f.Text, f.Pos, f.Rule)
		}
	}
	r.rulesText(w, cells)
	fmt.Fprintf(w, "\n%d passed, %d failed, %d skipped; %d operations\n", count["ok"], count["FAILED"], count["skipped"], r.Operations)
	needs := map[string]int{}
	for _, what := range r.NotNeeded {
		needs[what]++
	}
	if len(needs) > 0 {
		var all []string
		for _, what := range slices.Sorted(maps.Keys(needs)) {
			all = append(all, fmt.Sprintf("%d need %s", needs[what], what))
		}
		fmt.Fprintf(w, "Cases that do not apply: %s\n", strings.Join(all, ", "))
	}
	if r.Stress != nil {
		fmt.Fprintf(w, "Stress: %s\n", r.Stress)
	}
	if r.NoProcesses != "" {
		fmt.Fprintf(w, "All clients were in this process: %s\n", r.NoProcesses)
	}
	r.leftText(w)
	fmt.Fprintln(w)
}

// result returns the result of all in a word.
func (r *report) result() string {
	switch {
	case r.Error != "" && len(r.Cases) > 0:
		return "NOT TESTED TO THE END"
	case r.Error != "":
		return "NOT TESTED"
	case r.Interrupted:
		return "INTERRUPTED"
	case r.OK:
		return "ok"
	}
	return "FAILED"
}

// rulesText writes the table of rules and cases.
func (r *report) rulesText(w io.Writer, cells bool) {
	fmt.Fprintf(w, "\nViolations  operations  cases  rule\n")
	for _, t := range r.Rules {
		fmt.Fprintf(w, "%10d  %10d  %5d  %s\n", t.Violations, t.Operations, len(t.Cases), short(t.Rule))
		if !cells {
			continue
		}
		for _, c := range t.Cases {
			fmt.Fprintf(w, "%10d  %10d           %s\n", c.Violations, c.Operations, c.Case)
		}
	}
	if len(r.Unchecked) > 0 {
		var names []string
		for _, rule := range r.Unchecked {
			names = append(names, short(rule))
		}
		fmt.Fprintf(w, "Not checked: %s\n", strings.Join(names, ", "))
	}
	if broken := r.broken(); len(broken) > 0 {
		fmt.Fprintf(w, "\nBroken rules, and the cases that found it:\n")
		for _, t := range broken {
			var names []string
			for _, c := range t.Cases {
				if c.Violations > 0 {
					names = append(names, c.Case)
				}
			}
			fmt.Fprintf(w, "- %s\n  %s\n", t.Rule, strings.Join(names, ", "))
		}
	}
}

// leftText writes what is left on the servers.
func (r *report) leftText(w io.Writer) {
	switch {
	case r.LeftUnknown != "":
		fmt.Fprintf(w, "Left behind: perhaps locks: %s\n", r.LeftUnknown)
	case len(r.Left) > 0:
		fmt.Fprintf(w, "Left behind: %d locks are still held; %q is one of them\n", len(r.Left), r.Left[0])
	default:
		fmt.Fprintf(w, "Left behind: no lock of this command is held\n")
	}
	fmt.Fprintf(w, "The driver keeps: %s\n", r.Kept)
}

// A checkedWriter remembers the first error.
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

func writeText(w io.Writer, reports []*report, cells bool) error {
	out := &checkedWriter{w: w}
	for _, r := range reports {
		r.text(out, cells)
	}
	writeMatrix(out, reports)
	for _, r := range reports {
		if len(reports) > 1 {
			fmt.Fprintf(out, "%s: ", r.Backend)
		}
		fmt.Fprintln(out, r.result())
	}
	return out.err
}

func writeJSON(w io.Writer, reports []*report) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(reports)
}

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
	Backend     string         `json:"backend"` // without a password
	OK          bool           `json:"ok"`
	Interrupted bool           `json:"interrupted,omitempty"`
	Cases       []caseReport   `json:"cases"`
	Rules       []brokenRule   `json:"broken_rules"`
	Table       []ruleReport   `json:"rules"`        // all rules that the cases that were run can find broken
	Faults      []faultReport  `json:"faults"`       // what the suite did to the servers and their links
	NotNeeded   map[string]int `json:"inapplicable"` // cases, by what they need
	// Operations is how often a lock was granted, and Renew and Release were called.
	Operations       int64                     `json:"operations"`
	StressOperations int64                     `json:"stress_operations"`
	StressSeconds    float64                   `json:"stress_seconds"`
	Stress           *redlocktest.StressReport `json:"stress,omitempty"`
	Alone            bool                      `json:"no_processes,omitempty"` // processes of their own see other locks, and took no part
	Left             []string                  `json:"left"`                   // keys of locks of this command that are still held
	LeftUnknown      string                    `json:"left_unknown,omitempty"`
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

// A ruleReport is a row of the table of all rules.
type ruleReport struct {
	Rule       string   `json:"rule"`
	Cases      []string `json:"cases"` // that were run and can find it broken
	Operations int64    `json:"operations"`
	Violations int      `json:"violations"`
}

// checked adds the results of a case, or of the stress, to the rules.
func (r *report) checked(name string, rules []string, operations int64, failures []*redlocktest.Failure) {
	row := func(rule string) *ruleReport {
		i := slices.IndexFunc(r.Table, func(t ruleReport) bool { return t.Rule == rule })
		if i < 0 {
			i = len(r.Table)
			r.Table = append(r.Table, ruleReport{Rule: rule})
		}
		return &r.Table[i]
	}
	for _, rule := range rules {
		t := row(rule)
		t.Cases = append(t.Cases, name)
		t.Operations += operations
	}
	for _, f := range failures {
		row(f.Rule).Violations++
	}
}

// A faultReport is a cell of the table of drivers and faults.
type faultReport struct {
	Fault  string `json:"fault"`
	Result string `json:"result"` // "passed", "FAILED", or why it was not injected
	Cases  int    `json:"cases"`
}

// The reasons for faults that this command does not make.
const (
	noServer  = "a command does not stop servers: a test does, by redlocktest.Faults"
	noSession = "a command does not end sessions on servers: a test does, by redlocktest.Faults"
	noLayout  = "a command does not write what another release would: a test does, by Harness.FutureLayout"
	noProcess = "the cases are for tests; the stress of this command kills and stops processes"
)

// faultCases has the faults, their cases, and the reason why the command does not make them. A
// fault without a reason breaks links.
var faultCases = []struct{ name, cases, why string }{
	{"servers that are away", "outage outage-inspect outage-misuse outage-release restart-waiter", ""},
	{"a partition", "partition partition-renewed partition-watch", ""},
	{"slow answers", "slow-expires slow-deadline", ""},
	{"a lost answer", "lost-reply-acquire lost-reply-renew lost-reply-release", ""},
	{"a request that arrives late", "late-request", ""},
	{"a link that hangs", "hung hung-close silent-waiter", ""},
	{"connections that break", "reset-lease reset-watch reset-waiter", ""},
	{"any of them, in a history", "faults", ""},
	{"a restart", "outage-open restart restart-forgets restart-watch", noServer},
	{"a pause of the servers", "pause", noServer},
	{"the end of a session", "session-end session-release session-lost", noSession},
	{"another release's layout", "layout", noLayout},
	{"processes that are killed and stopped", "exclude killed-holder killed-waiter stopped-holder", noProcess},
}

// matrix fills the table of faults. noLinks is the reason if no links are broken.
func (r *report) matrix(noLinks string) {
	for _, kind := range faultCases {
		why := kind.why
		if why == "" {
			why = noLinks
		}
		row := faultReport{Fault: kind.name, Result: "not injected: " + why}
		if why == "" {
			row.Result = "no case of it was run"
		}
		for _, c := range r.Cases {
			group, name, _ := strings.Cut(c.Name, "/")
			if !slices.Contains([]string{"fault", "history", "link", "process"}, group) || !slices.Contains(strings.Fields(kind.cases), name) {
				continue
			}
			row.Cases++
			switch {
			case c.Result == "FAILED":
				row.Result = c.Result
			case c.Result == "skipped" && row.Cases == 1:
				row.Result = "skipped: " + c.Skipped
			case row.Result != "FAILED" && c.Result != "skipped":
				row.Result = "passed"
			}
		}
		r.Faults = append(r.Faults, row)
	}
	if r.Stress == nil {
		return
	}
	for _, f := range r.Stress.Faults {
		r.Faults = append(r.Faults, faultReport{Fault: "stress: " + f.Name, Result: fmt.Sprintf("%d, of which %d had an effect", f.Injected, f.Effective)})
	}
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

func newReport(name string, suite *redlocktest.Report) *report {
	r := &report{Backend: name, OK: true, NotNeeded: suite.Inapplicable, Operations: suite.Operations, Rules: []brokenRule{}, Left: []string{}}
	for _, c := range suite.Cases {
		r.add(c)
		if c.Skipped == "" {
			r.checked(c.Name, c.Checks, c.Operations, c.Failures)
		}
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

// addStress adds the results of a stress.
func (r *report) addStress(s *redlocktest.StressReport) {
	r.Stress, r.StressOperations, r.StressSeconds = s, s.Operations, s.Took.Seconds()
	r.checked("stress", redlocktest.StressChecks(), s.Operations, s.Failures)
	r.add(redlocktest.CaseResult{Name: "stress", Took: s.Took, Failures: s.Failures})
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
	_ = table.Flush() // w keeps the error
	for _, c := range r.Cases {
		for _, f := range c.Failures {
			fmt.Fprintf(w, "\n%s: %s\n\tfound at %s\n\tbreaks %s\n", c.Name, f.Text, f.Pos, f.Rule)
		}
	}
	fmt.Fprintf(w, "\nViolations  operations  cases  rule\n")
	for _, t := range r.Table {
		rule, _, _ := strings.Cut(t.Rule, ":")
		fmt.Fprintf(w, "%10d  %10d  %5d  %s\n", t.Violations, t.Operations, len(t.Cases), rule)
	}
	fmt.Fprintf(w, "\nFaults:\n")
	for _, f := range r.Faults {
		fmt.Fprintf(table, "%s\t%s\n", f.Fault, f.Result)
	}
	_ = table.Flush() // w keeps the error
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
	if r.Stress != nil {
		fmt.Fprintf(w, "Stress: %s\n", r.Stress)
	}
	if r.Alone {
		fmt.Fprintf(w, "A process of its own has other locks behind this URL: the stress was in one process.\n")
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

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/redlock-go/redlock/redlocktest"
)

// A report is the JSON that --json writes for one URL: the suite's report, and what the command adds.
// Later releases keep its names, and may add others.
type report struct {
	Backend     string `json:"backend"` // without a password
	OK          bool   `json:"ok"`
	Error       string `json:"error,omitempty"` // why nothing was tested, or not all; empty: all was
	Interrupted bool   `json:"interrupted,omitempty"`
	redlocktest.Report
	Stress      *redlocktest.StressReport `json:"stress,omitempty"`
	NoProcesses string                    `json:"no_processes,omitempty"` // why all clients were in this process
	NoLinks     string                    `json:"no_links,omitempty"`     // why no links were broken
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

// text writes the report for people.
func (r *report) text(w io.Writer) {
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
		count[verdict(c)]++
		fmt.Fprintf(table, "%s\t%s\t%.2f s\t%s\n", c.Name, verdict(c), c.Took.Seconds(), c.Skipped)
	}
	_ = table.Flush() // w keeps the error
	failures := r.Failures()
	if r.Stress != nil {
		failures = append(failures, r.Stress.Failures...)
	}
	for _, f := range failures {
		fmt.Fprintf(w, "\n%v\n", f)
	}
	fmt.Fprintf(w, "\n%d passed, %d failed, %d skipped\n", count["ok"], count["FAILED"], count["skipped"])
	if needs := r.Needs(); needs != "" {
		fmt.Fprintf(w, "Cases that do not apply: %s\n", needs)
	}
	if r.Stress != nil {
		fmt.Fprintf(w, "Stress: %s\n", r.Stress)
	}
	if r.NoProcesses != "" {
		fmt.Fprintf(w, "All clients were in this process: %s\n", r.NoProcesses)
	}
	if r.NoLinks != "" {
		fmt.Fprintf(w, "No links were broken: %s\n", r.NoLinks)
	}
	fmt.Fprintln(w)
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

// writeList writes the names of the cases.
func writeList(w io.Writer) error {
	out := &checkedWriter{w: w}
	for _, name := range redlocktest.Cases() {
		fmt.Fprintln(out, name)
	}
	return out.err
}

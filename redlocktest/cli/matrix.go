package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// A faultReport is a cell of the table of drivers and faults.
type faultReport struct {
	Fault    string            `json:"fault"`
	Result   string            `json:"result"`              // "passed", "FAILED", "not tried", or how often the stress made it
	Cases    []string          `json:"cases"`               // that were run
	NotTried map[string]string `json:"not_tried,omitempty"` // why other cases were not run
}

// faults has each fault with its cases.
var faults = []struct{ name, cases string }{
	{"servers that are away", "fault/outage fault/outage-inspect fault/outage-misuse fault/outage-release fault/restart-waiter"},
	{"a partition", "fault/partition fault/partition-renewed fault/partition-watch"},
	{"slow answers", "fault/slow-expires fault/slow-deadline"},
	{"a lost answer", "fault/lost-reply-acquire fault/lost-reply-renew fault/lost-reply-release"},
	{"a request that arrives late", "link/late-request"},
	{"a link that hangs", "link/hung link/hung-close link/silent-waiter"},
	{"connections that break", "link/reset-lease link/reset-watch link/reset-waiter"},
	{"any of them, in a history", "history/faults"},
	{"a restart", "fault/outage-open fault/restart fault/restart-forgets fault/restart-watch"},
	{"a pause of the servers", "fault/pause"},
	{"the end of a session", "fault/session-end fault/session-release fault/session-lost"},
	{"another release's layout", "fault/layout"},
	{"processes that are killed and stopped", "process/exclude process/killed-holder process/killed-waiter process/stopped-holder"},
}

// reasons are what this command lacks for a case, and why: the first that is a part of what the
// case needs.
type reasons []struct{ needs, why string }

// newReasons returns the reasons of a URL: why its links, and processes of their own, are not used.
func newReasons(noLinks, noProcess string) reasons {
	const (
		noServer  = "a command does not stop servers: a test does, by redlocktest.Faults"
		noSession = "a command does not end sessions on servers: a test does, by redlocktest.Faults"
		noLayout  = "a command does not write what another release would: a test does, by Harness.FutureLayout"
	)
	return reasons{
		{"Faults.Partition", noLinks}, {"Faults.Slow", noLinks}, {"Faults.DropReply", noLinks}, {"Faults.Reset", noLinks},
		{"Faults.EndSession", noSession}, {"Faults.", noServer}, {"Harness.FutureLayout", noLayout}, {"Harness.Process", noProcess},
	}
}

// of returns why a case was not run that needs something.
func (all reasons) of(needs string) string {
	for _, r := range all {
		if strings.Contains(needs, r.needs) && r.why != "" {
			return r.why
		}
	}
	return "for backends with " + needs
}

// matrix fills the column of this report in the table of faults.
func (r *report) matrix(why reasons) {
	for _, fault := range faults {
		row := faultReport{Fault: fault.name, Result: "not tried", Cases: []string{}, NotTried: map[string]string{}}
		for _, name := range strings.Fields(fault.cases) {
			i := slices.IndexFunc(r.Cases, func(c caseReport) bool { return c.Name == name })
			needs, lacks := r.NotNeeded[name]
			switch {
			case i >= 0 && r.Cases[i].Result == "skipped":
				row.NotTried[name] = r.Cases[i].Skipped
			case i >= 0:
				row.Cases = append(row.Cases, name)
				switch {
				case r.Cases[i].Result == "FAILED":
					row.Result = "FAILED"
				case row.Result != "FAILED":
					row.Result = "passed"
				}
			case lacks:
				row.NotTried[name] = why.of(needs)
			case r.Interrupted:
				row.NotTried[name] = "interrupted"
			default:
				row.NotTried[name] = "left out by --only"
			}
		}
		r.Faults = append(r.Faults, row)
	}
	if r.Stress == nil {
		return
	}
	for _, f := range r.Stress.Faults {
		r.Faults = append(r.Faults, faultReport{Fault: "stress: " + f.Name, Result: fmt.Sprintf("%d, %d with effect", f.Injected, f.Effective), Cases: []string{"stress"}})
	}
}

// why returns the reasons for the cases that were not run, each once.
func (f *faultReport) why() string {
	return strings.Join(slices.Compact(slices.Sorted(maps.Values(f.NotTried))), "; ")
}

// writeMatrix writes the table of faults, with a column for each URL.
func writeMatrix(w io.Writer, reports []*report) {
	var names, notes []string
	for _, r := range reports {
		for _, f := range r.Faults {
			if !slices.Contains(names, f.Fault) {
				names = append(names, f.Fault)
			}
		}
	}
	if len(names) == 0 {
		return
	}
	fmt.Fprintf(w, "Faults:\n")
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	column := func(i int) string { return fmt.Sprintf("URL %d", i+1) }
	if len(reports) > 1 {
		for i, r := range reports {
			fmt.Fprintf(w, "%s: %s\n", column(i), r.Backend)
			fmt.Fprintf(table, "\t%s", column(i))
		}
		fmt.Fprintln(table)
	}
	for _, name := range names {
		fmt.Fprint(table, name)
		for _, r := range reports {
			cell := "–"
			if i := slices.IndexFunc(r.Faults, func(f faultReport) bool { return f.Fault == name }); i >= 0 {
				cell = r.Faults[i].cell(&notes)
			}
			fmt.Fprintf(table, "\t%s", cell)
		}
		fmt.Fprintln(table)
	}
	_ = table.Flush() // w keeps the error
	for i, note := range notes {
		fmt.Fprintf(w, "(%d) %s\n", i+1, note)
	}
	fmt.Fprintln(w)
}

// cell returns the result, with the number of the note that says why it was not tried.
func (f *faultReport) cell(notes *[]string) string {
	if f.Result != "not tried" {
		return f.Result
	}
	why := f.why()
	i := slices.Index(*notes, why)
	if i < 0 {
		i = len(*notes)
		*notes = append(*notes, why)
	}
	return fmt.Sprintf("%s (%d)", f.Result, i+1)
}

package cli

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
)

// The exit codes of dlock doctor, by the gravest finding.
const (
	exitWarnings = 1
	exitUnsafe   = 2
)

// A doctorCommand is one run of "dlock doctor".
type doctorCommand struct {
	*console
	url    string
	json   bool
	ignore []string
}

func newDoctor(c *console) *cobra.Command {
	d := &doctorCommand{console: c}
	cmd := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Check whether the deployment is as its driver assumes",
		Long: `Check whether the deployment is as its driver assumes, and say of each finding how grave
it is, what was measured, what to do, and, where a command can do it, which one:

  unsafe   a guarantee does not hold
  warning  it may cost performance, or a guarantee under load or after a failure
  note     for information

Each finding has a code, which stays the same in later releases. --ignore CODE leaves out
findings that you know and accept.

It asks every server, takes no lock, and changes nothing. The commands that it prints hold no
password: redis-cli takes it from REDISCLI_AUTH, psql from PGPASSFILE.

The URL is chosen as by dlock run: check the one that your programs use.

Exit codes:
    0  nothing graver than notes
    1  warnings
    2  a guarantee does not hold
   64  wrong usage: a flag, or a URL
   69  the backend is out of reach, or refuses`,
		Example: `  dlock doctor
  dlock doctor --ignore same-host --ignore appendfsync
  dlock doctor --json | jq -r '.[] | select(.severity == "unsafe") | .summary'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	urlFlag(cmd, &d.url)
	f.BoolVar(&d.json, "json", false, "print JSON")
	f.StringSliceVar(&d.ignore, "ignore", nil, "leave out findings with this `CODE`; may be repeated")
	_ = cmd.RegisterFlagCompletionFunc("ignore", completeCodes) // the flag exists
	return cmd
}

// completeCodes returns the codes of the present findings.
func completeCodes(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	const nothing = cobra.ShellCompDirectiveNoFileComp
	c, ctx, done, err := completer(cmd)
	if err != nil {
		return nil, nothing
	}
	defer done()
	found, err := c.Check(ctx)
	if err != nil {
		return nil, nothing
	}
	var codes []string
	for i := range found {
		if f := &found[i]; f.Severity > dlock.SeverityNote {
			codes = offer(codes, f.Code, f.Summary)
		}
	}
	return codes, nothing
}

func (d *doctorCommand) run(cmd *cobra.Command) error {
	c, ctx, done, err := operator(cmd, d.url)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, operatorTimeout)
	defer cancel()
	stop := d.progress(func() string { return "examining " + c.Info().Name })
	found, err := c.Check(ctx)
	stop()
	if err != nil {
		return operatorError(err)
	}
	found = slices.DeleteFunc(found, func(f dlock.Diagnostic) bool { return slices.Contains(d.ignore, f.Code) })
	if d.json {
		err = findingsJSON(cmd.OutOrStdout(), found)
	} else {
		d.write(cmd.OutOrStdout(), found, place(c))
	}
	if err != nil {
		return err
	}
	switch gravest(found) {
	case dlock.SeverityUnsafe:
		return &exitError{code: exitUnsafe}
	case dlock.SeverityWarning:
		return &exitError{code: exitWarnings}
	}
	return nil
}

func gravest(found []dlock.Diagnostic) (most dlock.Severity) {
	for i := range found {
		most = max(most, found[i].Severity)
	}
	return most
}

var severityColors = map[dlock.Severity]color{dlock.SeverityUnsafe: red, dlock.SeverityWarning: yellow, dlock.SeverityNote: faint}

// write writes the warnings, each with its remedy, then the notes as a table, then a count.
func (d *doctorCommand) write(w io.Writer, found []dlock.Diagnostic, where string) {
	colors, counts := d.colors(), map[dlock.Severity]int{}
	paint := func(c color, s string) string {
		if !colors {
			return s
		}
		return string(c) + s + reset
	}
	notes := &table{head: []string{"NOTE", "WHERE", "FOUND"}}
	for i := range found {
		f := &found[i]
		counts[f.Severity]++
		node := driver.Printable(f.Node)
		if f.Severity == dlock.SeverityNote {
			what := driver.Printable(f.Summary)
			if f.Remedy != "" {
				what += " (" + driver.Printable(f.Remedy) + ")"
			}
			notes.row(text(driver.Printable(f.Code)), text(node), text(what))
			continue
		}
		if node != "" {
			node += ": "
		}
		fmt.Fprintf(w, "%s %s: %s%s\n", paint(severityColors[f.Severity], f.Severity.String()), driver.Printable(f.Code), node, driver.Printable(f.Summary))
		if f.Remedy != "" {
			fmt.Fprintf(w, "    fix: %s\n", driver.Printable(f.Remedy))
		}
		if f.Command != "" {
			fmt.Fprintf(w, "    run: %s\n", driver.Printable(f.Command))
		}
	}
	if len(notes.rows) > 0 {
		if len(notes.rows) < len(found) {
			fmt.Fprintln(w)
		}
		notes.write(w, "", colors)
	}
	if len(found) > 0 {
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "%d unsafe, %s, %s, %s\n", counts[dlock.SeverityUnsafe], several(counts[dlock.SeverityWarning], "warning"), several(counts[dlock.SeverityNote], "note"), where)
}

// several returns a count with its noun in singular or plural.
func several(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprint(n, " ", thing)
}

// The JSON of a finding.
type findingJSON struct {
	Code     string `json:"code"`
	Severity string `json:"severity"`
	Node     string `json:"node,omitempty"`
	Summary  string `json:"summary"`
	Measured string `json:"measured,omitempty"`
	Remedy   string `json:"remedy,omitempty"`
	Command  string `json:"command,omitempty"`
}

func findingsJSON(w io.Writer, found []dlock.Diagnostic) error {
	all := make([]findingJSON, len(found))
	for i := range found {
		f := &found[i]
		all[i] = findingJSON{f.Code, f.Severity.String(), f.Node, f.Summary, f.Measured, f.Remedy, f.Command}
	}
	return writeJSON(w, all, true)
}

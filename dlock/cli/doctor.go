package cli

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/printable"
)

// The exit codes of dlock doctor, by the gravest finding.
const (
	exitWarnings = 1
	exitUnsafe   = 2
)

func newDoctor() *cobra.Command {
	var (
		url    string
		json   bool
		ignore []string
	)
	cmd := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Check whether the deployment is as its driver assumes",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return operate(cmd, url, operatorTimeout, func(ctx context.Context, c *dlock.Client) error {
				found, err := check(ctx, c)
				if err != nil {
					return err
				}
				found = slices.DeleteFunc(found, func(f driver.Diagnostic) bool { return slices.Contains(ignore, f.Code) })
				if json {
					err = writeJSON(cmd.OutOrStdout(), append([]driver.Diagnostic{}, found...), true) // [] and not null
				} else {
					writeFindings(cmd.OutOrStdout(), found, place(c))
				}
				if err != nil {
					return err
				}
				return verdict(found)
			})
		},
	}
	f := cmd.Flags()
	urlFlag(cmd, &url)
	f.BoolVar(&json, "json", false, "")
	f.StringSliceVar(&ignore, "ignore", nil, "")
	_ = cmd.RegisterFlagCompletionFunc("ignore", completer(func(ctx context.Context, c *dlock.Client, _ []string, _ string, offer *offers) error {
		found, err := check(ctx, c)
		for i := range found {
			if f := &found[i]; f.Severity > driver.SeverityNote {
				offer.add(f.Code, f.Summary)
			}
		}
		return err
	})) // the flag exists
	return cmd
}

// verdict returns the exit code of the gravest finding.
func verdict(found []driver.Diagnostic) error {
	gravest := driver.SeverityNote
	for i := range found {
		gravest = max(gravest, found[i].Severity)
	}
	switch gravest {
	case driver.SeverityUnsafe:
		return &exitError{code: exitUnsafe}
	case driver.SeverityWarning:
		return &exitError{code: exitWarnings}
	}
	return nil
}

// writeFindings writes the warnings, each with its remedy, then the notes as a table, then a count.
func writeFindings(w io.Writer, found []driver.Diagnostic, where string) {
	counts := map[driver.Severity]int{}
	notes := [][]string{{"NOTE", "WHERE", "FOUND"}}
	for i := range found {
		f := &found[i]
		counts[f.Severity]++
		code, node, summary, remedy := printable.Text(f.Code), printable.Text(f.Node), printable.Text(f.Summary), printable.Text(f.Remedy)
		if f.Severity == driver.SeverityNote {
			if remedy != "" {
				summary += " (" + remedy + ")"
			}
			notes = append(notes, []string{code, node, summary})
			continue
		}
		if node != "" {
			node += ": "
		}
		fmt.Fprintf(w, "%s %s: %s%s\n", f.Severity, code, node, summary)
		if remedy != "" {
			fmt.Fprintf(w, "    fix: %s\n", remedy)
		}
		if f.Command != "" {
			fmt.Fprintf(w, "    run: %s\n", printable.Text(f.Command))
		}
	}
	if len(notes) > 1 {
		if len(notes) <= len(found) {
			fmt.Fprintln(w)
		}
		writeTable(w, "", notes)
	}
	if len(found) > 0 {
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "unsafe: %d, warnings: %d, notes: %d, %s\n", counts[driver.SeverityUnsafe], counts[driver.SeverityWarning], counts[driver.SeverityNote], where)
}

package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/printable"
)

// doctorCodes are the exit codes of dlock doctor, by the gravest finding.
var doctorCodes = map[driver.Severity]int{driver.SeverityNote: 0, driver.SeverityWarning: 1, driver.SeverityUnsafe: 2}

func newDoctor(c *call) func() error {
	var json bool
	var ignore []string
	c.withURL()
	c.flags.BoolVar(&json, "json", false, "")
	c.flags.Func("ignore", "", func(s string) error { ignore = append(ignore, strings.Split(s, ",")...); return nil })
	return func() error {
		if err := c.want(0, 0); err != nil {
			return err
		}
		return c.once(func(ctx context.Context, client *dlock.Client) error {
			i, err := inspector(client)
			if err != nil {
				return err
			}
			found, err := i.Check(ctx)
			if err != nil {
				return err
			}
			found = slices.DeleteFunc(found, func(f driver.Diagnostic) bool { return slices.Contains(ignore, f.Code) })
			if json {
				err = writeJSON(c.out, append([]driver.Diagnostic{}, found...)) // [] and not null
			} else {
				writeFindings(c.out, found, place(client))
			}
			gravest := driver.SeverityNote
			for i := range found {
				gravest = max(gravest, found[i].Severity)
			}
			if code := doctorCodes[gravest]; err == nil && code != 0 {
				return &exitError{code: code}
			}
			return err
		})
	}
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

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
			i, err := optional[driver.Inspector](client, "cannot be checked")
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

// writeFindings writes each finding with its remedy, and then a count.
func writeFindings(w io.Writer, found []driver.Diagnostic, where string) {
	counts := map[driver.Severity]int{}
	for i := range found {
		f := &found[i]
		counts[f.Severity]++
		node := printable.Text(f.Node)
		if node != "" {
			node += ": "
		}
		fmt.Fprintf(w, "%s %s: %s%s\n", f.Severity, printable.Text(f.Code), node, printable.Text(f.Summary))
		if f.Remedy != "" {
			fmt.Fprintf(w, "    fix: %s\n", printable.Text(f.Remedy))
		}
		if f.Command != "" {
			fmt.Fprintf(w, "    run: %s\n", printable.Text(f.Command))
		}
	}
	fmt.Fprintf(w, "unsafe: %d, warnings: %d, notes: %d, %s\n", counts[driver.SeverityUnsafe], counts[driver.SeverityWarning], counts[driver.SeverityNote], where)
}

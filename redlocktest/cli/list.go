package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/redlock-go/redlock/redlocktest"
)

// writeList writes the cases and the rules that they test, and then the rules in words.
func writeList(w io.Writer) error {
	out := &checkedWriter{w: w}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	var rules []string
	for _, c := range redlocktest.Cases() {
		var names []string
		for _, rule := range c.Checks {
			names = append(names, short(rule))
			if !slices.Contains(rules, rule) {
				rules = append(rules, rule)
			}
		}
		fmt.Fprintf(table, "%s\t%s\n", c.Name, strings.Join(names, ", "))
	}
	_ = table.Flush() // out keeps the error
	fmt.Fprintln(out)
	for _, rule := range rules {
		fmt.Fprintln(out, rule)
	}
	return out.err
}

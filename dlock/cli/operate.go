package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"

	"github.com/spf13/cobra"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/printable"
)

// This file has the common parts of the commands for operators, and of all output.

// operatorTimeout bounds one request of an operator's command to the servers.
const operatorTimeout = 30 * time.Second

// urlFlag adds the flag --url, which completes the schemes of URLs.
func urlFlag(cmd *cobra.Command, url *string) {
	cmd.Flags().StringVar(url, "url", "", "")
	_ = cmd.RegisterFlagCompletionFunc("url", completeSchemes) // the flag exists
}

// operator opens the backend of a URL for an operator's command. The context ends with a signal.
func operator(cmd *cobra.Command, url string) (c *dlock.Client, ctx context.Context, done func(), err error) {
	u, err := chooseURL(url, cmd.Flags().Changed("url"))
	if err != nil {
		return nil, nil, nil, err
	}
	c, err = dlock.OpenURL(u, dlock.WithLogger(nil)) // the outcome says it
	if err != nil {
		return nil, nil, nil, exitErrorOf(err)
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), endSignals...)
	return c, ctx, func() {
		stop()
		_ = c.Close() // nothing is held
	}, nil
}

// operate calls f with the backend of a URL, and bounds it.
func operate(cmd *cobra.Command, url string, bound time.Duration, f func(context.Context, *dlock.Client) error) error {
	c, ctx, done, err := operator(cmd, url)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	return operatorError(f(ctx, c))
}

// operatorError returns the exit code and the message for an error of an operator's command.
func operatorError(err error) error {
	var f *exitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f):
		return f
	case errors.Is(err, dlock.ErrLost):
		return failf(exitHeld, "%v: nothing was changed", err)
	case errors.Is(err, context.Canceled):
		return &exitError{code: exitSignal + 2}
	}
	return exitErrorOf(err)
}

// completeSchemes returns the schemes of URLs.
func completeSchemes(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var all []string
	for _, name := range dlock.Drivers() {
		all = append(all, name+":\t"+forms[name].text)
	}
	return all, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}

// completionTimeout bounds a completion, because a person waits for it.
const completionTimeout = 2 * time.Second

// mostCompletions bounds the number of completions.
const mostCompletions = 200

// offers are the completions found so far.
type offers []string

// add adds a completion with its description, if the name needs no quoting in any shell. The
// completion scripts evaluate the command line so far: a name that another program chose would
// run commands.
func (o *offers) add(name, description string) {
	for i, r := range name {
		harmless := unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' || r == '/' || r == '.'
		if !harmless && (i == 0 || !strings.ContainsRune("-+:@%=", r)) {
			return
		}
	}
	if name != "" && len(*o) < mostCompletions {
		*o = append(*o, name+"\t"+printable.Text(description))
	}
}

// completer returns a completion by find, which asks the backend; after an error it has what was
// found before.
func completer(find func(ctx context.Context, c *dlock.Client, args []string, begin string, found *offers) error) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
		var found offers
		url, _ := cmd.Flags().GetString("url")
		_ = operate(cmd, url, completionTimeout, func(ctx context.Context, c *dlock.Client) error {
			return find(ctx, c, args, begin, &found)
		})
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeKeys completes a key with the keys that are held.
func completeKeys(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 && cmd.Name() != "status" {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return completer(func(ctx context.Context, c *dlock.Client, _ []string, begin string, found *offers) error {
		return list(ctx, c, begin, func(s *driver.State) bool {
			found.add(s.Key, holders(s.Holders))
			return len(*found) < mostCompletions
		})
	})(cmd, args, begin)
}

// writeTable writes rows, of which the first is the head, in columns, each line behind indent. A
// column without text below its head is left out.
func writeTable(out io.Writer, indent string, rows [][]string) {
	used := make([]bool, len(rows[0]))
	for _, row := range rows[1:] {
		for i, cell := range row {
			used[i] = used[i] || cell != ""
		}
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		var cells []string
		for i, cell := range row {
			if used[i] {
				cells = append(cells, cell)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(indent+strings.Join(cells, "\t"), "\t"))
	}
	_ = w.Flush() // the writer keeps its error
}

// writeJSON writes v, and what may disturb a terminal as JSON's escapes.
func writeJSON(w io.Writer, v any, indent bool) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if indent {
		e.SetIndent("", "  ")
	}
	if err := e.Encode(v); err != nil {
		return err
	}
	var out strings.Builder
	for _, r := range b.String() {
		if r == '\n' || strconv.IsPrint(r) {
			out.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&out, "\\u%04x", unit)
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// onTerminal reports whether a stream goes to a terminal.
func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	fi, err := f.Stat()
	return err == nil && fi.Mode()&os.ModeCharDevice != 0
}

// ago formats a duration for people; zero is empty.
func ago(d time.Duration) string {
	switch {
	case d <= 0:
		return ""
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// since formats an instant by this machine's clock and zone, and how long ago it was.
func since(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	layout := time.DateTime
	if t.Local().Format(time.DateOnly) == now.Local().Format(time.DateOnly) {
		layout = time.TimeOnly
	}
	return fmt.Sprintf("%s (%s ago)", t.Local().Format(layout), ago(max(now.Sub(t), time.Millisecond)))
}

// number10 formats a number; zero is empty.
func number10(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// holders names the owners of a key.
func holders(all []driver.Holder) string {
	names := make([]string, 0, len(all))
	for i := range all {
		name := printable.Text(all[i].Owner)
		if name == "" {
			name = "(unknown)"
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
)

// This file has the common parts of the commands for operators: status, unlock and doctor.

// operatorTimeout bounds one request of an operator's command to the servers.
const operatorTimeout = 30 * time.Second

// urlFlag adds the flag --url, which completes the schemes of URLs.
func urlFlag(cmd *cobra.Command, url *string) {
	cmd.Flags().StringVar(url, "url", "", "the backend's `URL` (dlock drivers lists the forms)")
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

// completeSchemes returns the schemes of URLs.
func completeSchemes(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var all []string
	for _, name := range dlock.Drivers() {
		f := forms[name]
		all = append(all, name+":\t"+f.text)
	}
	return all, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}

// completionTimeout bounds a completion, because a person waits for it.
const completionTimeout = 2 * time.Second

// completer opens the backend for a completion, bounded by completionTimeout.
func completer(cmd *cobra.Command) (c *dlock.Client, ctx context.Context, done func(), err error) {
	url, _ := cmd.Flags().GetString("url")
	c, ctx, end, err := operator(cmd, url)
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	return c, ctx, func() { cancel(); end() }, nil
}

// mostCompletions bounds the number of completions.
const mostCompletions = 200

// completeKeys returns the keys that are held, and none after an error.
func completeKeys(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	const nothing = cobra.ShellCompDirectiveNoFileComp
	if len(args) > 0 && cmd.Name() != "status" {
		return nil, nothing
	}
	c, ctx, done, err := completer(cmd)
	if err != nil {
		return nil, nothing
	}
	defer done()
	var keys []string
	for s, err := range c.List(ctx, begin) {
		if err != nil || len(keys) == mostCompletions {
			break
		}
		keys = offer(keys, s.Key, holders(s.Holders))
	}
	return keys, nothing
}

// offer adds a completion with its description, if the name needs no quoting in any shell. The
// completion scripts evaluate the command line so far: a name that another program chose would
// run commands.
func offer(all []string, name, description string) []string {
	for i, r := range name {
		harmless := unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' || r == '/' || r == '.'
		if !harmless && (i == 0 || !strings.ContainsRune("-+:@%=", r)) {
			return all
		}
	}
	if name == "" {
		return all
	}
	return append(all, name+"\t"+driver.Printable(description))
}

// A color is a color of a terminal.
type color string

const (
	plain  color = ""
	green  color = "\x1b[32m"
	yellow color = "\x1b[33m"
	red    color = "\x1b[31m"
	faint  color = "\x1b[2m"
	reset        = "\x1b[0m"
)

// A cell is one cell of a table.
type cell struct {
	text  string
	color color
}

// A table is rows of cells under a head. Columns line up, whatever their colors; a column
// without text is left out, and its head with it.
type table struct {
	head []string
	rows [][]cell
}

func (t *table) row(cells ...cell) { t.rows = append(t.rows, cells) }

func text(s string) cell { return cell{text: s} }

// write writes the table, each line behind indent.
func (t *table) write(w io.Writer, indent string, colors bool) {
	widths := make([]int, len(t.head))
	for _, row := range t.rows {
		for i, c := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	head := make([]cell, len(t.head))
	for i, h := range t.head {
		head[i] = cell{h, faint}
		if widths[i] > 0 {
			widths[i] = max(widths[i], utf8.RuneCountInString(h))
		}
	}
	var b strings.Builder
	for _, row := range append([][]cell{head}, t.rows...) {
		line, pad := indent, ""
		for i, c := range row {
			if widths[i] == 0 {
				continue
			}
			line += pad
			if colors && c.color != plain && c.text != "" {
				line += string(c.color) + c.text + reset
			} else {
				line += c.text
			}
			pad = strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text)+2)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	_, _ = io.WriteString(w, b.String()) // the writer keeps its error
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

// colors reports whether stdout shows colors: it is a terminal, and NO_COLOR is not set.
func (c *console) colors() bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && onTerminal(c.stdout)
}

// progressAfter is how long a command runs before it prints progress.
const progressAfter = time.Second

// progress prints on stderr, if it is a terminal, a message about work that takes longer than
// progressAfter, until stop is called.
func (c *console) progress(say func() string) (stop func()) {
	if !onTerminal(c.stderr) {
		return func() {}
	}
	return tell(c.stderr, say)
}

func tell(w io.Writer, say func() string) (stop func()) {
	start, ended := time.Now(), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		tick := time.NewTicker(progressAfter)
		defer tick.Stop()
		written := false
		for {
			select {
			case <-tick.C:
				fmt.Fprintf(w, "\r\x1b[K%s (%v)", say(), time.Since(start).Round(time.Second))
				written = true
			case <-ended:
				if written {
					fmt.Fprint(w, "\r\x1b[K")
				}
				return
			}
		}
	})
	return func() { close(ended); all.Wait() }
}

// ago formats a duration for people, with its two largest units.
func ago(d time.Duration) string {
	d = max(d, 0)
	days := d / (24 * time.Hour)
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).Truncate(100 * time.Millisecond).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case days == 0:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", days, d%(24*time.Hour)/time.Hour)
}

// since formats an instant by this machine's clock and zone, and how long ago it was.
func since(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	layout := "15:04:05"
	if y, m, d := t.Local().Date(); true {
		if ny, nm, nd := now.Local().Date(); y != ny || m != nm || d != nd {
			layout = "2006-01-02 15:04:05"
		}
	}
	return fmt.Sprintf("%s (%s ago)", t.Local().Format(layout), ago(now.Sub(t)))
}

// holders names the owners of a key.
func holders(all []dlock.Holder) string {
	names := make([]string, 0, len(all))
	for i := range all {
		name := driver.Printable(all[i].Owner)
		if name == "" {
			name = "(unknown)"
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// operatorError returns the exit code and the message for an error of an operator's command.
func operatorError(err error) error {
	var f *exitError
	switch {
	case errors.As(err, &f):
		return f
	case errors.Is(err, dlock.ErrLost):
		return failf(exitHeld, "%v: nothing was changed", err)
	case errors.Is(err, context.Canceled):
		return &exitError{code: exitSignal + 2}
	}
	return exitErrorOf(err)
}

package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/printable"
)

// The exit codes of dlock itself. Those up to 78 are from sysexits.h, the others are those of a
// shell.
const (
	exitUsage       = 64
	exitUnavailable = 69
	exitIO          = 74
	exitHeld        = 75
	exitLost        = 76
	exitCannotRun   = 126
	exitNotFound    = 127
	exitSignal      = 128 // plus the signal's number
)

// Main runs the command line args, of which the first is the program's name, and returns
// the exit code. It writes its errors to stderr, one line each, and returns when the
// command that it runs has ended.
//
// "dlock run" starts the program itself once more, under the name dlock-guard, to watch over
// the command. So a program's main must pass os.Args to Main before it does anything else.
//
// Main handles the signals of the process. The command inherits a stream that is an
// *os.File; any other stream is copied, and then the command has no terminal.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if isGuard(args) {
		return guard(args)
	}
	var mu sync.Mutex
	c := &console{stdin: stdin, stdout: serialized(stdout, &mu), stderr: serialized(stderr, &mu)}
	c.lines = newBacklog(c.stderr)
	defer c.lines.close()
	return c.main(args[min(1, len(args)):])
}

// serialized returns w if it is a file, or else a writer that makes one Write at a time,
// because dlock and its command write concurrently.
func serialized(w io.Writer, mu *sync.Mutex) io.Writer {
	if f, ok := w.(*os.File); ok {
		return f
	}
	return &serialWriter{mu, w}
}

type serialWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (s *serialWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

// A console has the streams of one run of the program.
type console struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	lines  *backlog // to stderr
}

// printf writes one line to stderr.
func (c *console) printf(format string, args ...any) {
	c.lines.put("dlock: "+oneLine(fmt.Sprintf(format, args...))+"\n", false)
}

// detailf is printf for a line that is dropped if the reader of stderr is slow.
func (c *console) detailf(format string, args ...any) {
	c.lines.put("dlock: "+oneLine(fmt.Sprintf(format, args...))+"\n", true)
}

// A backlog writes lines in the background, so that a slow reader of stderr delays neither the
// command nor the release of its lock.
type backlog struct {
	w              io.Writer
	lines          chan string
	stop, finished chan struct{}
}

func newBacklog(w io.Writer) *backlog {
	b := &backlog{w, make(chan string, 256), make(chan struct{}), make(chan struct{})}
	go b.write()
	return b
}

// put queues a line. An optional one is dropped if many wait, any if very many do.
func (b *backlog) put(line string, optional bool) {
	if optional && len(b.lines) > cap(b.lines)/2 {
		return
	}
	select {
	case b.lines <- line:
	default:
	}
}

func (b *backlog) write() {
	defer close(b.finished)
	for stop := b.stop; stop != nil || len(b.lines) > 0; {
		select {
		case line := <-b.lines:
			_, _ = io.WriteString(b.w, line) // nobody is left to be told
		case <-stop:
			stop = nil // write the rest
		}
	}
}

// close waits until all lines are written.
func (b *backlog) close() {
	close(b.stop)
	<-b.finished
}

// exitError ends the program with a code, and a line on stderr unless text is empty.
type exitError struct {
	code int
	text string
}

func (f *exitError) Error() string { return f.text }

func failf(code int, format string, args ...any) error {
	return &exitError{code, fmt.Sprintf(format, args...)}
}

// main runs the command line and returns the exit code.
func (c *console) main(args []string) int {
	if err := checkArgs(args); err != nil {
		return c.exitCode(err)
	}
	root := newRoot(c)
	root.SetArgs(args)
	root.SetIn(c.stdin)
	out := &checkedWriter{w: c.stdout}
	root.SetOut(out)
	root.SetErr(c.stderr)
	err := root.Execute()
	if out.err != nil {
		err = failf(exitIO, "the output cannot be written: %v", out.err)
	}
	return c.exitCode(err)
}

// A checkedWriter remembers the first error, so that what prints need not return it.
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

// exitCode writes the line of an error, and returns its exit code.
func (c *console) exitCode(err error) int {
	if err == nil {
		return 0
	}
	f := &exitError{code: exitUsage, text: err.Error()}
	errors.As(err, &f)
	if f.text != "" {
		c.printf("%s", f.text)
	}
	return f.code
}

func newRoot(c *console) *cobra.Command {
	root := &cobra.Command{
		Use:           "dlock COMMAND [ARG...]",
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          unknownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },

		DisableFlagsInUseLine:      true,
		SuggestionsMinimumDistance: 2,
	}
	root.SetVersionTemplate("dlock {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.SetHelpFunc(writeHelp)
	root.AddCommand(newRun(c), newElect(c), newStatus(c), newUnlock(), newDoctor(), newBootstrap(), newDrivers(), newVersion())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		cmd.Flags().SortFlags = false
		describe(cmd)
		switch cmd.Name() {
		case "help":
			cmd.Args, cmd.RunE, cmd.Run = nil, help, nil
		case "completion":
			cmd.SuggestionsMinimumDistance = root.SuggestionsMinimumDistance
			cmd.Args, cmd.RunE = unknownCommand, root.RunE
		}
	}
	return root
}

// wanted says what the values of flags must be, by their types.
var wanted = map[string]string{
	"bool":     "must be true or false",
	"duration": "must be a duration such as 90s or 2h30m",
	"uint8":    "must be an exit code, 0 to 255",
	"uint16":   "must be a number of slots, 1 to 1024",
	"uint64":   "must be a number",
}

// flagError describes a wrong flag without quoting its value, which may be a
// misplaced password.
func flagError(cmd *cobra.Command, err error) error {
	var (
		unknown *pflag.NotExistError
		bad     *pflag.InvalidValueError
		missing *pflag.ValueRequiredError
	)
	text := "bad flag syntax"
	switch {
	case errors.As(err, &unknown):
		dashes, name := "--", unknown.GetSpecifiedName()
		if shorts := unknown.GetSpecifiedShortnames(); shorts != "" {
			dashes, name = "-", shorts
		}
		if near := nearFlag(cmd, name); near != "" {
			return failf(exitUsage, "there is no flag %s%s: did you mean %s?", dashes, name, near)
		}
		text = "there is no such flag"
	case errors.As(err, &bad):
		text = "--" + bad.GetFlag().Name + " " + wanted[bad.GetFlag().Value.Type()]
	case errors.As(err, &missing):
		text = "--" + missing.GetFlag().Name + " needs a value"
	}
	return failf(exitUsage, "%s (see %s --help)", text, cmd.CommandPath())
}

// exclusive refuses more than one of some flags.
func exclusive(cmd *cobra.Command, flags ...string) error {
	var given []string
	for _, f := range flags {
		if cmd.Flags().Changed(f) {
			given = append(given, "--"+f)
		}
	}
	if len(given) > 1 {
		return failf(exitUsage, "%s contradict each other: leave one out", strings.Join(given, " and "))
	}
	return nil
}

// oneLine joins the lines of an error, because a driver's may have several, and escapes what may
// disturb a terminal.
func oneLine(s string) string {
	breaks := func(r rune) bool { return r == '\n' || r == '\r' || r == '\t' }
	return printable.Text(strings.Join(strings.FieldsFunc(strings.TrimPrefix(s, "dlock: "), breaks), " "))
}

// waitingHelps reports whether the same call may succeed later.
func waitingHelps(err error) bool {
	var refused *driver.RefusedError
	return !errors.As(err, &refused) || refused.RetryAfter > 0
}

// asFlags replaces names of dlock's options by the flags that set them.
var asFlags = strings.NewReplacer("WithTTL", "--ttl", "WithMinHold", "--at-least", "WithMaxHold", "--max-hold", "WithOwnerLabel", "--label", "WithShared", "--shared")

// withoutDriver replaces the advice to a program's author, of a driver that is not registered, by
// one to a user of the command.
func withoutDriver(text string) string {
	before, rest, found := strings.Cut(text, " is unknown (forgotten import")
	if !found {
		return text
	}
	_, after, _ := strings.Cut(rest, ")")
	name := strings.Trim(before[strings.LastIndex(before, " ")+1:], `"`)
	if _, ours := forms[name]; !ours {
		return before + " is unknown" + after
	}
	return fmt.Sprintf("this command is built without %q; to install the one with all drivers: go install %s/drivers/everything/cmd/dlock@latest%s", name, module, after)
}

// exitErrorOf returns the exit code and the message for an error of package dlock.
func exitErrorOf(err error) *exitError {
	if errors.Is(err, dlock.ErrInvalid) {
		return &exitError{exitUsage, withoutDriver(asFlags.Replace(err.Error()))}
	}
	return &exitError{exitUnavailable, err.Error() + ": check the backend and its URL"}
}

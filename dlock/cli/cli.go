// Package cli is the command dlock: a main of one line makes a program with the drivers
// that it imports.
//
//	package main
//
//	import (
//		"os"
//
//		"github.com/redlock-go/redlock/dlock/cli"
//		_ "example.org/mydriver" // registers itself
//	)
//
//	func main() { os.Exit(cli.Main(os.Args, os.Stdin, os.Stdout, os.Stderr)) }
//
// The documentation of dlock/cmd/dlock describes the command.
package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
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

const exitHelp = `Exit codes (a command can return them too):
   64  wrong usage: a flag, a key, a URL or an option that the backend cannot honour
   69  the backend is out of reach, or refuses
   74  the output cannot be written
   75  the lock was not obtained in time (with --skip: 0; -E sets another code)
   76  the lease was lost, and the command was stopped
  126  the command cannot be executed
  127  the command was not found
128+n  dlock or the command was ended by signal n
Any other is the command's own.`

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
	c := &console{stdin, serialized(stdout, &mu), serialized(stderr, &mu)}
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
}

// printf writes one line to stderr.
func (c *console) printf(format string, args ...any) {
	fmt.Fprint(c.stderr, "dlock: "+oneLine(fmt.Sprintf(format, args...))+"\n")
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

// A checkedWriter remembers the first error, because cobra ignores it or prints it.
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
	if m := excluding.FindStringSubmatch(f.text); m != nil {
		f.text = "--" + strings.ReplaceAll(m[1], " ", " and --") + " contradict each other: leave one out"
	}
	errors.As(err, &f)
	if f.text != "" {
		c.printf("%s", f.text)
	}
	return f.code
}

func newRoot(c *console) *cobra.Command {
	root := &cobra.Command{
		Use:   "dlock",
		Short: "Run a command under a distributed lock",
		Long: `dlock runs a command under a lock, so that only one copy runs at a time, across
machines. It shows who holds the locks, takes them away, and checks the servers.

` + exitHelp,
		Version:       version(),
		Example:       `  dlock run nightly -- /usr/local/bin/nightly-report`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          unknownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },

		SuggestionsMinimumDistance: 2,
	}
	root.SetVersionTemplate("dlock {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(newRun(c), newElect(c), newStatus(c), newUnlock(), newDoctor(c), newBootstrap(), newDrivers(), newVersion())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Args, c.RunE, c.Run = nil, help, nil
		case "completion":
			c.SuggestionsMinimumDistance = root.SuggestionsMinimumDistance
			c.Args, c.RunE = unknownCommand, func(c *cobra.Command, _ []string) error { return c.Help() }
		}
	}
	return root
}

// help is "dlock help [COMMAND]". An unknown COMMAND is an error.
func help(cmd *cobra.Command, args []string) error {
	found, rest, err := cmd.Root().Find(args)
	if err != nil || len(rest) > 0 {
		return unknownCommand(found, rest)
	}
	found.InitDefaultHelpFlag()
	return found.Help()
}

// unknownCommand refuses an argument that is no command. The error repeats the argument only if
// it is nearly the name of a command, because it may be a misplaced password.
func unknownCommand(parent *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if near := parent.SuggestionsFor(args[0]); len(near) > 0 {
		return failf(exitUsage, "there is no command %s: did you mean %s?", args[0], strings.Join(near, " or "))
	}
	if parent.ArgsLenAtDash() >= 0 {
		return failf(exitUsage, "there is no such command: did you mean dlock run KEY -- COMMAND [ARG...]?")
	}
	return failf(exitUsage, "there is no such command: dlock --help lists them")
}

// nearFlag returns the flags of cmd whose names resemble a mistyped one.
func nearFlag(cmd *cobra.Command, name string) string {
	flags := &cobra.Command{SuggestionsMinimumDistance: 2}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		flags.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
	})
	var near []string
	for _, s := range flags.SuggestionsFor(name) {
		near = append(near, "--"+s)
	}
	return strings.Join(near, " or ")
}

// excluding finds the flags in cobra's error for flags that exclude one another.
var excluding = regexp.MustCompile(`^if any flags in the group .* \[(.*)\] were all set$`)

var (
	badValue = regexp.MustCompile(`(?s)^invalid argument .* for "(.*)" flag: (.*)$`)
	badFlag  = regexp.MustCompile(`(?s)^unknown (?:flag:|shorthand flag: '.*' in) (--?([a-z-]+))$`)
)

// flagError describes a wrong flag without quoting its value, which may be a
// misplaced password.
func flagError(cmd *cobra.Command, err error) error {
	text := err.Error()
	if m := badFlag.FindStringSubmatch(text); m != nil {
		if near := nearFlag(cmd, m[2]); near != "" {
			return failf(exitUsage, "there is no flag %s: did you mean %s?", m[1], near)
		}
	}
	switch m := badValue.FindStringSubmatch(text); {
	case m != nil && strings.HasPrefix(m[2], "strconv.ParseBool"): // it quotes the value
		text = m[1] + " must be true or false"
	case m != nil && strings.HasPrefix(m[2], "strconv."):
		text = m[1] + " must be a number"
	case m != nil:
		text = m[1] + " " + m[2]
	case strings.HasPrefix(text, "unknown "):
		text = "there is no such flag"
	case strings.HasPrefix(text, "bad flag syntax"):
		text = "bad flag syntax"
	case strings.HasPrefix(text, "flag needs an argument: "):
		text, _, _ = strings.Cut(text, " in -")
	default:
		text = "wrong usage"
	}
	return failf(exitUsage, "%s (see %s --help)", text, cmd.CommandPath())
}

// oneLine joins the lines of an error, because a driver's may have several, and escapes what may
// disturb a terminal.
func oneLine(s string) string {
	breaks := func(r rune) bool { return r == '\n' || r == '\r' || r == '\t' }
	return driver.Printable(strings.Join(strings.FieldsFunc(strings.TrimPrefix(s, "dlock: "), breaks), " "))
}

// waitingHelps reports whether the same call may succeed later.
func waitingHelps(err error) bool {
	var refused *dlock.RefusedError
	return !errors.As(err, &refused) || refused.RetryAfter > 0
}

// asFlags replaces names of dlock's options by the flags that set them.
var asFlags = strings.NewReplacer("WithTTL", "--ttl", "WithMinHold", "--at-least", "WithMaxHold", "--max-hold", "WithOwnerLabel", "--label", "WithMode", "--shared")

// forgottenImport finds the part of an error of package dlock that tells a program's author of a
// driver that is not registered.
var forgottenImport = regexp.MustCompile(`"([^"]+)" is unknown \(forgotten import[^)]*\)`)

// withoutDriver replaces the advice to a program's author by one to a user of the command.
func withoutDriver(text string) string {
	return forgottenImport.ReplaceAllStringFunc(text, func(found string) string {
		name := forgottenImport.FindStringSubmatch(found)[1]
		if _, ours := forms[name]; !ours {
			return fmt.Sprintf("%q is unknown", name)
		}
		return fmt.Sprintf("this command is built without %q; to install the one with all drivers: go install %s/drivers/everything/cmd/dlock@latest", name, module)
	})
}

// exitErrorOf returns the exit code and the message for an error of package dlock.
func exitErrorOf(err error) *exitError {
	if errors.Is(err, dlock.ErrInvalid) {
		return &exitError{exitUsage, withoutDriver(asFlags.Replace(err.Error()))}
	}
	return &exitError{exitUnavailable, err.Error() + ": check the backend and its URL"}
}

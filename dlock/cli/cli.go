package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
)

// To add an option to a command: declare it and use it in the command's function, which the list
// commands below names (newRun in run.go, newStatus in status.go, …); describe it in the command's
// section of doc.go, the manual, from which help and completion take their words; and put a right and
// a wrong use of it into the tables of usage_test.go. That is all, unless the option is for what runs
// while the lock is held: that is in execution.go. Declare it with one of c.flags, c.duration and
// c.number.

// commands are dlock's commands. Each function declares the flags, and returns what runs.
func commands() map[string]func(*call) func() error {
	return map[string]func(*call) func() error{
		"run":        newRun,
		"elect":      newElect,
		"status":     newStatus,
		"unlock":     newUnlock,
		"doctor":     newDoctor,
		"bootstrap":  newBootstrap,
		"drivers":    newDrivers,
		"completion": newCompletion,
		"version":    newVersion,
		"help":       newHelp,
	}
}

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
	c := &console{stdin: stdin, out: &stream{w: stdout, mu: &mu}, err: &stream{w: stderr, mu: &mu}}
	c.lines = newBacklog(c.err)
	defer c.lines.close()
	err := c.run(args[min(1, len(args)):])
	if c.out.err != nil {
		err = failf(exitIO, "the output cannot be written: %v", c.out.err)
	}
	return c.exitCode(err)
}

// A call is one command line, of one of the commands.
type call struct {
	*console
	name    string // the command's
	flags   *flag.FlagSet
	given   map[string]bool // the flags that were given
	args    []string        // what stands before --
	command []string        // what stands after it
	dashes  bool            // there is a --
	url     string
}

func (c *console) newCall(name string) *call {
	return &call{console: c, name: name, flags: flag.NewFlagSet(name, flag.ContinueOnError), given: map[string]bool{}}
}

// run runs a command line.
func (c *console) run(args []string) error {
	if err := checkArgs(args); err != nil {
		return err
	}
	name := "help"
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	switch name {
	case "-h", "--help":
		name = "help"
	case "--version":
		name = "version"
	case "__complete":
		return c.complete(args)
	}
	newCommand, known := commands()[name]
	switch {
	case !known && slices.Contains(args, "--"):
		return failf(exitUsage, "there is no such command: did you mean dlock run KEY -- COMMAND [ARG...]?")
	case !known: // it may be a misplaced password, so it is not repeated
		return failf(exitUsage, "there is no such command: dlock has %s", strings.Join(slices.Sorted(maps.Keys(commands())), ", "))
	}
	call := c.newCall(name)
	run := newCommand(call)
	err := call.parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return c.help("dlock " + name)
	case err != nil:
		return err
	}
	return run()
}

// parse reads the flags, which may stand among the arguments, up to a "--". No error repeats a
// value, which may be a misplaced password.
func (c *call) parse(args []string) error {
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		if arg == "--" {
			c.command, c.dashes = args, true
			return nil
		}
		if len(arg) < 2 || arg[0] != '-' {
			c.args = append(c.args, arg)
			continue
		}
		name, value, set := strings.Cut(strings.TrimPrefix(arg[1:], "-"), "=")
		if arg[1] == 'E' { // the one short flag, with its value in the same word or in the next
			name, value = "conflict-exit-code", strings.TrimPrefix(arg[2:], "=")
			set = value != ""
		}
		f := c.flags.Lookup(name)
		switch {
		case name == "h", name == "help":
			return flag.ErrHelp
		case f == nil:
			var all []string
			c.flags.VisitAll(func(f *flag.Flag) { all = append(all, "--"+f.Name) })
			return failf(exitUsage, "there is no such flag: dlock %s has %s", c.name, strings.Join(append(all, "--help"), ", "))
		case set:
		case isSwitch(f):
			value = "true"
		case len(args) == 0:
			return c.wrong(name, "needs a value")
		default:
			value, args = args[0], args[1:]
		}
		if err := f.Value.Set(value); err != nil && isSwitch(f) {
			return c.wrong(name, "must be true or false")
		} else if err != nil {
			return c.wrong(name, err.Error())
		}
		c.given[name] = true
	}
	return nil
}

func isSwitch(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

func (c *call) wrong(name, text string) error {
	return failf(exitUsage, "--%s %s (see dlock %s --help)", name, text, c.name)
}

// duration declares a flag whose value is a duration.
func (c *call) duration(p *time.Duration, name string) {
	c.flags.Func(name, "", func(s string) (err error) {
		if *p, err = time.ParseDuration(s); err != nil || *p < 0 {
			return errors.New("must be a duration such as 90s or 2h30m")
		}
		return nil
	})
}

// number declares a flag whose value is a number between two others.
func (c *call) number(p *uint64, name string, least, most uint64) {
	c.flags.Func(name, "", func(s string) (err error) {
		if *p, err = strconv.ParseUint(s, 10, 64); err == nil && least <= *p && *p <= most {
			return nil
		}
		return fmt.Errorf("must be a number from %d to %d", least, most)
	})
}

// exclusive refuses more than one of some flags.
func (c *call) exclusive(flags ...string) error {
	var given []string
	for _, f := range flags {
		if c.given[f] {
			given = append(given, "--"+f)
		}
	}
	if len(given) > 1 {
		return failf(exitUsage, "%s contradict each other: leave one out", strings.Join(given, " and "))
	}
	return nil
}

// want refuses another number of arguments.
func (c *call) want(least, most int) error {
	c.args = append(c.args, c.command...) // a -- changes nothing
	if n := len(c.args); n < least || n > most {
		return c.usage("wrong arguments")
	}
	return nil
}

// wantCommand refuses all but a key and a command.
func (c *call) wantCommand() error {
	if len(c.args) != 1 || len(c.command) == 0 {
		return c.usage("one key must stand before --, and the command after it")
	}
	return nil
}

func (c *call) usage(wrong string) error {
	form, _ := summary(c.name)
	return failf(exitUsage, "%s: %s", wrong, form)
}

// withURL declares the flag --url.
func (c *call) withURL() { c.flags.StringVar(&c.url, "url", "", "") }

// open opens the backend.
func (c *call) open(options ...dlock.Option) (*dlock.Client, error) {
	url, err := chooseURL(c.url, c.given["url"])
	if err != nil {
		return nil, err
	}
	return dlock.OpenURL(url, append(options, dlock.WithLogger(nil))...) // what happens is reported otherwise
}

// endSignals are the signals that end a wait.
var endSignals = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// operatorTimeout bounds one request of an operator's command to the servers.
const operatorTimeout = 30 * time.Second

// once opens the backend for a command of operators, and calls f until a signal or the timeout ends
// it.
func (c *call) once(f func(context.Context, *dlock.Client) error) error {
	client, err := c.open()
	if err != nil {
		return err
	}
	defer client.Close() //nolint:errcheck // nothing is held
	ctx, stop := signal.NotifyContext(context.Background(), endSignals...)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, operatorTimeout)
	defer cancel()
	return f(ctx, client)
}

// optional returns the backend as one that has an interface of package driver that is optional.
func optional[T any](c *dlock.Client, cannot string) (T, error) {
	t, ok := c.Backend().(T)
	if !ok {
		return t, driver.Invalid(c.Backend().Info().Name, "%s", cannot)
	}
	return t, nil
}

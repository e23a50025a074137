// Package cli is the command benchmark: a program whose main is one line measures the drivers
// that it imports.
//
//	package main
//
//	import (
//		"os"
//
//		"github.com/redlock-go/redlock/benchmark/cli"
//		_ "example.org/mydriver" // registers itself
//	)
//
//	func main() { os.Exit(cli.Main(os.Args, os.Stdout, os.Stderr)) }
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/redlock-go/redlock/benchmark/internal/bench"
	"github.com/redlock-go/redlock/benchmark/internal/deploy"
	"github.com/redlock-go/redlock/benchmark/internal/peers"
	"github.com/redlock-go/redlock/dlock"
	dlockcli "github.com/redlock-go/redlock/dlock/cli"
)

// The exit codes. Those above 1 are from sysexits.h, or follow the shell's convention.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 64
	exitUnavailable = 69
	exitInterrupted = 130
)

const usage = `Usage: go run -C benchmark . [flags]

Without a URL it starts servers of its own, and measures this module, the limits and other
libraries beside each other. With -url, or with DLOCK_URL or DLOCK_URL_FILE set, it measures
that deployment, under keys of its own, which it removes. A URL with a password stands in
DLOCK_URL, since every user of the machine can read the command line.

The exit code is 0 if there is a report, 1 if there is none, 64 for wrong usage, 69 if a
deployment could not be measured, 130 after an interrupt.

Flags:
`

// options holds the parsed command line.
type options struct {
	bench  bench.Options
	deploy deploy.Options
	out    string
}

// Main runs the command line args, whose first element is the program's name, and returns the
// exit code. It writes its result to stdout, its progress and its errors to stderr, and handles
// SIGINT and SIGTERM while it runs: a measurement then ends early, and leaves nothing behind.
func Main(args []string, stdout, stderr io.Writer) int {
	fail := func(code int, err error) int {
		fmt.Fprintln(stderr, "benchmark: "+strings.Join(strings.Fields(err.Error()), " "))
		return code
	}
	o, err := parse(args[min(1, len(args)):], stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return fail(exitUsage, err)
	}
	logging.Disable() // go-redis' own log: the report has the failures
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.out == "" {
		if o.out, err = os.MkdirTemp("", "redlock-benchmark-"); err != nil {
			return fail(exitFailed, err)
		}
		defer func() { _ = os.Remove(o.out) }() // only if there is no report in it
	}
	code := exitFailed
	if o.deploy.URL != "" {
		code = exitUnavailable
		err = measure(ctx, o, stdout, stderr)
	} else {
		err = bench.Run(ctx, o.bench, peers.Contestants(), o.out, stdout, stderr)
	}
	switch {
	case ctx.Err() != nil:
		return fail(exitInterrupted, errors.New("interrupted"))
	case errors.Is(err, dlock.ErrInvalid):
		return fail(exitUsage, err)
	case err != nil:
		return fail(code, err)
	}
	return exitOK
}

// measure measures a deployment.
func measure(ctx context.Context, o *options, stdout, stderr io.Writer) error {
	r, err := deploy.Measure(ctx, o.deploy, stderr)
	if err != nil {
		return err
	}
	if err := r.Write(o.out); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s\n\n%s\n", r.Text(), filepath.Join(o.out, "report.html"))
	return err
}

// parse reads the command line.
func parse(args []string, stderr io.Writer) (*options, error) {
	f := flag.NewFlagSet("benchmark", flag.ContinueOnError)
	f.SetOutput(io.Discard) // the message shows the wrong value, which may be a misplaced password
	quick := f.Bool("quick", false, "measure less, in under a minute")
	list := f.String("scenario", "", "measure these scenarios alone, separated by commas")
	only := f.String("case", "", "measure only cases whose title, as the progress shows it, matches this regular `expression`")
	who := f.String("contestant", "", "measure only contestants whose name matches this regular `expression`, and the limits beside them")
	url := f.String("url", "", "measure the locks of this URL (default: that of DLOCK_URL, or of the file that DLOCK_URL_FILE names)")
	share := f.Float64("share", 0.5, "with -url: end the load when the servers use this share of their capacity")
	length := f.Duration("for", 0, "measure for about so long (default: 8m30s, with -quick 50s; with -url 30s, with -quick 10s)")
	out := f.String("out", "", "the `folder` for the report (default: a new temporary one)")
	readme := f.String("readme", "", "replace the table in this Markdown `file` by that of the run")
	err := f.Parse(args)
	given := false
	f.Visit(func(f *flag.Flag) { given = given || f.Name == "url" })
	chosen, isSet, urlErr := dlockcli.ChooseURL(args, *url, given)
	switch {
	case errors.Is(err, flag.ErrHelp):
		f.SetOutput(stderr)
		fmt.Fprint(stderr, usage)
		f.PrintDefaults()
		fmt.Fprint(stderr, "\nScenarios:\n"+bench.ScenarioHelp())
		return nil, err
	case urlErr != nil:
		return nil, urlErr
	case err != nil:
		return nil, fmt.Errorf("%w; see benchmark -help", withoutValue(err))
	case f.NArg() > 0:
		return nil, errors.New("there are arguments that are no flags; see benchmark -help")
	case *length < 0:
		return nil, fmt.Errorf("-for must be positive, and is %v", *length)
	case *share <= 0 || *share > 0.9:
		return nil, fmt.Errorf("-share must be above 0 and at most 0.9, and is %v", *share)
	}
	o := &options{out: *out}
	ownServers := *list != "" || *only != "" || *who != "" || *readme != ""
	if isSet && ownServers {
		if given {
			return nil, errors.New("-scenario, -case, -contestant and -readme are for servers of its own, and contradict -url")
		}
		return nil, errors.New("-scenario, -case, -contestant and -readme are for servers of its own, and DLOCK_URL is set: unset it")
	}
	if isSet {
		o.deploy = deploy.Options{URL: chosen, For: 30 * time.Second, Rounds: 20, Share: *share}
		if *quick {
			o.deploy.For, o.deploy.Rounds = 10*time.Second, 8
		}
		if *length > 0 {
			o.deploy.For = *length
		}
		return o, nil
	}
	o.bench = bench.Options{Quick: *quick, For: *length, README: *readme}
	if o.bench.Scenarios, err = bench.Pick(*list); err != nil {
		return nil, fmt.Errorf("-scenario: %w", err)
	}
	if *only != "" {
		if o.bench.Case, err = regexp.Compile(*only); err != nil {
			return nil, fmt.Errorf("-case: %w", err)
		}
	}
	if *who != "" {
		if o.bench.Contestant, err = regexp.Compile(*who); err != nil {
			return nil, fmt.Errorf("-contestant: %w", err)
		}
	}
	return o, nil
}

var value = regexp.MustCompile(`(?s)^invalid (?:boolean )?value .* for (?:flag )?(-[a-z]+): .*$`)

// withoutValue removes the value from an error of package flag.
func withoutValue(err error) error {
	if m := value.FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("the value of %s cannot be read", m[1])
	}
	text := err.Error()
	if strings.HasPrefix(text, "flag provided but not defined: ") {
		name, _, _ := strings.Cut(strings.TrimPrefix(text, "flag provided but not defined: "), "=")
		return fmt.Errorf("there is no flag %s", name)
	}
	return errors.New(strings.SplitN(text, "\"", 2)[0])
}

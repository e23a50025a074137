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
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
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

The report is Markdown, on standard output. The exit code is 0 if there is a report, 1 if there
is none, 64 for wrong usage, 69 if a deployment could not be measured, 130 after an interrupt.

Flags:
`

// options holds the parsed command line.
type options struct {
	url         string // empty: servers of its own
	length      time.Duration
	match       *regexp.Regexp
	raw, readme string
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
	code := exitFailed
	if o.url != "" {
		code = exitUnavailable
		var r *deploy.Report
		if r, err = deploy.Measure(ctx, o.url, cmp.Or(o.length, 30*time.Second), stderr); err == nil {
			fmt.Fprintln(stdout, r.Text())
		}
	} else {
		err = compare(ctx, o, stdout, stderr)
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

// compare measures on servers of its own.
func compare(ctx context.Context, o *options, stdout, stderr io.Writer) error {
	r, err := bench.Run(ctx, o.match, o.length, peers.Contestants(), stderr)
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, r.Text())
	if o.raw != "" {
		err = os.WriteFile(o.raw, []byte(r.Raw()), 0o644)
	}
	if o.readme != "" {
		err = errors.Join(err, r.WritePage(o.readme))
	}
	return err
}

// parse reads the command line.
func parse(args []string, stderr io.Writer) (*options, error) {
	f := flag.NewFlagSet("benchmark", flag.ContinueOnError)
	f.SetOutput(io.Discard) // the message shows the wrong value, which may be a misplaced password
	o := &options{}
	url := f.String("url", "", "measure the locks of this URL (default: that of DLOCK_URL, or of the file that DLOCK_URL_FILE names)")
	f.DurationVar(&o.length, "for", 0, "measure for about so long (default: 8m20s, and less for a part; with -url 30s)")
	match := f.String("run", "", "measure those \"scenario/case/contestant\" that match this regular `expression`, such as 'throughput/.*/(ours|redsync) over'")
	f.StringVar(&o.raw, "raw", "", "write each round's figures to this `file`, in the format of Go's benchmarks, of which benchstat compares two")
	f.StringVar(&o.readme, "readme", "", "replace the table in this Markdown `file`, and the picture beside it, by those of the run")
	err := f.Parse(args)
	given := map[string]bool{}
	f.Visit(func(f *flag.Flag) { given[f.Name] = true })
	chosen, isSet, urlErr := dlockcli.ChooseURL(args, *url, given["url"])
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
	case o.length < 0:
		return nil, fmt.Errorf("-for must be positive, and is %v", o.length)
	case isSet && (given["run"] || given["raw"] || given["readme"]):
		return nil, errors.New("-run, -raw and -readme are for servers of its own, and contradict -url and DLOCK_URL")
	}
	if isSet {
		o.url = chosen
	}
	if *match != "" {
		if o.match, err = regexp.Compile(*match); err != nil {
			return nil, fmt.Errorf("-run: %w", err)
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

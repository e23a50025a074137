// Package cli is the command redlocktest: a main of one line makes a program that tests the
// drivers that it imports.
//
//	package main
//
//	import (
//		"os"
//
//		"github.com/redlock-go/redlock/redlocktest/cli"
//		_ "example.org/mydriver" // registers itself
//	)
//
//	func main() { os.Exit(cli.Main(os.Args, os.Stdout, os.Stderr)) }
package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/dsn"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
)

// The exit codes; those above 1 are from sysexits.h.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 64
	exitUnavailable = 69
	exitIO          = 74
	exitInterrupted = 130
)

const envURL = "REDLOCKTEST_URL"

const usage = `usage: redlocktest [flags] URL...

Tests whether the locks behind a URL keep the promises of their driver: it runs the cases of
the conformance suite, and then a stress: many clients, in processes of their own that are killed
and stopped too, use few keys in every way, and the record of their calls is checked. It uses
keys of its own, which begin with "redlocktest/" and which nobody can guess, and it releases
them, or leaves them to a short TTL: it is safe to run beside the users of a server. What a driver keeps on a server besides locks,
such as counters of tokens, stays there. With --faults the command breaks its own connections, by a
proxy in front of each server, and nobody else's.

A URL that holds a password goes into $` + envURL + `, since every user of the machine can
read the command line. Several URLs stand there with spaces between them.

The report is on stdout; progress is on stderr. The exit code is 0 if everything passed, 1 if
a promise was broken, 64 for wrong usage, 69 if a backend cannot be opened, 74 if the report cannot
be written, 130 after an interrupt, which ends the test early. With several URLs the gravest code
counts: 1, then 69, then 64.

Flags:
`

// options are the settings from the command line.
type options struct {
	short, json, quiet bool
	faults             bool
	stress, timeout    time.Duration
	seed               uint64
	ttl                time.Duration
	only               string
	skip               map[string]string
	urls               []string
}

// Main runs the command line args, of which the first is the program's name, and returns the
// exit code. It handles SIGINT and SIGTERM while it runs: the test ends early, and cleans up.
func Main(args []string, stdout, stderr io.Writer) int {
	redlocktest.ServeClient(func(url string) (driver.Backend, error) { return dlock.OpenBackend(url) })
	o, code := parse(args[min(1, len(args)):], stdout, stderr)
	if o == nil {
		return code
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return o.run(ctx, stdout, stderr)
}

// parse returns nil and an exit code if there is nothing to run.
func parse(args []string, stdout, stderr io.Writer) (*options, int) {
	o, list := &options{skip: map[string]string{}}, false
	flags := flag.NewFlagSet("redlocktest", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.BoolVar(&o.short, "short", false, "repeat each check less often")
	flags.BoolVar(&o.json, "json", false, "write the report as JSON")
	flags.BoolVar(&list, "list", false, "write the names of the cases, and run nothing")
	flags.BoolVar(&o.quiet, "quiet", false, "write no progress")
	flags.BoolVar(&o.faults, "faults", false, "cut, stop and slow this command's own connections, in cases and in the stress")
	flags.DurationVar(&o.stress, "stress", 10*time.Second, "how `long` to stress the locks, if all cases pass; 0, and with --only: not at all")
	flags.Uint64Var(&o.seed, "seed", 0, "the seed of the stress's random choices; 0: a random one")
	flags.DurationVar(&o.timeout, "timeout", time.Minute, "the longest `time` that a case may take")
	flags.DurationVar(&o.ttl, "ttl", 500*time.Millisecond, "the `TTL` of locks in cases that wait for a lock's end")
	flags.StringVar(&o.only, "only", "", "run one `case`, such as expiry/free, or one group of cases, such as expiry")
	flags.Func("skip", "leave out a `case` or a group of cases; may be given several times", func(name string) error {
		o.skip[name] = "--skip"
		return nil
	})
	wrong := func(format string, a ...any) (*options, int) {
		fmt.Fprintf(stderr, "redlocktest: "+format+"; see redlocktest --help\n", a...)
		return nil, exitUsage
	}
	if slices.ContainsFunc(args, dsn.HasPassword) {
		return wrong("a password on the command line can be read by every user of this machine: put the URL into %s", envURL)
	}
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(stdout)
		_, err := io.WriteString(stdout, usage)
		flags.PrintDefaults()
		if err != nil {
			return nil, exitIO
		}
		return nil, exitOK
	case err != nil:
		return wrong("%v", err)
	}
	if list {
		if err := writeList(stdout); err != nil {
			return nil, exitIO
		}
		return nil, exitOK
	}
	if o.urls = flags.Args(); len(o.urls) == 0 {
		o.urls = strings.Fields(os.Getenv(envURL))
	}
	if len(o.urls) == 0 {
		return wrong("no URL: give one, or set %s", envURL)
	}
	if o.stress < 0 || o.timeout <= 0 || o.ttl <= 0 {
		return wrong("--timeout and --ttl must be more than zero, and --stress not negative")
	}
	return o, exitOK
}

// gravest are the exit codes of URLs; a later one outweighs those before it.
var gravest = []int{exitOK, exitUsage, exitUnavailable, exitFailed}

// run tests one URL after the other. It returns the gravest exit code.
func (o *options) run(ctx context.Context, stdout, stderr io.Writer) int {
	grave := 0
	reports := []*report{}
	for _, url := range o.urls {
		r, code := o.report(ctx, url, stderr)
		reports = append(reports, r)
		grave = max(grave, slices.Index(gravest, code))
	}
	write := writeText
	if o.json {
		write = writeJSON
	}
	if err := write(stdout, reports); err != nil {
		fmt.Fprintf(stderr, "redlocktest: the report cannot be written: %v\n", err)
		return exitIO
	}
	if ctx.Err() != nil {
		return exitInterrupted
	}
	return gravest[grave]
}

// report tests a URL, and returns its report and its exit code.
func (o *options) report(ctx context.Context, url string, stderr io.Writer) (*report, int) {
	name, _, _ := strings.Cut(url, ":")
	if !dsn.HasPassword(url) {
		name = url
	}
	r := &report{Backend: name}
	err := o.examine(ctx, url, r, stderr)
	switch {
	case err == nil && r.OK:
		return r, exitOK
	case err == nil:
		return r, exitFailed
	}
	fmt.Fprintf(stderr, "redlocktest: %s\n", says(err))
	r.OK, r.Error = false, says(err)
	if errors.Is(err, driver.ErrInvalid) {
		return r, exitUsage
	}
	return r, exitUnavailable
}

// says returns the text of an error for a user of the command, who imports nothing.
func says(err error) string {
	text, hint, _ := strings.Cut(strings.TrimPrefix(err.Error(), "dlock: "), " (forgotten import")
	if hint != "" {
		text += " to this command (github.com/redlock-go/redlock/drivers/everything/cmd/redlocktest has all drivers, and package redlocktest/cli makes one with others)"
	}
	return text
}

// examine runs the suite on one URL, and then the stress. After an error r has what was tested.
func (o *options) examine(ctx context.Context, url string, r *report, stderr io.Writer) error {
	name, err := describe(ctx, url)
	if err != nil {
		return err
	}
	progress := func(c redlocktest.CaseResult) {
		if !o.quiet {
			fmt.Fprintf(stderr, "%s suite\t%s\t%s\t%.2f s\n", name, verdict(c), c.Name, c.Took.Seconds())
		}
	}
	h, noLinks := o.harness(url)
	if o.only == "" || strings.HasPrefix(o.only, "process") {
		if r.NoProcesses = separate(ctx, url); r.NoProcesses == "" {
			h.Process = func() (*redlocktest.Client, error) { return redlocktest.StartClient(url) }
		}
	}
	suite, err := redlocktest.Examine(ctx, h, progress)
	if err != nil {
		return err
	}
	r.Backend, r.Report, r.OK, r.NoLinks = name, *suite, len(suite.Failures()) == 0, noLinks
	if o.stress > 0 && o.only == "" && ctx.Err() == nil && r.OK {
		err = o.addStress(ctx, h, r, stderr)
	}
	r.Interrupted = ctx.Err() != nil
	return err
}

// mostGrace is how much longer than the longest TTL of a case a server may keep a lock. A URL
// does not show its grace; that of a lone Redis, for example, is 10 ms and a hundredth of the
// TTL.
const mostGrace = 3 * time.Second

// ownLocks and marked match URLs of drivers whose backends list their own locks alone, and whose
// prefixes leave marks on the server.
var (
	ownLocks = regexp.MustCompile(`^postgres(ql)?:`)
	marked   = regexp.MustCompile(`^(rediss?|valkeys?|(redis|valkey)\+unix|redlock):`)
)

// harness returns the harness of a URL, and the reason if it breaks no links.
func (o *options) harness(url string) (h redlocktest.Harness, noLinks string) {
	h.Open = func() (driver.Backend, error) { return dlock.OpenBackend(url) }
	servers, why := links(url)
	switch {
	case !o.faults:
		why = "the flag --faults asks for it"
	case why == "":
		h = fault.HarnessOf(addresses(url, servers), func(via []string) (driver.Backend, error) {
			return dlock.OpenBackend(through(url, servers, via))
		})
	}
	h.Driver, h.Secret = opener{}, secretOf(url)
	h.URL, h.Prefix = cutPrefix(url)
	h.LocalClock = !remote.MatchString(url)
	h.TTL, h.Timeout, h.Short, h.Only, h.Grace = o.ttl, o.timeout, o.short, o.only, mostGrace
	h.Skip = maps.Clone(o.skip)
	if marked.MatchString(url) && h.Skip["open"] == "" {
		h.Skip["open/prefix"] = "each new prefix leaves marks on the server for ever"
	}
	if ownLocks.MatchString(url) && h.Skip["operator"] == "" {
		h.Skip["operator/list"] = "the server stores a hash of each key: a backend lists its own locks only"
	}
	return h, why
}

// addStress stresses the URL with clients in this process, and in others if there is h.Process.
func (o *options) addStress(ctx context.Context, h redlocktest.Harness, r *report, stderr io.Writer) error {
	s := redlocktest.StressOptions{Duration: o.stress, Seed: o.seed}
	if !o.quiet {
		s.Progress = func(p redlocktest.StressReport) {
			fmt.Fprintf(stderr, "%s stress\t%d operations\t%d granted\t%d refused\t%.0f s\n", r.Backend, p.Operations, p.Grants, p.Refusals, p.Took.Seconds())
		}
	}
	found, err := redlocktest.ExamineStress(ctx, h, s)
	if err == nil {
		r.Stress, r.OK = found, r.OK && len(found.Failures) == 0
	}
	return err
}

// betweenTries is the pause before a request is repeated.
const betweenTries = 200 * time.Millisecond

// separate returns why processes of their own cannot share the locks of a URL; empty: they can.
func separate(ctx context.Context, url string) (why string) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	here, err := dlock.OpenBackend(url)
	if err != nil {
		return err.Error()
	}
	defer here.Close() //nolint:errcheck // it was only asked
	there, err := redlocktest.StartClient(url)
	if err != nil {
		return err.Error()
	}
	defer there.Close() //nolint:errcheck // as before
	var shared bool
	err = repeat(func() (err error) {
		shared, err = findsLock(ctx, here, there)
		return err
	})
	switch {
	case err != nil:
		return fmt.Sprintf("whether processes share the locks of %s: %v", here.Info().Name, err)
	case !shared:
		return "another process has other locks behind this URL"
	}
	return ""
}

// repeat asks again when there was no answer, as on a busy machine, or a refusal for now.
func repeat(ask func() error) (err error) {
	for range 5 {
		err = ask()
		if no := new(driver.RefusedError); !unknown(err) && (!errors.As(err, &no) || no.RetryAfter == 0) {
			return err
		}
		time.Sleep(betweenTries)
	}
	return err
}

// unknown reports whether an error is none of the outcomes that a driver is certain of.
func unknown(err error) bool {
	certain := []error{driver.ErrHeld, driver.ErrLost, driver.ErrRefused, driver.ErrInvalid, driver.ErrClosed}
	return err != nil && !slices.ContainsFunc(certain, func(e error) bool { return errors.Is(err, e) })
}

// findsLock reports whether another process finds a lock of this one. An error proves nothing.
func findsLock(ctx context.Context, here driver.Backend, there *redlocktest.Client) (bool, error) {
	req := driver.Request{Key: "redlocktest/stress/" + rand.Text(), Owner: "redlocktest/here"}
	if i := here.Info(); i.MaxTTL > 0 {
		req.TTL = min(i.MaxTTL, max(10*time.Second, i.MinTTL))
	}
	l, err := here.Acquire(ctx, &req)
	if err != nil {
		return false, err
	}
	req.Owner = "redlocktest/there"
	other, err := there.Acquire(ctx, &req)
	valid := l.Grant().Expires.IsZero() || time.Now().Before(l.Grant().Expires)
	_ = l.Release(ctx) // it ends by its short TTL
	switch {
	case errors.Is(err, driver.ErrHeld):
		return true, nil
	case err != nil:
		return false, err
	}
	_ = other.Release(ctx)
	if !valid {
		return false, errors.New("the lock ended before the other process asked for it")
	}
	return false, nil
}

// describe returns a backend's name without a password. The error says that it cannot be opened, or
// that no server answers.
func describe(ctx context.Context, url string) (name string, err error) {
	b, err := dlock.OpenBackend(url)
	if err != nil {
		return "", err
	}
	defer b.Close() //nolint:errcheck // it was only queried
	name = b.Info().Name
	if s, ok := b.(fmt.Stringer); ok && !dsn.HasPassword(s.String()) {
		name = s.String()
	}
	if i, ok := b.(driver.Inspector); ok {
		err = repeat(func() error { _, err := i.Lookup(ctx, "redlocktest/"); return err })
	}
	if unknown(err) { // the user may have no right to look
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return name, nil
}

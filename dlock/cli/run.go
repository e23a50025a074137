package cli

import (
	"context"
	"errors"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
)

// minTTL is the shortest TTL: it leaves time between the two signals that stop a command.
const minTTL = 4 * time.Second

// A job is one run of "dlock run" or "dlock elect".
type job struct {
	*console
	url      string
	urlGiven bool
	ttl      durationFlag
	wait     waitFlag
	atLeast  durationFlag
	maxHold  durationFlag
	skip     bool
	shared   bool
	slots    slotsFlag
	elect    bool         // "dlock elect": campaign again after a loss
	conflict exitCodeFlag // the exit code if the lock is held
	noWait   bool         // do not wait for the command's children
	label    string
	verbose  bool

	key     string
	command []string

	client  *dlock.Client
	signals chan os.Signal
	failure atomic.Pointer[error] // of the last renewal
	granted time.Duration         // on the machine's clock
	outage  bool                  // an outage was reported
}

func newRun(c *console) *cobra.Command {
	j := &job{console: c, wait: forever, conflict: exitHeld}
	cmd := &cobra.Command{
		Use:   "run [flags] KEY -- COMMAND [ARG...]",
		Short: "Run a command while holding the lock KEY",
		Long: `Run COMMAND while holding the lock KEY, and exit with its exit code.

dlock takes the backend's URL from --url, else from $DLOCK_URL, else from the file that
$DLOCK_URL_FILE names, else it uses "file:", locks of this user on this machine. It
refuses a password on the command line, where every user can read it.

dlock starts COMMAND without a shell, in a process group of its own. COMMAND's environment
has DLOCK_KEY; DLOCK_FENCE, the token that rises with every grant; DLOCK_DEADLINE, when
the lease ends unless dlock renews it (as of the start; only where a lock has a TTL); and
never the URL. With --slots DLOCK_SLOT is the number of the slot, 0 to N-1. A dlock run
inside of COMMAND needs a URL of its own, and another key.

dlock renews the lease while COMMAND runs. If that fails until the lease is about to end,
COMMAND gets SIGTERM a quarter of the TTL before the end (1s at least), and SIGKILL a
twentieth before (100ms at least), with every process that it started.

dlock keeps the lock until every process that COMMAND started has ended, and says so if
that takes longer than COMMAND; with --no-wait-children it does not wait.

` + exitHelp,
		Example: `  dlock run nightly -- /usr/local/bin/nightly-report
  dlock run --skip --at-least 1m nightly -- backup --all     # from cron, on many hosts
  dlock run --slots 3 thumbnails -- make-thumbnails          # three at a time, on all hosts
  DLOCK_URL_FILE=/etc/dlock.url dlock run --wait 30s deploy -- sh -c 'echo $DLOCK_FENCE; make deploy'`,
		Args: func(cmd *cobra.Command, args []string) error {
			return j.setArgs(cmd, args)
		},
		ValidArgsFunction: completeKeys,
		RunE: func(cmd *cobra.Command, _ []string) error {
			j.urlGiven = cmd.Flags().Changed("url")
			if j.skip && !cmd.Flags().Changed("wait") {
				j.wait = 0
			}
			return j.run(cmd.Flags().Changed("ttl"))
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	urlFlag(cmd, &j.url)
	f.Var(&j.ttl, "ttl", "how long the lease lasts unless dlock renews it, 4s at least (default 10s; none on file)")
	f.Var(&j.wait, "wait", "how long to wait for the lock: a duration, 0 (ask once) or forever")
	f.Var(&j.atLeast, "at-least", "keep the lock at least this long after the grant, even if the command ends sooner")
	f.Var(&j.maxHold, "max-hold", "stop the command when it has held the lock for this long")
	f.BoolVar(&j.skip, "skip", false, "if the lock is held, exit 0 and print nothing; wait only if --wait is given")
	f.VarP(&j.conflict, "conflict-exit-code", "E", "exit with `CODE` (0 to 255) if the lock is held")
	f.BoolVar(&j.shared, "shared", false, "share the lock with all other runs that use --shared (file and postgres)")
	f.Var(&j.slots, "slots", "let `N` commands (1 to 1024) run at a time, each with a slot in $DLOCK_SLOT")
	f.BoolVar(&j.noWait, "no-wait-children", false, "free the lock when the command ends, even if it leaves processes behind")
	f.StringVar(&j.label, "label", "", "the `NAME` that others see as the holder (default host/pid)")
	f.BoolVar(&j.verbose, "verbose", false, "say on stderr where dlock locks and what happens")
	return cmd
}

func (j *job) setArgs(cmd *cobra.Command, args []string) error {
	dash := cmd.ArgsLenAtDash()
	switch {
	case dash < 0 && len(args) > 1:
		return failf(exitUsage, "the command must stand after --: %s KEY -- COMMAND [ARG...]", cmd.CommandPath())
	case dash < 0, dash == len(args):
		return failf(exitUsage, "the command is missing: %s KEY -- COMMAND [ARG...]", cmd.CommandPath())
	case dash == 0:
		return failf(exitUsage, "the key is missing: %s KEY -- COMMAND [ARG...]", cmd.CommandPath())
	case dash > 1:
		return failf(exitUsage, "there is more than one key before --: %s KEY -- COMMAND [ARG...]", cmd.CommandPath())
	}
	j.key, j.command = args[0], args[1:]
	return nil
}

// run takes the lock, runs the command, and releases the lock.
func (j *job) run(ttlGiven bool) error {
	if err := j.checkFlags(); err != nil {
		return err
	}
	backend, err := chooseURL(j.url, j.urlGiven)
	if err != nil {
		return err
	}
	j.client, err = dlock.OpenURL(backend, j.options(ttlGiven)...)
	if err != nil {
		return exitErrorOf(err)
	}
	defer j.close()
	if inProcess.MatchString(j.client.String()) {
		return failf(exitUsage, "%s excludes no other process: use file:, or a server", j.client)
	}
	j.verbosef("locks %s", place(j.client))
	if ttl := j.client.TTL(); ttl != 0 && ttl < minTTL {
		return failf(exitUsage, "the TTL is %v, and must be %v at least, so that the command can be stopped before the lease ends", ttl, minTTL)
	}
	// SIGPIPE: dlock and the command go on if the reader of stderr is gone.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	j.signals = make(chan os.Signal, 16)
	notify(j.signals, endSignals)
	for {
		lease, err := j.obtain()
		if err != nil {
			return err
		}
		again, err := j.hold(lease)
		if !j.elect || !again {
			return err
		}
		_ = j.exitCode(err) // has the reason
		j.failure.Store(nil)
	}
}

// checkFlags refuses flags that contradict each other, and a key that this process already holds.
func (j *job) checkFlags() error {
	if j.skip && j.wait == forever {
		return failf(exitUsage, "--skip and --wait forever contradict each other: leave one out")
	}
	if j.slots > 0 && j.shared {
		return failf(exitUsage, "--slots and --shared contradict each other: leave one out")
	}
	if j.skip && j.conflict != exitHeld {
		return failf(exitUsage, "--skip and --conflict-exit-code contradict each other: leave one out")
	}
	if slices.Contains(outerKeys(), j.key) {
		return failf(exitUsage, "this runs inside of dlock run, which holds %q already, and would wait for itself: leave out this dlock run, or use another key", j.key)
	}
	return nil
}

// outerKeys returns the keys of the dlock runs inside which this process runs.
func outerKeys() []string {
	var keys []string
	for _, s := range strings.Fields(os.Getenv(envKeys)) {
		if key, err := url.QueryUnescape(s); err == nil {
			keys = append(keys, key)
		}
	}
	if key, nested := os.LookupEnv(envKey); nested && !slices.Contains(keys, key) {
		keys = append(keys, key)
	}
	return keys
}

// endSignals are the signals that end a wait.
var endSignals = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// notify relays signals, except those that the parent process told dlock to ignore, as nohup does.
func notify(c chan os.Signal, signals []os.Signal) {
	for _, s := range signals {
		if !signal.Ignored(s) {
			signal.Notify(c, s)
		}
	}
}

func (j *job) options(ttlGiven bool) []dlock.Option {
	o := []dlock.Option{
		dlock.WithLogger(nil), // the hooks report every event in one line
		dlock.WithHooks(j.hooks()),
		dlock.WithMinHold(time.Duration(j.atLeast)),
		dlock.WithMaxHold(time.Duration(j.maxHold)),
	}
	if ttlGiven {
		o = append(o, dlock.WithTTL(time.Duration(j.ttl)))
	}
	if j.slots > 0 {
		o = append(o, dlock.WithSlots(int(j.slots)))
	}
	if j.shared {
		o = append(o, dlock.WithMode(dlock.Shared))
	}
	if j.label != "" {
		o = append(o, dlock.WithOwnerLabel(j.label))
	}
	return o
}

// obtain takes the lock, and waits for it if the flags say so.
func (j *job) obtain() (*dlock.Lease, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	type result struct {
		lease *dlock.Lease
		err   error
	}
	got := make(chan result, 1)
	go func() {
		lease, err := j.ask(ctx)
		j.granted = machineNow()
		got <- result{lease, err}
	}()
	select {
	case r := <-got:
		return r.lease, j.notObtained(r.err)
	case s := <-j.signals:
		cancel()
		if r := <-got; r.lease != nil {
			_ = r.lease.Unlock() // it ends with its TTL at the latest
		}
		return nil, &exitError{code: exitSignal + number(s)}
	}
}

func (j *job) ask(ctx context.Context) (*dlock.Lease, error) {
	if j.wait == 0 {
		return j.client.TryLock(ctx, j.key)
	}
	if j.wait != forever {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(j.wait))
		defer cancel()
	}
	return j.client.Lock(ctx, j.key)
}

func (j *job) notObtained(err error) error {
	if err == nil {
		return nil
	}
	if j.skip && errors.Is(err, dlock.ErrHeld) {
		j.verbosef("%v: skipped", err)
		return &exitError{code: 0}
	}
	if errors.Is(err, dlock.ErrHeld) {
		return failf(int(j.conflict), "%v: try again later, or wait longer (--wait)", err)
	}
	return j.exitErrorOf(err)
}

// exitErrorOf also suggests to wait longer, if that can help.
func (j *job) exitErrorOf(err error) error {
	e := exitErrorOf(err)
	if e.code == exitUnavailable && j.wait != forever && waitingHelps(err) {
		e.text += ", or wait longer (--wait)"
	}
	return e
}

// close ends the client: on a session backend it waits for the rest of --at-least.
// A signal then ends us, and the wait.
func (j *job) close() {
	if j.signals != nil {
		signal.Stop(j.signals)
	}
	if err := j.client.Close(); err != nil {
		j.printf("%v", err)
	}
}

// verbosef writes a line if --verbose was given.
func (j *job) verbosef(format string, args ...any) {
	if j.verbose {
		j.printf(format, args...)
	}
}

// hooks report events on stderr.
func (j *job) hooks() dlock.Hooks {
	return dlock.Hooks{
		Attempt: func(ctx context.Context, e dlock.Event) {
			if e.Err != nil && ctx.Err() == nil {
				j.tellAttempt(e)
			}
		},
		Renewed: func(_ context.Context, e dlock.Event) {
			if e.Err != nil {
				j.failure.Store(&e.Err)
				j.verbosef("a renewal failed, and is tried again: %v", e.Err)
				return
			}
			j.verbosef("renewed %q, which now ends at %s", j.key, clockTime(e.Deadline))
		},
		Notice: func(e driver.Notice) {
			j.verbosef("%s %s %s %s", e.Kind, e.Node, e.Detail, errorText(e.Err))
		},
	}
}

// tellAttempt reports once that the backend is out of reach while dlock waits for ever, because
// no other line would.
func (j *job) tellAttempt(e dlock.Event) {
	switch {
	case errors.Is(e.Err, dlock.ErrHeld):
		if e.Attempt == 1 && j.wait != 0 {
			j.verbosef("waits for %q: %v", j.key, e.Err)
		}
	case j.wait != forever, errors.Is(e.Err, dlock.ErrInvalid), !waitingHelps(e.Err):
	case !j.outage:
		j.outage = true
		j.printf("waits for the backend (%s), since --wait is forever: %v", j.client.Info().Name, e.Err)
	default:
		j.verbosef("attempt %d: %v", e.Attempt, e.Err)
	}
}

func clockTime(t time.Time) string {
	return time.Now().Add(time.Until(t)).Format("15:04:05.000")
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// number returns a signal's number.
func number(s os.Signal) int {
	n, _ := s.(syscall.Signal)
	return int(n)
}

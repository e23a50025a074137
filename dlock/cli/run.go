package cli

import (
	"context"
	"errors"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/redlock-go/redlock/dlock"
)

// minTTL is the shortest TTL: it leaves time between the two signals that stop a command.
const minTTL = 4 * time.Second

// forever is the --wait of "forever".
const forever time.Duration = -1

// outageInterval is the time between two lines about an outage that is waited out.
const outageInterval = time.Minute

// A job is one run of "dlock run" or "dlock elect".
type job struct {
	*console
	url      string
	ttl      time.Duration
	waitFor  string // --wait as it was given
	wait     time.Duration
	atLeast  time.Duration
	maxHold  time.Duration
	skip     bool
	shared   bool
	slots    uint16
	elect    bool  // "dlock elect": campaign again after a loss
	conflict uint8 // the exit code if the lock is held
	noWait   bool  // do not wait for the command's children
	label    string
	verbose  bool

	key     string
	command []string

	client  *dlock.Client
	signals chan os.Signal
	failure atomic.Pointer[error] // of the last renewal
	granted time.Duration         // on the machine's clock
	outage  time.Time             // since when the backend is out of reach; zero: it is not
	told    time.Time             // when that was said last
	mu      sync.Mutex            // of outage and told
}

func newRun(c *console) *cobra.Command {
	j := &job{console: c}
	cmd := &cobra.Command{
		Use:               "run [flags] KEY -- COMMAND [ARG...]",
		Short:             "Run a command while holding the lock KEY",
		Args:              j.setArgs,
		ValidArgsFunction: completeKeys,
		RunE:              func(cmd *cobra.Command, _ []string) error { return j.run(cmd) },
	}
	f := cmd.Flags()
	j.commonFlags(cmd)
	f.StringVar(&j.waitFor, "wait", "forever", "")
	f.DurationVar(&j.atLeast, "at-least", 0, "")
	f.BoolVar(&j.skip, "skip", false, "")
	f.Uint8VarP(&j.conflict, "conflict-exit-code", "E", exitHeld, "")
	f.BoolVar(&j.shared, "shared", false, "")
	f.Uint16Var(&j.slots, "slots", 0, "")
	return cmd
}

// commonFlags adds the flags of "dlock run" and "dlock elect".
func (j *job) commonFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	urlFlag(cmd, &j.url)
	f.DurationVar(&j.ttl, "ttl", 0, "")
	f.DurationVar(&j.maxHold, "max-hold", 0, "")
	f.BoolVar(&j.noWait, "no-wait-children", false, "")
	f.StringVar(&j.label, "label", "", "")
	f.BoolVar(&j.verbose, "verbose", false, "")
}

func (j *job) setArgs(cmd *cobra.Command, args []string) error {
	wrong := ""
	switch dash := cmd.ArgsLenAtDash(); {
	case dash < 0 && len(args) > 1:
		wrong = "the command must stand after --"
	case dash < 0, dash == len(args):
		wrong = "the command is missing"
	case dash == 0:
		wrong = "the key is missing"
	case dash > 1:
		wrong = "there is more than one key before --"
	default:
		j.key, j.command = args[0], args[1:]
		return nil
	}
	return failf(exitUsage, "%s: %s KEY -- COMMAND [ARG...]", wrong, cmd.CommandPath())
}

// run takes the lock, runs the command, and releases the lock.
func (j *job) run(cmd *cobra.Command) error {
	if err := j.checkFlags(cmd); err != nil {
		return err
	}
	backend, err := chooseURL(j.url, cmd.Flags().Changed("url"))
	if err != nil {
		return err
	}
	j.client, err = dlock.OpenURL(backend, j.options(cmd)...)
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
func (j *job) checkFlags(cmd *cobra.Command) error {
	given := cmd.Flags().Changed
	for flag, d := range map[string]time.Duration{"ttl": j.ttl, "at-least": j.atLeast, "max-hold": j.maxHold} {
		if d < 0 {
			return failf(exitUsage, "--%s %s (see %s --help)", flag, wanted["duration"], cmd.CommandPath())
		}
	}
	switch d, err := time.ParseDuration(j.waitFor); {
	case j.elect, j.waitFor == "forever":
		j.wait = forever
	case err != nil || d < 0:
		return failf(exitUsage, "--wait must be 0, a duration such as 90s or 2h30m, or forever (see %s --help)", cmd.CommandPath())
	default:
		j.wait = d
	}
	if given("slots") && (j.slots < 1 || j.slots > 1024) {
		return failf(exitUsage, "--slots %s (see %s --help)", wanted["uint16"], cmd.CommandPath())
	}
	if j.skip && j.wait == forever {
		if given("wait") {
			return failf(exitUsage, "--skip and --wait forever contradict each other: leave one out")
		}
		j.wait = 0
	}
	if slices.Contains(outerKeys(), j.key) {
		return failf(exitUsage, "this runs inside of dlock run, which holds %q already, and would wait for itself: leave out this dlock run, or use another key", j.key)
	}
	return errors.Join(exclusive(cmd, "slots", "shared"), exclusive(cmd, "skip", "conflict-exit-code"))
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

func (j *job) options(cmd *cobra.Command) []dlock.Option {
	o := []dlock.Option{
		dlock.WithLogger(nil), // the hooks report every event in one line
		dlock.WithHooks(j.hooks()),
		dlock.WithMinHold(j.atLeast),
		dlock.WithMaxHold(j.maxHold),
	}
	if cmd.Flags().Changed("ttl") {
		o = append(o, dlock.WithTTL(j.ttl))
	}
	if j.slots > 0 {
		o = append(o, dlock.WithSlots(int(j.slots)))
	}
	if j.shared {
		o = append(o, dlock.WithShared())
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
		ctx, cancel = context.WithTimeout(ctx, j.wait)
		defer cancel()
	}
	return j.client.Lock(ctx, j.key)
}

func (j *job) notObtained(err error) error {
	switch {
	case err == nil:
		return nil
	case j.skip && errors.Is(err, dlock.ErrHeld):
		j.verbosef("%v: skipped", err)
		return &exitError{code: 0}
	case errors.Is(err, dlock.ErrHeld):
		return failf(int(j.conflict), "%v: try again later, or wait longer (--wait)", err)
	}
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
		j.detailf(format, args...)
	}
}

// hooks report events on stderr.
func (j *job) hooks() dlock.Hooks {
	return dlock.Hooks{Event: func(ctx context.Context, e dlock.Event) {
		switch {
		case e.Op == "attempt" && e.Err != nil && ctx.Err() == nil:
			j.tellAttempt(e)
		case e.Op == "renew" && e.Err != nil:
			j.failure.Store(&e.Err)
			j.verbosef("a renewal failed, and is tried again: %v", e.Err)
		case e.Op == "renew":
			j.verbosef("renewed %q, which now ends at %s", j.key, time.Now().Add(time.Until(e.Deadline)).Format("15:04:05.000"))
		case e.Op == "notice":
			text := e.Notice.Detail
			if e.Err != nil {
				text += " " + e.Err.Error()
			}
			j.verbosef("%s %s %s", e.Notice.Kind, e.Notice.Node, text)
		}
	}}
}

// tellAttempt reports that the backend is out of reach while dlock waits for ever, because no
// other line would: when that begins, and then every minute.
func (j *job) tellAttempt(e dlock.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now()
	switch {
	case errors.Is(e.Err, dlock.ErrHeld):
		j.outage = time.Time{}
		if e.Attempt == 1 && j.wait != 0 {
			j.verbosef("waits for %q: %v", j.key, e.Err)
		}
	case j.wait != forever, errors.Is(e.Err, dlock.ErrInvalid), !waitingHelps(e.Err):
	case j.outage.IsZero():
		j.outage, j.told = now, now
		j.printf("waits for the backend (%s), which is out of reach, since --wait is forever: %v", j.client.Backend().Info().Name, e.Err)
	case now.Sub(j.told) >= outageInterval:
		j.told = now
		j.printf("has waited for the backend (%s) for %v: press ctrl-C or send SIGTERM to stop, or limit the wait (--wait 10m): %v",
			j.client.Backend().Info().Name, now.Sub(j.outage).Round(time.Second), e.Err)
	default:
		j.verbosef("attempt %d: %v", e.Attempt, e.Err)
	}
}

// number returns a signal's number.
func number(s os.Signal) int {
	n, _ := s.(syscall.Signal)
	return int(n)
}

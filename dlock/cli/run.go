package cli

import (
	"context"
	"errors"
	"net/url"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redlock-go/redlock/dlock"
)

// minTTL is the shortest TTL: it leaves time between the two signals that stop a command.
const minTTL = 4 * time.Second

// forever is the --wait of "forever".
const forever time.Duration = -1

// inProcess finds a backend, or a node of a quorum, that excludes no other process.
var inProcess = regexp.MustCompile(`(?:^|^redlock:|,)memory:`)

// outageInterval is the time between two lines about an outage that is waited out.
const outageInterval = time.Minute

// A job is one run of "dlock run" or "dlock elect".
type job struct {
	*call
	elect    bool // "dlock elect": campaign again after a loss
	ttl      time.Duration
	wait     time.Duration
	atLeast  time.Duration
	maxHold  time.Duration
	skip     bool
	shared   bool
	slots    uint64
	conflict uint64 // the exit code if the lock is held
	noWait   bool   // do not wait for the command's children
	label    string
	verbose  bool

	key     string
	client  *dlock.Client
	signals chan os.Signal
	failure atomic.Pointer[error] // of the last renewal
	granted time.Duration         // on the machine's clock
	outage  time.Time             // since when the backend is out of reach; zero: it is not
	told    time.Time             // when that was said last
	mu      sync.Mutex            // of outage and told
}

// newJob declares the flags of "dlock run" and "dlock elect".
func newJob(c *call) *job {
	j := &job{call: c, wait: forever, conflict: exitHeld}
	c.withURL()
	c.duration(&j.ttl, "ttl")
	c.duration(&j.maxHold, "max-hold")
	c.flags.BoolVar(&j.noWait, "no-wait-children", false, "")
	c.flags.StringVar(&j.label, "label", "", "")
	c.flags.BoolVar(&j.verbose, "verbose", false, "")
	return j
}

func newRun(c *call) func() error {
	j := newJob(c)
	c.flags.Func("wait", "", func(s string) (err error) {
		if s == "forever" {
			j.wait = forever
		} else if j.wait, err = time.ParseDuration(s); err != nil || j.wait < 0 {
			return errors.New("must be 0, a duration such as 90s or 2h30m, or forever")
		}
		return nil
	})
	c.duration(&j.atLeast, "at-least")
	c.flags.BoolVar(&j.skip, "skip", false, "")
	c.number(&j.conflict, "conflict-exit-code", 0, 255)
	c.flags.BoolVar(&j.shared, "shared", false, "")
	c.number(&j.slots, "slots", 1, 1024)
	return j.run
}

func newElect(c *call) func() error {
	j := newJob(c)
	j.elect = true
	return j.run
}

// run takes the lock, runs the command, and releases the lock.
func (j *job) run() error {
	if err := j.checkFlags(); err != nil {
		return err
	}
	var err error
	if j.client, err = j.open(j.options()...); err != nil {
		return err
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
	if err := errors.Join(j.wantCommand(), j.exclusive("slots", "shared"), j.exclusive("skip", "conflict-exit-code")); err != nil {
		return err
	}
	j.key = j.args[0]
	if j.skip && j.given["wait"] && j.wait == forever {
		return failf(exitUsage, "--skip and --wait forever contradict each other: leave one out")
	}
	if j.skip && !j.given["wait"] {
		j.wait = 0
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
	return keys
}

// notify relays signals, except those that the parent process told dlock to ignore, as nohup does.
func notify(c chan os.Signal, signals []os.Signal) {
	for _, s := range signals {
		if !signal.Ignored(s) {
			signal.Notify(c, s)
		}
	}
}

func (j *job) options() []dlock.Option {
	o := []dlock.Option{dlock.WithHooks(j.hooks()), dlock.WithMinHold(j.atLeast), dlock.WithMaxHold(j.maxHold)}
	if j.given["ttl"] {
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
	if j.wait > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, j.wait)
		defer stop()
	}
	lock := j.client.Lock
	if j.wait == 0 {
		lock = j.client.TryLock
	}
	var lease *dlock.Lease
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		lease, err = lock(ctx, j.key)
		j.granted = machineNow()
	}()
	select {
	case <-done:
		return lease, j.notObtained(err)
	case s := <-j.signals:
		cancel()
		if <-done; lease != nil {
			_ = lease.Unlock() // it ends with its TTL at the latest
		}
		return nil, &exitError{code: exitSignal + number(s)}
	}
}

func (j *job) notObtained(err error) error {
	helps := waitingHelps(err)
	switch {
	case err == nil:
		return nil
	case j.skip && errors.Is(err, dlock.ErrHeld):
		j.verbosef("%v: skipped", err)
		return &exitError{code: 0}
	case errors.Is(err, dlock.ErrHeld):
		return failf(int(j.conflict), "%v: try again later, or wait longer (--wait)", err)
	}
	err = failure(err)
	if j.wait != forever && helps {
		return failf(exitUnavailable, "%v, or wait longer (--wait)", err)
	}
	return err
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
		j.lines.put(true, format, args...) // may be dropped if the reader of stderr is slow
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
	case j.wait != forever, !waitingHelps(e.Err):
	case j.outage.IsZero() || now.Sub(j.told) >= outageInterval:
		if j.told = now; j.outage.IsZero() {
			j.outage = now
		}
		j.printf("waits for the backend (%s), out of reach for %v: %v (ctrl-C or SIGTERM ends the wait, --wait 10m limits it)",
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

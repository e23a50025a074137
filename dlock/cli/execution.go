package cli

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/dsn"
)

// forceAfter is how long the supervisor may take to kill the command after a loss of the lease,
// before dlock itself kills it.
const forceAfter = 100 * time.Millisecond

// hold runs the command under the lease. again is true if the loss of the lease, and nothing
// else, ended the command.
func (j *job) hold(lease *dlock.Lease) (again bool, err error) {
	h := &execution{job: j, lease: lease}
	h.lock = h.descriptor()
	notify(j.signals, forwardedSignals)
	err = h.start()
	if err == nil {
		h.watch()
		h.term.takeBack()
		err = h.result()
	}
	if lost := h.giveBack(); lost && err == nil {
		err = &exitError{code: exitLost}
	}
	if h.last.Gone {
		h.guard.wait()
	}
	lost := h.lost != nil || h.last.Killed || h.last.Termed
	return lost && !h.ending && h.last.Survivors == "", err
}

// An execution is a lease and the command that runs under it.
type execution struct {
	*job
	lease  *dlock.Lease
	lock   *os.File // the lock's file, which the command inherits; nil: there is none
	guard  *guardProcess
	term   terminal
	last   report // of the supervisor
	lost   error  // why the lease ended; nil: it has not
	ending bool   // a signal that ends the command was passed on
}

func (h *execution) start() error {
	guard, err := newGuard(h.console)
	if err == nil {
		h.guard = guard
		if h.setDeadlines(); h.lock != nil {
			guard.times.keep.Store(int64(h.granted + h.atLeast))
		}
		err = guard.start(h.command, environment(os.Environ(), h.lease, h.slots > 0), h.lock, h.noWait)
	}
	if err != nil {
		h.guard = nil
		return failf(exitCannotRun, "the command cannot be started: %v", err)
	}
	return nil
}

// inheritable is a lease that lives as long as a descriptor is open: drivers/file's.
type inheritable interface {
	File() *os.File
	Detach() error
}

// descriptor returns the lock's file for the command to inherit: the key is free when the last
// process that has it has ended, even if dlock is killed.
func (h *execution) descriptor() (f *os.File) {
	_ = h.lease.Raw(func(l driver.Lease) error {
		if i, ok := l.(inheritable); ok {
			f = i.File()
		}
		return nil
	})
	return f
}

// watch waits until the command and the processes that it started have ended, and tells the guard
// of each renewal of the lease. Nothing in it waits for long: lines for stderr are written elsewhere.
func (h *execution) watch() {
	done := h.lease.Done()
	var force, renewals <-chan time.Time
	if ttl := h.client.TTL(); ttl != 0 {
		tick := time.NewTicker(ttl / 12)
		defer tick.Stop()
		renewals = tick.C
	}
	for {
		select {
		case r, ok := <-h.guard.reports:
			if !ok {
				h.guard.wait() // and kill what it left
				return
			}
			if h.handle(r); h.last.Gone {
				return
			}
		case <-done:
			done = nil
			h.lost = h.lease.Err()
			h.guard.send(syscall.SIGKILL)
			force = time.After(forceAfter)
		case <-renewals:
			h.setDeadlines()
		case <-force:
			force = nil
			h.guard.abandon()
		case s := <-h.signals:
			h.ending = h.ending || slices.Contains(endSignals, s)
			h.pass(s)
		}
	}
}

// handle acts on what is new in a report of the supervisor.
func (h *execution) handle(r report) {
	was := h.last
	h.last, h.guard.pid = r, r.Pid
	if r.Pid != was.Pid {
		h.verbosef("runs %s as process %d with token %d", commandName(h.command[0]), r.Pid, h.lease.Fence())
	}
	if r.Stopped != 0 {
		h.stopped(syscall.Signal(r.Stopped))
	}
	if r.Termed && !was.Termed {
		h.printf("%s: SIGTERM sent to the command", h.why())
	}
	if r.Ended && !was.Ended && !r.Gone {
		h.verbosef("the command has ended; keeps %q until the processes that it left behind have ended too", h.key)
	}
	if r.Left != was.Left {
		h.printf("the command has ended, and %q stays locked until what it left behind has ended too: %s (--no-wait-children does not wait)", h.key, r.Left)
	}
}

// why returns why the command is stopped.
func (h *execution) why() string {
	switch {
	case errors.Is(h.lost, dlock.ErrMaxHold):
		return fmt.Sprintf("--max-hold of %q is over", h.key)
	case h.lost != nil:
		return fmt.Sprintf("%q was lost: %s", h.key, strings.TrimPrefix(h.lost.Error(), "lease was lost: "))
	case h.maxHold != 0 && machineNow() >= h.granted+h.maxHold*3/4:
		return fmt.Sprintf("--max-hold of %q is nearly over", h.key)
	}
	cause := ""
	if err := h.failure.Load(); err != nil {
		cause = ": " + (*err).Error()
	}
	return fmt.Sprintf("the lease of %q is about to end, since it cannot be renewed (check the backend)%s", h.key, cause)
}

// setDeadlines sets the present end of the lease.
func (h *execution) setDeadlines() {
	now := machineNow() // before the lease looks at its clock: too early is safe
	if h.lease.Err() != nil {
		h.guard.times.set(1, 1)
		return
	}
	var end time.Duration
	if d, ok := h.lease.Deadline(); ok {
		end = now + time.Until(d)
	}
	h.guard.times.set(times(end, h.client.TTL(), h.granted, h.maxHold))
}

// times returns when the command must be stopped. Its lease ends at end by its TTL (zero:
// never), and maxHold after its grant (zero: never).
func times(end, ttl, granted, maxHold time.Duration) (term, kill time.Duration) {
	if end != 0 {
		term = end - max(ttl/4, time.Second)
		kill = end - max(ttl/20, 100*time.Millisecond)
	}
	if maxHold != 0 {
		limit := granted + maxHold
		term = earlier(term, limit-min(maxHold/4, time.Second))
		kill = earlier(kill, limit)
	}
	return term, kill
}

func earlier(a, b time.Duration) time.Duration {
	if a == 0 || b < a {
		return b
	}
	return a
}

// result is the outcome of the run, as an error.
func (h *execution) result() error {
	r := &h.last
	if r.Survivors != "" {
		h.printf("could not be killed: %s: end them before anything else runs under %q", r.Survivors, h.key)
	}
	switch {
	case h.lost != nil || r.Killed:
		return failf(exitLost, "%s: killed the command; check what it left undone", h.why())
	case r.Termed:
		return &exitError{code: exitLost} // reported when it happened
	case r.Failed != "":
		return failf(r.Code, "%s: %s", commandName(h.command[0]), r.Failed)
	case !r.Ended:
		return failf(exitSignal+9, "the guard process of the command was killed, and the command with it")
	case r.Signal != 0:
		return &exitError{code: exitSignal + r.Signal}
	case r.Code != 0:
		return &exitError{code: r.Code}
	}
	return nil
}

// giveBack releases the lock, and reports whether it had been lost.
func (h *execution) giveBack() (lost bool) {
	survivors := h.last.Survivors != ""
	if h.guard != nil && (survivors || !allSeen && !h.noWait) && h.detach() {
		return false
	}
	if survivors {
		return false // the lock stays until its TTL ends
	}
	if h.lost != nil || h.last.Killed {
		_ = h.lease.Unlock() // release what is left of the lock; the loss was reported
		return false
	}
	return h.release()
}

// release releases the lock. It reports a failure; the command's exit code stays, unless the
// lock was lost.
func (h *execution) release() (lost bool) {
	err := h.lease.Unlock()
	switch {
	case err == nil:
		h.verbosef("released %q", h.key)
	case errors.Is(err, dlock.ErrLost):
		h.printf("%v: something else may have run beside the command; check what it did", err)
		return true
	default:
		h.printf("%v: nobody else gets the lock until then", err)
	}
	return false
}

// detach leaves the lock to the processes that inherited its descriptor.
func (h *execution) detach() (ok bool) {
	if h.lock == nil {
		return false
	}
	h.lingerAtLeast()
	err := h.lease.Raw(func(l driver.Lease) error { return l.(inheritable).Detach() })
	if err != nil {
		h.printf("%v", err)
	}
	return true
}

// lingerAtLeast waits for the end of --at-least, or for a signal.
func (h *execution) lingerAtLeast() {
	select {
	case <-time.After(h.granted + h.atLeast - machineNow()):
	case <-h.signals:
	}
}

// The variables in the command's environment.
const (
	envKey      = "DLOCK_KEY"
	envKeys     = "DLOCK_KEYS" // of all dlock runs around it, escaped
	envFence    = "DLOCK_FENCE"
	envDeadline = "DLOCK_DEADLINE"
	envSlot     = "DLOCK_SLOT" // only with --slots
)

// environment returns the command's environment: that of dlock without the URL, and with the
// lease's data.
func environment(ours []string, lease *dlock.Lease, slots bool) []string {
	own := []string{envURL, envURLFile, envKey, envKeys, envFence, envDeadline, envSlot}
	env := slices.DeleteFunc(slices.Clone(ours), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.Contains(own, name)
	})
	var keys []string
	for _, key := range append(outerKeys(), lease.Key()) {
		keys = append(keys, url.QueryEscape(key))
	}
	env = append(env, envKey+"="+lease.Key(), envKeys+"="+strings.Join(keys, " "))
	if lease.Fence() != 0 {
		env = append(env, envFence+"="+number10(lease.Fence()))
	}
	if d, ok := lease.Deadline(); ok {
		env = append(env, envDeadline+"="+time.Now().Add(time.Until(d)).UTC().Format(time.RFC3339Nano))
	}
	if slots {
		env = append(env, envSlot+"="+strconv.Itoa(lease.Slot()))
	}
	return env
}

// commandName quotes a command's name, or hides it if it is a misplaced URL.
func commandName(s string) string {
	if strings.Contains(s, "@") && dsn.HasPassword(s) {
		return "the command"
	}
	return strconv.Quote(s)
}

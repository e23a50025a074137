package cli

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
)

// forceAfter is how long the supervisor has to kill the command, once the lease is lost,
// before we do it ourselves.
const forceAfter = 100 * time.Millisecond

// hold runs the command under the lease.
func (j *job) hold(lease *dlock.Lease) error {
	h := &execution{job: j, lease: lease}
	notify(j.signals, forwardedSignals)
	err := h.start()
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
	return err
}

// An execution is a lease and the command that runs under it.
type execution struct {
	*job
	lease  *dlock.Lease
	guard  *guardProcess
	term   terminal
	last   report // what the supervisor said, taken together
	lost   error  // why the lease ended; nil: it has not
	forced bool
}

func (h *execution) start() error {
	env := environment(os.Environ(), h.lease)
	var err error
	if h.guard, err = startGuard(h.console, h.command, env, h.descriptor()); err != nil {
		return failf(exitCannotRun, "the command cannot be started: %v", err)
	}
	h.sendTimes()
	return nil
}

// inheritable is a lease that lives as long as a descriptor is open: drivers/file's.
type inheritable interface {
	File() *os.File
	Detach() error
}

// descriptor returns the lock's own, for the command to inherit: the key is free when
// the last process that has it has ended, whatever becomes of us.
func (h *execution) descriptor() (f *os.File) {
	_ = h.lease.Raw(func(l driver.Lease) error {
		if i, ok := l.(inheritable); ok {
			f = i.File()
		}
		return nil
	})
	return f
}

// watch sees the command through, until nothing of it is left.
func (h *execution) watch() {
	done := h.lease.Done()
	var force <-chan time.Time
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
		case <-h.renewed:
			h.sendTimes()
		case <-done:
			done = nil
			h.lost = h.lease.Err()
			h.guard.send(order{End: true})
			force = time.After(forceAfter)
		case <-force:
			force = nil
			h.forced = true
			h.guard.abandon()
		case s := <-h.signals:
			h.pass(s)
		}
	}
}

// handle takes in what the supervisor says.
func (h *execution) handle(r report) {
	switch {
	case r.Pid != 0:
		h.last.Pid, h.guard.pid = r.Pid, r.Pid
		h.verbosef("runs %s as process %d with token %d", printable(h.command[0]), r.Pid, h.lease.Fence())
	case r.Stopped != 0:
		h.stopped(syscall.Signal(r.Stopped))
	case r.Termed:
		h.last.Termed = true
		h.printf("%s: SIGTERM sent to the command", h.why())
	case r.Killed:
		h.last.Killed = true
	case r.Ended:
		h.last.Ended, h.last.Code, h.last.Signal = true, r.Code, r.Signal
		if r.Left {
			h.verbosef("the command has ended; keeps %q until the processes that it left behind have, too", h.key)
		}
	case r.Failed != "":
		h.last.Failed, h.last.Code = r.Failed, r.Code
	case r.Gone:
		h.last.Gone = true
	case r.Survivors != "":
		h.last.Survivors = r.Survivors
	}
}

// why says why the command is stopped.
func (h *execution) why() string {
	if errors.Is(h.lost, dlock.ErrMaxHold) {
		return "--max-hold is over"
	}
	if h.lost != nil {
		return h.lost.Error()
	}
	if h.maxHold != 0 && machineNow() >= h.granted+time.Duration(h.maxHold)*3/4 {
		return "--max-hold is nearly over"
	}
	return "the lease of " + strconv.Quote(h.key) + " is about to end, since it cannot be renewed (check the backend)"
}

// sendTimes tells the supervisor when the lease ends, as of now.
func (h *execution) sendTimes() {
	now := machineNow() // before the lease looks at its clock: too early is safe
	if h.lease.Err() != nil {
		h.guard.send(order{End: true})
		return
	}
	var end time.Duration
	if d, ok := h.lease.Deadline(); ok {
		end = now + time.Until(d)
	}
	o := times(end, h.client.TTL(), h.granted, time.Duration(h.maxHold))
	h.guard.send(o)
}

// times returns when the command must be stopped, whose lease ends at end (zero: never)
// by its TTL, and maxHold (zero: never) after it was granted.
func times(end, ttl, granted, maxHold time.Duration) order {
	o := order{Times: true}
	if end != 0 {
		o.Term = end - max(ttl/4, time.Second)
		o.Kill = end - max(ttl/20, 100*time.Millisecond)
	}
	if maxHold != 0 {
		limit := granted + maxHold
		o.Term = earlier(o.Term, limit-min(maxHold/4, time.Second))
		o.Kill = earlier(o.Kill, limit)
	}
	return o
}

func earlier(a, b time.Duration) time.Duration {
	if a == 0 || b < a {
		return b
	}
	return a
}

// result is what the run comes to.
func (h *execution) result() error {
	r := &h.last
	if r.Survivors != "" {
		h.printf("could not be killed: %s: end them before anything else runs under %q", r.Survivors, h.key)
	}
	switch {
	case h.lost != nil || r.Killed:
		return failf(exitLost, "%s: killed the command; check what it left undone", h.why())
	case r.Termed:
		return &exitError{code: exitLost} // said when it happened
	case r.Failed != "":
		return failf(r.Code, "%s: %s", printable(h.command[0]), r.Failed)
	case !r.Ended:
		return failf(exitSignal+9, "the process that watched over the command was killed, and the command with it")
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
	if h.guard != nil && (survivors || !allSeen) && h.detach() {
		return false
	}
	if survivors {
		return false // the lock ends with its TTL, and no sooner
	}
	if h.lost != nil || h.last.Killed {
		_ = h.lease.Unlock() // to give back what may be left of it; the loss was told
		return false
	}
	return h.release(h.lease)
}

// detach leaves the lock to those who have inherited its descriptor.
func (h *execution) detach() (ok bool) {
	if h.descriptor() == nil {
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
	case <-time.After(h.granted + time.Duration(h.atLeast) - machineNow()):
	case <-h.signals:
	}
}

// environment is the command's: ours, without the URL, and with the lease's data.
func environment(ours []string, lease *dlock.Lease) []string {
	own := map[string]string{envURL: "", envURLFile: "", "DLOCK_KEY": lease.Key(), "DLOCK_FENCE": "", "DLOCK_DEADLINE": ""}
	if lease.Fence() != 0 {
		own["DLOCK_FENCE"] = strconv.FormatUint(lease.Fence(), 10)
	}
	if d, ok := lease.Deadline(); ok {
		own["DLOCK_DEADLINE"] = time.Now().Add(time.Until(d)).UTC().Format(time.RFC3339Nano)
	}
	var env []string
	for _, e := range ours {
		name, _, _ := strings.Cut(e, "=")
		if _, replaced := own[name]; !replaced {
			env = append(env, e)
		}
	}
	for _, name := range []string{"DLOCK_KEY", "DLOCK_FENCE", "DLOCK_DEADLINE"} {
		if own[name] != "" {
			env = append(env, name+"="+own[name])
		}
	}
	return env
}

// printable quotes a command's name, unless it is a misplaced URL.
func printable(s string) string {
	if strings.Contains(s, "@") && hasPassword(s) {
		return "the command"
	}
	return strconv.Quote(s)
}

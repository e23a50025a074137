//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// forwardedSignals are the signals that are passed on to the command, besides the endSignals.
var forwardedSignals = []os.Signal{
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT,
}

// A terminal is lent to the command when it asks for it: with a process group of its own it is
// a background job, which SIGTTIN or SIGTTOU stops when it reads from the terminal, or sets it.
// Until then the terminal stays with dlock's group, which may have the rest of a pipeline, or a
// script that needs ctrl-C.
type terminal struct {
	tty  *os.File
	lent int // the command's group; zero: not lent
}

func (t *terminal) open() bool {
	if t.tty == nil {
		t.tty, _ = os.OpenFile("/dev/tty", os.O_RDWR, 0)
	}
	return t.tty != nil
}

func (t *terminal) foreground() int {
	if !t.open() {
		return 0
	}
	group, err := unix.IoctlGetInt(int(t.tty.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

func (t *terminal) hand(group int) bool {
	// dlock itself may be in the background now. The command was started before, and does not
	// inherit this setting.
	signal.Ignore(syscall.SIGTTOU)
	return unix.IoctlSetPointerInt(int(t.tty.Fd()), unix.TIOCSPGRP, group) == nil
}

// lend makes group the terminal's foreground group, if dlock's group is.
func (t *terminal) lend(group int) bool {
	if t.foreground() != unix.Getpgrp() || !t.hand(group) {
		return false
	}
	t.lent = group
	return true
}

// takeBack makes dlock's group the foreground group again.
func (t *terminal) takeBack() {
	if t.lent != 0 && t.foreground() == t.lent {
		t.hand(unix.Getpgrp())
	}
	t.lent = 0
}

// pass passes a signal on to the command.
func (h *execution) pass(s os.Signal) {
	if s == syscall.SIGCONT {
		h.resume()
		return
	}
	h.guard.send(order(number(s)))
}

// stopped handles a command that was stopped. If it wants the terminal, it gets it. If the
// terminal stopped it, dlock's group stops as well, so that the shell sees that its job has
// stopped. After SIGSTOP dlock does nothing.
func (h *execution) stopped(s syscall.Signal) {
	wants := s == syscall.SIGTTIN || s == syscall.SIGTTOU
	switch {
	case s == syscall.SIGSTOP || !h.term.open():
	case wants && h.term.lend(h.last.Pid):
		h.guard.send(syscall.SIGCONT)
	case stoppable():
		_ = syscall.Kill(0, syscall.SIGSTOP) // after SIGCONT dlock resumes
	case s == syscall.SIGTSTP: // a terminal without a shell, where ctrl-Z does nothing
		h.guard.send(syscall.SIGCONT)
	}
}

// resume continues the command after dlock was continued. If the lease has ended meanwhile the
// command was killed.
func (h *execution) resume() {
	if h.lease.Err() != nil {
		return
	}
	if h.term.lent != 0 {
		h.term.lend(h.term.lent)
	}
	h.guard.send(syscall.SIGCONT)
}

// stoppable reports whether a shell can continue dlock's group after a stop: one of its
// processes has a parent in the same session and another group.
func stoppable() bool {
	group := unix.Getpgrp()
	session, err := unix.Getsid(0)
	if err != nil {
		return false
	}
	for pid := os.Getpid(); pid > 1; pid = parentOf(pid) {
		g, err := unix.Getpgid(pid)
		if err != nil {
			return false
		}
		if g == group {
			continue
		}
		s, err := unix.Getsid(pid)
		return err == nil && s == session
	}
	return false
}

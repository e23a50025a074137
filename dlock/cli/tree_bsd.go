//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package cli

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// allSeen is false: a process that left the command's group is not seen.
const allSeen = false

func becomeReaper()  {}
func setName(string) {}

func ownPath() (string, error) { return os.Executable() }

func commandAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// othersLeft reports whether the command's group still has processes. A process of another user
// does not count.
func (t *processTree) othersLeft() bool { return syscall.Kill(-t.pid, 0) == nil }

// orphan has nothing to do: processes that left the command's group are not seen.
func (t *processTree) orphan(syscall.Signal) {}

// deadlinesFile returns a file whose name is already removed.
func deadlinesFile() (*os.File, error) {
	f, err := os.CreateTemp("", "dlock-deadlines")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (t *processTree) names() string { return fmt.Sprintf("process group %d", t.pid) }

func signalRest(group int, s syscall.Signal) { _ = syscall.Kill(-group, s) }

// killAll kills the group, and returns the processes that it could not kill.
func killAll(group int) (left string) {
	if group == 0 {
		return ""
	}
	for end := time.Now().Add(killTimeout); time.Now().Before(end); time.Sleep(killInterval) {
		if syscall.Kill(-group, syscall.SIGKILL) != nil {
			return ""
		}
	}
	return fmt.Sprintf("process group %d", group)
}

// parentOf returns a process's parent, and 0 if it is not known.
func parentOf(pid int) int {
	if pid == os.Getpid() {
		return os.Getppid()
	}
	return 0
}

const clockID = unix.CLOCK_MONOTONIC

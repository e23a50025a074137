package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// allSeen is true: the guard sees the end of every process that the command started.
const allSeen = true

// becomeReaper makes this process the parent of every descendant whose own parent has ended.
func becomeReaper() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } // since Linux 3.4

// setName changes the process's name in lists of processes, for people.
func setName(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0) }

// ownPath names the running program, even if its file has been replaced since.
func ownPath() (string, error) {
	const self = "/proc/self/exe"
	if _, err := os.Stat(self); err == nil {
		return self, nil
	}
	return os.Executable()
}

// commandAttr makes the command die with the guard.
func commandAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// othersLeft reports whether processes are left that are not the guard's children.
func (t *processTree) othersLeft() bool { return false }

// orphan passes the signal that ended the command on to those it left behind in other groups.
func (t *processTree) orphan(ending syscall.Signal) {
	for _, pid := range living() {
		if group, err := unix.Getpgid(pid); err == nil && group != t.pid && ending != 0 {
			_ = syscall.Kill(pid, ending)
		}
	}
}

// deadlinesFile returns memory with a descriptor.
func deadlinesFile() (*os.File, error) {
	const name = "dlock-deadlines"
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC) // since Linux 3.17
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// names lists the processes that are left.
func (t *processTree) names() string {
	if pids := living(); len(pids) > 0 {
		return names(pids)
	}
	return "a process that left the command's group" // and there is no /proc to find it
}

// signalRest signals every descendant.
func signalRest(group int, s syscall.Signal) {
	pids, err := descendants()
	if err != nil { // no /proc
		_ = syscall.Kill(-group, s)
		return
	}
	for _, pid := range pids {
		_ = syscall.Kill(pid, s) // it may have ended
	}
}

// killAll kills every descendant until there is none, and returns those that could not be
// killed.
func killAll(group int) (left string) {
	for end := time.Now().Add(killTimeout); time.Now().Before(end); time.Sleep(killInterval) {
		signalRest(group, syscall.SIGKILL)
		if len(living()) == 0 {
			return ""
		}
	}
	return names(living())
}

func living() []int {
	pids, _ := descendants()
	return pids
}

func names(pids []int) string {
	var s []string
	for _, pid := range pids {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		s = append(s, fmt.Sprintf("process %d (%s)", pid, bytes.TrimSpace(comm)))
	}
	return strings.Join(s, ", ")
}

var errForeignProc = errors.New("/proc is of other processes")

// descendants returns the processes below this one that have not ended.
func descendants() ([]int, error) {
	self, err := os.Readlink("/proc/self")
	if err != nil {
		return nil, err
	}
	if self != strconv.Itoa(os.Getpid()) {
		return nil, errForeignProc
	}
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer d.Close() //nolint:errcheck // it was only read
	entries, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	ended := map[int]bool{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e)
		if err != nil {
			continue
		}
		if parent, state, ok := stat(pid); ok {
			children[parent] = append(children[parent], pid)
			ended[pid] = state == 'Z' || state == 'X'
		}
	}
	var all []int
	for next := children[os.Getpid()]; len(next) > 0; {
		pid := next[0]
		next = append(next[1:], children[pid]...)
		if !ended[pid] {
			all = append(all, pid)
		}
	}
	return all, nil
}

// stat reads the parent and the state of a process. Its name, which stands before them
// in parentheses, may contain anything.
func stat(pid int) (parent int, state byte, ok bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, false
	}
	_, rest, ok := bytes.Cut(b[max(bytes.LastIndexByte(b, ')'), 0):], []byte(" "))
	fields := bytes.Fields(rest)
	if !ok || len(fields) < 2 {
		return 0, 0, false
	}
	parent, err = strconv.Atoi(string(fields[1]))
	return parent, fields[0][0], err == nil
}

// parentOf returns a process's parent, and 0 if it is not known.
func parentOf(pid int) int {
	parent, _, _ := stat(pid)
	return parent
}

const clockID = unix.CLOCK_BOOTTIME

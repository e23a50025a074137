//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// guardName is the guard's name in a list of processes. A program that is started under this
// name is a guard.
const guardName = "dlock-guard"

// Descriptors that the guard and the command inherit are at least this number, so that they do
// not collide with those that dlock's caller opened for the command.
const leastDescriptor = 100

// copyDelay bounds how long streams other than files are copied after the guard's end.
const copyDelay = time.Second

func isGuard(args []string) bool { return len(args) > 2 && args[0] == guardName }

// A guardSetup is the guard's first argument; the command follows. Its descriptors are the
// pipes, the file of the deadlines, and the lock's file if the command does not inherit it.
type guardSetup struct {
	Orders, Reports, Deadlines int
	Lock                       int  `json:",omitempty"`
	NoWait                     bool `json:",omitempty"`
}

// guard is the main of the guard. On Linux every process that the command starts becomes the
// guard's child when its own parent ends, so that none escapes.
//
// The guard ignores signals, so that a signal to dlock and the guard reaches the command only
// once, through dlock.
func guard(args []string) int {
	runtime.LockOSThread() // the command dies with the thread that starts it
	var setup guardSetup
	times, err := setup.read(args[1])
	if err != nil {
		fmt.Fprintf(os.Stderr, "dlock: only dlock run starts %s: %v\n", guardName, err)
		return exitUsage
	}
	becomeReaper()
	setName(guardName)
	notify(make(chan os.Signal, 1), append([]os.Signal{syscall.SIGPIPE, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM}, endSignals...))

	orders := make(chan order)
	go readOrders(os.NewFile(uintptr(setup.Orders), "orders"), orders)
	reports := json.NewEncoder(os.NewFile(uintptr(setup.Reports), "reports"))
	s := &supervisor{
		say:    func(r report) { _ = reports.Encode(r) }, // if dlock has ended, orders is closed
		times:  times,
		noWait: setup.NoWait,
	}
	if dlockEnded := s.run(args[2:], os.Environ(), orders); dlockEnded {
		keepLock(times)
	}
	return 0
}

func (g *guardSetup) read(arg string) (*deadlines, error) {
	if err := json.Unmarshal([]byte(arg), g); err != nil {
		return nil, err
	}
	for _, fd := range []int{g.Orders, g.Reports, g.Deadlines, g.Lock} {
		if fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
	return mapDeadlines(g.Deadlines)
}

const deadlinesName = "dlock-deadlines"

// temporaryFile returns a file whose name is already removed.
func temporaryFile() (*os.File, error) {
	f, err := os.CreateTemp("", deadlinesName)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// mapDeadlines maps the memory that dlock and the guard share.
func mapDeadlines(fd int) (*deadlines, error) {
	page, err := unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return (*deadlines)(unsafe.Pointer(&page[0])), nil
}

// keepLock keeps the lock's descriptor, which the guard inherited, open until --at-least is
// over or a signal comes.
func keepLock(times *deadlines) {
	signal.Reset()
	if left := time.Duration(times.keep.Load()) - machineNow(); left > 0 {
		time.Sleep(left)
	}
}

func readOrders(f *os.File, orders chan<- order) {
	defer close(orders)
	for d := json.NewDecoder(f); ; {
		var o order
		if d.Decode(&o) != nil {
			return
		}
		orders <- o
	}
}

// A guardProcess is dlock's side of the guard.
type guardProcess struct {
	*console
	times   *deadlines
	reports <-chan report // closed when the guard has ended
	orders  chan order
	file    *os.File // of the deadlines
	cmd     *exec.Cmd
	pid     int // of the command, once it is known
}

// newGuard makes a guard. Set its deadlines before starting it.
func newGuard(c *console) (*guardProcess, error) {
	f, err := deadlinesFile()
	if err != nil {
		return nil, err
	}
	if err = f.Truncate(int64(os.Getpagesize())); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	times, err := mapDeadlines(int(f.Fd()))
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &guardProcess{console: c, times: times, file: f, orders: make(chan order, 64)}, nil
}

// start starts the guard, which starts the command. Both inherit lock if it is not nil; with
// noWait only the guard does.
func (w *guardProcess) start(argv, env []string, lock *os.File, noWait bool) error {
	becomeReaper() // if the guard is killed, its children become ours
	theirOrders, orders, err := os.Pipe()
	if err != nil {
		return err
	}
	reports, theirReports, err := os.Pipe()
	if err != nil {
		return errors.Join(err, theirOrders.Close(), orders.Close())
	}
	err = w.startWith(argv, env, theirOrders, theirReports, lock, noWait)
	err = errors.Join(err, theirOrders.Close(), theirReports.Close(), w.file.Close())
	if err != nil {
		return errors.Join(err, orders.Close(), reports.Close())
	}
	go writeOrders(orders, w.orders)
	w.reports = readReports(reports)
	return nil
}

func (w *guardProcess) startWith(argv, env []string, orders, reports, lock *os.File, noWait bool) error {
	setup := guardSetup{NoWait: noWait}
	var locks int
	for fd, f := range map[*int]*os.File{&setup.Orders: orders, &setup.Reports: reports, &setup.Deadlines: w.file, &locks: lock} {
		if f == nil {
			continue
		}
		var err error
		if *fd, err = copyDescriptor(f); err != nil {
			return err
		}
		defer syscall.Close(*fd) //nolint:errcheck // a copy
	}
	if noWait {
		setup.Lock = locks
	}
	arg, err := json.Marshal(setup)
	if err != nil {
		return err
	}
	path, err := ownPath()
	if err != nil {
		return err
	}
	w.cmd = &exec.Cmd{
		Path:        path,
		Args:        append([]string{guardName, string(arg)}, argv...),
		Env:         env,
		Stdin:       w.stdin,
		Stdout:      w.stdout,
		Stderr:      w.stderr,
		WaitDelay:   copyDelay,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true}, // the terminal's signals do not reach it
	}
	return w.cmd.Start()
}

// copyDescriptor returns a copy of f's descriptor that a new process inherits.
func copyDescriptor(f *os.File) (fd int, err error) {
	for _, least := range []int{leastDescriptor, 10} { // the limit may be lower
		if fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD, least); err == nil {
			return fd, nil
		}
	}
	return 0, os.NewSyscallError("fcntl", err)
}

func readReports(f *os.File) <-chan report {
	c := make(chan report)
	go func() {
		defer close(c)
		defer f.Close() //nolint:errcheck // it was only read
		for d := json.NewDecoder(f); ; {
			var r report
			if d.Decode(&r) != nil {
				return
			}
			c <- r
		}
	}()
	return c
}

// send sends an order and never blocks. It drops the order if the queue is full, because the
// guard has been stopped for long.
func (w *guardProcess) send(o order) {
	select {
	case w.orders <- o:
	default:
	}
}

// writeOrders writes orders to the guard, and waits as long as that takes.
func writeOrders(f *os.File, orders <-chan order) {
	defer f.Close() //nolint:errcheck // the guard has ended
	e := json.NewEncoder(f)
	for o := range orders {
		_ = e.Encode(o) // an error: it has ended
	}
}

// wait waits for the guard's end. If it was killed, its command and all children are killed too.
func (w *guardProcess) wait() {
	_ = w.cmd.Wait() // the state tells
	if !w.cmd.ProcessState.Success() {
		w.killAll()
	}
	close(w.orders)
}

// abandon kills the guard, the command and all its children.
func (w *guardProcess) abandon() {
	_ = w.cmd.Process.Kill() // it may have ended
	w.killAll()
}

// killAll kills the command and all its children.
func (w *guardProcess) killAll() {
	if left := killAll(w.pid); left != "" {
		w.printf("could not be killed: %s: end them before anything else runs under this key", left)
	}
}

// processTree is the command and all processes that it started.
type processTree struct {
	pid     int // the command's, and its group's
	ended   bool
	changed chan os.Signal
}

// startTree starts the command, in a process group of its own.
func startTree(_ *console, argv, env []string) (*processTree, *exitError) {
	path, failed := find(argv[0])
	if failed != nil {
		return nil, failed
	}
	f := &processTree{changed: make(chan os.Signal, 1)}
	signal.Notify(f.changed, syscall.SIGCHLD)
	var err error
	f.pid, err = syscall.ForkExec(path, argv, &syscall.ProcAttr{
		Env:   env,
		Files: []uintptr{0, 1, 2},
		Sys:   commandAttr(),
	})
	switch {
	case errors.Is(err, syscall.ENOENT):
		return nil, &exitError{exitNotFound, "not found (or its interpreter)"}
	case errors.Is(err, syscall.ENOEXEC):
		return nil, &exitError{exitCannotRun, "is no program: begin a script with #!/bin/sh, for example"}
	case err != nil:
		return nil, &exitError{exitCannotRun, err.Error()}
	}
	return f, nil
}

// find looks up a command as a shell does.
func find(name string) (string, *exitError) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot):
		return path, nil
	case errors.Is(err, os.ErrPermission):
		return "", &exitError{exitCannotRun, "is not executable (chmod +x it)"}
	case strings.Contains(name, "/") && !errors.Is(err, os.ErrNotExist):
		return "", &exitError{exitCannotRun, errors.Unwrap(err).Error()}
	}
	return "", &exitError{exitNotFound, "not found"}
}

// signal passes a signal on to the command's group, or if the command has ended, to the
// processes that it left behind.
func (t *processTree) signal(s syscall.Signal) {
	if t.ended {
		signalRest(t.pid, s)
		return
	}
	if syscall.Kill(-t.pid, s) != nil {
		_ = syscall.Kill(t.pid, s) // it has left its group, or this user may not signal it
	}
}

// hangUp ends a stopped process that no shell can continue any more. Without a guard as its
// parent, the kernel would do so.
func hangUp(pid int) {
	_ = syscall.Kill(pid, syscall.SIGHUP)
	_ = syscall.Kill(pid, syscall.SIGCONT)
}

// kill sends SIGKILL to all processes that are there now. The caller repeats it until there are
// none.
func (t *processTree) kill() {
	if !t.ended {
		_ = syscall.Kill(-t.pid, syscall.SIGKILL)
	}
	signalRest(t.pid, syscall.SIGKILL)
}

// collect reaps the children that ended and reports whether any process is left.
func (t *processTree) collect(say func(report)) (left bool) {
	var end *report
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG|syscall.WUNTRACED, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid == 0 {
			left = err == nil || t.othersLeft()
			break
		}
		switch {
		case pid != t.pid:
			if s := ws.StopSignal(); t.ended && (s == syscall.SIGTSTP || s == syscall.SIGTTIN || s == syscall.SIGTTOU) {
				hangUp(pid)
			}
		case ws.Stopped():
			say(report{Stopped: int(ws.StopSignal())})
		case ws.Exited():
			t.ended, end = true, &report{Ended: true, Code: ws.ExitStatus()}
		case ws.Signaled():
			t.ended, end = true, &report{Ended: true, Signal: int(ws.Signal())}
		}
	}
	if end != nil {
		end.Waits = left
		say(*end)
	}
	return left
}

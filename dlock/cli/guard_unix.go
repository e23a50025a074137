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

// A guardSetup is the guard's first argument, as fmt prints its fields; the command follows. Its
// descriptors are the pipes, the file of the deadlines, and the lock's file, or 0.
type guardSetup struct {
	orders, reports, deadlines, lock int
	noWait                           bool // the command does not inherit the lock, nor is it waited for
}

// guard is the main of the guard. On Linux every process that the command starts becomes the
// guard's child when its own parent ends, so that none escapes.
//
// The guard ignores signals, so that a signal to dlock and the guard reaches the command only
// once, through dlock.
func guard(args []string) int {
	runtime.LockOSThread() // the command dies with the thread that starts it
	setup, times, err := readSetup(args[1])
	if err != nil {
		fmt.Fprintf(os.Stderr, "dlock: only dlock run starts %s: %v\n", guardName, err)
		return exitUsage
	}
	becomeReaper()
	setName(guardName)
	notify(make(chan os.Signal, 1), append([]os.Signal{syscall.SIGPIPE, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM}, endSignals...))

	orders := make(chan order)
	go readOrders(os.NewFile(uintptr(setup.orders), "orders"), orders)
	reports := json.NewEncoder(os.NewFile(uintptr(setup.reports), "reports"))
	s := &supervisor{
		say:    func(r report) { _ = reports.Encode(r) }, // if dlock has ended, orders is closed
		times:  times,
		noWait: setup.noWait,
	}
	if dlockEnded := s.run(args[2:], os.Environ(), orders); dlockEnded {
		keepLock(times)
	}
	return 0
}

func readSetup(arg string) (g guardSetup, times *deadlines, err error) {
	if _, err := fmt.Sscan(arg, &g.orders, &g.reports, &g.deadlines, &g.lock, &g.noWait); err != nil {
		return g, nil, err
	}
	for _, fd := range []int{g.orders, g.reports, g.deadlines, g.lock} {
		if fd > 2 && (fd != g.lock || g.noWait) {
			syscall.CloseOnExec(fd)
		}
	}
	times, err = mapDeadlines(g.deadlines)
	return g, times, err
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

// readOrders reads orders, a byte each.
func readOrders(f *os.File, orders chan<- order) {
	defer close(orders)
	for b := make([]byte, 1); ; {
		if _, err := f.Read(b); err != nil {
			return
		}
		orders <- order(b[0])
	}
}

// A guardProcess is dlock's side of the guard.
type guardProcess struct {
	*console
	times   *deadlines
	reports <-chan report // closed when the guard has ended
	orders  *os.File
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
	w := &guardProcess{console: c, file: f}
	if err = f.Truncate(int64(os.Getpagesize())); err == nil {
		w.times, err = mapDeadlines(int(f.Fd()))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return w, nil
}

// start starts the guard, which starts the command. Both inherit lock if it is not nil; with
// noWait only the guard does.
func (w *guardProcess) start(argv, env []string, lock *os.File, noWait bool) (err error) {
	becomeReaper() // if the guard is killed, its children become ours
	var theirs [2]*os.File
	var reports *os.File
	if theirs[0], w.orders, err = os.Pipe(); err != nil {
		return err
	}
	if reports, theirs[1], err = os.Pipe(); err == nil {
		err = w.startWith(argv, env, theirs[0], theirs[1], lock, noWait)
	}
	_ = errors.Join(theirs[0].Close(), theirs[1].Close(), w.file.Close()) // the guard has copies
	if err != nil {
		_ = errors.Join(w.orders.Close(), reports.Close())
		return err
	}
	w.reports = readReports(reports)
	return nil
}

func (w *guardProcess) startWith(argv, env []string, orders, reports, lock *os.File, noWait bool) error {
	var fds [4]int
	for i, f := range []*os.File{orders, reports, w.file, lock} {
		if f == nil {
			continue
		}
		var err error
		if fds[i], err = copyDescriptor(f); err != nil {
			return err
		}
		defer syscall.Close(fds[i]) //nolint:errcheck // a copy
	}
	path, err := ownPath()
	if err != nil {
		return err
	}
	w.cmd = &exec.Cmd{
		Path:        path,
		Args:        append([]string{guardName, fmt.Sprint(fds[0], fds[1], fds[2], fds[3], noWait)}, argv...),
		Env:         env,
		Stdin:       w.stdin,
		Stdout:      w.out.inherited(),
		Stderr:      w.err.inherited(),
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

// send sends an order, and never waits. It drops the order if the pipe is full, because the guard
// has been stopped for long. (A deadline would drop it on a machine that stands still for a moment.)
func (w *guardProcess) send(o order) {
	c, err := w.orders.SyscallConn()
	if err != nil {
		return // it was closed
	}
	_ = c.Write(func(fd uintptr) (done bool) {
		_, _ = syscall.Write(int(fd), []byte{byte(o)}) // an error: it has ended, or the pipe is full
		return true
	})
}

// wait waits for the guard's end. If it was killed, its command and all children are killed too.
func (w *guardProcess) wait() {
	_ = w.cmd.Wait() // the state tells
	if !w.cmd.ProcessState.Success() {
		w.killAll()
	}
	_ = w.orders.Close() // the guard has ended
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
	t := &processTree{changed: make(chan os.Signal, 1)}
	signal.Notify(t.changed, syscall.SIGCHLD)
	path, err := exec.LookPath(argv[0])
	if err == nil || errors.Is(err, exec.ErrDot) { // as a shell does
		t.pid, err = syscall.ForkExec(path, argv, &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}, Sys: commandAttr()})
	}
	var named *exec.Error
	switch {
	case err == nil:
		return t, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		return nil, &exitError{exitNotFound, "not found (or its interpreter)"}
	case errors.As(err, &named):
		err = named.Err // the line names the command
	}
	return nil, &exitError{exitCannotRun, "cannot be executed: " + err.Error()}
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

// kill sends SIGKILL to all processes that are there now. The caller repeats it until there are
// none.
func (t *processTree) kill() {
	if !t.ended {
		_ = syscall.Kill(-t.pid, syscall.SIGKILL)
	}
	signalRest(t.pid, syscall.SIGKILL)
}

// collect reaps the children that ended, notes in r what became of the command, and reports
// whether any process is left.
func (t *processTree) collect(r *report) (left bool) {
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
		case ws.Stopped():
			r.Stopped = int(ws.StopSignal())
		case ws.Exited():
			t.ended, r.Code = true, ws.ExitStatus()
		case ws.Signaled():
			t.ended, r.Signal = true, int(ws.Signal())
		}
	}
	if t.ended && !r.Ended {
		r.Ended, r.Stopped = true, 0
	}
	return left
}

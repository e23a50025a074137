//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Here the supervisor is a goroutine, and kills only the command: processes that the command
// has started go on, and the command itself goes on if dlock is killed.

const allSeen = false

func isGuard([]string) bool { return false }
func guard([]string) int    { return exitUsage }

// forwardedSignals is empty: ctrl-C reaches the command through the console that it shares with
// dlock.
var forwardedSignals []os.Signal

var began = time.Now()

// machineNow returns a time that is never zero.
func machineNow() time.Duration { return time.Since(began) + 1 }

type terminal struct{}

func (terminal) takeBack()                  {}
func (h *execution) pass(os.Signal)         {}
func (h *execution) stopped(syscall.Signal) {}

// A guardProcess is dlock's side of the supervisor.
type guardProcess struct {
	*console
	times   *deadlines
	reports chan report
	orders  chan order
	pid     int
}

func newGuard(c *console) (*guardProcess, error) {
	return &guardProcess{console: c, times: new(deadlines), reports: make(chan report, 16), orders: make(chan order, 16)}, nil
}

func (w *guardProcess) start(argv, env []string, _ *os.File, noWait bool) error {
	go func() {
		defer close(w.reports)
		s := &supervisor{console: w.console, times: w.times, noWait: noWait, say: func(r report) { w.reports <- r }}
		s.run(argv, env, w.orders)
	}()
	return nil
}

func (w *guardProcess) send(o order) {
	select {
	case w.orders <- o:
	default: // it has ended
	}
}

func (w *guardProcess) wait()    {}
func (w *guardProcess) abandon() {}

// processTree is the command.
type processTree struct {
	pid     int
	process *os.Process
	changed chan struct{}
	code    int
	ended   bool
}

func startTree(c *console, argv, env []string) (*processTree, *exitError) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, c.stdin, c.out.inherited(), c.err.inherited()
	err := cmd.Start()
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		return nil, &exitError{exitNotFound, "not found"}
	case err != nil:
		return nil, &exitError{exitCannotRun, err.Error()}
	}
	f := &processTree{pid: cmd.Process.Pid, process: cmd.Process, changed: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // the state has it
		f.code = cmd.ProcessState.ExitCode()
		close(f.changed)
	}()
	return f, nil
}

// signal does nothing: the only signal here is kill, and callers send others.
func (t *processTree) signal(syscall.Signal) {}

func (t *processTree) kill() { _ = t.process.Kill() } // it may have ended

func (t *processTree) collect(r *report) (left bool) {
	select {
	case <-t.changed:
		t.ended, r.Ended, r.Code = true, true, t.code
		return false
	default:
		return true
	}
}

func (t *processTree) orphan(syscall.Signal) {}
func (t *processTree) names() string         { return fmt.Sprintf("process %d", t.pid) }

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

// Here the warden is a goroutine, and kills the command alone: what that has started
// goes on, and the command itself goes on if we are killed.

const allSeen = false

func isGuard([]string) bool { return false }
func guard([]string) int    { return exitUsage }

// forwarded is empty: ctrl-C reaches the command through the console that we share.
var forwarded []os.Signal

var began = time.Now()

// machineNow is never zero.
func machineNow() time.Duration { return time.Since(began) + 1 }

type terminal struct{}

func (terminal) takeBack()                {}
func (h *holding) pass(os.Signal)         {}
func (h *holding) stopped(syscall.Signal) {}

// A ward is our side of the warden.
type ward struct {
	reports chan report
	orders  chan order
	pid     int
}

func startWard(c *console, argv, env []string, _ *os.File) (*ward, error) {
	w := &ward{reports: make(chan report, 16), orders: make(chan order, 16)}
	go func() {
		defer close(w.reports)
		warden := &warden{console: c, say: func(r report) { w.reports <- r }}
		warden.run(argv, env, w.orders)
	}()
	return w, nil
}

func (w *ward) send(o order) {
	select {
	case w.orders <- o:
	default: // it has ended
	}
}

func (w *ward) wait()    {}
func (w *ward) abandon() {}

// family is the command.
type family struct {
	pid     int
	process *os.Process
	changed chan struct{}
	end     *report
	told    bool
}

func startFamily(c *console, argv, env []string) (*family, *failure) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, c.stdin, c.stdout, c.stderr
	err := cmd.Start()
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		return nil, &failure{exitNotFound, "not found"}
	case err != nil:
		return nil, &failure{exitCannotRun, err.Error()}
	}
	f := &family{pid: cmd.Process.Pid, process: cmd.Process, changed: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // the state tells
		f.end = &report{Ended: true, Code: cmd.ProcessState.ExitCode()}
		close(f.changed)
	}()
	return f, nil
}

// signal can do nothing but kill here, which is not what is asked for.
func (f *family) signal(syscall.Signal) {}

func (f *family) kill() { _ = f.process.Kill() } // it may have ended

func (f *family) collect(say func(report)) (left bool) {
	select {
	case <-f.changed:
		say(*f.end)
		return false
	default:
		return true
	}
}

func (f *family) polled() bool  { return false }
func (f *family) names() string { return fmt.Sprintf("process %d", f.pid) }

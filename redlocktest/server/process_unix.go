//go:build unix

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// A process is one run of a server. All but run is called with the Server's lock
// held.
type process struct {
	cmd    *exec.Cmd
	pid    int
	guard  *guardian
	paused []int         // the descendants that are stopped with it
	done   chan struct{} // closed when it has ended and was reaped
	err    error         // how it ended; to be read after done
}

// holdBack is a shell script that starts the program when it reads a line. The line is sent
// when the guardian knows the process. If none comes, this process has died and the program
// never starts.
const holdBack = `read -r go && exec "$@" </dev/null`

// startProcess starts argv in dir, with its output appended to the log.
func startProcess(guard *guardian, kind Kind, argv []string, dir, log string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close() //nolint:errcheck // the child has its own copy
	cmd := exec.Command("/bin/sh", append([]string{"-c", holdBack, "sh"}, argv...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, out
	// A group of its own, so that an interrupt from the terminal reaches only the test.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if cmd.SysProcAttr.Credential, err = credential(kind); err != nil {
		return nil, err
	}
	gate, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, guard: guard, done: make(chan struct{})}
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, errors.Join(err, gate.Close())
	}
	p.pid = cmd.Process.Pid
	err = guard.add(p.pid)
	if err == nil {
		_, err = io.WriteString(gate, "go\n")
	}
	if err != nil {
		return nil, errors.Join(err, gate.Close(), p.kill())
	}
	return p, nil
}

// run starts the process and waits for its end.
func (p *process) run(started chan<- error) {
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	if p.err = p.cmd.Wait(); p.err == nil {
		p.err = errors.New("exit status 0")
	}
	// Until here no other process can have the id, because the zombie keeps it.
	p.guard.drop(p.cmd.Process.Pid)
	close(p.done)
}

func (p *process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// wait returns when the process has ended, or with an error after the timeout.
func (p *process) wait(timeout time.Duration) error {
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case <-p.done:
		return nil
	case <-t.C:
		return fmt.Errorf("process %d has not ended after %v", p.pid, timeout)
	}
}

// pause stops the process and its descendants, parents first, so that it misses no new child.
func (p *process) pause() error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	if err := p.awaitStopped(); err != nil {
		return err
	}
	for _, pid := range descendants(p.pid) {
		// Tell the guardian, because a stopped process does not notice that its parent died.
		if err := p.guard.add(pid); err != nil {
			return err
		}
		p.paused = append(p.paused, pid)
		_ = syscall.Kill(pid, syscall.SIGSTOP) // it may have ended by itself
	}
	return nil
}

// awaitStopped returns once the process is stopped: the signal takes effect a moment
// after it was sent, and until then the server may still answer.
func (p *process) awaitStopped() error {
	for deadline := time.Now().Add(stopTimeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		switch stopped, err := isStopped(p.pid); {
		case err != nil:
			return err
		case stopped:
			return nil
		}
	}
	return fmt.Errorf("process %d does not stop", p.pid)
}

// resume lets the process and its descendants go on.
func (p *process) resume() error {
	for _, pid := range p.paused {
		_ = syscall.Kill(pid, syscall.SIGCONT) // it may have been killed
		p.guard.drop(pid)
	}
	p.paused = nil
	return p.signal(syscall.SIGCONT)
}

// kill ends the process and its descendants at once, as a crash of the machine does, and waits
// until they have ended.
func (p *process) kill() error {
	// Stop it first, so that it neither reacts to its children's end nor starts more.
	err := p.signal(syscall.SIGSTOP)
	_ = p.awaitStopped() // it may have ended
	all := append(descendants(p.pid), p.paused...)
	err = errors.Join(err, p.signal(syscall.SIGKILL))
	for _, pid := range all {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended with its parent
	}
	err = errors.Join(err, p.wait(stopTimeout))
	for _, pid := range p.paused {
		p.guard.drop(pid)
	}
	p.paused = nil
	awaitGone(all)
	return err
}

// awaitGone waits until orphans are reaped, for a bounded time, because another process reaps
// them.
func awaitGone(pids []int) {
	deadline := time.Now().Add(5 * time.Second)
	for _, pid := range pids {
		for alive(pid) && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
	}
}

// end kills the process, and gives it time if it must clean up: otherwise postgres leaves
// shared memory behind.
func (p *process) end(gently bool) error {
	if !gently {
		return p.kill()
	}
	if err := errors.Join(p.resume(), p.signal(syscall.SIGQUIT)); err != nil {
		return err
	}
	if p.wait(stopTimeout) == nil {
		return nil
	}
	return p.kill()
}

// A guardian is a shell that outlives this process by a moment: at the end of its standard
// input it kills the processes on its list, and removes a folder.
type guardian struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
}

// watch is the guardian's program. Its arguments are the first signal to send, and the folder
// to remove. It ignores the signals of a terminal.
const watch = `trap "" HUP INT QUIT TERM
pids=
while read -r verb pid; do
	case $verb in
	add) pids="$pids $pid" ;;
	drop)
		kept=
		for p in $pids; do [ "$p" = "$pid" ] || kept="$kept $p"; done
		pids=$kept ;;
	esac
done
if [ -n "$pids" ] && [ "$1" != KILL ]; then
	kill -s CONT $pids
	kill -s "$1" $pids
	for try in 1 2 3 4 5 6 7 8 9 10; do
		left=
		for p in $pids; do ! kill -0 "$p" || left=1; done
		[ -n "$left" ] || break
		sleep 0.2
	done
fi
[ -z "$pids" ] || kill -s KILL $pids
for try in 1 2 3 4 5 6 7 8 9 10; do
	[ -z "$2" ] || rm -rf -- "$2" && break
	sleep 0.2
done`

// newGuardian starts a guardian that removes a folder, if it is given one.
func newGuardian(folder string, gently bool) (*guardian, error) {
	first := "KILL"
	if gently {
		first = "QUIT"
	}
	cmd := exec.Command("/bin/sh", "-c", watch, "sh", first, folder)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, pipe.Close())
	}
	return &guardian{cmd: cmd, pipe: pipe}, nil
}

// add gives the guardian another process to kill.
func (g *guardian) add(pid int) error {
	_, err := fmt.Fprintf(g.pipe, "add %d\n", pid)
	return err
}

// drop takes a process that has ended off the guardian's list: its id may be another's by now.
func (g *guardian) drop(pid int) {
	// An error means that the guardian has ended.
	_, _ = fmt.Fprintf(g.pipe, "drop %d\n", pid)
}

// close lets the guardian do its work, and returns when it has finished.
func (g *guardian) close() error {
	if err := g.pipe.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return g.cmd.Wait()
}

// alive reports whether a process is there and no zombie.
func alive(pid int) bool {
	return syscall.Kill(pid, 0) == nil && !isZombie(pid)
}

// asRoot reports whether this process is root and the kind of server refuses to run as root.
func asRoot(kind Kind) bool {
	return os.Geteuid() == 0 && (kind == KindPostgres || kind == KindPgBouncer)
}

// credential returns the user that runs a server; nil: this process's user.
func credential(kind Kind) (*syscall.Credential, error) {
	if !asRoot(kind) {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		u, err = user.Lookup("nobody")
	}
	if err != nil {
		return nil, fmt.Errorf("%s refuses to run as root: %w", kind, err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// giveAway makes the user that runs the server the owner of a folder and its contents.
func giveAway(dir string, kind Kind) error {
	who, err := credential(kind)
	if who == nil || err != nil {
		return err
	}
	return filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(who.Uid), int(who.Gid))
	})
}

// stopSignal asks a server to end in order.
func (p *process) stopSignal(kind Kind) error {
	if kind == KindPostgres || kind == KindPgBouncer {
		return p.signal(syscall.SIGINT) // postgres: without waiting for its clients
	}
	return p.signal(syscall.SIGTERM)
}

// descendants returns the descendants of a process, parents first.
func descendants(pid int) []int {
	children := childrenOf()
	found := []int{pid}
	for i := 0; i < len(found); i++ {
		found = append(found, children(found[i])...)
	}
	return found[1:]
}

// byParent returns a function that returns a process's children, by the parent of every process.
func byParent(parents map[int]int) func(int) []int {
	return func(pid int) (children []int) {
		for child, parent := range parents {
			if parent == pid {
				children = append(children, child)
			}
		}
		return children
	}
}

// runner returns the id of the user that runs a kind of server.
func runner(kind Kind) (string, error) {
	who, err := credential(kind)
	if err != nil {
		return "", err
	}
	if who == nil {
		return strconv.Itoa(os.Geteuid()), nil
	}
	return strconv.FormatUint(uint64(who.Uid), 10), nil
}

// ownedBy reports whether path is a folder that belongs to that user and that no other user can
// enter.
func ownedBy(path, uid string) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() || info.Mode().Perm() != 0o700 {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && strconv.FormatUint(uint64(st.Uid), 10) == uid
}

// runAs runs a program to its end, as the user that runs that kind of server.
func runAs(kind Kind, dir string, argv ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	var err error
	if cmd.SysProcAttr.Credential, err = credential(kind); err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(argv[0]), err, out)
	}
	return nil
}

//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

// leaving is a command that leaves a process behind: outside its process group, if dlock can
// see such processes.
const leaving = `$away sh -c 'echo $$ > far; while [ -e far ] && [ ! -e go ]; do sleep 0.1; done' > far-out 2>&1 & while [ ! -e far ]; do sleep 0.02; done; exit 7`

func TestWhatTheCommandLeftBehindIsNamedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start("run", "k", "--", "sh", "-c", leaving)
	far := w.pid("far")
	eventually(t, "the notice", func() bool { return strings.Contains(p.err.String(), "\n") })
	s := p.err.String()
	if !strings.Contains(s, `"k" stays locked`) || !strings.Contains(s, "--no-wait-children") {
		t.Errorf("stderr is %q", s)
	}
	if allSeen && !strings.Contains(s, fmt.Sprintf("process %d (sh)", far)) {
		t.Errorf("stderr is %q: it names no process", s)
	}
	w.put("go", "")
	if code := p.wait(); code != 7 || strings.Count(p.err.String(), "\n") != 1 {
		t.Errorf("exit code %d, want the command's 7, and one line on stderr: %s", code, &p.err)
	}
}

func TestWithoutWaitingForChildrenTheLockEndsWithTheCommand(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"file:", "faulty:"} {
		t.Run(strings.TrimSuffix(url, ":"), func(t *testing.T) {
			w := newFaultyWorld(t)
			flags := []string{"run", "--no-wait-children"}
			if url == "file:" {
				w = newWorld(t)
			}
			if code, _, stderr := w.run(append(flags, "k", "--", "sh", "-c", leaving)...); code != 7 || stderr != "" {
				t.Errorf("exit code %d, want 7; stderr: %s", code, stderr)
			}
			if !alive(w.pid("far")) {
				t.Error("what the command left behind was killed")
			}
			w.want(0, "run", "--wait", "0", "k", "--", "true")
			w.put("go", "")
		})
	}
}

// Even with --no-wait-children no process runs beside the next holder after dlock is killed:
// the guard keeps the lock until it has killed the command.
func TestWithoutWaitingForChildrenAKilledDlockLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start("run", "--no-wait-children", "k", "--", "sh", "-c", kin)
	pids := w.family()
	p.signal(syscall.SIGKILL)
	w.want(0, "run", "--wait", "1m", "k", "--", "true")
	if alive(pids[0]) {
		t.Error("the command ran beside the next holder")
	}
	eventually(t, "the end of all", func() bool { return !anyAlive(pids) })
}

// When a container is stopped, only dlock gets SIGTERM.
func TestOneSIGTERMEndsAlsoWhatLeftTheGroup(t *testing.T) {
	t.Parallel()
	if !allSeen {
		t.Skip("a process that left the group is not seen here")
	}
	w := newWorld(t)
	p := w.start("run", "k", "--", "sh", "-c", `$away sh -c 'echo $$ > far; exec sleep 1000' & echo $$ > pid; wait`)
	far := w.pid("far")
	w.pid("pid")
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 128+15 {
		t.Errorf("exit code %d", code)
	}
	if alive(far) {
		t.Error("the grandchild lives on")
	}
}

// If the command survives a signal such as HUP, dlock does not send the signal to its children
// later: for daemons it has another meaning.
func TestASIGHUPThatTheCommandSurvivesDoesNotEndWhatItLeaves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start("run", "--no-wait-children", "k", "--", "sh", "-c", `trap 'echo > got' HUP; `+strings.Replace(leaving, "exit 7", "echo > started; while [ ! -e got ]; do sleep 0.02 & wait $!; done; exit 7", 1))
	far := w.pid("far")
	w.content("started")
	p.signal(syscall.SIGHUP)
	if code := p.wait(); code != 7 {
		t.Errorf("exit code %d", code)
	}
	if !alive(far) {
		t.Error("the daemon was ended")
	}
	w.put("go", "")
}

// A guard that was stopped while dlock renewed the lease must see that before it looks at
// the clock.
func TestAStoppedGuardDoesNotKillTheCommandOfARenewedLease(t *testing.T) {
	t.Parallel()
	w := newFaultyWorld(t)
	p := w.start("run", "--verbose", "--ttl", "4s", "k", "--", "sh", "-c", "echo $PPID > guard; echo $$ > pid; trap 'exit 5' USR1; while :; do sleep 0.3 & wait; done")
	pid, guard := w.pid("pid"), w.pid("guard")
	if err := syscall.Kill(guard, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	renewed := func() int { return strings.Count(p.err.String(), "renewed") }
	before := renewed()
	eventually(t, "renewals beyond the first deadline", func() bool { return renewed() >= before+4 })
	if err := syscall.Kill(guard, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	before = renewed()
	eventually(t, "two more", func() bool { return renewed() >= before+2 || !alive(pid) })
	p.signal(syscall.SIGUSR1)
	if code := p.wait(); code != 5 {
		t.Errorf("exit code %d, want the command's 5; stderr: %s", code, &p.err)
	}
}

// With file only a process can keep a lock: after dlock is killed, the guard keeps it.
func TestAKilledDlockKeepsAFileLockForAtLeast(t *testing.T) {
	t.Parallel()
	const atLeast = 4 * time.Second
	w := newWorld(t)
	start := time.Now()
	p := w.start("run", "--at-least", atLeast.String(), "k", "--", "sh", "-c", "echo $$ > pid; exec sleep 1000")
	pid := w.pid("pid")
	p.signal(syscall.SIGKILL)
	eventually(t, "the command's end", func() bool { return !alive(pid) })
	w.want(0, "run", "--wait", "1m", "k", "--", "true")
	if since := time.Since(start); since < atLeast {
		t.Errorf("the lock was kept for %v, want %v", since, atLeast)
	}
}

//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stubborn is a command that notes SIGTERM, and goes on. (It waits in a way in which no shell
// misses a signal: some do while they start a process.) Its beats show how long it has run; the
// first is there before its pid.
const stubborn = `trap 'echo > termed' TERM
echo $DLOCK_DEADLINE > deadline
echo > beats
echo $$ > pid
while :; do echo > beats; sleep 0.2 & wait; done`

// written is when a command wrote a file last.
func (w *world) written(name string) time.Time {
	w.t.Helper()
	f, err := os.Stat(w.path(name))
	if err != nil {
		w.t.Fatal(err)
	}
	return f.ModTime()
}

// The TTL in tests in which a command must act between SIGTERM and SIGKILL, or must have ended
// by its deadline: SIGTERM comes 6 s before the lease's end and SIGKILL 1.2 s, which is enough
// on a busy machine. With -short the lease is shorter.
const calmTTL = 24 * time.Second

func shortTTL() time.Duration {
	if testing.Short() {
		return calmTTL / 4
	}
	return calmTTL
}

// calmly tries with a lease of a TTL. A machine that stood still at the wrong moment lets a command
// show nothing of what it does; a longer lease gives it more time.
func calmly(t *testing.T, try func(ttl time.Duration) (seen bool)) {
	t.Helper()
	for ttl := shortTTL(); !try(ttl); ttl *= 2 {
		if ttl > patient/2 {
			t.Fatalf("in a lease of %v the command did not run between SIGTERM and SIGKILL", ttl)
		}
	}
}

// termed returns when the command, stubborn, noted SIGTERM. One that did not run between SIGTERM
// and SIGKILL noted none; then SIGKILL must have come late, so that it ended late.
func (w *world) termed(ended, deadline time.Time, term time.Duration) (at time.Time, seen bool) {
	w.t.Helper()
	if w.exists("termed") {
		return w.written("termed"), true
	}
	if before := deadline.Sub(ended); before > term/2 {
		w.t.Fatalf("the command was killed %v before the deadline, without SIGTERM before it", before)
	}
	return time.Time{}, false
}

func (w *world) deadline() time.Time {
	w.t.Helper()
	d, err := time.Parse(time.RFC3339Nano, w.content("deadline"))
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

// Neither a renewal that fails, nor one that hangs, nor a dlock that is stopped makes the command
// outlive its lease.
func TestARenewalThatFailsStopsTheCommandBeforeTheDeadline(t *testing.T) {
	t.Parallel()
	faults := []string{"stopped", "outage", "hang"}
	if testing.Short() {
		faults = faults[:1]
	}
	for _, fault := range faults {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			calmly(t, func(ttl time.Duration) bool {
				w, term := newFaultyWorld(t), ttl/4
				w.fault(fault)
				if fault == "stopped" { // or else it may renew the lease before it is stopped
					w.fault("outage")
				}
				p := w.start("run", "--ttl", ttl.String(), "k", "--", "sh", "-c", stubborn)
				pid, deadline := w.pid("pid"), w.deadline()
				if fault == "stopped" {
					p.signal(syscall.SIGSTOP)
				}
				eventually(t, "the command's end", func() bool { return !alive(pid) })
				ended, killed := time.Now(), w.written("beats")
				if fault == "stopped" { // or else dlock may have ended
					p.signal(syscall.SIGCONT)
				}
				p.ends(exitLost, "killed the command")
				termed, seen := w.termed(ended, deadline, term)
				if late := killed.Sub(deadline); late >= 0 {
					if ttl < calmTTL {
						return false
					}
					t.Errorf("the command ended %v after the deadline of its lease", late)
				}
				if before := deadline.Sub(termed); seen && (before > term+100*time.Millisecond || !termed.Before(killed)) {
					t.Errorf("SIGTERM came %v before the deadline, want %v, and SIGKILL %v later", before, term, killed.Sub(termed))
				}
				return seen
			})
		})
	}
}

func TestACommandThatEndsBySIGTERMLeavesExitCode76(t *testing.T) {
	t.Parallel()
	calmly(t, func(ttl time.Duration) bool {
		w := newFaultyWorld(t)
		w.fault("outage")
		started := time.Now()
		p := w.start("run", "--ttl", ttl.String(), "k", "--", "sh", "-c", "trap 'exit 0' TERM; sleep 100 & wait")
		p.ends(exitLost, "")
		s := p.err.String()
		if strings.Contains(s, "killed the command") {
			if took := time.Since(started); took < ttl-ttl/8 {
				t.Fatalf("the command was killed after %v; stderr: %s", took, s)
			}
			return false
		}
		if strings.Count(s, "dlock: ") != 1 || !strings.Contains(s, "SIGTERM sent") {
			t.Errorf("stderr is %q, want one line of ours", s)
		}
		return true
	})
}

func TestALeaseThatIsRenewedAgainLetsTheCommandGoOn(t *testing.T) {
	t.Parallel()
	calmly(t, func(ttl time.Duration) bool {
		w := newFaultyWorld(t)
		w.fault("outage")
		p := w.start("run", "--ttl", ttl.String(), "k", "--", "sh", "-c", stubborn)
		pid, deadline := w.pid("pid"), w.deadline()
		eventually(t, "SIGTERM", func() bool { return w.exists("termed") || !alive(pid) })
		if _, seen := w.termed(time.Now(), deadline, ttl/4); !seen {
			return false
		}
		w.fault("")
		mended := time.Now()
		for time.Now().Before(deadline.Add(time.Second)) {
			if !alive(pid) {
				if left := deadline.Sub(mended); left < ttl/6 { // until SIGKILL it is less
					return false
				}
				t.Fatalf("the command was killed; stderr: %s", &p.err)
			}
			time.Sleep(20 * time.Millisecond)
		}
		if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		p.ends(exitLost, "SIGTERM sent") // which makes the code
		return true
	})
}

// kin is a command with a child, and with another child outside its process group, if dlock can
// see such processes.
const kin = `sh -c 'echo $$ > child; trap "" TERM; while :; do sleep 5; done' &
$away sh -c 'echo $$ > far; trap "" TERM; while :; do sleep 5; done' &
echo $PPID > guard; echo $$ > pid
wait`

// Whatever ends the lock, and whoever of dlock, its guard and its command is killed or stopped,
// nothing that the command started runs on, and the next holder comes.
func TestALossKillsAllThatTheCommandStartedAtOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lost  bool // by what the backend says: at once, and with no signal before
		stop  bool // the guard, before
		kills string
		flags string
		code  int
		says  string
	}{
		"the backend says so":              {lost: true, code: exitLost, says: "killed the command"},
		"so does it, of a stopped guard":   {lost: true, stop: true, code: exitLost, says: "killed the command"},
		"the guard is killed":              {kills: "guard", code: 128 + 9, says: "the guard process of the command was killed"},
		"dlock is killed":                  {kills: "dlock", code: -9},
		"dlock is, and waits for no child": {kills: "dlock", flags: "--no-wait-children", code: -9},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			args := strings.Fields("run --verbose " + c.flags)
			if c.lost {
				w = newFaultyWorld(t)
				args = append(args, "--ttl", shortTTL().String())
			}
			p := w.start(append(args, "k", "--", "sh", "-c", kin)...)
			pids := map[string]int{"pid": w.pid("pid"), "child": w.pid("child"), "far": w.pid("far")}
			guard := w.pid("guard")
			eventually(t, "the guard's report", func() bool { return strings.Contains(p.err.String(), "as process") })
			signals := map[string]syscall.Signal{c.kills: syscall.SIGKILL}
			if c.stop {
				signals["guard"] = syscall.SIGSTOP
			}
			for of, s := range signals {
				if pid := map[string]int{"guard": guard, "dlock": p.Process.Pid}[of]; pid != 0 && syscall.Kill(pid, s) != nil {
					t.Fatalf("%s is not there", of)
				}
			}
			if c.lost {
				w.fault("lost")
			}
			next := w.start("run", "--wait", "1m", "k", "--", "true")
			p.ends(c.code, c.says)
			if s := p.err.String(); strings.Contains(s, "SIGTERM sent") && !testing.Short() {
				t.Errorf("a loss that is certain does not wait for the signals before the lease's end: %s", s)
			}
			next.ends(0, "")
			if c.kills != "" && alive(pids["pid"]) {
				t.Error("the command ran beside the next holder")
			}
			for who, pid := range pids {
				eventually(t, "the end of "+who, func() bool { return !alive(pid) })
			}
		})
	}
}

func TestTheKeyStaysHeldWhileAnyProcessHasTheLocksDescriptor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start("run", "k", "--", "sh", "-c", `
$away sh -c 'echo $$ > far; while [ -e far ] && [ ! -e go ]; do sleep 0.1; done' &
echo $$ > pid
echo $PPID > guard
wait`)
	far, guard := w.pid("far"), w.pid("guard")
	// Both are killed at once: no process can kill the grandchild, which keeps the key.
	for _, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
		if syscall.Kill(guard, s) != nil || syscall.Kill(p.Process.Pid, s) != nil {
			t.Fatal("they are not there")
		}
	}
	eventually(t, "their end", func() bool { return !alive(guard) })
	if allSeen {
		eventually(t, "the command's end with the guard", func() bool { return !alive(w.pid("pid")) })
	}
	if !alive(far) {
		t.Fatal("the grandchild has ended: there is nothing to see here")
	}
	w.want(exitHeld, "run", "--wait", aWhile.String(), "k", "--", "true")
	w.put("go", "")
	w.want(0, "run", "--wait", "1m", "k", "--", "true")
}

func TestMaxHoldStopsTheCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	start := time.Now()
	p := w.start("run", "--max-hold", "2s", "k", "--", "sh", "-c", stubborn)
	p.ends(exitLost, "--max-hold")
	if took := time.Since(start); took < 1500*time.Millisecond {
		t.Errorf("it was stopped after %v", took)
	}
	begun := w.exists("pid") // else SIGTERM came before the command could trap it, and ended it
	if s := p.err.String(); begun && !strings.Contains(s, "killed the command") {
		t.Errorf("stderr is %q", s)
	}
}

// leaving is a command that leaves a process behind: outside its process group, if dlock can
// see such processes.
const leaving = `$away sh -c 'echo $$ > far; while [ -e far ] && [ ! -e go ]; do sleep 0.1; done' > far-out 2>&1 & while [ ! -e far ]; do sleep 0.02; done; exit 7`

func TestTheLockIsKeptUntilWhatTheCommandLeftBehindHasEnded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start("run", "k", "--", "sh", "-c", leaving)
	far := w.pid("far")
	eventually(t, "the notice", func() bool { return strings.Contains(p.err.String(), "\n") })
	w.want(exitHeld, "run", "--wait", "0", "k", "--", "true")
	w.put("go", "")
	says := `"k" stays locked until what it left behind has ended too: `
	if allSeen {
		says += fmt.Sprintf("process %d (sh)", far)
	}
	p.ends(7, says)
	if strings.Count(p.err.String(), "\n") != 1 {
		t.Errorf("it is said more than once: %s", &p.err)
	}
	w.want(0, "run", "--wait", "0", "k", "--", "true")
}

func TestWithoutWaitingForChildrenTheLockEndsWithTheCommand(t *testing.T) {
	t.Parallel()
	for _, w := range []*world{newWorld(t), newFaultyWorld(t)} {
		if _, stderr := w.want(7, "run", "--no-wait-children", "k", "--", "sh", "-c", leaving); stderr != "" {
			t.Errorf("stderr: %s", stderr)
		}
		if !alive(w.pid("far")) {
			t.Error("what the command left behind was killed")
		}
		w.want(0, "run", "--wait", "0", "k", "--", "true")
		w.put("go", "")
	}
}

// INT, TERM and QUIT end what the command left behind as well, before or after the command's end:
// when a container is stopped, only dlock gets SIGTERM. HUP does not, if the command survives it: for
// daemons it has another meaning.
func TestWhatASignalDoesToWhatTheCommandLeavesBehind(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		flags, script, says string // what stderr says when the signal may come
		signal              syscall.Signal
		code                int
		lives               bool
	}{
		"after the command": {"--verbose", `sh -c 'echo $$ > far; exec sleep 1000' & exit 0`, "left behind", syscall.SIGTERM, 0, false},
		"it left the group": {"", `$away sh -c 'echo $$ > far; exec sleep 1000' & echo ready >&2; wait`, "ready", syscall.SIGTERM, 128 + 15, false},
		"a HUP that the command survives": {"--no-wait-children", `trap 'echo > got' HUP; ` + strings.Replace(leaving, "exit 7", "echo ready >&2; while [ ! -e got ]; do sleep 0.02 & wait $!; done; exit 7", 1),
			"ready", syscall.SIGHUP, 7, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if strings.Contains(c.script, "$away sh -c 'echo $$ > far; exec") && !allSeen {
				t.Skip("a process that left the group is not seen here")
			}
			w := newWorld(t)
			p := w.start(append(append([]string{"run"}, strings.Fields(c.flags)...), "k", "--", "sh", "-c", c.script)...)
			far := w.pid("far")
			eventually(t, c.says, func() bool { return strings.Contains(p.err.String(), c.says) })
			p.signal(c.signal)
			p.ends(c.code, "")
			if alive(far) != c.lives {
				t.Errorf("what it left behind lives: %t", !c.lives)
			}
			w.put("go", "")
		})
	}
}

// A guard that was stopped while dlock renewed the lease must see that before it looks at
// the clock.
func TestAStoppedGuardDoesNotKillTheCommandOfARenewedLease(t *testing.T) {
	t.Parallel()
	w := newFaultyWorld(t)
	p := w.start("run", "--verbose", "--ttl", "4s", "k", "--", "sh", "-c", "echo $PPID > guard; echo $$ > pid; trap 'exit 5' USR1; while :; do sleep 0.3 & wait; done")
	pid, guard := w.pid("pid"), w.pid("guard")
	renewed := func(more int) {
		before := strings.Count(p.err.String(), "renewed")
		eventually(t, "renewals", func() bool { return strings.Count(p.err.String(), "renewed") >= before+more || !alive(pid) })
	}
	if err := syscall.Kill(guard, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	renewed(4) // beyond the first deadline
	if err := syscall.Kill(guard, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	renewed(2)
	p.signal(syscall.SIGUSR1)
	p.ends(5, "")
}

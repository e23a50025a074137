//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stubborn is a command that notes the time of SIGTERM, and goes on. (It waits in a way in
// which no shell misses a signal: some do while they start a process.) Its beats show how long
// it has run.
const stubborn = `trap 'date +%s%N > termed' TERM
echo $DLOCK_DEADLINE > deadline
echo $$ > pid
while :; do date +%s%N >> beats; sleep 0.2 & wait; done`

// nanos reads a time that a command wrote.
func (w *world) nanos(name string) time.Time {
	w.t.Helper()
	n, err := strconv.ParseInt(w.content(name), 10, 64)
	if err != nil {
		w.t.Skip("date has no nanoseconds here: ", err)
	}
	return time.Unix(0, n)
}

// lastBeat is when stubborn, which has ended, ran last.
func (w *world) lastBeat() time.Time {
	w.t.Helper()
	b, err := os.ReadFile(w.path("beats"))
	if err != nil {
		w.t.Fatal(err)
	}
	beats := strings.Fields(string(b))
	w.put("last", beats[len(beats)-1]+"\n")
	return w.nanos("last")
}

// The TTL in tests in which a command must act between SIGTERM and SIGKILL, or must have ended
// by its deadline: SIGTERM comes 6 s before the lease's end and SIGKILL 1.2 s, which is enough
// on a busy machine.
//
// With -short the lease is shorter, and a command that ran late is no failure.
func calm() (ttl string, term time.Duration) {
	if testing.Short() {
		return "6s", 1500 * time.Millisecond
	}
	return "24s", 6 * time.Second
}

// termed returns when the command, stubborn, noted SIGTERM. One that did not run between SIGTERM
// and SIGKILL noted none; then SIGKILL must have come late, so that it ended late.
func (w *world) termed(ended, deadline time.Time, term time.Duration) time.Time {
	w.t.Helper()
	if w.exists("termed") {
		return w.nanos("termed")
	}
	if before := deadline.Sub(ended); before > term/2 {
		w.t.Fatalf("the command was killed %v before the deadline, without SIGTERM before it", before)
	}
	w.t.Skip("the command did not run between SIGTERM and SIGKILL")
	return time.Time{}
}

// inTime checks that a command ended before the deadline of its lease.
func (w *world) inTime(last, deadline time.Time) {
	w.t.Helper()
	if late := last.Sub(deadline); late >= 0 && !testing.Short() {
		w.t.Errorf("the command ended %v after the deadline of its lease", late)
	}
}

func (w *world) deadline() time.Time {
	w.t.Helper()
	d, err := time.Parse(time.RFC3339Nano, w.content("deadline"))
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

func TestARenewalThatFailsStopsTheCommandBeforeTheDeadline(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"outage", "hang"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			w := newFaultyWorld(t)
			w.fault(fault)
			ttl, term := calm()
			p := w.start("run", "--ttl", ttl, "k", "--", "sh", "-c", stubborn)
			pid, deadline := w.pid("pid"), w.deadline()
			eventually(t, "the command's end", func() bool { return !alive(pid) })
			ended, killed := time.Now(), w.lastBeat()
			if code := p.wait(); code != exitLost {
				t.Errorf("exit code %d, want %d", code, exitLost)
			}
			if s := p.err.String(); !strings.Contains(s, "SIGTERM") || !strings.Contains(s, "killed the command") {
				t.Errorf("stderr is %q", s)
			}
			w.inTime(killed, deadline)
			termed := w.termed(ended, deadline, term)
			if before := deadline.Sub(termed); before > term+100*time.Millisecond {
				t.Errorf("SIGTERM came %v before the deadline, want %v", before, term)
			}
			if !termed.Before(killed) {
				t.Error("SIGTERM did not come first")
			}
		})
	}
}

func TestACommandThatEndsBySIGTERMLeavesExitCode76(t *testing.T) {
	t.Parallel()
	w := newFaultyWorld(t)
	w.fault("outage")
	ttl, term := calm()
	started := time.Now()
	p := w.start("run", "--ttl", ttl, "k", "--", "sh", "-c", "trap 'exit 0' TERM; sleep 100 & wait")
	if code := p.wait(); code != exitLost {
		t.Errorf("exit code %d, want %d", code, exitLost)
	}
	s := p.err.String()
	if strings.Contains(s, "killed the command") {
		if took := time.Since(started); took < 4*term-term/2 { // of four quarters of the TTL
			t.Errorf("the command was killed after %v, without SIGTERM before it", took)
		}
		t.Skip("the command did not run between SIGTERM and SIGKILL")
	}
	if strings.Count(s, "dlock: ") != 1 || !strings.Contains(s, "SIGTERM sent") {
		t.Errorf("stderr is %q, want one line of ours", s)
	}
}

func TestALeaseThatIsRenewedAgainLetsTheCommandGoOn(t *testing.T) {
	t.Parallel()
	w := newFaultyWorld(t)
	w.fault("outage")
	ttl, term := calm()
	p := w.start("run", "--ttl", ttl, "k", "--", "sh", "-c", stubborn)
	pid, deadline := w.pid("pid"), w.deadline()
	eventually(t, "SIGTERM", func() bool { return w.exists("termed") || !alive(pid) })
	w.termed(time.Now(), deadline, term)
	w.fault("")
	mended := time.Now()
	for time.Now().Before(deadline.Add(time.Second)) {
		if !alive(pid) {
			if left := deadline.Sub(mended); left < 2*time.Second { // until SIGKILL it is less
				t.Skipf("the renewal had only %v", left)
			}
			t.Fatalf("the command was killed; stderr: %s", &p.err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(); code != exitLost {
		t.Errorf("exit code %d: SIGTERM was sent, which makes it %d", code, exitLost)
	}
}

// kin is a command with a child, and with another child outside its process group, if dlock can
// see such processes.
const kin = `sh -c 'echo $$ > child; trap "" TERM; while :; do sleep 5; done' &
$away sh -c 'echo $$ > far; trap "" TERM; while :; do sleep 5; done' &
echo $$ > pid
wait`

func (w *world) family() (pids []int) {
	w.t.Helper()
	for _, name := range []string{"pid", "child", "far"} {
		pids = append(pids, w.pid(name))
	}
	return pids
}

func anyAlive(pids []int) bool {
	for _, pid := range pids {
		if alive(pid) {
			return true
		}
	}
	return false
}

// A loss that is certain does not wait for the signals before the lease's end.
func TestALossKillsAllThatTheCommandStartedAtOnce(t *testing.T) {
	t.Parallel()
	w := newFaultyWorld(t)
	ttl, _ := calm()
	p := w.start("run", "--verbose", "--ttl", ttl, "k", "--", "sh", "-c", kin)
	pids := w.family()
	w.fault("lost")
	eventually(t, "the loss", func() bool { return strings.Contains(p.err.String(), "a renewal failed") })
	lost := time.Now()
	eventually(t, "the end of all", func() bool { return !anyAlive(pids) })
	t.Logf("it took %v", time.Since(lost))
	if code := p.wait(); code != exitLost {
		t.Errorf("exit code %d, want %d", code, exitLost)
	}
	if s := p.err.String(); !strings.Contains(s, "killed the command") || strings.Contains(s, "SIGTERM") && !testing.Short() {
		t.Errorf("stderr is %q", s)
	}
}

func TestNothingSurvivesAKilledDlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start("run", "k", "--", "sh", "-c", kin)
	pids := w.family()
	p.signal(syscall.SIGKILL)
	next := w.start("run", "--wait", "1m", "k", "--", "sh", "-c", "date +%s%N > next")
	eventually(t, "the end of all", func() bool { return !anyAlive(pids) })
	if code := next.wait(); code != 0 {
		t.Errorf("the next one: exit code %d, stderr: %s", code, &next.err)
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
	for _, pid := range []int{guard, p.Process.Pid} {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	for _, pid := range []int{guard, p.Process.Pid} {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
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

func TestAKilledGuardTakesTheCommandWithIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start("run", "k", "--", "sh", "-c", "echo $PPID > guard; "+kin)
	pids := w.family()
	if err := syscall.Kill(w.pid("guard"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(); code != 128+9 {
		t.Errorf("exit code %d, want %d", code, 128+9)
	}
	if anyAlive(pids) {
		t.Error("processes of the command survive")
	}
	w.want(0, "run", "--wait", "0", "k", "--", "true")
}

func TestAStoppedDlockDoesNotStretchTheLease(t *testing.T) {
	t.Parallel()
	w := newFaultyWorld(t)
	w.fault("outage") // or else it may renew the lease before it is stopped
	ttl, _ := calm()
	p := w.start("run", "--ttl", ttl, "k", "--", "sh", "-c", stubborn)
	pid, deadline := w.pid("pid"), w.deadline()
	p.signal(syscall.SIGSTOP)
	eventually(t, "the command's end", func() bool { return !alive(pid) })
	w.inTime(w.lastBeat(), deadline)
	p.signal(syscall.SIGCONT)
	if code := p.wait(); code != exitLost {
		t.Errorf("exit code %d, want %d; stderr: %s", code, exitLost, &p.err)
	}
}

func TestAStoppedGuardIsKilledWithTheCommandWhenTheLeaseIsLost(t *testing.T) {
	t.Parallel()
	w := newFaultyWorld(t)
	p := w.start("run", "--verbose", "--ttl", "4s", "k", "--", "sh", "-c", "echo $PPID > guard; "+kin)
	pids := w.family()
	eventually(t, "the guard's report", func() bool { return strings.Contains(p.err.String(), "as process") })
	if err := syscall.Kill(w.pid("guard"), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	w.fault("lost")
	if code := p.wait(); code != exitLost {
		t.Errorf("exit code %d, want %d; stderr: %s", code, exitLost, &p.err)
	}
	if anyAlive(pids) {
		t.Error("processes of the command survive")
	}
}

func TestMaxHoldStopsTheCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	start := time.Now()
	p := w.start("run", "--max-hold", "2s", "k", "--", "sh", "-c", stubborn)
	if code := p.wait(); code != exitLost {
		t.Errorf("exit code %d, want %d", code, exitLost)
	}
	if took := time.Since(start); took < 1500*time.Millisecond {
		t.Errorf("it was stopped after %v", took)
	}
	// The guard's order and the lease's own end come at the same instant: either may be named
	// as the reason of the kill, the option and the kill always are.
	begun := w.exists("pid") // else SIGTERM came before the command could trap it, and ended it
	if s := p.err.String(); !strings.Contains(s, "--max-hold") || begun && !strings.Contains(s, "killed the command") {
		t.Errorf("stderr is %q", s)
	}
}

func TestTheLockIsKeptUntilWhatTheCommandLeftBehindHasEnded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start("run", "--verbose", "k", "--", "sh", "-c", `$away sh -c 'echo $$ > far; while [ -e far ] && [ ! -e go ]; do sleep 0.1; done' & exit 7`)
	w.content("far")
	eventually(t, "the command's end", func() bool { return strings.Contains(p.err.String(), "left behind") })
	w.want(exitHeld, "run", "--wait", "0", "k", "--", "true")
	w.put("go", "")
	if code := p.wait(); code != 7 {
		t.Errorf("exit code %d, want the command's 7", code)
	}
	w.want(0, "run", "--wait", "0", "k", "--", "true")
}

func TestASignalAfterTheCommandEndedGoesToWhatItLeftBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start("run", "--verbose", "k", "--", "sh", "-c", `sh -c 'echo $$ > far; exec sleep 100' & exit 0`)
	w.content("far")
	eventually(t, "the command's end", func() bool { return strings.Contains(p.err.String(), "left behind") })
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

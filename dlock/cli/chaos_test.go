//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// At any moment one of dlock, its guard and its command is stopped for a while, asked to
// end, or killed. (Where two of them are stopped or killed at one stroke, a command may
// outlive its lease, as the documentation says.)
func TestNoTwoCommandsOverlapThoughProcessesAreStoppedAndKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("short: it searches")
	}
	t.Parallel()
	loops, runs := 4, 4
	if server.IsDeep() {
		loops, runs = 40, 50
	}
	for _, backend := range []string{"file", "redis"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			keys := 1
			if backend == "redis" {
				w.url = server.Redis(t).URL()
				keys = max(1, loops/4) // a killed dlock holds up the others for a TTL
			}
			var wg sync.WaitGroup
			for i := range loops {
				wg.Go(func() {
					for n := range runs {
						w.disturbed(fmt.Sprint("k", i%keys), fmt.Sprintf("job-%d-%d", i, n))
					}
				})
			}
			wg.Wait()
			if overlaps, err := os.ReadFile(w.path("overlaps")); err == nil {
				t.Errorf("commands ran beside others: %s", overlaps)
			}
			w.nothingLeft(keys)
		})
	}
}

// disturbed makes one dlock run, and sends a signal to one of its processes.
func (w *world) disturbed(key, name string) {
	args := []string{"run", key, "--", w.exe, "job", key, name}
	if !strings.HasPrefix(w.url, "file:") {
		args = append([]string{"run", "--ttl", "4s"}, args[1:]...)
	}
	p := w.start(args...)
	time.Sleep(rand.N(200 * time.Millisecond))                   // the disturbance, and no wait for anything
	signal := func(s syscall.Signal) { _ = p.Process.Signal(s) } // it may have ended
	if pids := w.jobPids(name); len(pids) == 2 && allSeen {
		job, guard := pids[0], pids[1]
		switch rand.IntN(3) {
		case 0:
			signal = func(s syscall.Signal) { signalChild(job, guard, s) }
		case 1:
			signal = func(s syscall.Signal) { signalChild(guard, p.Process.Pid, s) }
		}
	}
	switch rand.IntN(5) {
	case 0:
		signal(syscall.SIGTERM)
	case 1:
		signal(syscall.SIGKILL)
	case 2:
		signal(syscall.SIGSTOP)
		time.Sleep(rand.N(time.Second))
		signal(syscall.SIGCONT)
	}
	p.waitFor(10 * time.Minute)
}

// signalChild signals a process if it is still the same child, and not another process with its
// number.
func signalChild(pid, parent int, s syscall.Signal) {
	if parentOf(pid) == parent {
		_ = syscall.Kill(pid, s)
	}
}

// jobPids are the job and its guard, once it runs.
func (w *world) jobPids(name string) (pids []int) {
	b, _ := os.ReadFile(w.path(name)) // not yet there
	for _, s := range strings.Fields(string(b)) {
		pid, err := strconv.Atoi(s)
		if err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// nothingLeft checks that no process is left, and no lock.
func (w *world) nothingLeft(keys int) {
	w.t.Helper()
	entries, err := os.ReadDir(w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "job-") {
			for _, pid := range w.jobPids(e.Name()) {
				eventually(w.t, "the end of "+e.Name(), func() bool { return !alive(pid) || !mentions(pid, e.Name()) })
			}
		}
	}
	c, err := dlock.OpenURL(w.url, dlock.WithLogger(nil))
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // nothing is held
	for i := range keys {
		eventually(w.t, "a free lock", func() bool {
			l, err := c.TryLock(w.t.Context(), fmt.Sprint("k", i))
			return err == nil && l.Unlock() == nil
		})
	}
}

// mentions reports whether a process was started with an argument, where that can be
// seen: its number may be another's by now.
func mentions(pid int, arg string) bool {
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return !allSeen || err == nil && strings.Contains(string(cmdline), "\x00"+arg+"\x00")
}

// runJob is a command that finds out whether another one of its key runs.
func runJob(key, name string) int {
	line := func(file, text string) { _ = appendTo(file, text+"\n") }
	line(name, fmt.Sprint(os.Getpid(), " ", os.Getppid()))
	f, err := os.OpenFile("busy-"+key, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil || syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		line("overlaps", name)
		return 1
	}
	time.Sleep(rand.N(20 * time.Millisecond)) // the work
	return 0
}

//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// The servers keep the lock exactly until --at-least is over, whether dlock has ended or was
// killed.
func TestServersKeepTheLockForAtLeastAndNoLonger(t *testing.T) {
	if testing.Short() {
		t.Skip("short: it starts a quorum")
	}
	t.Parallel()
	quorum, _ := quorumOf(t, 3)
	for name, url := range map[string]string{"redis": server.Redis(t).URL(), "quorum": quorum} {
		t.Run(name, func(t *testing.T) {
			w := on(t, url)
			start := time.Now()
			w.want(0, "run", "--at-least", "1h", "ended", "--", "true")
			w.keptFor(url, "ended", start, time.Now(), time.Hour)

			start = time.Now()
			p := w.start("run", "--verbose", "--at-least", "1h", "killed", "--", "sh", "-c", "echo $$ > pid; exec sleep 100")
			pid := w.pid("pid")
			eventually(t, "a renewal", func() bool { return strings.Contains(p.err.String(), "renewed") })
			p.signal(syscall.SIGKILL)
			eventually(t, "the command's end", func() bool { return !alive(pid) })
			w.keptFor(url, "killed", start, time.Now(), time.Hour)
		})
	}
}

// With file only a process can keep a lock: after dlock is killed, the guard keeps it.
func TestAtLeastKeepsAFileLock(t *testing.T) {
	t.Parallel()
	const atLeast = 4 * time.Second
	for command, killed := range map[string]bool{"exit 0": false, "exec sleep 1000": true} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			start := time.Now()
			p := w.start("run", "--at-least", atLeast.String(), "k", "--", "sh", "-c", "echo $$ > pid; "+command)
			pid := w.pid("pid")
			if killed {
				p.signal(syscall.SIGKILL)
			}
			eventually(t, "the command's end", func() bool { return !alive(pid) })
			w.want(0, "run", "--wait", "1m", "k", "--", "true")
			if since := time.Since(start); since < atLeast {
				t.Errorf("the lock was kept for %v, want %v", since, atLeast)
			}
			if !killed {
				p.ends(0, "")
			}
		})
	}
}

// keptFor checks that a lock that was granted between two instants is kept for d.
func (w *world) keptFor(url, key string, after, before time.Time, d time.Duration) {
	w.t.Helper()
	const trips = 5 * time.Second // on a busy machine
	c, err := dlock.OpenURL(url, dlock.WithLogger(nil))
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // nothing is held
	var asked time.Time
	eventually(w.t, "an answer", func() bool {
		asked = time.Now()
		_, err = c.TryLock(w.t.Context(), key)
		return !errors.Is(err, dlock.ErrUnavailable)
	})
	var held *driver.HeldError
	if !errors.As(err, &held) {
		w.t.Fatalf("%s is not held: %v", key, err)
	}
	least, most := time.Until(after.Add(d)), before.Add(d).Sub(asked)+trips
	if left := held.RetryAfter; left < least || left > most {
		w.t.Errorf("%s: the server keeps the lock for another %v, want %v to %v", key, left, least, most)
	}
}

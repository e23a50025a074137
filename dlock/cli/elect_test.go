//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"testing"

	"github.com/redlock-go/redlock/redlocktest/server"
)

// A leader's lock is taken away: its command is killed, and it waits to lead again, behind the
// other candidate, so that both lead once more.
func TestALeaderThatLostQueuesAgain(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) string{
		"file":  func(t *testing.T) string { return "file://" + t.TempDir() },
		"redis": func(t *testing.T) string { return server.Redis(t).URL() },
	} {
		if testing.Short() && name != "file" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := on(t, start(t))
			a := w.start("elect", "--label", "a", "k", "--", "sh", "-c",
				"[ ! -e first ] || exit 3; echo $$ > first; exec sleep 1000")
			first := w.pid("first")
			b := w.start("elect", "--label", "b", "k", "--", "sh", "-c", "exit 4")
			token := w.states("k")[0].Holders[0].Fence
			w.want(0, "unlock", "k", "--token", number10(token))
			// Which of them leads next is open.
			a.ends(3, "was lost")
			b.ends(4, "")
			if alive(first) {
				t.Error("the command of the term that was lost lives on")
			}
		})
	}
}

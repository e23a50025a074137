//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

// A stream that is no file is copied to the command, and from it.
func TestTheCommandGetsStreamsThatAreNoFiles(t *testing.T) {
	var stdout, stderr bytes.Buffer
	code := Main([]string{"dlock", "run", "--url", "file://" + t.TempDir(), "k", "--", "sh", "-c", "cat; echo err >&2; exit 3"},
		strings.NewReader("in"), &stdout, &stderr)
	if code != 3 || stdout.String() != "in" || stderr.String() != "err\n" {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, &stdout, &stderr)
	}
}

func TestTheCommandsStreamsAreOurs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.prepare("run", "k", "--", "sh", "-c", "cat; cat <&9; echo err >&2; pwd -P")
	p.Stdin = strings.NewReader("in\n")
	nine, err := os.Open(w.put("nine", "nine\n"))
	if err != nil {
		t.Fatal(err)
	}
	defer nine.Close()                 //nolint:errcheck // it was only read
	p.ExtraFiles = []*os.File{6: nine} // descriptors that our caller opened for the command, too
	p.start()
	dir, err := filepath.EvalSymlinks(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	p.ends(0, "")
	if out, errs := p.out.String(), p.err.String(); out != "in\nnine\n"+dir+"\n" || errs != "err\n" {
		t.Errorf("stdout %q, stderr %q", out, errs)
	}
}

// aWhile is how long a test waits in vain for a held lock. It is long enough for one attempt,
// which must see the holder, on a machine that stands still for a second.
const aWhile = 3 * time.Second

// holder holds the key until release.
func (w *world) holder(key string, flags ...string) (p *proc, release func()) {
	w.t.Helper()
	name := "held-" + key
	if err := syscall.Mkfifo(w.path(name+"-go"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	gate, err := os.OpenFile(w.path(name+"-go"), os.O_RDWR, 0) // to read as well: then it does not wait for a reader
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = gate.Close() })
	p = w.start(append(append([]string{"run"}, flags...), key, "--", "sh", "-c", "echo $$ > "+name+"; read go < "+name+"-go")...)
	w.content(name)
	return p, func() { _, _ = gate.WriteString("\n") }
}

func TestAnOutageExits69AndIsWaitedOutOnlyForEver(t *testing.T) {
	t.Parallel()
	w := newFaultyWorld(t)
	for _, fault := range []string{"down", "refused"} {
		w.fault(fault)
		for _, flags := range []string{"--wait 0", "--wait 200ms", "--skip"} {
			args := append(append([]string{"run"}, strings.Fields(flags)...), "k", "--", "touch", w.path("ran"))
			if _, stderr := w.want(exitUnavailable, args...); !strings.Contains(stderr, "check the backend") {
				t.Errorf("%s, %s: stderr is %q", fault, flags, stderr)
			}
		}
	}
	w.want(exitUnavailable, "run", "k", "--", "touch", w.path("ran")) // a refusal for ever
	w.fault("held")
	w.want(exitHeld, "run", "--wait", aWhile.String(), "k", "--", "touch", w.path("ran"))
	if w.exists("ran") {
		t.Fatal("the command was run")
	}

	w.fault("down")
	before := w.attempts()
	p := w.start("run", "--wait", "forever", "k", "--", "sh", "-c", "echo ran > ran")
	eventually(t, "several attempts", func() bool { return w.attempts() >= before+4 })
	w.fault("")
	if code := p.wait(); code != 0 || !w.exists("ran") {
		t.Errorf("after the outage: exit code %d", code)
	}
	stderr := p.err.String()
	if strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "connection refused") {
		t.Errorf("of the outage stderr says %q, want one line with the cause", stderr)
	}
}

// A reader of stderr that does not read delays neither the command nor the release of its lock.
func TestAFullStderrHoldsNothingUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.prepare("run", "--verbose", "k", "--", "sh", "-c", "echo ran > ran")
	r, full, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // it was only read
	if err := full.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := full.Write(make([]byte, 1<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the pipe is not full: %v", err)
	}
	p.Stderr = full
	p.start()
	w.content("ran")
	w.want(0, "run", "--wait", "1m", "k", "--", "true")
	said := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(r) // until the writers have ended
		said <- string(b)
	}()
	_ = full.Close()
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if s := <-said; !strings.HasSuffix(s, "released \"k\"\n") {
		t.Errorf("a late reader reads %q", s[max(0, len(s)-200):])
	}
}

func TestASignalEndsTheWaitAndLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, release := w.holder("k")
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		p := w.start("run", "--verbose", "k", "--", "touch", w.path("ran"))
		eventually(t, "the wait", func() bool { return strings.Contains(p.err.String(), "waits for") })
		p.signal(s)
		p.ends(128+int(s), "waits for")
	}
	release()
	w.want(0, "run", "--wait", "1m", "k", "--", "true")
	if w.exists("ran") {
		t.Error("the command was run")
	}
}

func TestSignalsArePassedOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	script := `
for s in INT TERM HUP QUIT USR1 USR2; do trap "echo $s >> got" $s; done
echo $$ > pid
while [ ! -e go ]; do sleep 0.2 & wait; done`
	p := w.start("run", "k", "--", "sh", "-c", script)
	pid := w.pid("pid")
	for i, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2} {
		p.signal(s)
		eventually(t, "signal "+s.String(), func() bool {
			b, _ := os.ReadFile(w.path("got"))
			return strings.Count(string(b), "\n") == i+1
		})
	}
	if got := strings.Fields(w.content("got")); strings.Join(got, " ") != "INT TERM HUP QUIT USR1 USR2" {
		t.Errorf("the command got %q", got)
	}
	p.signal(syscall.SIGTSTP)
	eventually(t, "the command's stop", func() bool { return status(pid) == 'T' })
	p.signal(syscall.SIGCONT)
	eventually(t, "its going on", func() bool { return status(pid) != 'T' })
	w.put("go", "")
	p.ends(0, "")
	p = w.start("run", "k", "--", "sh", "-c", "echo $$ > pid2; exec sleep 100")
	w.pid("pid2")
	p.signal(syscall.SIGTERM)
	p.ends(128+15, "")
}

// While dlock waits for a backend that is out of reach it says so when that begins, and then once
// a minute, with how to stop it.
func TestAnOutageThatIsWaitedOutIsToldEveryMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stderr buffer
		c := &console{lines: newBacklog(&stderr)}
		client, err := dlock.New(memory.New())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close() //nolint:errcheck // nothing is held
		j := &job{call: &call{console: c}, wait: forever, client: client}
		tell := func(err error) {
			j.hooks().Event(t.Context(), dlock.Event{Op: "attempt", Attempt: 2, Err: err})
			time.Sleep(time.Second)
		}
		for range 150 {
			tell(errors.New("connection refused"))
		}
		tell(&driver.HeldError{}) // it is back
		tell(errors.New("connection refused"))
		c.lines.close()
		lines := strings.Split(strings.TrimSuffix(stderr.String(), "\n"), "\n")
		if len(lines) != 4 || !strings.Contains(lines[1], "for 1m0s") || !strings.Contains(lines[2], "for 2m0s") || !strings.Contains(lines[2], "ctrl-C") || !strings.Contains(lines[3], "out of reach") {
			t.Errorf("got %q", lines)
		}
	})
}

//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package file

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest"
)

// The test binary is its own helper: it is started again with a role.

const roleEnv = "DLOCK_FILE_TEST_ROLE"

func TestMain(m *testing.M) {
	redlocktest.ServeClient(func(url string) (driver.Backend, error) { return dlock.OpenBackend(url) })
	if role := os.Getenv(roleEnv); role != "" {
		if err := play(role, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, role+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func play(role string, args []string) error {
	if role == "idle" { // a command that inherited a descriptor
		return announce("idle", io.Discard)
	}
	if uid, ok := os.LookupEnv("DLOCK_FILE_TEST_UID"); ok {
		id, _ := strconv.Atoi(uid)
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(id), syscall.Setuid(id)); err != nil {
			return err
		}
	}
	b, err := New(&Options{Folder: args[0]})
	if err != nil {
		return err
	}
	switch role {
	case "hold": // until stdin ends
		l, err := b.Acquire(context.Background(), request("k"))
		if err != nil {
			return err
		}
		if err := announce(fmt.Sprint(l.Grant().Fence), io.Discard); err != nil {
			return err
		}
		return l.Release(context.Background())
	case "bequeath": // the lock to a command that runs until stdin ends, and detach
		l, err := b.Acquire(context.Background(), request("k"))
		if err != nil {
			return err
		}
		cmd := helper("idle", args[0])
		cmd.ExtraFiles = []*os.File{l.(*Lease).File()}
		cmd.Stdin, cmd.Stdout = os.Stdin, os.Stdout
		if err := cmd.Start(); err != nil {
			return err
		}
		if len(args) > 1 { // to be killed; stdin is the command's
			never := make(chan os.Signal, 1)
			signal.Notify(never, syscall.SIGUSR2)
			<-never
		}
		return l.(*Lease).Detach()
	}
	return fmt.Errorf("unknown role %q", role)
}

// announce prints a line, and returns when stdin has ended.
func announce(line string, w io.Writer) error {
	fmt.Println(line)
	_, err := io.Copy(w, os.Stdin)
	return err
}

func helper(role string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	cmd.Stderr = os.Stderr
	return cmd
}

// process is a helper that has announced itself.
type process struct {
	*exec.Cmd
	line string
	in   io.WriteCloser
	out  io.ReadCloser
}

// begin starts a helper and waits for its first line.
func begin(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()            // ends a command that it has left behind
		_ = cmd.Process.Kill()    // it may have ended
		_, _ = cmd.Process.Wait() // it may have been waited for
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the helper said nothing: %v", err)
	}
	return &process{cmd, strings.TrimSpace(line), in, out}
}

func (p *process) kill(t *testing.T) {
	t.Helper()
	must(t, p.Process.Signal(syscall.SIGKILL))
	if _, err := p.Process.Wait(); err != nil {
		t.Fatal(err)
	}
}

func (p *process) fence(t *testing.T) uint64 {
	t.Helper()
	f, err := strconv.ParseUint(p.line, 10, 64)
	must(t, err)
	return f
}

func TestAKilledHolderFreesAtOnce(t *testing.T) {
	b := open(t, t.TempDir())
	p := begin(t, helper("hold", b.folder.path))
	h := wantHeld(t, b, request("k"))
	if !strings.HasPrefix(h.Holder, fmt.Sprintf("web-4/%d/", p.Process.Pid)) {
		t.Errorf("holder %q, want process %d", h.Holder, p.Process.Pid)
	}
	if st, err := b.Lookup(t.Context(), "k"); err != nil || len(st.Holders) != 1 || st.Holders[0].Address != fmt.Sprint("pid ", p.Process.Pid) {
		t.Errorf("state %+v, %v", st, err)
	}
	must(t, p.Process.Signal(syscall.SIGSTOP))
	wantHeld(t, b, request("k")) // a stopped process stays the holder
	p.kill(t)
	if st, err := b.Lookup(t.Context(), "k"); err != nil || len(st.Holders) != 0 {
		t.Errorf("state of a key whose holder was killed: %+v, %v", st, err)
	}
	l := acquire(t, b, request("k"))
	if l.Grant().Fence <= p.fence(t) {
		t.Errorf("token %d after %d", l.Grant().Fence, p.fence(t))
	}
}

// The descriptor that a command inherited keeps the lock, even if the holder is killed.
func TestAnInheritedDescriptorKeepsTheLock(t *testing.T) {
	for name, args := range map[string][]string{
		"holder detached": nil,
		"holder killed":   {"die"},
	} {
		t.Run(name, func(t *testing.T) {
			b := open(t, t.TempDir())
			p := begin(t, helper("bequeath", append([]string{b.folder.path}, args...)...))
			if p.line != "idle" {
				t.Fatalf("the command said %q", p.line)
			}
			if args != nil {
				p.kill(t)
			} else if _, err := p.Process.Wait(); err != nil {
				t.Fatal(err)
			}
			wantHeld(t, b, request("k"))
			wantHeld(t, b, request("k", shared))
			if err := p.in.Close(); err != nil { // the command ends
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, p.out); err != nil { // and has closed all it had
				t.Fatal(err)
			}
			eventually(t, func() bool {
				l, err := b.Acquire(t.Context(), request("k"))
				if err != nil && !errors.Is(err, driver.ErrHeld) {
					t.Fatal(err)
				}
				return l != nil
			})
		})
	}
}

// eventually waits for effects that the kernel causes a moment later.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	end := time.Now().Add(2 * time.Minute)
	for !ok() {
		if time.Now().After(end) {
			t.Fatal("it never came")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestReleaseFreesWhatWasInherited(t *testing.T) {
	b := open(t, t.TempDir())
	l := acquire(t, b, request("k"))
	cmd := helper("idle", b.folder.path)
	cmd.ExtraFiles = []*os.File{l.File()}
	begin(t, cmd)
	release(t, l)
	release(t, acquire(t, b, request("k")))
}

// Other children inherit nothing: the descriptor is closed on exec.
func TestOnlyWhoIsGivenTheDescriptorInherits(t *testing.T) {
	b := open(t, t.TempDir())
	l := acquire(t, b, request("k"))
	begin(t, helper("idle", b.folder.path))
	must(t, l.Detach())
	if l.File() != nil {
		t.Error("a detached lease has a file")
	}
	wantErr(t, "release after Detach", l.Release(t.Context()), nil)
	wantErr(t, "a second Detach", l.Detach(), nil)
	release(t, acquire(t, b, request("k")))
}

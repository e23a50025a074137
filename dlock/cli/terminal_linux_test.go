package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A terminal with an interactive shell in it, whose keys a test presses.
type screen struct {
	t      *testing.T
	keys   *os.File
	out    buffer
	seen   int // how much of out was looked at
	shell  *exec.Cmd
	closed chan struct{}
}

func newScreen(w *world, shell ...string) *screen {
	w.t.Helper()
	if len(shell) == 0 {
		shell = []string{"sh", "-i"}
	}
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		w.t.Skip("no terminals here: ", err)
	}
	number, err := unlock(keys)
	if err != nil {
		w.t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	defer tty.Close() //nolint:errcheck // the shell has it
	s := &screen{t: w.t, keys: keys, closed: make(chan struct{})}
	s.shell = exec.Command(shell[0], shell[1:]...)
	s.shell.Dir = w.dir
	s.shell.Env = append(w.environ(), "PS1=", "ENV=", "dlock="+w.exe)
	s.shell.Stdin, s.shell.Stdout, s.shell.Stderr = tty, tty, tty
	s.shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := s.shell.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		defer close(s.closed)
		buf := make([]byte, 4096)
		for {
			n, err := keys.Read(buf)
			_, _ = s.out.Write(buf[:n]) // never fails
			if err != nil {
				return // EIO: the terminal has gone
			}
		}
	}()
	w.t.Cleanup(func() {
		_ = s.shell.Process.Kill() // hangs the terminal up
		_ = s.shell.Wait()         // it was killed
		_ = keys.Close()
		<-s.closed
	})
	s.line("stty -echo; echo re''ady")
	s.expect("ready")
	return s
}

// unlock opens a terminal's other end to others and returns its number. It does not call
// File.Fd, which takes a file out of Go's poller: Close must end a Read even while another
// process has the terminal open.
func unlock(keys *os.File) (number int, err error) {
	conn, err := keys.SyscallConn()
	if err != nil {
		return 0, err
	}
	if cerr := conn.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}); cerr != nil {
		return 0, cerr
	}
	return number, err
}

func (s *screen) press(keys string) {
	s.t.Helper()
	if _, err := s.keys.WriteString(keys); err != nil && !errors.Is(err, syscall.EIO) {
		s.t.Fatal(err)
	}
}

func (s *screen) line(text string) { s.t.Helper(); s.press(text + "\n") }

// expect waits for text after what was expected before.
func (s *screen) expect(text string) {
	s.t.Helper()
	defer func() {
		if s.t.Failed() {
			s.t.Logf("the screen shows: %s", s.out.String())
		}
	}()
	eventually(s.t, fmt.Sprintf("%q on the screen", text), func() bool {
		i := strings.Index(s.out.String()[s.seen:], text)
		if i >= 0 {
			s.seen += i + len(text)
		}
		return i >= 0
	})
}

// What a person types, each line or key behind a '>', and what then comes on the screen.
var dialogs = map[string][]string{
	"the command reads from the terminal": {
		`>$dlock run k -- sh -c 'echo started; read a; echo "got <$a>"'; echo "code $?"` + "\n", "started",
		">hello\n", "got <hello>", "code 0", ">echo the shell has it again\n", "the shell has it again",
	},
	"ctrl-C of a terminal that is not lent": {
		`>$dlock run k -- sh -c 'trap "echo int; exit 9" INT; echo started; while :; do sleep 0.2 & wait; done'; echo "code $?"` + "\n", "started",
		">\x03", "int", "code 9",
	},
	"ctrl-C of one that is": {
		`>$dlock run k -- sh -c 'trap "echo int; exit 9" INT; echo started; read a; echo lent; while :; do sleep 0.2 & wait; done'; echo "code $?"` + "\n", "started",
		">\n", "lent", ">\x03", "int", "code 9",
	},
	"a pager at the end of the pipeline asks the terminal itself": {
		`>$dlock run k -- sh -c 'echo one; sleep 1' | sh -c 'cat; read a < /dev/tty; echo "got <$a>"'` + "\n", "one",
		">key\n", "got <key>",
	},
	"without a shell ctrl-Z does nothing": {
		`>exec $dlock run k -- sh -c 'echo started; read a; echo "got <$a>"; read b; echo "got <$b>"'` + "\n", "started",
		">a\n", "got <a>", ">\x1a", ">b\n", "got <b>",
	},
}

func TestTheTerminal(t *testing.T) {
	t.Parallel()
	for name, steps := range dialogs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScreen(newWorld(t))
			for _, step := range steps {
				if keys, typed := strings.CutPrefix(step, ">"); typed {
					s.press(keys)
				} else {
					s.expect(step)
				}
			}
		})
	}
}

// The command waits in a way in which every shell can be stopped. (A shell that starts a
// process by vfork(2) sleeps until that process runs, and cannot be continued if the process
// was stopped earlier.)
func TestCtrlZStopsTheJobAndFgGoesOn(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]string{"not lent": "", "lent": "read a;"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := newScreen(w)
			s.line(`$dlock run k -- sh -c 'echo started; ` + begin + ` echo $$ > pid; echo running; while [ ! -e go ]; do sleep 0.05 & wait; done; read b; echo "got <$b>"'; echo "code $?"`)
			s.expect("started")
			if begin != "" {
				s.line("a")
			}
			s.expect("running")
			pid := w.pid("pid")
			s.press("\x1a")
			s.expect("Stopped")
			eventually(t, "the command's stop", func() bool { return status(pid) == 'T' })
			s.line("echo shell")
			s.expect("shell")
			w.put("go", "")
			s.line("fg")
			s.line("b")
			s.expect("got <b>")
			s.line("echo over")
			s.expect("over")
		})
	}
}

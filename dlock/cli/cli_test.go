//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/dsn"
	_ "github.com/redlock-go/redlock/drivers/all"
	"github.com/redlock-go/redlock/drivers/memory"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// asDlock in the environment makes this test binary the program.
const asDlock = "DLOCK_TEST_MAIN"

func TestMain(m *testing.M) {
	dlock.Register("faulty", faulty{})
	if len(os.Args) == 4 && os.Args[1] == "job" {
		os.Exit(runJob(os.Args[2], os.Args[3]))
	}
	if isGuard(os.Args) || os.Getenv(asDlock) != "" {
		os.Exit(Main(os.Args, os.Stdin, os.Stdout, os.Stderr))
	}
	_ = os.Setenv(asDlock, "1") // for children
	// So that no test inherits ignored signals from its parent process.
	signal.Notify(make(chan os.Signal, 1), append(forwardedSignals, endSignals...)...)
	if allSeen {
		_ = os.Setenv("away", "setsid") // what the scripts call to leave the group
	}
	for _, name := range []string{envURL, envURLFile} {
		_ = os.Unsetenv(name)
	}
	_ = os.Setenv("PGUSER", server.Superuser)
	for _, prefix := range []string{"/opt/homebrew", "/usr/local", "/home/linuxbrew/.linuxbrew"} { // leave psql out of PATH
		folders, _ := filepath.Glob(prefix + "/opt/postgresql@*/bin") // the pattern is good
		_ = os.Setenv("PATH", strings.Join(append([]string{os.Getenv("PATH")}, folders...), ":"))
	}
	// The parallel tests wait for leases to end, and need no processor.
	flag.Parse()
	_ = flag.Set("test.parallel", "16") // that flag exists
	os.Exit(m.Run())
}

// faulty is a driver over memory whose faults stand in the file "fault" of the folder in its URL:
// "down", "refused" and "held" for attempts, "outage", "hang" and "lost" for renewals.
type faulty struct{}

func (faulty) Open(c *driver.Config) (driver.Backend, error) {
	u, err := url.Parse(c.DSN)
	if err != nil {
		return nil, err
	}
	return faultyBackend{memory.New(), filepath.Join(u.Path, "fault")}, nil
}

type faultyBackend struct {
	driver.Backend
	file string
}

func (b faultyBackend) fault() string {
	text, _ := os.ReadFile(b.file)
	return string(bytes.TrimSpace(text))
}

func (faultyBackend) Info() driver.Info {
	return driver.Info{Name: "faulty", Features: driver.FeatureFencing, MinTTL: driver.MinTTL, MaxTTL: time.Hour}
}

func (b faultyBackend) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if err := appendTo(b.file+"-attempts", "."); err != nil {
		return nil, err
	}
	switch b.fault() {
	case "down":
		return nil, errors.New("connection refused")
	case "refused":
		return nil, &driver.RefusedError{Reason: "no such user"}
	case "held":
		return nil, &driver.HeldError{Holder: "web-4/2211"}
	}
	l, err := b.Backend.Acquire(ctx, r)
	return faultyLease{l, b}, err
}

type faultyLease struct {
	driver.Lease
	b faultyBackend
}

func (l faultyLease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	switch l.b.fault() {
	case "outage":
		return driver.Grant{}, errors.New("connection refused")
	case "hang":
		<-ctx.Done()
		return driver.Grant{}, ctx.Err()
	case "lost":
		return driver.Grant{}, driver.ErrLost
	}
	return l.Lease.Renew(ctx, r)
}

func appendTo(file, text string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// A world is a folder of its own with locks in it, those of files unless url is set.
type world struct {
	t   *testing.T
	dir string
	exe string
	url string
	env []string // more of the environment
}

func newWorld(t *testing.T) *world {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: t.TempDir(), exe: exe}
	w.url = "file://" + w.dir + "/locks"
	return w
}

// on returns a world whose locks are at a URL.
func on(t *testing.T, url string) *world {
	t.Helper()
	w := newWorld(t)
	w.url = url
	return w
}

// newFaultyWorld uses the driver faulty.
func newFaultyWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.url = "faulty://" + w.dir
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) fault(name string) { w.put("fault", name) }

// attempts is how many requests the driver faulty has had in this world.
func (w *world) attempts() int {
	b, _ := os.ReadFile(w.path("fault-attempts")) // none yet
	return len(b)
}

// put writes a file at once: a reader sees the old content, or all of the new one.
func (w *world) put(name, content string) (path string) {
	w.t.Helper()
	err := os.WriteFile(w.path(name+".new"), []byte(content), 0o600)
	if err == nil {
		err = os.Rename(w.path(name+".new"), w.path(name))
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return w.path(name)
}

// A proc is a running dlock.
type proc struct {
	*exec.Cmd
	t        *testing.T
	out, err buffer
	ended    chan struct{}
}

// prepare makes a dlock that must be started.
func (w *world) prepare(args ...string) *proc {
	p := &proc{Cmd: exec.Command(w.exe, args...), t: w.t, ended: make(chan struct{})}
	p.Dir, p.Stdout, p.Stderr = w.dir, &p.out, &p.err
	p.Env = w.environ()
	p.WaitDelay = 20 * time.Second
	return p
}

// start starts it. It is killed, should the test end before it does.
func (p *proc) start() {
	p.t.Helper()
	if err := p.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.Wait() // the state tells
	}()
	p.t.Cleanup(func() {
		_ = p.Process.Kill() // it has ended, as a rule
		<-p.ended
	})
}

// start starts dlock.
func (w *world) start(args ...string) *proc {
	w.t.Helper()
	p := w.prepare(args...)
	p.start()
	return p
}

// patient is how long a step may take on a slow machine.
const patient = 2 * time.Minute

// wait waits for the end and returns the exit code.
func (p *proc) wait() int {
	p.t.Helper()
	return p.waitFor(patient)
}

func (p *proc) waitFor(d time.Duration) int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(d):
		_ = p.Process.Signal(syscall.SIGQUIT)
		p.t.Fatalf("dlock %q does not end; stderr: %s", p.Args[1:], &p.err)
	}
	if ws, ok := p.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return -int(ws.Signal())
	}
	return p.ProcessState.ExitCode()
}

// ends waits for the end, and checks the exit code and that stderr has a text.
func (p *proc) ends(code int, says string) {
	p.t.Helper()
	if got := p.wait(); got != code || !strings.Contains(p.err.String(), says) {
		p.t.Errorf("dlock %q: exit code %d, want %d; stderr is %q, want %q in it", p.Args[1:], got, code, &p.err, says)
	}
}

func (p *proc) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// environ is the environment of a dlock in a process of its own.
func (w *world) environ() []string {
	return append(append(os.Environ(), "GORACE=atexit_sleep_ms=0", envURL+"="+w.url), w.env...)
}

// refused are the exit codes of a dlock that has started no command.
var refused = []int{exitHeld, exitUnavailable, exitUsage}

// run runs dlock to its end: in this process, which costs less, unless it starts a command. A loss,
// or a guard that fails, kills all children of the process, and those of the test are its servers.
func (w *world) run(code int, args ...string) (got int, stdout, stderr string) {
	w.t.Helper()
	if slices.Contains(args, "--") && !slices.Contains(refused, code) || dsn.HasPassword(w.url) {
		p := w.start(args...)
		return p.wait(), p.out.String(), p.err.String()
	}
	if !slices.Contains(args, "--url") {
		args = slices.Insert(slices.Clone(args), 1, "--url", w.url)
	}
	return inside(w.t, nil, args...)
}

// outside is inside in a process of its own if args may start a command.
func outside(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	if !slices.Contains(args, "--") {
		return inside(t, env, args...)
	}
	p := newWorld(t).prepare(args...)
	p.Env = slices.DeleteFunc(append(os.Environ(), env...), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.Contains(env, name) // without a value: taken out
	})
	p.start()
	return p.wait(), p.out.String(), p.err.String()
}

// inside runs dlock in this process, with more environment, of which "NAME" alone is taken out.
func inside(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	for _, e := range env {
		name, value, set := strings.Cut(e, "=")
		if old, was := os.LookupEnv(name); was {
			defer os.Setenv(name, old) //nolint:errcheck // the name is good
		} else {
			defer os.Unsetenv(name) //nolint:errcheck // the name is good
		}
		if _ = os.Setenv(name, value); !set {
			_ = os.Unsetenv(name)
		}
	}
	var out, errs buffer
	code = Main(append([]string{"dlock"}, args...), strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// late matches the output of dlock when a server's answer did not come in time, which proves
// nothing on a machine that stands still for a moment.
var late = regexp.MustCompile(`no answer within|not answer in time|no answer in time|deadline exceeded|i/o timeout`)

// want runs dlock to its end, and again if an answer was late, and checks its exit code, and that
// stderr has one line at most.
func (w *world) want(code int, args ...string) (stdout, stderr string) {
	w.t.Helper()
	var got int
	for end := time.Now().Add(patient); ; {
		got, stdout, stderr = w.run(code, args...)
		answered := strings.HasPrefix(w.url, "faulty:") || !late.MatchString(stdout) && (!late.MatchString(stderr) || got == code && code != exitUnavailable)
		if answered || time.Now().After(end) {
			break
		}
	}
	if got != code {
		w.t.Fatalf("dlock %q: exit code %d, want %d; stderr: %s", args, got, code, stderr)
	}
	if n := strings.Count(stderr, "\n"); n > 1 && !slices.Contains(args, "--verbose") {
		w.t.Errorf("dlock %q: %d lines on stderr, want at most one: %s", args, n, stderr)
	}
	return stdout, stderr
}

// hold holds keys of the world's locks in this process.
func (w *world) hold(url string, keys ...string) {
	w.t.Helper()
	c, err := dlock.OpenURL(url, dlock.WithLogger(nil))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() }) // ends the locks
	for _, key := range keys {
		if _, err := c.Lock(w.t.Context(), key); err != nil { // a busy server may not answer one attempt in time
			w.t.Fatal(err)
		}
	}
}

// json runs dlock to its end, and decodes what it writes.
func (w *world) json(code int, v any, args ...string) {
	w.t.Helper()
	out, _ := w.want(code, args...)
	if err := json.Unmarshal([]byte(out), v); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	pause := 5 * time.Millisecond
	for end := time.Now().Add(patient); !cond(); pause = min(pause*5/4, 50*time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(pause)
	}
}

// content waits for a file that a command writes, and returns its one line.
func (w *world) content(name string) string {
	w.t.Helper()
	var b []byte
	eventually(w.t, "the file "+name, func() bool {
		b, _ = os.ReadFile(w.path(name))
		return bytes.HasSuffix(b, []byte("\n"))
	})
	return string(bytes.TrimSpace(b))
}

func (w *world) exists(name string) bool {
	_, err := os.Stat(w.path(name))
	return err == nil
}

// pid waits for a file with a process's number.
func (w *world) pid(name string) int {
	w.t.Helper()
	n, err := strconv.Atoi(w.content(name))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if w.t.Failed() {
			_ = syscall.Kill(n, syscall.SIGKILL) // the test may check that it does not exist
		}
	})
	return n
}

// A buffer can be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// alive reports whether a process runs: a zombie, which nobody has reaped, does not.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	s := status(pid)
	return s != 0 && s != 'Z'
}

// disturbing finds a character that a terminal may obey.
func disturbing(out string) string {
	for i, r := range out {
		if r != '\n' && !unicode.IsPrint(r) {
			return fmt.Sprintf("%q in %q", r, out[max(0, i-40):min(len(out), i+40)])
		}
	}
	return ""
}

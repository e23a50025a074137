// Package clustertest runs the conformance suite and the stress test of a driver whose servers are a
// cluster.
package clustertest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	_ "github.com/redlock-go/redlock/dlock/both"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	_ "github.com/redlock-go/redlock/drivers/memory"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

var (
	whole = flag.Bool("whole", false, "repeat the cases of the suite as often as before a release")
	only  = flag.String("only", "", "the `case`, or group of cases, of the suite to run")
	long  = flag.Duration("long", 0, "stress for this `long`, instead of for some thousand calls")
)

// Whole reports whether the suite runs as before a release.
func Whole() bool { return *whole || server.IsDeep() }

// A System is a driver, and how it reaches its servers.
type System struct {
	Driver driver.Driver
	// Start and Servers start servers: server.StartEtcd and server.Etcd.
	Start   func(ctx context.Context, members int, cfg server.Config) (*server.Group, error)
	Servers func(t testing.TB, members int, opts ...server.Option) *server.Group
	// URL is that of the servers with these addresses, with a parameter; user is empty, or ends with '@'.
	URL func(user string, addrs []string) string
	// TTL and Grace are those of the harness.
	TTL, Grace time.Duration

	mu   sync.Mutex
	lone *server.Group
}

// Main is for TestMain.
func (s *System) Main(m *testing.M) {
	redlocktest.ServeClient(func(url string) (driver.Backend, error) { return dlock.OpenBackend(url) })
	status := m.Run()
	if s.lone != nil {
		if err := s.lone.Close(); err != nil {
			fmt.Println(err)
			status = 1
		}
	}
	os.Exit(status)
}

// Single returns a cluster of one member that the tests of a package share, which break nothing.
func (s *System) Single(t testing.TB) *server.Group {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lone == nil {
		g, err := s.Start(t.Context(), 1, server.Config{})
		if missing := (*server.MissingError)(nil); os.Getenv("CI") == "" && (errors.As(err, &missing) || errors.Is(err, server.ErrUnsupported)) {
			t.Skip(err)
		}
		drivertest.Must(t, err)
		s.lone = g
	}
	return s.lone
}

// Harness has backends of a cluster, each of which reaches every member through a proxy.
func (s *System) Harness(g *server.Group, cfg driver.Config, user string) redlocktest.Harness {
	h := fault.HarnessOf(g.Addrs(), func(via []string) (driver.Backend, error) {
		through := cfg
		through.DSN = s.URL(user, via)
		return s.Driver.Open(&through)
	})
	h.TTL, h.Grace = s.TTL, s.Grace
	h.Timeout = 5 * time.Minute // for a machine that is very busy
	h.Faults.Kill, h.Faults.Restart = g.KillMajority, g.StartAgain
	h.Faults.Pause, h.Faults.Resume = g.Pause, g.Resume
	return h
}

// Secret is the password of the conformance test's user, for which the servers do not ask.
const Secret = "pw-s3cr3t"

// Conformance runs the suite with one member, and with three as before a release. complete completes
// the harness.
func (s *System) Conformance(t *testing.T, complete func(g *server.Group, h *redlocktest.Harness)) {
	const user, takesTooLong = "user:" + Secret + "@", "takes too long for -short"
	members := 1
	if Whole() {
		members = 3
	}
	g := s.Servers(t, members)
	var notices drivertest.NoticeLog
	h := s.Harness(g, driver.Config{Prefix: "app:", Notify: notices.Add}, user)
	h.Driver, h.URL = s.Driver, s.URL(user, g.Addrs())
	h.Process = func() (*redlocktest.Client, error) {
		return redlocktest.StartClient(h.URL + "&prefix=app:")
	}
	h.Prefix, h.Secret, h.Notices = "app:", Secret, notices.All
	h.Timeout = 5 * time.Minute // for a machine that is very busy
	h.Short, h.Only = !*whole, *only
	if testing.Short() && members == 1 { // a moment instead of half a minute
		h.Skip = map[string]string{}
		for _, group := range []string{"fault", "expiry", "wait", "watch", "leak", "history", "process"} {
			h.Skip[group] = takesTooLong
		}
	}
	if *whole {
		h.Faults.Kill = g.Kill
	}
	complete(g, &h)
	redlocktest.Run(t, h)
}

// Stress also kills the servers and processes of clients. -long=10m sets how long it takes.
func (s *System) Stress(t *testing.T) {
	if *long == 0 {
		server.Deep(t) // the suite has histories
	}
	t.Parallel() // it mostly waits
	g := s.Servers(t, 3)
	h := s.Harness(g, driver.Config{}, "")
	h.Process = func() (*redlocktest.Client, error) { return redlocktest.StartClient(s.URL("", g.Addrs())) }
	o := redlocktest.StressOptions{Operations: 2500}
	if *long > 0 {
		o = redlocktest.StressOptions{Duration: *long}
	}
	redlocktest.Stress(t, h, o)
}

// Open opens a backend for a test.
func Open(t testing.TB, url string) driver.Backend {
	t.Helper()
	b, err := dlock.OpenBackend(url)
	drivertest.Must(t, err)
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// Leaders checks that no token falls and that nobody else gets a lock that is held, while each of three
// servers is killed or paused in turn, and when all were restarted. (It is deep.)
func (s *System) Leaders(t *testing.T) {
	server.Deep(t)
	g := s.Servers(t, 3)
	b := Open(t, s.URL("", g.Addrs()))
	var last uint64
	step := func(what string, fail ...func() error) {
		t.Helper()
		for _, f := range fail {
			drivertest.Must(t, f())
		}
		l := drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute))
		if l.Grant().Fence <= last {
			t.Errorf("%s: token %d after %d", what, l.Grant().Fence, last)
		}
		last = l.Grant().Fence
		if _, err := b.Acquire(t.Context(), drivertest.NewRequest("k", time.Minute)); err == nil {
			t.Errorf("%s: two holders", what)
		}
		drivertest.Release(t, l)
	}
	step("at first")
	for i, s := range g.Nodes {
		step(fmt.Sprint("killed server ", i), s.Kill)
		step(fmt.Sprint("paused server ", i), s.Start, s.Pause)
		drivertest.Must(t, s.Resume())
	}
	step("all restarted", g.Kill, g.Start)
}

// Syncs checks that two of three servers sync each lock to their disks before it is granted, so that all
// of them may lose power, and that the end of all their processes costs no lock. It needs strace. (It is
// deep.)
func (s *System) Syncs(t *testing.T, opts ...server.Option) {
	server.Deep(t)
	g := s.Servers(t, 3, opts...)
	b := Open(t, s.URL("", g.Addrs()))
	drivertest.Grant(t, b, drivertest.NewRequest("first", time.Hour)) // all is there that locks need
	file := filepath.Join(t.TempDir(), "syncs")
	args := []string{"-f", "-e", "trace=fsync,fdatasync", "-o", file}
	for _, s := range g.Nodes {
		args = append(args, "-p", strconv.Itoa(s.Pid()))
	}
	trace := exec.Command("strace", args...)
	said, err := trace.StderrPipe()
	drivertest.Must(t, err)
	if err := trace.Start(); err != nil {
		t.Skip(err)
	}
	in := bufio.NewReader(said)
	for range g.Nodes { // each is attached, if the system allows that
		line, err := in.ReadString('\n')
		if !strings.Contains(line, "attached") {
			_ = trace.Process.Kill()
			_ = trace.Wait() // it says that it was killed
			t.Skip(line, err)
		}
	}
	const locks = 20
	for i := range locks { // one after the other: a sync is of one lock
		drivertest.Grant(t, b, drivertest.NewRequest(strconv.Itoa(i), time.Hour))
	}
	drivertest.Must(t, trace.Process.Signal(os.Interrupt))
	_ = trace.Wait() // it says that it was interrupted
	text, err := os.ReadFile(file)
	drivertest.Must(t, err)
	if n := bytes.Count(text, []byte("sync(")); n < 2*locks {
		t.Errorf("%d syncs for %d locks", n, locks)
	}
	drivertest.Must(t, g.Kill())
	drivertest.Must(t, g.Start())
	if _, err := drivertest.Acquire(t, b, drivertest.NewRequest("0", time.Hour)); drivertest.Verdict(err) != "held" {
		t.Errorf("after the end of all processes: %v", err)
	}
}

// Change checks that a program that changes to the backend of a URL, or from it, excludes those that
// use it alone, whose tokens are larger afterwards.
func Change(t *testing.T, url string) {
	b := Open(t, url)
	for _, urls := range []string{"memory:" + t.Name() + " " + url, url + " memory:" + t.Name()} {
		c, err := dlock.OpenURL("both:"+urls, dlock.WithLogger(nil))
		drivertest.Must(t, err)
		l, err := c.Lock(t.Context(), "k")
		drivertest.Must(t, err)
		if _, err := drivertest.Acquire(t, b, drivertest.NewRequest("k", time.Minute)); drivertest.Verdict(err) != "held" {
			t.Errorf("%s: the backend alone: %v", urls, err)
		}
		granted := drivertest.Waiter(t, b, drivertest.NewRequest("k", time.Minute))
		drivertest.AwaitWaiters(t, b.(driver.Inspector), "k", 1)
		drivertest.Must(t, l.Unlock())
		next := <-granted
		if tokens := b.Info().TokenLag >= 0; tokens != (l.Fence() > 0) || next.Grant().Fence <= l.Fence() {
			t.Errorf("%s: token %d after %d", urls, next.Grant().Fence, l.Fence())
		}
		drivertest.Release(t, next)
		drivertest.Must(t, c.Close())
	}
}

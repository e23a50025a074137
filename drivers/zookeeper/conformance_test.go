package zookeeper_test

import (
	"context"
	"errors"
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/zookeeper"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// harness has backends of an ensemble, each of which reaches every member through a proxy.
func harness(g *server.Group, cfg driver.Config, user string) redlocktest.Harness {
	return fault.HarnessOf(g.Addrs(), func(via []string) (driver.Backend, error) {
		through := cfg
		through.DSN = "zk://" + user + strings.Join(via, ",") + "?call_timeout=1500ms"
		return zookeeper.Driver{}.Open(&through)
	})
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

// connect makes a client of an ensemble.
func connect(addrs []string) (*zk.Conn, error) {
	c, _, err := zk.Connect(addrs, time.Minute, zk.WithLogger(quiet{}), zk.WithLogInfo(false))
	return c, err
}

// stored lists the entries under a path.
func stored(c *zk.Conn, path string) ([]string, error) {
	if _, err := c.Sync(path); err != nil {
		return nil, err
	}
	locks, _, err := c.Children(path)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return nil, err
	}
	var names []string
	for _, lock := range locks {
		entries, _, err := c.Children(path + "/" + lock)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return nil, err
		}
		for _, e := range entries {
			names = append(names, zookeeper.Unescape(lock)+"/"+e)
		}
	}
	return names, nil
}

// marker is where the version of the layout is stored.
const marker = "/dlock/.dlock"

// setLayout makes the stored layout one of a later release, or ours again.
func setLayout(c *zk.Conn, old, new string) error {
	value, _, err := c.Get(marker)
	if err == nil {
		_, err = c.Set(marker, []byte(strings.Replace(string(value), old, new, 1)), -1)
	}
	return err
}

// urlOf is the URL of a whole ensemble.
func urlOf(g *server.Group) string {
	return "zk://" + strings.Join(g.Addrs(), ",") + "?call_timeout=3s"
}

// patientURL is for tests that abandon no attempt, on a busy machine too: its entry would stay for a
// moment.
func patientURL(g *server.Group) string {
	return "zk://" + strings.Join(g.Addrs(), ",") + "?call_timeout=1m"
}

// open opens a backend for a test.
func open(t testing.TB, url string) *zookeeper.Backend {
	t.Helper()
	b, err := zookeeper.Driver{}.Open(&driver.Config{DSN: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b.(*zookeeper.Backend)
}

var whole = flag.Bool("whole", false, "repeat the cases of the suite as often as before a release")

const long = "takes too long for -short"

func TestConformance(t *testing.T) {
	count, skip := 1, map[string]string(nil) // TestTheLeaderFails has three members
	switch {
	case server.IsDeep() || *whole:
		count = 3
	case testing.Short(): // a moment instead of half a minute
		skip = map[string]string{"fault": long, "expiry": long, "wait": long, "watch": long, "leak": long, "history": long, "process": long}
	}
	g := server.ZooKeeper(t, count)
	const secret = "pw-s3cr3t" // the nodes are then those of this user
	var notices drivertest.NoticeLog
	cfg := driver.Config{Prefix: "app:", Notify: notices.Add}
	look := func(f func(*zk.Conn) error) error {
		c, err := connect(g.Addrs())
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.AddAuth("digest", []byte("user:"+secret)); err != nil {
			return err
		}
		return f(c)
	}
	h := harness(g, cfg, "user:"+secret+"@")
	h.Driver, h.URL = zookeeper.Driver{}, "zk://user:"+secret+"@"+strings.Join(g.Addrs(), ",")
	h.Process = func() (*redlocktest.Client, error) {
		return redlocktest.StartClient(h.URL + "?call_timeout=1500ms&prefix=" + cfg.Prefix)
	}
	h.Prefix, h.Secret, h.Notices = cfg.Prefix, secret, notices.All
	h.Skip, h.Short, h.TTL, h.Grace = skip, !*whole, 2*time.Second, 3*time.Second
	// There is no OpenWithClock: the driver never reads the wall clock. The cases of processes,
	// whose wall clocks are wrong, show that. A machine that is very busy starts three Java servers
	// slowly.
	h.Timeout = 5 * time.Minute
	if server.IsDeep() || *whole { // otherwise List tells, which costs the server less
		h.Residue = func(context.Context) (names []string, err error) {
			err = look(func(c *zk.Conn) error { names, err = stored(c, "/dlock"); return err })
			return names, err
		}
	}
	h.FutureLayout = func() (undo func() error, err error) {
		set := func(old, new string) error { return look(func(c *zk.Conn) error { return setLayout(c, old, new) }) }
		return func() error { return set("dlock2", "dlock1") }, set("dlock1", "dlock2")
	}
	if h.Faults.Kill = g.KillMajority; *whole {
		h.Faults.Kill = g.Kill
	}
	h.Faults.Pause, h.Faults.Resume, h.Faults.Restart = g.Pause, g.Resume, g.StartAgain
	redlocktest.Run(t, h)
}

var stressFor = flag.Duration("long", 0, "stress for this `long`, instead of for some thousand calls")

// TestStress also kills the servers and processes of clients. -long=10m sets how long it takes.
func TestStress(t *testing.T) {
	if *stressFor == 0 {
		server.Deep(t) // the suite has histories
	}
	t.Parallel() // it mostly waits
	g := server.ZooKeeper(t, 3)
	h := harness(g, driver.Config{}, "")
	h.Process = func() (*redlocktest.Client, error) { return redlocktest.StartClient(urlOf(g)) }
	h.TTL, h.Grace = 2*time.Second, 3*time.Second
	h.Faults.Kill, h.Faults.Restart = g.KillMajority, g.StartAgain
	h.Faults.Pause, h.Faults.Resume = g.Pause, g.Resume
	o := redlocktest.StressOptions{Operations: 2500}
	if *stressFor > 0 {
		o = redlocktest.StressOptions{Duration: *stressFor}
	}
	redlocktest.Stress(t, h, o)
}

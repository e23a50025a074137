package zookeeper_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest/clustertest"
	"github.com/redlock-go/redlock/drivers/zookeeper"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

var system = &clustertest.System{
	Driver: zookeeper.Driver{}, Start: server.StartZooKeeper, Servers: server.ZooKeeper, TTL: 2 * time.Second, Grace: 3 * time.Second,
	URL: func(user string, addrs []string) string {
		return "zk://" + user + strings.Join(addrs, ",") + "?call_timeout=1500ms"
	},
}

func TestMain(m *testing.M) { system.Main(m) }

// single returns a server that the tests share, which break nothing.
func single(t testing.TB) *server.Group { return system.Single(t) }

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

func TestConformance(t *testing.T) {
	system.Conformance(t, func(g *server.Group, h *redlocktest.Harness) { // TestTheLeaderFails has three members
		look := func(f func(*zk.Conn) error) error {
			c, err := connect(g.Addrs())
			if err != nil {
				return err
			}
			defer c.Close()
			if err := c.AddAuth("digest", []byte("user:"+clustertest.Secret)); err != nil { // the nodes are this user's
				return err
			}
			return f(c)
		}
		// There is no OpenWithClock: the driver never reads the wall clock. The cases of processes,
		// whose wall clocks are wrong, show that.
		if clustertest.Whole() { // otherwise List tells, which costs the server less
			h.Residue = func(context.Context) (names []string, err error) {
				err = look(func(c *zk.Conn) error { names, err = stored(c, "/dlock"); return err })
				return names, err
			}
		}
		h.FutureLayout = func() (undo func() error, err error) {
			set := func(old, new string) error { return look(func(c *zk.Conn) error { return setLayout(c, old, new) }) }
			return func() error { return set("dlock2", "dlock1") }, set("dlock1", "dlock2")
		}
	})
}

func TestStress(t *testing.T) { system.Stress(t) }

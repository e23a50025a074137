package zookeeper_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/zookeeper"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// members are what a client reaches of an ensemble, each through a proxy of its own.
type members struct {
	*zookeeper.Backend
	proxies []*fault.Proxy
}

// Close closes the backend, and then the proxies.
func (m *members) Close() error {
	err := m.Backend.Close()
	for _, p := range m.proxies {
		err = errors.Join(err, p.Close())
	}
	return err
}

// openThrough opens a backend whose way to each member is a proxy.
func openThrough(g *server.Group, cfg driver.Config, user string) (_ *members, err error) {
	m := &members{}
	hosts := make([]string, len(g.Nodes))
	for i, s := range g.Nodes {
		p, err := fault.Start(s.Addr())
		if err != nil {
			return nil, err
		}
		m.proxies, hosts[i] = append(m.proxies, p), p.Addr()
	}
	cfg.DSN = "zk://" + user + strings.Join(hosts, ",") + "?call_timeout=1500ms"
	b, err := zookeeper.Driver{}.Open(&cfg)
	if err != nil {
		return nil, err
	}
	m.Backend = b.(*zookeeper.Backend)
	return m, nil
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

// connect makes a client of an ensemble.
func connect(addrs []string) (*zk.Conn, error) {
	c, _, err := zk.Connect(addrs, 10*time.Second, zk.WithLogger(quiet{}), zk.WithLogInfo(false))
	return c, err
}

// stored lists the entries under the path.
func stored(c *zk.Conn) ([]string, error) {
	if _, err := c.Sync("/dlock"); err != nil {
		return nil, err
	}
	locks, _, err := c.Children("/dlock")
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return nil, err
	}
	var names []string
	for _, lock := range locks {
		entries, _, err := c.Children("/dlock/" + lock)
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

var owners atomic.Int64

func request(key string, ttl time.Duration) *driver.Request {
	return &driver.Request{Key: key, Owner: fmt.Sprintf("test/%d", owners.Add(1)), TTL: ttl}
}

var whole = flag.Bool("whole", false, "repeat the cases of the suite as often as before a release")

const long = "takes too long for -short"

func TestConformance(t *testing.T) {
	count, skip := 3, map[string]string(nil)
	if testing.Short() { // a moment instead of half a minute
		count, skip = 1, map[string]string{"fault": long, "expiry": long, "wait": long, "watch": long, "leak": long, "history": long}
	}
	g := server.ZooKeeper(t, count)
	const secret = "pw-s3cr3t" // the nodes are then those of this user
	var mu sync.Mutex
	var notices []driver.Notice
	cfg := driver.Config{Prefix: "app:", Notify: func(n driver.Notice) {
		mu.Lock()
		defer mu.Unlock()
		notices = append(notices, n)
	}}
	via := func(b driver.Backend) []*fault.Proxy { return b.(*members).proxies }
	all := func(f func(*fault.Proxy)) func(driver.Backend) error {
		return func(b driver.Backend) error {
			for _, p := range via(b) {
				f(p)
			}
			return nil
		}
	}
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
	redlocktest.Run(t, redlocktest.Harness{
		Open:   func() (driver.Backend, error) { return openThrough(g, cfg, "user:"+secret+"@") },
		Driver: zookeeper.Driver{}, URL: "zk://user:" + secret + "@" + strings.Join(g.Addrs(), ","), Prefix: cfg.Prefix, Secret: secret,
		Notices: func() []driver.Notice {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(notices)
		},
		Skip: skip, Short: !*whole, TTL: 2 * time.Second, Grace: 3 * time.Second,
		OpenWithClock: func(time.Duration) (driver.Backend, error) { // it has no clock but that of the servers
			return openThrough(g, cfg, "user:"+secret+"@")
		},
		IgnoreGoroutines: []string{server.Goroutine},
		Residue: func(context.Context) (names []string, err error) {
			err = look(func(c *zk.Conn) error { names, err = stored(c); return err })
			return names, err
		},
		FutureLayout: func() (undo func() error, err error) {
			set := func(old, new string) error { return look(func(c *zk.Conn) error { return setLayout(c, old, new) }) }
			return func() error { return set("dlock2", "dlock1") }, set("dlock1", "dlock2")
		},
		Faults: &redlocktest.Faults{
			Kill: g.Kill,
			Restart: func(memory bool) error {
				if memory {
					return g.Start()
				}
				return g.RestartEmpty()
			},
			Pause: g.Pause, Resume: g.Resume,
			Partition: all((*fault.Proxy).Pause), Heal: all((*fault.Proxy).Resume),
			Slow: func(b driver.Backend, d time.Duration) error {
				return all(func(p *fault.Proxy) { p.Delay(fault.ToClient, d, 0) })(b)
			},
			DropReply: all(func(p *fault.Proxy) { p.CutReplies(1) }),
		},
	})
}

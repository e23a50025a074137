package etcd_test

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

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/etcd"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// members are what a client reaches of a cluster, each through a proxy of its own.
type members struct {
	*etcd.Backend
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
	cfg.DSN = "etcd://" + user + strings.Join(hosts, ",") + "?call_timeout=2s"
	b, err := etcd.Driver{}.Open(&cfg)
	if err != nil {
		return nil, err
	}
	m.Backend = b.(*etcd.Backend)
	return m, nil
}

// connect makes a client of a cluster.
func connect(g *server.Group) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: g.Addrs(), DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
}

// stored lists the entries under the path.
func stored(ctx context.Context, g *server.Group) ([]string, error) {
	c, err := connect(g)
	if err != nil {
		return nil, err
	}
	defer c.Close() //nolint:errcheck // the list is there
	got, err := c.Get(ctx, "/dlock/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, err
	}
	var names []string
	for _, kv := range got.Kvs {
		if name := string(kv.Key); name != base {
			names = append(names, strings.NewReplacer("%2F", "/", "%25", "%").Replace(name))
		}
	}
	return names, nil
}

// base is where the base of the tokens is stored, with the version of the layout.
const base = "/dlock/.dlock"

// changeLayout makes the stored layout one of a later release.
func changeLayout(g *server.Group) (undo func() error, err error) {
	ctx := context.Background()
	c, err := connect(g)
	if err != nil {
		return nil, err
	}
	old, err := c.Get(ctx, base)
	if err == nil && len(old.Kvs) != 1 {
		err = fmt.Errorf("%s is not there", base)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	value := string(old.Kvs[0].Value)
	if _, err := c.Put(ctx, base, strings.Replace(value, "dlock1", "dlock2", 1)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return func() error {
		_, err := c.Put(ctx, base, value)
		return errors.Join(err, c.Close())
	}, nil
}

// urlOf is the URL of a whole cluster.
func urlOf(g *server.Group) string {
	return "etcd://" + strings.Join(g.Addrs(), ",") + "?call_timeout=1500ms"
}

// open opens a backend for a test.
func open(t testing.TB, url string) *etcd.Backend {
	t.Helper()
	b, err := etcd.Driver{}.Open(&driver.Config{DSN: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b.(*etcd.Backend)
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
	g := server.Etcd(t, count)
	const secret = "pw-s3cr3t" // the servers ask for none
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
	redlocktest.Run(t, redlocktest.Harness{
		Open:   func() (driver.Backend, error) { return openThrough(g, cfg, "user:"+secret+"@") },
		Driver: etcd.Driver{}, URL: "etcd://user:" + secret + "@" + strings.Join(g.Addrs(), ","), Prefix: cfg.Prefix, Secret: secret,
		Notices: func() []driver.Notice {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(notices)
		},
		Skip: skip, Short: !*whole, TTL: 2 * time.Second, Grace: 3 * time.Second,
		OpenWithClock: func(ahead time.Duration) (driver.Backend, error) {
			m, err := openThrough(g, cfg, "")
			if err == nil {
				m.SetClock(ahead)
			}
			return m, err
		},
		IgnoreGoroutines: []string{server.Goroutine},
		Residue:          func(ctx context.Context) ([]string, error) { return stored(ctx, g) },
		FutureLayout:     func() (func() error, error) { return changeLayout(g) },
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

package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/etcd"
	"github.com/redlock-go/redlock/drivers/internal/drivertest/clustertest"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

var system = &clustertest.System{
	Driver: etcd.Driver{}, Start: server.StartEtcd, Servers: server.Etcd, TTL: 2 * time.Second, Grace: 3 * time.Second,
	URL: func(user string, addrs []string) string {
		return "etcd://" + user + strings.Join(addrs, ",") + "?call_timeout=2s"
	},
}

func TestMain(m *testing.M) { system.Main(m) }

// single returns a cluster of one member that the tests share, which break nothing.
func single(t testing.TB) *server.Group { return system.Single(t) }

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

// patientURL is for tests whose calls must be answered, on a busy machine too.
func patientURL(g *server.Group, path ...string) string {
	return "etcd://" + strings.Join(g.Addrs(), ",") + strings.Join(path, "") + "?call_timeout=1m"
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

func TestConformance(t *testing.T) {
	system.Conformance(t, func(g *server.Group, h *redlocktest.Harness) { // TestTheLeaderFails has three members
		open := h.Open
		h.OpenWithClock = func(ahead time.Duration) (driver.Backend, error) {
			b, err := open()
			if err == nil {
				b.(*etcd.Backend).SetClock(ahead)
			}
			return b, err
		}
		h.Residue = func(ctx context.Context) ([]string, error) { return stored(ctx, g) }
		h.Faults.DropReply = fault.DropAnswer(fault.ProtocolHTTP2)
		h.FutureLayout = func() (func() error, error) { return changeLayout(g) }
	})
}

func TestStress(t *testing.T) { system.Stress(t) }

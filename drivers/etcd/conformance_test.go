package etcd_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/etcd"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func TestMain(m *testing.M) {
	redlocktest.ServeClient(func(url string) (driver.Backend, error) { return dlock.OpenBackend(url) })
	status := m.Run()
	if lone != nil {
		if err := lone.Close(); err != nil {
			fmt.Println(err)
			status = 1
		}
	}
	os.Exit(status)
}

// harness has backends of a cluster, each of which reaches every member through a proxy.
func harness(g *server.Group, cfg driver.Config, user string) redlocktest.Harness {
	return fault.HarnessOf(g.Addrs(), func(via []string) (driver.Backend, error) {
		through := cfg
		through.DSN = "etcd://" + user + strings.Join(via, ",") + "?call_timeout=2s"
		return etcd.Driver{}.Open(&through)
	})
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
		// A tombstone ends with the lease of its client.
		if name := string(kv.Key); name != base && !strings.HasPrefix(name, base+"-gone.") {
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
	g := server.Etcd(t, count)
	const secret = "pw-s3cr3t" // the servers ask for none
	var notices drivertest.NoticeLog
	cfg := driver.Config{Prefix: "app:", Notify: notices.Add}
	h := harness(g, cfg, "user:"+secret+"@")
	h.Driver, h.URL = etcd.Driver{}, "etcd://user:"+secret+"@"+strings.Join(g.Addrs(), ",")
	h.Process = func() (*redlocktest.Client, error) {
		return redlocktest.StartClient(h.URL + "?call_timeout=2s&prefix=" + cfg.Prefix)
	}
	h.Prefix, h.Secret, h.Notices = cfg.Prefix, secret, notices.All
	h.Skip, h.Short, h.TTL, h.Grace = skip, !*whole, 2*time.Second, 3*time.Second
	h.OpenWithClock = func(ahead time.Duration) (driver.Backend, error) {
		b, err := h.Open()
		if err == nil {
			fault.Unwrap(b).(*etcd.Backend).SetClock(ahead)
		}
		return b, err
	}
	h.Timeout = 5 * time.Minute // for a machine that is very busy
	h.Residue = func(ctx context.Context) ([]string, error) { return stored(ctx, g) }
	h.Faults.DropReply = fault.DropAnswer(fault.ProtocolHTTP2)
	h.FutureLayout = func() (func() error, error) { return changeLayout(g) }
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
	g := server.Etcd(t, 3)
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

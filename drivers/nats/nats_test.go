package nats_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/nats"
	"github.com/redlock-go/redlock/redlocktest/server"
)

var must = drivertest.Must

func acquire(t testing.TB, b driver.Backend, key string) (driver.Lease, error) {
	return b.Acquire(t.Context(), drivertest.NewRequest(key, time.Minute))
}

func TestURLsAreChecked(t *testing.T) {
	drivertest.RunBadURLs(t, nats.Driver{}, map[string]string{
		"nats://a/x.y":                    "bucket",
		"nats://a/b/c":                    "bucket",
		"nats://a/?call_timeout=1ms":      "call_timeout",
		"nats://a/?nothing=1":             "nothing",
		"nats://a/?ca=/etc/ca.pem":        "ca",
		"nats://:secret@a/":               "URL",
		"tls://a/?ca=/nowhere/at/all.pem": "ca",
	})
	if _, err := nats.New(nil, nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("New without a connection: %v", err)
	}
}

// A bucket on which locks would be lost, or kept for ever, is refused by its name.
func TestBucketsThatForgetAreRefused(t *testing.T) {
	g := server.NATS(t, 1)
	must(t, jetStream(g, func(ctx context.Context, js jetstream.JetStream) error {
		_, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "theirs"})
		return err
	}))
	_, err := acquire(t, open(t, "nats://"+g.Addrs()[0]+"/theirs"), "k")
	if !strings.Contains(drivertest.Refusal(err), `"theirs" was not made by this driver`) {
		t.Errorf("another program's bucket: %v", err)
	}
	first, err := acquire(t, open(t, urlOf(g.Addrs())), "k")
	must(t, err)
	must(t, first.Release(t.Context()))
	for says, spoil := range map[string]func(c *jetstream.StreamConfig){
		"keeps no TTLs":  func(c *jetstream.StreamConfig) { c.SubjectDeleteMarkerTTL = 0 },
		"may forget":     func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour },
		"was changed":    func(c *jetstream.StreamConfig) { c.RePublish = nil },
		`has layout "2"`: func(c *jetstream.StreamConfig) { c.Metadata["dlock-layout"] = "2" },
	} {
		var before jetstream.StreamConfig
		must(t, change(g, func(c *jetstream.StreamConfig) {
			before = *c
			before.Metadata = map[string]string{"dlock-layout": "1", "dlock-epoch": c.Metadata["dlock-epoch"]}
			spoil(c)
		}))
		if _, err := acquire(t, open(t, urlOf(g.Addrs())), "k"); !strings.Contains(drivertest.Refusal(err), says) {
			t.Errorf("%q: %v", says, err)
		}
		must(t, change(g, func(c *jetstream.StreamConfig) { *c = before }))
	}
}

// What a server refuses for good is a refusal that says what to do, and not an outage.
func TestServersThatRefuse(t *testing.T) {
	for name, c := range map[string]struct {
		conf, user, says string
	}{
		"JetStream is off": {conf: "debug: false", user: "", says: "enable it on the servers"},
		"no user":          {conf: `authorization { users = [{user: app, password: pw}] }`, user: "app:wrong@", says: "the user or the password"},
		"no permission": {conf: `jetstream { store_dir: "{data}" }
			authorization { users = [{user: app, password: pw, permissions: {publish: ["$JS.API.STREAM.INFO.KV_dlock", "$JS.API.STREAM.CREATE.KV_dlock"]}}] }`, user: "app:pw@", says: "lacks a permission"},
	} {
		t.Run(name, func(t *testing.T) {
			s := startWith(t, c.conf)
			b := open(t, "nats://"+c.user+s.Addr()+"?call_timeout=3s")
			_, err := acquire(t, b, "k")
			if !strings.Contains(drivertest.Refusal(err), c.says) || strings.Contains(fmt.Sprint(err), "wrong@") {
				t.Errorf("%v", err)
			}
		})
	}
}

// A bucket that was deleted is made anew: its leases are lost, and its waiters go on in the new one, whose
// tokens are larger. A client that freed a lock in the old one takes nobody's lock in the new one, though
// the numbers of the messages begin again.
func TestADeletedBucket(t *testing.T) {
	g := server.NATS(t, 1)
	a, b := open(t, urlOf(g.Addrs())), open(t, urlOf(g.Addrs()))
	for range 2 {
		drivertest.Release(t, drivertest.Grant(t, a, drivertest.NewRequest("k", time.Minute)))
	}
	old := drivertest.Grant(t, b, drivertest.NewRequest("old", time.Minute))
	granted := drivertest.Waiter(t, a, drivertest.NewRequest("old", time.Minute))
	drivertest.AwaitWaiters(t, b, "old", 1)
	must(t, jetStream(g, func(ctx context.Context, js jetstream.JetStream) error { return js.DeleteStream(ctx, "KV_dlock") }))
	if _, err := old.Renew(t.Context(), &driver.Renewal{TTL: time.Minute}); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew: %v", err)
	}
	for _, key := range []string{"x", "y", "z", "k"} {
		drivertest.Grant(t, b, drivertest.NewRequest(key, time.Minute))
	}
	if _, err := drivertest.Acquire(t, a, drivertest.NewRequest("k", time.Minute)); drivertest.Verdict(err) != "held" {
		t.Errorf("a lock that another has: %v", err)
	}
	select {
	case l := <-granted:
		if l.Grant().Fence <= old.Grant().Fence {
			t.Errorf("token %d after %d", l.Grant().Fence, old.Grant().Fence)
		}
	case <-time.After(time.Minute):
		t.Fatal("a waiter of the old bucket waits")
	}
}

func TestCheckTellsWhatIsWeak(t *testing.T) {
	g := server.NATS(t, 1)
	must(t, jetStream(g, func(ctx context.Context, js jetstream.JetStream) error {
		b := open(t, urlOf(g.Addrs()))
		if _, err := b.Check(ctx); err != nil { // makes the bucket
			return err
		}
		s, err := js.Stream(ctx, "KV_dlock")
		if err != nil {
			return err
		}
		c := s.CachedInfo().Config
		c.Storage = jetstream.MemoryStorage
		if err := js.DeleteStream(ctx, "KV_dlock"); err != nil {
			return err
		}
		_, err = js.CreateStream(ctx, c)
		return err
	}))
	b := open(t, urlOf(g.Addrs()))
	if found := drivertest.AwaitFinding(t, b, "memory-storage"); found.Severity != driver.SeverityUnsafe {
		t.Errorf("%+v", found)
	}
	drivertest.AwaitFinding(t, b, "few-replicas")
}

// An application's own connection is used, and stays open. TLS is asked for by the scheme.
func TestConnections(t *testing.T) {
	g := server.NATS(t, 1)
	nc, err := client.Connect("nats://" + g.Addrs()[0])
	must(t, err)
	defer nc.Close()
	b, err := nats.New(nc, &nats.Options{Bucket: "mine"})
	must(t, err)
	l, err := acquire(t, b, "a key * of > any. bytes\x00")
	must(t, err)
	must(t, l.Release(t.Context()))
	must(t, b.Close())
	if !nc.IsConnected() {
		t.Error("Close closed the application's connection")
	}

	secure := server.NATS(t, 1, server.WithTLS())
	lock, err := dlock.OpenURL("tls://" + secure.Addrs()[0] + "?ca=" + secure.Nodes[0].CAFile())
	must(t, err)
	defer lock.Close() //nolint:errcheck // of a test
	must(t, dlock.Do(t.Context(), lock, "k", func(context.Context) error { return nil }))
}

// A thousand waiters on a hundred keys, of four clients: what they ask while nothing happens, and how
// many requests a handoff takes.
func TestAThousandWaiters(t *testing.T) {
	server.Deep(t)
	const keys, each, clients = 100, 10, 4
	g := server.NATS(t, 1)
	var all []driver.Backend
	var conns []*client.Conn
	for range clients {
		nc, err := client.Connect("nats://" + g.Addrs()[0])
		must(t, err)
		defer nc.Close()
		b, err := nats.New(nc, &nats.Options{CallTimeout: time.Minute})
		must(t, err)
		defer b.Close() //nolint:errcheck // of a test
		all, conns = append(all, b), append(conns, nc)
	}
	sent := func() (n uint64) {
		for _, nc := range conns {
			n += nc.Stats().OutMsgs
		}
		return n
	}
	var held []driver.Lease
	var done sync.WaitGroup
	for k := range keys {
		req := drivertest.NewRequest(fmt.Sprint("k", k), time.Hour)
		held = append(held, drivertest.Grant(t, all[k%clients], req))
		for i := range each {
			granted := drivertest.Waiter(t, all[i%clients], drivertest.NewRequest(req.Key, time.Hour))
			done.Go(func() {
				if l := <-granted; l != nil {
					drivertest.Release(t, l)
				}
			})
		}
	}
	for k := range keys {
		drivertest.AwaitWaiters(t, all[0].(driver.Inspector), fmt.Sprint("k", k), each)
	}
	time.Sleep(30 * time.Second) // their looks become seldom
	before, from := sent(), time.Now()
	time.Sleep(15 * time.Second)
	idle := float64(sent()-before) / time.Since(from).Seconds()
	before, from = sent(), time.Now()
	for _, l := range held {
		drivertest.Release(t, l)
	}
	done.Wait()
	t.Logf("%d waiters: %.0f requests a second while idle; %.1f messages a handoff, %d handoffs in %v",
		keys*each, idle, float64(sent()-before)/(keys*each), keys*each, time.Since(from).Round(time.Millisecond))
	if idle > keys*each/4 {
		t.Errorf("%.0f requests a second while nothing happens", idle)
	}
}

package nats_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest/clustertest"
	"github.com/redlock-go/redlock/drivers/nats"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

var system = &clustertest.System{
	Driver: nats.Driver{}, Start: server.StartNATS, Servers: server.NATS,
	TTL: time.Second, Grace: 1500 * time.Millisecond, // the server counts whole seconds
	URL: func(user string, addrs []string) string {
		return "nats://" + user + strings.Join(addrs, ",") + "/dlock?call_timeout=1s"
	},
}

func TestMain(m *testing.M) { system.Main(m) }

// protocol is that of NATS: lines, and messages with a payload whose length is in their line.
var protocol = fault.Protocol{Boundary: boundary, Answers: func(m []byte) bool {
	return bytes.Contains(m, []byte(`"type":"io.nats.jetstream`)) || bytes.Contains(m, []byte(`{"stream":"KV_`))
}}

func boundary(b []byte) int {
	line, _, whole := bytes.Cut(b, []byte("\r\n"))
	if !whole {
		return 0
	}
	n := len(line) + 2
	fields := strings.Fields(string(line))
	if len(fields) > 1 && strings.Contains(" MSG HMSG PUB HPUB ", " "+fields[0]+" ") {
		size, err := strconv.Atoi(fields[len(fields)-1])
		if err != nil || len(b) < n+size+2 {
			return 0
		}
		n += size + 2
	}
	return n
}

// urlOf is the URL of a cluster.
func urlOf(addrs []string) string { return "nats://" + strings.Join(addrs, ",") + "/dlock" }

// jetStream calls f with a client of the first server.
func jetStream(g *server.Group, f func(ctx context.Context, js jetstream.JetStream) error) error {
	nc, err := client.Connect("nats://" + g.Addrs()[0])
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return f(ctx, js)
}

// open opens a backend for a test.
func open(t testing.TB, url string) *nats.Backend {
	t.Helper()
	b, err := nats.Driver{}.Open(&driver.Config{DSN: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b.(*nats.Backend)
}

// change changes the configuration of the bucket.
func change(g *server.Group, f func(c *jetstream.StreamConfig)) error {
	return jetStream(g, func(ctx context.Context, js jetstream.JetStream) error {
		s, err := js.Stream(ctx, "KV_dlock")
		if err != nil {
			return err
		}
		c := s.CachedInfo().Config
		f(&c)
		_, err = js.UpdateStream(ctx, c)
		return err
	})
}

// changeLayout makes the stored layout one of a later release.
func changeLayout(g *server.Group) (undo func() error, err error) {
	set := func(layout string) error {
		return change(g, func(c *jetstream.StreamConfig) { c.Metadata["dlock-layout"] = layout })
	}
	return func() error { return set("1") }, set("2")
}

func TestConformance(t *testing.T) {
	// There is no OpenWithClock: the driver never reads the wall clock. The cases of processes, whose
	// wall clocks are wrong, show that.
	system.Conformance(t, func(g *server.Group, h *redlocktest.Harness) {
		h.Faults.DropReply = fault.DropAnswer(protocol)
		h.FutureLayout = func() (func() error, error) { return changeLayout(g) }
	})
}

func TestStress(t *testing.T) { system.Stress(t) }

func TestTokensRiseThroughTheLossOfLeaders(t *testing.T) { system.Leaders(t) }

func TestChangingBackends(t *testing.T) {
	clustertest.Change(t, urlOf(server.NATS(t, 1).Addrs()))
}

// startWith starts a server with this configuration file.
func startWith(t *testing.T, conf string) *server.Server {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "nats.conf")
	must(t, os.WriteFile(file, []byte(strings.ReplaceAll(conf, "{data}", dir)), 0o600))
	return server.Command(t, []string{server.NATSProgram(t), "-a", "127.0.0.1", "-p", "{port}", "-c", file}, nil)
}

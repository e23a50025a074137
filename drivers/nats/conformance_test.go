package nats_test

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/nats"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func TestMain(m *testing.M) {
	redlocktest.ServeClient(func(url string) (driver.Backend, error) { return dlock.OpenBackend(url) })
	os.Exit(m.Run())
}

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

// harness has backends of a cluster, each of which reaches every server through a proxy.
func harness(g *server.Group, cfg driver.Config, user string) redlocktest.Harness {
	h := fault.HarnessOf(g.Addrs(), func(via []string) (driver.Backend, error) {
		through := cfg
		through.DSN = strings.Replace(urlOf(via), "//", "//"+user, 1)
		return nats.Driver{}.Open(&through)
	})
	h.TTL, h.Grace = time.Second, 1500*time.Millisecond // the server counts whole seconds
	h.Faults.DropReply = fault.DropAnswer(protocol)
	h.Faults.Kill, h.Faults.Restart = g.KillMajority, g.StartAgain
	h.Faults.Pause, h.Faults.Resume = g.Pause, g.Resume
	return h
}

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

var only = flag.String("only", "", "the `case`, or group of cases, to run")

var whole = flag.Bool("whole", false, "repeat the cases of the suite as often as before a release")

const long = "takes too long for -short"

func TestConformance(t *testing.T) {
	count, skip := 1, map[string]string(nil)
	switch {
	case server.IsDeep() || *whole:
		count = 3
	case testing.Short(): // a moment instead of half a minute
		skip = map[string]string{"fault": long, "expiry": long, "wait": long, "leak": long, "history": long, "process": long}
	}
	g := server.NATS(t, count)
	const secret = "pw-s3cr3t" // the servers ask for none
	var notices drivertest.NoticeLog
	cfg := driver.Config{Prefix: "app:", Notify: notices.Add}
	h := harness(g, cfg, "user:"+secret+"@")
	h.Driver, h.URL = nats.Driver{}, strings.Replace(urlOf(g.Addrs()), "//", "//user:"+secret+"@", 1)
	h.Process = func() (*redlocktest.Client, error) { return redlocktest.StartClient(h.URL + "?prefix=" + cfg.Prefix) }
	h.Prefix, h.Secret, h.Notices = cfg.Prefix, secret, notices.All
	h.Skip, h.Short = skip, !*whole
	h.FutureLayout = func() (func() error, error) { return changeLayout(g) }
	h.Only = *only
	redlocktest.Run(t, h)
}

var stressFor = flag.Duration("long", 0, "stress for this `long`, instead of for some thousand calls")

// TestStress also kills the servers and processes of clients. -long=10m sets how long it takes.
func TestStress(t *testing.T) {
	if *stressFor == 0 {
		server.Deep(t) // the suite has histories
	}
	t.Parallel() // it mostly waits
	g := server.NATS(t, 3)
	h := harness(g, driver.Config{}, "")
	h.Process = func() (*redlocktest.Client, error) { return redlocktest.StartClient(urlOf(g.Addrs())) }
	o := redlocktest.StressOptions{Operations: 2500}
	if *stressFor > 0 {
		o = redlocktest.StressOptions{Duration: *stressFor}
	}
	redlocktest.Stress(t, h, o)
}

// startWith starts a server with this configuration file.
func startWith(t *testing.T, conf string) *server.Server {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "nats.conf")
	must(t, os.WriteFile(file, []byte(strings.ReplaceAll(conf, "{data}", dir)), 0o600))
	return server.Command(t, []string{server.NATSProgram(t), "-a", "127.0.0.1", "-p", "{port}", "-c", file}, nil)
}

package consul_test

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/consul"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func TestMain(m *testing.M) {
	redlocktest.ServeClient(func(url string) (driver.Backend, error) { return dlock.OpenBackend(url) })
	code := m.Run()
	if shared.g != nil {
		_ = shared.g.Close() // of a test
	}
	os.Exit(code)
}

// protocol is HTTP; answers are those to transactions.
var protocol = fault.Protocol{Boundary: boundary, Answers: func(m []byte) bool { return bytes.Contains(m, []byte(`{"Results":`)) }}

func boundary(b []byte) int {
	in := bytes.NewReader(b)
	r := bufio.NewReader(in)
	answer, err := http.ReadResponse(r, nil)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return 0
	}
	return len(b) - in.Len() - r.Buffered()
}

// short lets a server have sessions of a second, so that a test waits less.
var short = []server.Option{server.WithSetting("session_ttl_min", `"1s"`)}

// urlOf is the URL of servers with short sessions.
func urlOf(addrs []string) string {
	return "consul://" + strings.Join(addrs, ",") + "/dlock?session_ttl_min=1s"
}

// harness has backends of a datacenter, each of which reaches every server through a proxy.
func harness(g *server.Group, cfg driver.Config) redlocktest.Harness {
	h := fault.HarnessOf(g.Addrs(), func(via []string) (driver.Backend, error) {
		through := cfg
		through.DSN = urlOf(via)
		return consul.Driver{}.Open(&through)
	})
	h.TTL, h.Grace = time.Second, 4*time.Second // a session lives for twice its TTL, and then a waiter looks within 2 s
	h.Faults.DropReply = fault.DropAnswer(protocol)
	h.Faults.Kill, h.Faults.Restart = g.KillMajority, g.StartAgain
	h.Faults.Pause, h.Faults.Resume = g.Pause, g.Resume
	return h
}

// changeLayout makes the stored layout one of a later release.
func changeLayout(g *server.Group) (undo func() error, err error) {
	c, err := api.NewClient(&api.Config{Address: g.Addrs()[0], HttpClient: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}})
	if err != nil {
		return nil, err
	}
	p, _, err := c.KV().Get("dlock/.dlock/base", nil)
	if err == nil && p == nil {
		err = errors.New("there is no base")
	}
	if err != nil {
		return nil, err
	}
	set := func(value string) error {
		_, err := c.KV().Put(&api.KVPair{Key: p.Key, Value: []byte(value)}, nil)
		return err
	}
	return func() error { return set(string(p.Value)) }, set("dlock2 1")
}

var only = flag.String("only", "", "the `case`, or group of cases, to run")

var whole = flag.Bool("whole", false, "repeat the cases of the suite as often as before a release")

const long = "takes too long for -short"

func TestConformance(t *testing.T) {
	count, skip := 1, map[string]string(nil)
	switch {
	case server.IsDeep() || *whole:
		count = 3
	case testing.Short(): // a moment instead of minutes
		skip = map[string]string{"fault": long, "expiry": long, "wait": long, "leak": long, "history": long, "process": long}
	}
	g := server.Consul(t, count, short...)
	const secret = "pw-s3cr3t" // the servers ask for none
	var notices drivertest.NoticeLog
	cfg := driver.Config{Prefix: "app:", Notify: notices.Add}
	h := harness(g, cfg)
	h.Driver, h.URL = consul.Driver{}, strings.Replace(urlOf(g.Addrs()), "//", "//user:"+secret+"@", 1)
	h.Process = func() (*redlocktest.Client, error) {
		return redlocktest.StartClient(urlOf(g.Addrs()) + "&prefix=" + cfg.Prefix)
	}
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
	g := server.Consul(t, 3, short...)
	h := harness(g, driver.Config{})
	h.Process = func() (*redlocktest.Client, error) { return redlocktest.StartClient(urlOf(g.Addrs())) }
	o := redlocktest.StressOptions{Operations: 2500}
	if *stressFor > 0 {
		o = redlocktest.StressOptions{Duration: *stressFor}
	}
	redlocktest.Stress(t, h, o)
}

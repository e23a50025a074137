package consul_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/consul"
	"github.com/redlock-go/redlock/drivers/internal/drivertest/clustertest"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

var system = &clustertest.System{
	Driver: consul.Driver{}, Start: server.StartConsul,
	Servers: func(t testing.TB, members int, opts ...server.Option) *server.Group {
		// Sessions of a second, so that a test waits less.
		return server.Consul(t, members, append(opts, server.WithSetting("session_ttl_min", `"1s"`))...)
	},
	TTL: time.Second, Grace: 4 * time.Second, // a session lives for twice its TTL, and then a waiter looks within 2 s
	URL: func(user string, addrs []string) string {
		return "consul://" + user + strings.Join(addrs, ",") + "/dlock?session_ttl_min=1s"
	},
}

func TestMain(m *testing.M) { system.Main(m) }

// single returns a server that the tests share, which break nothing, and a URL of a path of their own.
func single(t testing.TB) (*server.Group, string) {
	t.Helper()
	if !server.HasConsul() {
		server.Consul(t, 1) // skips the test
	}
	g := system.Single(t)
	return g, "consul://" + g.Addrs()[0] + "/" + t.Name()
}

// open opens a backend for a test.
func open(t testing.TB, url string) *consul.Backend {
	t.Helper()
	b, err := consul.Driver{}.Open(&driver.Config{DSN: url})
	must(t, err)
	t.Cleanup(func() { _ = b.Close() })
	return b.(*consul.Backend)
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

func TestConformance(t *testing.T) {
	system.Conformance(t, func(g *server.Group, h *redlocktest.Harness) {
		h.Faults.DropReply = fault.DropAnswer(protocol)
		h.FutureLayout = func() (func() error, error) { return changeLayout(g) }
	})
}

func TestStress(t *testing.T) { system.Stress(t) }

func TestAllServersLosePower(t *testing.T) { system.Syncs(t) }

func TestTokensRiseThroughTheLossOfLeaders(t *testing.T) { system.Leaders(t) }

func TestChangingBackends(t *testing.T) {
	t.Parallel()
	_, url := single(t)
	clustertest.Change(t, url)
}

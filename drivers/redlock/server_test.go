package redlock_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/drivers/internal/ownprocess"
	"github.com/redlock-go/redlock/drivers/redlock"
	"github.com/redlock-go/redlock/drivers/valkeygo"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func TestMain(m *testing.M) {
	// Parallel tests mostly wait for leases to end. Only under the race detector do they need
	// many processors.
	flag.Parse()
	parallel := "6"
	if redlock.Race {
		parallel = "4"
	}
	_ = flag.Set("test.parallel", parallel) // that flag exists
	os.Exit(m.Run())
}

// cluster is a number of independent real servers, each behind a proxy that can break its
// connections.
type cluster struct {
	t       testing.TB
	servers []*server.Server
	proxies []*fault.Proxy
	schemes []string
}

// start starts n servers, alternately Redis and Valkey. The schemes, "redis" or "valkey", name
// the nodes' clients in turn.
func start(t testing.TB, n int, schemes ...string) *cluster {
	t.Helper()
	return startWith(t, n, schemes)
}

func startWith(t testing.TB, n int, schemes []string, options ...server.Option) *cluster {
	t.Helper()
	c := &cluster{t: t, schemes: schemes}
	for i := range n {
		var s *server.Server
		if i%2 == 0 {
			s = server.Redis(t, options...)
		} else {
			s = server.Valkey(t, options...)
		}
		c.servers = append(c.servers, s)
		c.proxies = append(c.proxies, fault.NewProxy(t, s.Addr()))
	}
	return c
}

// url returns the quorum's URL, through the proxies if there are any.
func (c *cluster) url(proxied bool, options ...string) string {
	return c.urlThrough(func(int) bool { return proxied }, options...)
}

func (c *cluster) urlThrough(proxied func(i int) bool, options ...string) string {
	var items []string
	for i, s := range c.servers {
		addr := s.Addr()
		if proxied(i) {
			addr = c.proxies[i].Addr()
		}
		item := c.schemes[i%len(c.schemes)] + "://" + addr
		if slices.Contains(options, calm) {
			item += "?call_timeout=5s"
		}
		items = append(items, item)
	}
	return "redlock:" + strings.Join(append(append(items, "restart_guard=off"), options...), ",")
}

func (c *cluster) open(proxied bool, options ...string) *redlock.Backend {
	c.t.Helper()
	return c.openURL(c.url(proxied, options...))
}

func (c *cluster) openURL(url string) *redlock.Backend {
	c.t.Helper()
	b, err := dlock.OpenBackend(url)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if err := b.Close(); err != nil {
			c.t.Error(err)
		}
	})
	return b.(*redlock.Backend)
}

// keys returns how many servers have a lock whose key contains key.
func (c *cluster) keys(key string) []string {
	c.t.Helper()
	var found []string
	for i, s := range c.servers {
		reply, err := s.Do("EXISTS", key)
		if err != nil {
			continue // the server is down
		}
		if fmt.Sprint(reply) == "1" {
			value, _ := s.Do("GET", key)
			found = append(found, fmt.Sprintf("%v on %d", value, i))
		}
	}
	return found
}

// gone waits until no server has the key any longer, for at most this long.
func (c *cluster) gone(key string, within time.Duration) {
	c.t.Helper()
	for end := time.Now().Add(within); ; time.Sleep(poll) {
		left := c.keys(key)
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			c.t.Errorf("after %v there is still %v", within, left)
			return
		}
	}
}

// resolving is the driver with the function that dlock gives it, which opens the nodes' drivers.
type resolving struct{ redlock.Driver }

func (d resolving) Open(cfg *driver.Config) (driver.Backend, error) {
	return d.Driver.Open(&driver.Config{DSN: cfg.DSN, Prefix: cfg.Prefix, Notify: cfg.Notify, Resolve: func(url string) (driver.Backend, error) {
		node := &driver.Config{DSN: url, Prefix: cfg.Prefix, Notify: cfg.Notify}
		if strings.HasPrefix(url, "valkey:") {
			return valkeygo.Driver{}.Open(node)
		}
		return goredis.Driver{}.Open(node)
	}})
}

func (c *cluster) harness() redlocktest.Harness {
	skip := map[string]string{}
	if testing.Short() {
		for _, group := range []string{"request", "exclusion", "verdict", "expiry", "cancel", "wait", "watch", "fence", "history"} {
			skip[group] = "short: TestConformance runs it in virtual time"
		}
		for _, name := range []string{"leak/goroutines-lease", "fault", "link"} {
			skip[name] = "short: it waits for seconds"
		}
	} else if len(c.servers) != 3 {
		skip["fault"], skip["link"] = "it waits for seconds, and is run with three servers", "it waits for seconds, and is run with three servers"
	}
	nodes := server.Group{Nodes: c.servers}
	addrs := nodes.Addrs()
	h := fault.HarnessOf(addrs, func(via []string) (driver.Backend, error) {
		var pairs []string
		for i, addr := range addrs {
			pairs = append(pairs, addr, via[i])
		}
		return dlock.OpenBackend(strings.NewReplacer(pairs...).Replace(c.url(false)))
	})
	h.Faults.Kill, h.Faults.Restart = nodes.KillMajority, nodes.StartAgain
	h.Faults.Pause, h.Faults.Resume = nodes.Pause, nodes.Resume
	h.Skip, h.Driver = skip, resolving{}
	// The options come first, because the suite appends its parameters to the last node.
	h.URL = strings.Replace(strings.TrimSuffix(c.url(false), ",restart_guard=off"), "redlock:", "redlock:restart_guard=off,", 1)
	h.Grace = redlock.Grace(len(c.servers))
	h.Residue = func(context.Context) ([]string, error) {
		var found []string
		for _, s := range c.servers {
			reply, err := s.Do("KEYS", "*")
			if err != nil {
				continue
			}
			list, _ := reply.([]any)
			for _, k := range list {
				if name := fmt.Sprint(k); !strings.HasPrefix(name, "redlock1:") { // counters stay
					found = append(found, name)
				}
			}
		}
		return found, nil
	}
	return h
}

func TestConformanceOnRealServers(t *testing.T) {
	t.Parallel()
	mixed := []string{"redis", "valkey", "valkey"}
	for _, c := range []struct {
		n       int
		schemes []string
	}{{3, mixed}, {5, mixed}} { // TestConformance has all sizes
		t.Run(fmt.Sprintf("%d/%s", c.n, strings.Join(c.schemes, "+")), func(t *testing.T) {
			if c.n != 3 {
				server.Deep(t) // three servers are enough
			}
			ownprocess.Run(t, func(t *testing.T) {
				redlocktest.Run(t, startWith(t, c.n, c.schemes, server.WithAppendOnly("always")).harness())
			})
		})
	}
}

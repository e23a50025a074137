package redlock_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/drivers/redlock"
	"github.com/redlock-go/redlock/drivers/valkeygo"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// cluster is a number of real servers, that know nothing of each other, each behind
// a proxy that can break what goes through it.
type cluster struct {
	t       testing.TB
	servers []*server.Server
	proxies []*fault.Proxy
	schemes []string
}

// start starts n servers. The schemes name the clients, "redis" or "valkey", in turn;
// the kinds of servers take turns too.
func start(t testing.TB, n int, schemes ...string) *cluster {
	t.Helper()
	c := &cluster{t: t, schemes: schemes}
	for i := range n {
		var s *server.Server
		if i%2 == 0 {
			s = server.Redis(t)
		} else {
			s = server.Valkey(t)
		}
		c.servers = append(c.servers, s)
		c.proxies = append(c.proxies, fault.NewProxy(t, s.Addr()))
	}
	return c
}

// url is the quorum's, through the proxies where they are wanted.
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
			continue // it is down
		}
		if fmt.Sprint(reply) == "1" {
			value, _ := s.Do("GET", key)
			found = append(found, fmt.Sprintf("%v on %d", value, i))
		}
	}
	return found
}

// gone waits until no server has the key any longer, for so long at most.
func (c *cluster) gone(key string, within time.Duration) {
	c.t.Helper()
	end := time.Now().Add(within)
	for {
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

// resolving is the driver with what dlock gives it: the drivers of the nodes.
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
	return redlocktest.Harness{
		Open:   func() (driver.Backend, error) { return dlock.OpenBackend(c.url(true)) },
		Driver: resolving{},
		// The options come first: what the suite adds is of the last node.
		URL:              strings.Replace(strings.TrimSuffix(c.url(false), ",restart_guard=off"), "redlock:", "redlock:restart_guard=off,", 1),
		Grace:            redlock.Grace(len(c.servers)),
		Timeout:          time.Minute,
		IgnoreGoroutines: []string{server.Goroutine},
		Residue: func(context.Context) ([]string, error) {
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
		},
	}
}

func TestConformanceOnRealServers(t *testing.T) {
	mixed := []string{"redis", "valkey", "valkey"}
	for _, c := range []struct {
		n       int
		schemes []string
	}{{1, []string{"valkey"}}, {3, mixed}, {4, []string{"redis"}}, {5, mixed}} {
		t.Run(fmt.Sprintf("%d/%s", c.n, strings.Join(c.schemes, "+")), func(t *testing.T) {
			switch {
			case testing.Short() && c.n != 3:
				t.Skip("short")
			case redlock.Race && (c.n == 1 || c.n == 4):
				t.Skip("all.bash runs this one without the race detector")
			}
			redlocktest.Run(t, start(t, c.n, c.schemes...).harness())
		})
	}
}

package redlock_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
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
	if testing.Short() {
		debug.SetGCPercent(400) // a small heap, of which collecting was a tenth of the work
	}
	os.Exit(m.Run())
}

// cluster is a number of independent real servers, A, B and so on, alternately Redis and Valkey,
// each behind a proxy that can break its connections.
type cluster struct {
	t       testing.TB
	servers []*server.Server
	proxies []*fault.Proxy
	notify  func(driver.Notice) // of the quorums that are opened; may be nil
}

func start(t testing.TB, n int, options ...server.Option) *cluster {
	t.Helper()
	c := &cluster{t: t}
	for i := range n {
		s := server.StartFor(t, []server.Kind{server.KindRedis, server.KindValkey}[i%2], options...)
		c.servers, c.proxies = append(c.servers, s), append(c.proxies, fault.NewProxy(t, s.Addr()))
	}
	return c
}

// first is the cluster of the first n servers only.
func (c *cluster) first(n int) *cluster {
	return &cluster{t: c.t, servers: c.servers[:n], proxies: c.proxies[:n], notify: c.notify}
}

const (
	everyNode = "ABCDE"
	unguarded = "restart_guard=off"
	// calm is a node timeout that suffices on a busy machine, for tests that are not about silent
	// nodes. The nodes use it as their call timeout too.
	calm = "node_timeout=5s"
)

func inSight(sight string, i int) bool { return strings.ContainsRune(sight, rune('A'+i)) }

// url returns the quorum's URL. It names the nodes in sight themselves, and of the others the proxies.
func (c *cluster) url(sight string, options ...string) string {
	items := options
	for i, s := range c.servers {
		addr := s.Addr()
		if !inSight(sight, i) {
			addr = c.proxies[i].Addr()
		}
		item := []string{"redis", "valkey"}[i%2] + "://" + addr + "?dial_timeout=10s"
		if slices.Contains(options, calm) {
			item += "&call_timeout=5s"
		}
		items = append(items[:len(items):len(items)], item)
	}
	return "redlock:" + strings.Join(items, ",")
}

// open opens the quorum with this URL.
func (c *cluster) open(sight string, options ...string) *redlock.Backend {
	c.t.Helper()
	cfg := &driver.Config{Notify: c.notify}
	options = slices.DeleteFunc(slices.Clone(options), func(o string) bool {
		prefix, ok := strings.CutPrefix(o, "prefix=") // which is not the driver's
		if ok {
			cfg.Prefix = prefix
		}
		return ok
	})
	cfg.DSN = c.url(sight, options...)
	b, err := resolving{}.Open(cfg)
	drivertest.Must(c.t, err)
	c.t.Cleanup(func() {
		if err := b.Close(); err != nil {
			c.t.Error(err)
		}
	})
	return b.(*redlock.Backend)
}

// view opens a quorum of all nodes whose client reaches only the nodes in sight, for example "ABC".
func (c *cluster) view(sight string, options ...string) *redlock.Backend {
	c.t.Helper()
	for i, p := range c.proxies {
		if !inSight(sight, i) {
			drivertest.Must(c.t, p.Refuse())
		}
	}
	return c.open(sight, options...)
}

func (c *cluster) do(i int, args ...string) any {
	c.t.Helper()
	reply, err := c.servers[i].Do(args...)
	if err != nil {
		c.t.Fatalf("%v: %v", args, err)
	}
	return reply
}

// each calls do for the first n servers concurrently.
func (c *cluster) each(n int, do func(i int, s *server.Server) error) {
	c.t.Helper()
	errs := make([]error, n)
	parallel(n, n, func(i int) { errs[i] = do(i, c.servers[i]) })
	drivertest.Must(c.t, errors.Join(errs...))
}

func crash(_ int, s *server.Server) error { return errors.Join(s.Kill(), s.Start()) }

// parallel calls f for 0 to n-1, in this many goroutines.
func parallel(workers, n int, f func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}

// setClock sets the clock of one server.
func (c *cluster) setClock(i int, ahead time.Duration) {
	c.t.Helper()
	drivertest.Must(c.t, c.servers[i].SetClock(ahead))
}

// poll is how often a test looks whether something has happened.
const poll = 5 * time.Millisecond

var began = time.Now()

// limit is when a test gives up a wait whose duration depends on the machine: a little before the
// test binary's own deadline.
func limit() time.Time {
	d, err := time.ParseDuration(flag.Lookup("test.timeout").Value.String())
	if err != nil || d == 0 {
		d = time.Hour
	}
	return began.Add(d - min(d/10, 10*time.Second))
}

// bootstrap states that the servers are new, as they are. If an answer does not come in time,
// some of them may have been told, and are no longer new: all forget everything.
func (c *cluster) bootstrap(options ...string) {
	c.t.Helper()
	q := c.open(everyNode, options...)
	c.until(func() error {
		_, err := q.Bootstrap(context.Background(), &quorum.Bootstrap{})
		for i := 0; err != nil && i < len(c.servers); i++ {
			c.do(i, "FLUSHALL")
		}
		return err
	})
}

// until tries again until it succeeds, and fails the test with the last error if it never does.
func (c *cluster) until(try func() error) {
	c.t.Helper()
	for end := limit(); ; time.Sleep(poll) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(end) || errors.Is(err, driver.ErrInvalid) {
			c.t.Fatal(err)
		}
	}
}

// long skips a test that takes long if -short is given. -short keeps the simulation, the rules
// of terms.go, the conformance suite and one test of each kind of fault.
func long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("short: it takes seconds")
	}
}

var owners atomic.Int64

func ask(key string, ttl time.Duration) *driver.Request {
	return &driver.Request{Key: key, Owner: fmt.Sprintf("test/%d", owners.Add(1)), TTL: ttl}
}

// hold takes the lock as soon as it is free and the nodes vote.
func (c *cluster) hold(b driver.Backend, key string, ttl time.Duration) (l driver.Lease) {
	c.t.Helper()
	c.until(func() (err error) {
		l, err = b.Acquire(context.Background(), ask(key, ttl))
		return err
	})
	return l
}

// release releases a lease, again and again until enough nodes confirm it.
func (c *cluster) release(l driver.Lease) {
	c.t.Helper()
	c.until(func() error {
		if err := l.Release(context.Background()); !errors.Is(err, driver.ErrLost) {
			return err
		}
		return nil
	})
}

// use takes and releases a lock, as soon as it is free and the nodes vote.
func (c *cluster) use(b driver.Backend, key string, ttl time.Duration) {
	c.t.Helper()
	c.release(c.hold(b, key, ttl))
}

// renew renews a lease, and fails the test if no attempt succeeds before its deadline.
func (c *cluster) renew(l driver.Lease, ttl time.Duration) driver.Grant {
	c.t.Helper()
	for ; ; time.Sleep(poll) {
		g, err := l.Renew(context.Background(), &driver.Renewal{TTL: ttl})
		if err == nil {
			return g
		}
		if errors.Is(err, driver.ErrLost) || time.Now().After(l.Grant().Expires) {
			c.t.Fatal(err)
		}
	}
}

// clocksUnknown is what nodes say that vote as soon as the other nodes have answered.
const clocksUnknown = "until the clocks and the terms of the other nodes are known"

// verdict bids until the nodes grant or refuse the lock, and so not before each node is answered
// for by the others. It bids again after a late answer, as there may be on a busy machine, and
// while an earlier bid of its own still holds the key.
func (c *cluster) verdict(b driver.Backend, key string, ttl time.Duration) (l driver.Lease, err error) {
	c.t.Helper()
	for end := limit(); ; time.Sleep(poll) {
		l, err = b.Acquire(context.Background(), ask(key, ttl))
		if err == nil || errors.Is(err, driver.ErrRefused) && !strings.Contains(err.Error(), clocksUnknown) || time.Now().After(end) {
			return l, err
		}
	}
}

// keys returns which servers have a lock of this key.
func (c *cluster) keys(key string) (found []string) {
	c.t.Helper()
	for i, s := range c.servers {
		if value, err := s.Do("GET", key); err == nil && value != nil { // otherwise the server is down
			found = append(found, fmt.Sprintf("%v on %d", value, i))
		}
	}
	return found
}

// carriers counts the servers whose lock has this token.
func (c *cluster) carriers(key string, token uint64) (n int) {
	c.t.Helper()
	for _, found := range c.keys(key) {
		if strings.Contains(found, fmt.Sprintf("|%d on ", token)) {
			n++
		}
	}
	return n
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
	// The options come first, because the suite appends its parameters to the last node.
	url := strings.ReplaceAll(c.url(everyNode, unguarded), "?dial_timeout=10s", "")
	h := fault.HarnessOf(addrs, func(via []string) (driver.Backend, error) {
		var pairs []string
		for i, addr := range addrs {
			pairs = append(pairs, addr, via[i])
		}
		return dlock.OpenBackend(strings.NewReplacer(pairs...).Replace(url))
	})
	h.Faults.Kill, h.Faults.Restart = nodes.KillMajority, nodes.StartAgain
	h.Faults.Pause, h.Faults.Resume = nodes.Pause, nodes.Resume
	h.Skip, h.Driver, h.URL = skip, resolving{}, url
	h.Grace = redlock.Grace(len(c.servers))
	h.Timeout = 5 * time.Minute // for a machine that is very busy
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
	for _, n := range []int{3, 5} { // TestConformance has all sizes
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			if n != 3 {
				server.Deep(t) // three servers are enough
			}
			ownprocess.Run(t, func(t *testing.T) {
				redlocktest.Run(t, start(t, n, server.WithAppendOnly("always")).harness())
			})
		})
	}
}

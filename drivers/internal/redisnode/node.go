// Package redisnode is the common part of the drivers for Redis and Valkey: the scripts and
// their calls, leases, server time, waiting, clean-up, the parameters of URLs, and readable
// errors. A Client adapts each client library.
package redisnode

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/drivers/internal/redisnode/names"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/redisurl"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/resp"
)

// counterLife is how long a counter outlives its last token, in addition to the TTL: far longer
// than a clock can fall back between two checks, and the ten seconds that it may fall at a check
// (lua/counter.lua). So List finds every lock by its counter.
const counterLife = 2*time.Minute + 10*time.Second

// A Node is a backend over one server, or over servers that behave like one: a primary behind
// Sentinel, or a Cluster. It is safe for concurrent use.
type Node struct {
	cfg    Config
	names  names.Prefix
	guard  *guard
	router *router
	queue  *waitQueue

	serverMark     string // the name of the mark, if one serves all keys
	waiterChannels string // the beginning of the names of waiters' own channels
	tells          string // "1" if PUBLISH tells whether a waiter is there: in a Cluster it counts one node's
	// Answered attempts, renewals and releases for reuse: these would be most of a lock's allocations.
	attempts, renewals, releasings sync.Pool

	lastSpan atomic.Pointer[span]

	closed   atomic.Bool
	ending   chan struct{} // closed when Close begins…
	over     chan struct{} // …closed when nothing is repeated any more
	work     async.Tracker // calls that callers wait for, and clean-ups
	hearing  async.Tracker // subscribers
	wg       async.Tracker // goroutines
	cleaning atomic.Int64
}

var (
	_ driver.Backend   = (*Node)(nil)
	_ driver.Watcher   = (*Node)(nil)
	_ driver.Inspector = (*Node)(nil)
	_ driver.Admin     = (*Node)(nil)
	_ quorum.Admin     = (*Node)(nil)
	_ async.Backend    = (*Node)(nil)
)

// Open makes a node from a URL, for the driver with this name. connect makes a client from the
// parsed URL, and gets the connections of which the client must make each; the client must respect
// deadlines, and connect must do no I/O.
func Open(name string, cfg *driver.Config, connect func(*redisurl.Target, *resp.Conns) Client) (*Node, error) {
	t, err := redisurl.Parse(name, cfg.DSN)
	if err != nil {
		return nil, err
	}
	conns := resp.New(t.Password, t.SentinelPassword)
	c := connect(t, conns)
	n, err := New(Config{
		Client: c, Name: name, Addr: t.String(), Prefix: cfg.Prefix,
		CallTimeout: t.CallTimeout,
		Guard:       t.Guard, Bootstrap: t.Bootstrap, Durable: t.Durable, DB: t.DB,
		Cluster: t.Topology == redisurl.Cluster, Failover: t.Topology != redisurl.Single,
		WaitReplicas: t.WaitReplicas, Abandon: conns.Abandon, Notify: cfg.Notify,
	})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return n, nil
}

// New returns a node, or an *InvalidError. It does no I/O.
func New(cfg Config) (*Node, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, names: names.Prefix(cfg.Prefix), ending: make(chan struct{}), over: make(chan struct{})}
	n.serverMark, n.waiterChannels, n.tells = n.names.Mark("", false), n.names.Own(), "1"
	if cfg.Cluster {
		n.tells = "0"
	}
	n.guard = newGuard(&n.cfg, &n.wg)
	n.router = newRouter(n)
	n.queue = newWaitQueue(n)
	return n, nil
}

// Info returns what the backend can do. MinTTL is 10 ms, MaxTTL 30 days, or the restart
// guard of a lone instance.
func (n *Node) Info() driver.Info {
	most := maxTTL
	if n.cfg.Guard > 0 {
		most = n.cfg.Guard
	}
	return driver.Info{Name: n.cfg.Name, Features: driver.FeatureShared | driver.FeatureFencing | driver.FeatureQuorumNode | driver.FeatureKeep | driver.FeatureOrdered | driver.FeatureTokens, MinTTL: minTTL, MaxTTL: most}
}

// String returns the server's address, without any secret.
func (n *Node) String() string { return n.cfg.Addr }

// Starts is for quorums: see package async. A type that embeds a node and starts calls has its own.
func (n *Node) Starts(b driver.Backend) bool { return b == driver.Backend(n) }

func (n *Node) check(req *driver.Request) error {
	if err := n.Info().Check(n.cfg.Prefix, req); err != nil {
		return err
	}
	return n.checkOwn(req)
}

// checkOwn refuses the requests that Info permits and a node cannot serve.
func (n *Node) checkOwn(req *driver.Request) error {
	switch {
	case strings.HasPrefix(req.Key, names.Layout):
		return driver.Invalid("key", "begins with %q, which is reserved for the keys beside locks", names.Layout)
	case strings.Contains(req.Owner, "|"):
		return driver.Invalid("owner", "contains '|'")
	case n.cfg.Cluster && n.guard.of(req.Quorum) != nil:
		return &driver.RefusedError{Reason: n.cfg.Addr + ": a Cluster cannot have a restart guard, since its shards restart one by one: restart_guard=off"}
	case req.ExactFence > driver.MaxFence:
		return driver.Invalid("ExactFence", "%d is over the largest token, %d", req.ExactFence, uint64(driver.MaxFence))
	}
	return nil
}

// timeout returns the bound of one call about a lock with this TTL.
func (n *Node) timeout(ttl time.Duration) time.Duration {
	return min(n.cfg.CallTimeout, max(ttl/2, minTimeout))
}

// loneGrace covers the granularity of one server's clock; a hundredth of the TTL covers its rate.
const loneGrace = 10 * time.Millisecond

// A span has two durations in ms, as ARGV: px is how long a server keeps a lock, life how long
// it keeps the counter after the last token.
type span struct {
	lock, counter time.Duration
	px, life      string
}

// span returns how long a lock with this TTL, and its counter, are kept: the lock for the
// client's TTL and the grace, in which nobody else gets a lock that was not released.
func (n *Node) span(ttl time.Duration, q *quorum.Info) *span {
	lock, counter := ttl+ttl/100+loneGrace, counterLife+ttl
	if q != nil { // a counter outlives a quarantine of a quorum's node
		counter = max(counterLife, 2*q.Guard+time.Minute) + ttl
		switch {
		case q.Guard > 0:
			lock = ttl // the script adds the grace of the server's terms
		case q.Grace > 0:
			lock = ttl + q.Grace
		}
	}
	last := n.lastSpan.Load()
	if last == nil || last.lock != lock || last.counter != counter { // most locks of a program have the same TTL
		last = &span{lock, counter, millis(lock), millis(counter)}
		n.lastSpan.Store(last)
	}
	return last
}

// millis returns d in milliseconds, rounded up.
func millis(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}

// Close ends the backend. If the server answers within about the call timeout, calls and
// clean-ups under way finish first; a request whose connection was cut gets 100 ms to arrive
// before it is undone for the last time. Calls that a hanging server never answers end with the
// client. An error says that after another call timeout an application's client, which is not
// closed, still waits for such a server.
func (n *Node) Close() error {
	if n.closed.Swap(true) {
		return nil
	}
	close(n.ending)
	n.queue.close()
	n.work.Await(n.cfg.CallTimeout + n.cfg.CallTimeout/4) // one for an in-doubt call, one for its release
	close(n.over)
	n.router.close()
	n.hearing.Await(n.cfg.CallTimeout / 4) // go-redis logs a connection that ends before its subscription
	err := n.cfg.Client.Close()
	if own := n.cfg.Abandon != nil; !n.wg.Await(n.cfg.CallTimeout+n.cfg.CallTimeout/4) && !own {
		err = errors.Join(err, fmt.Errorf("%s: calls are still under way on the application's client, until its own timeouts end them", n.cfg.Addr))
	}
	return err
}

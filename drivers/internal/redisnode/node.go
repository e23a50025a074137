// Package redisnode is what the drivers for Redis and Valkey share: the scripts and
// how they are called, leases, server time, waiting, clean-up, the vocabulary of
// their URLs, and errors in words. A client library stands behind Client.
package redisnode

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/async"
)

const (
	// DefaultCallTimeout bounds one call to the server, and is the not-after of what
	// is sent to it.
	DefaultCallTimeout = time.Second
	// minCallTimeout is the least that a short TTL leaves for a call.
	minCallTimeout = 50 * time.Millisecond

	minTTL = 10 * time.Millisecond
	maxTTL = 30 * 24 * time.Hour

	// counterLife is how long a counter outlives its last token at least, beside the TTL: far
	// longer than a clock can fall between two looks (lua/counter.lua).
	counterLife = 2 * time.Minute

	// releaseTries is how often a release is sent before it gives up, and releasePause
	// the first pause between two: each is four times the one before, 850 ms in all.
	// Some failures pass in no time: a client whose connections were cut just now.
	releaseTries = 5
	releasePause = 10 * time.Millisecond
)

// Config is what a Node is made of.
type Config struct {
	Client Client
	Name   string // "redis", "valkey": which client library
	Addr   string // for String: without any secret
	Prefix string

	CallTimeout  time.Duration // zero: DefaultCallTimeout
	Grace        time.Duration // how much longer than the TTL a lone instance keeps a key; zero: TTL/100 + 10 ms
	Guard        time.Duration // the restart guard of a lone instance; zero: off
	Durable      bool          // what the server has acknowledged outlives its restart
	Bootstrap    bool          // a lone instance is new, unless it has a memory
	StrictGuard  bool          // only Bootstrap makes a lone instance new
	DB           int           // the database's number
	Cluster      bool
	Failover     bool          // Sentinel or Cluster: a replica's refusal is of today
	WaitReplicas int           // how many replicas must have a grant or a renewal
	ForeignGap   time.Duration // for how long in each second a lock is not handed over: see gap.go
	Connections  int           // connections that calls may use; zero, and more than enough: maxConnections
	Direct       Direct
	Event        func(driver.Notice)
}

// A Node is a backend over one server, or over what behaves as one: a
// primary behind Sentinel, a Cluster. It is safe for concurrent use.
type Node struct {
	cfg     Config
	names   names
	guard   *guard
	router  *router
	waiters *waiters

	serverMark     string // the name of the mark, where there is one for all keys
	waiterChannels string // what the names of waiters' own channels begin with
	// Attempts and releases that were answered, to be used again: most of what a lock allocates.
	attempts, releasings sync.Pool

	lastSpan   atomic.Pointer[span]
	remembered atomic.Pointer[driver.Terms] // by the nodes of a quorum, as the last request said

	closed         atomic.Bool
	ending         chan struct{} // closed when Close begins…
	over           chan struct{} // …and when nothing is tried again
	work           tracker       // calls whose callers wait, and clean-ups
	wg             tracker       // goroutines
	cleaning       atomic.Int64
	publishRefused sync.Once // says once that PUBLISH is refused
}

var (
	_ driver.Backend    = (*Node)(nil)
	_ driver.Watcher    = (*Node)(nil)
	_ driver.Inspector  = (*Node)(nil)
	_ driver.Admin      = (*Node)(nil)
	_ driver.GuardAdmin = (*Node)(nil)
	_ async.Backend     = (*Node)(nil)
)

// New returns a node, or an *InvalidError. It does no I/O.
func New(cfg Config) (*Node, error) {
	if err := checkPrefix(cfg.Prefix); err != nil {
		return nil, err
	}
	if cfg.CallTimeout == 0 {
		cfg.CallTimeout = DefaultCallTimeout
	}
	if cfg.CallTimeout < driver.MinTTL {
		return nil, driver.Invalid("CallTimeout", "%v is under %v", cfg.CallTimeout, driver.MinTTL)
	}
	if cfg.Grace < 0 {
		return nil, driver.Invalid("Grace", "%v is negative", cfg.Grace)
	}
	if cfg.WaitReplicas < 0 {
		return nil, driver.Invalid("WaitReplicas", "%d is negative", cfg.WaitReplicas)
	}
	if cfg.ForeignGap < 0 || cfg.ForeignGap > gapEvery/2 {
		return nil, driver.Invalid("ForeignGap", "%v is not between 0 and %v", cfg.ForeignGap, gapEvery/2)
	}
	if cfg.WaitReplicas > 0 && cfg.Cluster {
		return nil, driver.Invalid("WaitReplicas", "is for one primary, and not for a Cluster")
	}
	if err := checkGuard(&cfg); err != nil {
		return nil, err
	}
	if cfg.Event == nil {
		cfg.Event = func(driver.Notice) {}
	}
	n := &Node{cfg: cfg, names: names{cfg.Prefix}, ending: make(chan struct{}), over: make(chan struct{})}
	n.serverMark, n.waiterChannels = n.names.mark("", false), n.names.own()
	n.guard = newGuard(&n.cfg, &n.wg)
	n.router = newRouter(func() *pipelines {
		return newPipelines(cfg.Client.Exec, cfg.pipelines(), cfg.Direct, cfg.CallTimeout, &n.work, &n.wg)
	}, cfg.Cluster, n.guard, n.unknown)
	n.waiters = newWaiters(n)
	return n, nil
}

// Info returns what the backend can do. MinTTL is 10 ms, MaxTTL 30 days, or the restart
// guard of a lone instance.
func (n *Node) Info() driver.Info {
	most := maxTTL
	if n.cfg.Guard > 0 {
		most = n.cfg.Guard
	}
	return driver.Info{Name: n.cfg.Name, Features: driver.FeatureFencing | driver.FeatureQuorumNode | driver.FeatureKeep | driver.FeatureOrdered, MinTTL: minTTL, MaxTTL: most}
}

// String returns the server's address, without any secret.
func (n *Node) String() string { return n.cfg.Addr }

// Acquire makes one attempt. It never blocks for the lock: Watch and HeldError's
// RetryAfter say when to ask again. It is bounded by ctx and by the call timeout, or
// half of the TTL where that is less.
func (n *Node) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	if err := n.check(req); err != nil {
		return nil, err
	}
	if n.closed.Load() {
		return nil, driver.ErrClosed
	}
	t := n.attempt(req)
	if req.ExactFence == 0 {
		n.holdBack(ctx, req.Key)
		n.waiters.stepBack(ctx, req.Key)
		t.line = n.waiters.waitQueue(t, t.quorum)
	}
	return t.acquire(within(ctx, n.timeout(req.TTL)))
}

// StartAcquire is Acquire for a caller that does not wait: see package async.
func (n *Node) StartAcquire(ctx context.Context, req *driver.Request, until time.Time, done func(driver.Lease, error)) bool {
	if n.closed.Load() || n.check(req) != nil {
		return false
	}
	t := n.attempt(req)
	if req.ExactFence == 0 {
		if n.cfg.ForeignGap != 0 || n.waiters.stepBackFor(req.Key) > 0 {
			return false
		}
		t.line = n.waiters.waitQueue(t, t.quorum)
	}
	return t.start(ctx, earlier(until, time.Now().Add(n.timeout(req.TTL))), done)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func (n *Node) check(req *driver.Request) error {
	if err := n.Info().Check(n.cfg.Prefix, req); err != nil {
		return err
	}
	switch {
	case reserved(req.Key):
		return driver.Invalid("key", "begins with %q, which is kept for what is stored beside locks", layout)
	case strings.Contains(req.Owner, "|"):
		return driver.Invalid("owner", "contains '|'")
	case req.ExactFence > driver.MaxFence:
		return driver.Invalid("join", "%d is over the largest token, %d", req.ExactFence, uint64(driver.MaxFence))
	}
	return n.guard.check(req)
}

// timeout returns the bound of one call about a lock with this TTL.
func (n *Node) timeout(ttl time.Duration) time.Duration {
	return min(n.cfg.CallTimeout, max(ttl/2, minCallTimeout))
}

// loneGrace is for the granularity of one server's clock; its rate has a hundredth of the TTL.
const loneGrace = 10 * time.Millisecond

// inMS rounds up to milliseconds.
func inMS(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// A span is for how long a server keeps a lock, by px, and its counter after the last token, by
// life, as scripts have it, in ms.
type span struct {
	lock, counter time.Duration
	px, life      string
}

// span returns for how long a lock with this TTL is kept, and its counter: for the TTL that the
// client sees and the grace, in which nobody else gets a lock that was not released.
func (n *Node) span(ttl time.Duration, q *driver.Quorum) *span {
	lock, counter := n.kept(ttl, q), n.counterLife(ttl, q)
	last := n.lastSpan.Load()
	if last == nil || last.lock != lock || last.counter != counter { // most locks of a program have one TTL
		last = &span{lock, counter, millis(lock), millis(counter)}
		n.lastSpan.Store(last)
	}
	return last
}

func millis(d time.Duration) string { return strconv.FormatInt(inMS(d), 10) }

func (n *Node) kept(ttl time.Duration, q *driver.Quorum) time.Duration {
	switch {
	case q != nil && n.guard.of(q) != nil:
		return ttl // the script adds what the server's terms say
	case q != nil && q.Grace > 0:
		return ttl + q.Grace
	case n.cfg.Grace > 0:
		return ttl + n.cfg.Grace
	}
	return ttl + ttl/100 + loneGrace
}

// counterLife returns the life of a counter: longer than the lock's, so that List finds
// it, and than a node of a quorum stays out of the vote.
func (n *Node) counterLife(ttl time.Duration, q *driver.Quorum) time.Duration {
	life := counterLife
	if q != nil {
		life = max(life, 2*q.Guard+time.Minute)
	}
	return life + ttl
}

// mark returns the name of what the counters of a server have in common.
func (n *Node) mark(key string) string {
	if n.cfg.Cluster {
		return n.names.mark(key, true)
	}
	return n.serverMark
}

// unknown reports whether what ended in err may have taken effect, or may yet: so it is too
// where something between answers with an error that no Redis gives.
func (n *Node) unknown(err error) bool {
	if errors.Is(err, ErrNotSent) || errors.Is(err, driver.ErrRefused) {
		return false
	}
	var reply ServerError
	return !errors.As(err, &reply) || n.verdict("", reply) == nil
}

// Close ends the backend. Calls and clean-ups that are under way are brought to their
// end first, where the server answers within about the call timeout: a request whose
// connection was cut gets 100 ms to arrive before it is undone for the last time. What a
// server that hangs never answers ends with the client. An error says that an application's client,
// which is not closed, still waits for such a server, after another call timeout.
func (n *Node) Close() error {
	if n.closed.Swap(true) {
		return nil
	}
	close(n.ending)
	n.waiters.close()
	n.work.await(n.cfg.CallTimeout + n.cfg.CallTimeout/4) // a call in doubt, and its release
	close(n.over)
	n.router.close()
	err := n.cfg.Client.Close()
	if !n.wg.await(n.cfg.CallTimeout + n.cfg.CallTimeout/4) {
		err = errors.Join(err, fmt.Errorf("%s: calls are still under way on the application's client, until its own timeouts end them", n.cfg.Addr))
	}
	return err
}

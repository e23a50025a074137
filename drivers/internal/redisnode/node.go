// Package redisnode is what the drivers for Redis and Valkey share: the scripts and
// how they are called, leases, server time, waiting, clean-up, the vocabulary of
// their URLs, and errors in words. A client library stands behind Client.
package redisnode

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
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
	Connections  int           // connections that calls may use; zero, and more than enough: maxLanes
	Direct       Direct
	Event        func(driver.Notice)
}

// A Node is a backend over one server, or over what behaves as one: a
// primary behind Sentinel, a Cluster. It is safe for concurrent use.
type Node struct {
	cfg   Config
	names names
	guard *guard
	fleet *fleet
	hub   *hub

	closed   atomic.Bool
	ending   chan struct{} // closed when Close begins…
	over     chan struct{} // …and when nothing is tried again
	work     tracker       // calls whose callers wait, and clean-ups
	wg       tracker       // goroutines
	cleaning atomic.Int64
	mute     sync.Once // says once that PUBLISH is refused
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
	n.guard = newGuard(&n.cfg, &n.wg)
	n.fleet = newFleet(func() *pipelines {
		return newPipelines(cfg.Client.Exec, cfg.lanes(), cfg.Direct, cfg.CallTimeout, &n.work, &n.wg)
	}, cfg.Cluster, n.guard, n.unknown)
	n.hub = newHub(n)
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
		n.hub.stepBack(ctx, req.Key)
		t.line = n.hub.waitQueue(t, t.quorum)
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
		if n.cfg.ForeignGap != 0 || n.hub.rest(req.Key) > 0 {
			return false
		}
		t.line = n.hub.waitQueue(t, t.quorum)
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

// px returns for how long the server keeps the key, in ms: the TTL that the client
// sees and the grace, in which nobody else gets a lock that was not released.
func (n *Node) px(ttl time.Duration, q *driver.Quorum) string {
	return millis(n.kept(ttl, q))
}

// renewalPX is px after a renewal, and for how long the server keeps the key at least.
func (n *Node) renewalPX(r *driver.Renewal, q *driver.Quorum) (px, keep string) {
	if px = "0"; r.TTL > 0 {
		px = n.px(r.TTL, q)
	}
	return px, millis(r.Keep)
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

// counterLife returns the life of a counter in ms: longer than the lock's, so that List finds
// it, and than a node of a quorum stays out of the vote.
func (n *Node) counterLife(ttl time.Duration, q *driver.Quorum) string {
	life := counterLife
	if q != nil {
		life = max(life, 2*q.Guard+time.Minute)
	}
	return strconv.FormatInt(inMS(life+ttl), 10)
}

// An attempt is one Acquire: what it asks for, and what of it may have taken effect.
type attempt struct {
	node   *Node
	key    string
	owner  string
	place  string   // in the line of those who wait; empty: nobody does
	line   []string // what acquire says about the line, or join about the token
	quorum *driver.Quorum
	ttl    time.Duration

	ask      request
	px       string
	proposal string
	life     string
	deadline time.Time

	again, tardy bool // it was tried once more: after a broken connection; after it came too late

	last inDoubtCall   // the call that was sent last
	late []inDoubtCall // those of which the outcome is not known
}

func (n *Node) attempt(req *driver.Request) *attempt {
	quorum := own(req.Quorum)
	t := &attempt{
		node: n, key: req.Key, owner: req.Owner, quorum: quorum, ttl: req.TTL,
		px: n.px(req.TTL, quorum), life: n.counterLife(req.TTL, quorum),
	}
	o, floor := opAcquire, req.FenceFloor
	if req.ExactFence != 0 {
		o, floor = opJoin, req.ExactFence
		t.line = []string{strconv.FormatUint(max(req.FenceFloor, req.ExactFence), 10)}
	}
	t.proposal = strconv.FormatUint(floor, 10)
	q := n.guard.of(quorum)
	t.ask = request{op: o, q: q, ttl: req.TTL, keys: n.fenced(req.Key, q), args: t.args, call: &t.last.call}
	return t
}

// own copies q: leases, and what goes on in the background, outlive the caller's request.
func own(q *driver.Quorum) *driver.Quorum {
	if q == nil {
		return nil
	}
	mine := *q
	if q.Remembered != nil {
		terms := *q.Remembered
		mine.Remembered = &terms
	}
	return &mine
}

// fenced returns the KEYS of a script that may set the counter.
func (n *Node) fenced(key string, q *driver.Quorum) []string {
	keys := append(make([]string, 0, 4), n.names.lock(key), n.names.counter(key), n.names.mark(key, n.cfg.Cluster))
	if q != nil {
		keys = append(keys, n.guard.meta)
	}
	return keys
}

func (t *attempt) args(p *process) []string {
	t.last.process, t.last.notAfter = p, p.clock.at(t.deadline)
	return append(append(make([]string, 0, 9), strconv.FormatInt(t.last.notAfter, 10), t.owner, t.px, t.proposal, t.life), t.line...)
}

// A doubt is a call that may have taken effect, or may until its not-after.
type inDoubtCall struct {
	call     *Call
	process  *process
	notAfter int64 // by the process' clock, in µs
}

// uncertain reports whether something may have taken effect, or may yet.
func (t *attempt) uncertain() bool { return len(t.late) > 0 }

// acquire asks until there is a verdict: again after a refusal for lateness, which
// taught the server's clock, and once more after a broken connection, since the
// script is idempotent for one attempt.
func (t *attempt) acquire(ctx context.Context) (driver.Lease, error) {
	t.deadline, _ = ctx.Deadline()
	for {
		a, err := t.node.fleet.run(ctx, &t.ask)
		if l, err := t.heard(ctx, a, err); !errors.Is(err, errAgain) {
			return t.end(ctx, l, err)
		}
	}
}

// start is acquire for a caller that does not wait.
func (t *attempt) start(ctx context.Context, until time.Time, done func(driver.Lease, error)) bool {
	t.deadline = until
	return t.node.fleet.start(ctx, &t.ask, until, func(a *answer, err error) {
		ctx := &bounded{context.WithoutCancel(ctx), until}
		l, err := t.heard(ctx, a, err)
		if !errors.Is(err, errAgain) {
			done(t.end(ctx, l, err))
			return
		}
		t.node.aside(func() { done(t.acquire(ctx)) })
	})
}

// aside does what takes time for a caller that does not wait.
func (n *Node) aside(do func()) {
	n.work.add()
	n.wg.add()
	go func() {
		defer n.wg.done()
		defer n.work.done()
		do()
	}()
}

// end makes the result of an attempt. What may have taken effect without one is undone.
func (t *attempt) end(ctx context.Context, l *Lease, err error) (driver.Lease, error) {
	if err == nil {
		return l, nil
	}
	if t.uncertain() {
		t.node.cleanUp(ctx, t)
	}
	return nil, t.node.explain(t.key, err)
}

// heard reads an answer, or the error instead. The error errAgain says to ask once more.
func (t *attempt) heard(ctx context.Context, a *answer, err error) (*Lease, error) {
	n := t.node
	if err != nil {
		if !n.unknown(err) {
			return nil, err
		}
		t.late = append(t.late, t.last)
		if t.again || ended(ctx) {
			return nil, err
		}
		t.again = true
		return nil, errAgain
	}
	switch code, _ := number(a.reply, 0); code {
	case 1:
		n.hub.served(t)
		if err := n.replicated(a); err != nil {
			t.late = append(t.late, t.last) // it has the lock, which is given back
			return nil, err
		}
		return n.lease(t, a)
	case 0:
		e := held(a)
		n.hub.waits(t, e.Clock, a.received.Sub(a.sent))
		e.PollAfter = n.hub.pollAfter(t, a.process, e)
		if _, end := n.gap(a.process); end > 0 && e.PollAfter > end {
			e.PollAfter = end + mathrand.N(5*time.Millisecond)
		}
		return nil, e
	case -1:
		a.learn(1)
		if t.tardy {
			return nil, errTooLate
		}
		t.tardy = true
		return nil, errAgain
	case -2:
		counter, _ := number(a.reply, 1)
		return nil, &driver.RefusedError{RetryAfter: time.Millisecond, Reason: fmt.Sprintf("the counter is at %d, above the token to join", counter)}
	}
	return nil, errGarbled
}

// errAgain says that a request has to be made once more.
var errAgain = errors.New("once more")

var (
	errTooLate = &driver.RefusedError{RetryAfter: 10 * time.Millisecond, Reason: "the request reached the server after its deadline, by the server's clock"}
	errGarbled = errors.New("the server answers in an unknown way")
)

// replicated returns an error unless as many replicas as are wanted have what the script
// wrote.
func (n *Node) replicated(a *answer) error {
	if a.acked >= int64(n.cfg.WaitReplicas) {
		return nil
	}
	return &driver.RefusedError{RetryAfter: soon, Reason: fmt.Sprintf("%s: %d of %d replicas (wait_replicas) have confirmed the lock within %v", n.cfg.Addr, a.acked, n.cfg.WaitReplicas, n.cfg.CallTimeout/2)}
}

// notAfter returns the local instant in microseconds of the process' clock.
func notAfter(p *process, t time.Time) string { return strconv.FormatInt(p.clock.at(t), 10) }

// lease makes a lease of a grant: {1, token, TIME}.
func (n *Node) lease(t *attempt, a *answer) (*Lease, error) {
	fence, ok := number(a.reply, 1)
	if !ok || fence <= 0 {
		t.late = append(t.late, t.last)
		return nil, errGarbled
	}
	l := &Lease{
		node: n, key: t.key, owner: t.owner, quorum: t.quorum,
		late: t.late,
	}
	l.value = t.owner + "|" + strconv.FormatInt(fence, 10)
	l.grant = driver.Grant{
		Expires: driver.Expires(a.sent, t.ttl),
		Fence:   uint64(fence),
		Clock:   a.learn(2),
		Server:  a.process.run,
		Terms:   a.terms(t.quorum),
	}
	return l, nil
}

// held makes the verdict of {0, value, PTTL, TIME}.
func held(a *answer) *driver.HeldError {
	value, _ := text(a.reply, 1)
	pttl, _ := number(a.reply, 2)
	e := &driver.HeldError{Clock: a.learn(3), Server: a.process.run}
	owner, fence := parse(value)
	e.Holder = owner
	if strings.HasPrefix(value, next) {
		e.Holder, e.ReservedForWaiter = "", true
	}
	if fence > 0 {
		e.Since = time.UnixMicro(int64(fence))
	}
	if pttl > 0 {
		e.RetryAfter = time.Duration(pttl) * time.Millisecond
	}
	return e
}

// parse splits the value of a lock of ours into owner and token. A foreign lock's
// value is its owner as a whole, and has no token.
func parse(value string) (owner string, fence uint64) {
	owner, token, found := strings.Cut(value, "|")
	if !found || owner == "" || token == "" || token[0] == '0' || strings.Trim(token, "0123456789") != "" {
		return value, 0
	}
	fence, err := strconv.ParseUint(token, 10, 64)
	if err != nil || fence > driver.MaxFence {
		return value, 0
	}
	return owner, fence
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
	n.hub.close()
	n.work.await(n.cfg.CallTimeout + n.cfg.CallTimeout/4) // a call in doubt, and its release
	close(n.over)
	n.fleet.close()
	err := n.cfg.Client.Close()
	if !n.wg.await(n.cfg.CallTimeout + n.cfg.CallTimeout/4) {
		err = errors.Join(err, fmt.Errorf("%s: calls are still under way on the application's client, until its own timeouts end them", n.cfg.Addr))
	}
	return err
}

package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/boot"
	"github.com/redlock-go/redlock/driver/dsn"
	"github.com/redlock-go/redlock/driver/quorum"
)

// The defaults of Options.
const (
	DefaultGuard          = 30 * time.Second
	DefaultClockAllowance = 100 * time.Millisecond
)

// Options of New. The zero value of every field is its default; nil stands for the
// zero Options.
type Options struct {
	// NodeTimeout bounds one request to one node (acquire, renew or release), in addition to
	// timeouts of the node's client. It must be small against the TTL; a request whose TTL is
	// shorter is a *driver.InvalidError. Zero: a twentieth of the TTL, at least 250 ms. No majority
	// waits for a slow node, so a short time only helps where a majority does not answer, and
	// hurts where this process may stand still for that long.
	NodeTimeout time.Duration
	// ClockAllowance is how far apart the clocks of sound nodes may be. It must be less than
	// Guard. A lease survives clocks that are three times as far apart. The nodes keep each key
	// for its TTL and eight and a half times the allowance. Zero: 100 ms. The nodes remember
	// the first client's value, and apply it to all others: see "Terms" in the package doc.
	ClockAllowance time.Duration
	// Guard is the restart guard: how long a node that may have forgotten locks does not vote.
	// It is also the longest TTL. Zero: DefaultGuard; negative: off, which leaves the nodes'
	// own longest TTL. See "The restart guard" in the package doc, also for how to change it.
	Guard time.Duration
	// Bootstrap states that nodes without a memory are new, and not restarted: at the first
	// contact they vote at once, if all nodes answer and none has a memory. If it stays set, it
	// disables the guard only if all nodes lose their memory together.
	Bootstrap bool
	// DriftPercent is how much clock rates may differ, in percent of a TTL. Every lease ends
	// earlier by this and 2 ms. Zero: 1. If chrony may slew by 8 %, set 8.
	DriftPercent int
	// Prefix is the prefix that the nodes put before every key. The quorum only uses it to
	// check a key's length before any I/O.
	Prefix string
	// Notify is called with notices about nodes, their clocks and terms. It may be nil; it may be
	// called concurrently. It must not block, nor call a method that waits for nodes: it runs on
	// goroutines that read nodes' answers, which would be late for other locks.
	Notify func(driver.Notice)

	_ struct{}
}

func (o *Options) complete() error {
	switch {
	case o.NodeTimeout < 0:
		return driver.Invalid("NodeTimeout", "must be 0 or more, not %v", o.NodeTimeout)
	case o.ClockAllowance < 0:
		return driver.Invalid("ClockAllowance", "must be 0 or more, not %v", o.ClockAllowance)
	case o.DriftPercent < 0 || o.DriftPercent > 50:
		return driver.Invalid("DriftPercent", "must be 1 to 50, or 0 for the default, not %d", o.DriftPercent)
	case o.Guard < 0 && o.Bootstrap:
		return driver.Invalid("Guard", "is off, so Bootstrap must not be set")
	}
	if o.ClockAllowance == 0 {
		o.ClockAllowance = DefaultClockAllowance
	}
	if o.Guard == 0 {
		o.Guard = DefaultGuard
	}
	o.Guard = max(o.Guard, 0)
	if o.DriftPercent == 0 {
		o.DriftPercent = 1
	}
	if o.Guard > 0 && o.NodeTimeout > o.Guard {
		return driver.Invalid("NodeTimeout", "%v must be at most the restart guard, %v, which is the longest TTL", o.NodeTimeout, o.Guard)
	}
	if o.Guard > 0 && o.ClockAllowance >= o.Guard {
		return driver.Invalid("ClockAllowance", "%v must be less than the restart guard, %v: otherwise no lease is longer than the difference of clocks that it allows", o.ClockAllowance, o.Guard)
	}
	return nil
}

// Driver opens quorums by URL:
//
//	redlock:redis://a:6379,redis://b:6379,valkey://c:6379,node_timeout=50ms
//
// Between the commas stand the URLs of the nodes, of any registered driver with the Node
// feature, and options; a comma inside a node's URL is written %2C. The options are
// node_timeout, clock_allowance, restart_guard (a duration, or off), bootstrap (true or false) and
// drift_percent: see Options. They apply to all nodes, like ttl
// and prefix, so they stand after a comma and not in a node's URL.
type Driver struct{}

var _ driver.Driver = Driver{}

// Open opens the nodes with cfg.Resolve. Closing the backend closes them.
func (Driver) Open(cfg *driver.Config) (driver.Backend, error) {
	urls, opts, err := parse(cfg.DSN)
	if err != nil {
		return nil, err
	}
	opts.Prefix, opts.Notify = cfg.Prefix, cfg.Notify
	nodes := make([]driver.Backend, 0, len(urls))
	abandon := func() {
		for _, n := range nodes {
			_ = n.Close() // nothing was sent
		}
	}
	for i, u := range urls {
		n, err := cfg.Resolve(u)
		if err != nil {
			abandon()
			return nil, fmt.Errorf("node %d: %w", i+1, err)
		}
		nodes = append(nodes, n)
	}
	b, err := New(nodes, opts)
	if err != nil {
		abandon()
		return nil, err
	}
	b.owns = true
	return b, nil
}

// parse splits a URL into the nodes' URLs and the options. None of its errors quotes a URL.
func parse(url string) ([]string, *Options, error) {
	rest, ok := strings.CutPrefix(url, "redlock:")
	if !ok {
		return nil, nil, driver.Invalid("URL", "must be redlock: and the URLs of the nodes, separated by commas")
	}
	var urls []string
	var params dsn.Params
	for item := range strings.SplitSeq(rest, ",") {
		name, value, isOption := strings.Cut(item, "=")
		switch {
		case item == "":
			return nil, nil, driver.Invalid("URL", "has an empty item between its commas")
		case hasScheme(item):
			if _, query, _ := strings.Cut(item, "?"); dsn.Query(query).Has("restart_guard") {
				return nil, nil, driver.Invalid(`parameter "restart_guard"`, "of node %d would have no effect: set it once for the quorum, after a comma", len(urls)+1)
			}
			urls = append(urls, item)
		case isOption:
			params.Add(name, value)
		default:
			return nil, nil, driver.Invalid("URL", "item %d is neither a node's URL nor name=value", len(urls)+1)
		}
	}
	o := &Options{
		NodeTimeout:    params.Duration("node_timeout", 0, time.Millisecond),
		ClockAllowance: params.Duration("clock_allowance", 0, time.Millisecond),
		Bootstrap:      params.Bool("bootstrap", false),
		DriftPercent:   params.Int("drift_percent", 0, 1, 50),
	}
	if params.String("restart_guard", "") == "off" {
		o.Guard = -1
	} else {
		o.Guard = params.Duration("restart_guard", 0, driver.MinTTL)
	}
	return urls, o, params.Err()
}

// hasScheme reports whether an item begins like a URL: a scheme and a colon.
func hasScheme(item string) bool {
	scheme, _, ok := strings.Cut(item, ":")
	return ok && scheme != "" && strings.Trim(scheme, "abcdefghijklmnopqrstuvwxyz0123456789+-.") == ""
}

// Backend is a majority vote over nodes. Make one with New or a Driver.
type Backend struct {
	opts  Options
	info  driver.Info
	nodes []*node
	q     int          // the majority: N/2 + 1
	terms quorum.Terms // of the options: see terms.go
	clock *boot.Clock
	owns  bool // Close closes the nodes

	duplicate atomic.Pointer[driver.RefusedError] // two nodes are the same server; nil: none
	servers   sync.Mutex                          // guards the comparison of servers

	met     atomic.Bool   // whether the nodes are new is settled
	blank   atomic.Int64  // when all nodes were last seen to remember nothing, by clock; zero: never
	meeting chan struct{} // closed when the first contact that is under way ends; guarded by mu

	end    sync.Once
	closed chan struct{}
	mu     sync.Mutex     // between closed and calls
	calls  sync.WaitGroup // counts calls under way, and their work in the background
	err    error          // the error of closing the nodes

	waits  waits                             // who waits for which key
	random func(time.Duration) time.Duration // below its argument
	step   func(*bid, *event) actions        // in place of the bid's own, in tests
}

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Watcher   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
	_ driver.Admin     = (*Backend)(nil)
	_ quorum.Admin     = (*Backend)(nil)
)

// New returns a quorum of nodes, 1 to MaxNodes of them, all with the Node feature and
// no two alike. It does no I/O. Errors are *driver.InvalidError.
//
// All clients have to have the same nodes, in any order. The caller still owns the nodes, and
// closes them after the quorum. (The quorum itself closes nodes that Driver.Open opened.)
//
// An odd number is best: four nodes survive the loss of one, just as three do.
func New(nodes []driver.Backend, o *Options) (*Backend, error) {
	b := &Backend{clock: boot.New(boot.Source{}), closed: make(chan struct{}), q: len(nodes)/2 + 1, random: rand.N[time.Duration]}
	if o != nil {
		b.opts = *o
	}
	if err := b.opts.complete(); err != nil {
		return nil, err
	}
	if len(nodes) == 0 || len(nodes) > MaxNodes {
		return nil, driver.Invalid("nodes", "there are %d; must be 1 to %d", len(nodes), MaxNodes)
	}
	b.terms = derive(len(nodes), b.opts.Guard, b.opts.ClockAllowance, b.opts.DriftPercent)
	b.info = driver.Info{
		Name:     fmt.Sprintf("redlock/%d", len(nodes)),
		Features: driver.FeatureShared | driver.FeatureFencing | driver.FeatureKeep | driver.FeatureOrdered | driver.FeatureTokens,
		MinTTL:   max(driver.MinTTL, 4*time.Millisecond*100/time.Duration(100-b.opts.DriftPercent)), // more than half is left after the drift
		MaxTTL:   b.opts.Guard,
	}
	for i, nb := range nodes {
		if err := b.add(i, nb); err != nil {
			return nil, err
		}
	}
	if b.info.MaxTTL < b.info.MinTTL {
		return nil, driver.Invalid("Guard", "%v leaves no TTL: the nodes need at least %v", b.info.MaxTTL, b.info.MinTTL)
	}
	return b, nil
}

func (b *Backend) add(i int, nb driver.Backend) error {
	if nb == nil {
		return driver.Invalid("nodes", "number %d is nil", i+1)
	}
	info := nb.Info()
	if !info.Features.Has(driver.FeatureQuorumNode | driver.FeatureFencing) {
		return driver.Invalid("nodes", "number %d, %s, cannot be a node of a quorum", i+1, info.Name)
	}
	n := newNode(i, nb)
	n.notify = b.notify
	for _, other := range b.nodes {
		if other.name == n.name || same(other.backend, nb) {
			return driver.Invalid("nodes", "%d and %d are the same: %s", other.index+1, i+1, n.name)
		}
	}
	b.nodes = append(b.nodes, n)
	b.info.Features &= info.Features | driver.FeatureFencing | driver.FeatureOrdered
	if info.Features.Has(driver.FeatureQueueing) { // its order is that of waits in Acquire; a quorum's waiters watch
		b.info.Features &^= driver.FeatureOrdered
	}
	b.info.MinTTL = max(b.info.MinTTL, info.MinTTL)
	if b.info.MaxTTL == 0 || info.MaxTTL < b.info.MaxTTL {
		b.info.MaxTTL = info.MaxTTL
	}
	return nil
}

// same reports whether two backends are identical, also if their type cannot be compared.
func same(a, b driver.Backend) bool { return reflect.ValueOf(a).Comparable() && a == b }

// Info describes the quorum. Its longest TTL is that of the nodes, at most the restart guard.
func (b *Backend) Info() driver.Info { return b.info }

// String returns the addresses of the nodes.
func (b *Backend) String() string {
	names := make([]string, len(b.nodes))
	for i, n := range b.nodes {
		names[i] = n.name
	}
	return "redlock:" + strings.Join(names, ",")
}

// closeTimeout bounds how long Close waits for requests that a node does not end.
const closeTimeout = 5 * time.Second

// Close ends the quorum: calls under way return ErrClosed, and their locks are released. It
// waits for the requests under way, and for the second try of a release that fails at once; the
// nodes' timeouts bound both. It closes the nodes if Driver.Open opened them. Held leases stay
// until their TTL ends.
func (b *Backend) Close() error {
	b.end.Do(func() {
		b.mu.Lock()
		close(b.closed)
		b.mu.Unlock()
		b.calls.Wait() // they end at once, or within the nodes' timeout
		end := time.Now().Add(closeTimeout)
		for _, n := range b.nodes {
			n.calls.Await(max(time.Until(end), 1)) // one closeTimeout serves all nodes
		}
		if b.owns { // concurrently, because a node that does not answer delays its Close
			b.err = errors.Join(b.each(context.Background(), func(_ context.Context, n *node) error { return n.backend.Close() })...)
		}
	})
	return b.err
}

// each calls f for every node at once, and returns the errors in the order of the
// nodes. It waits for all of them: f is bounded by its context.
func (b *Backend) each(ctx context.Context, f func(context.Context, *node) error) []error {
	errs := make([]error, len(b.nodes))
	var all sync.WaitGroup
	for i, n := range b.nodes {
		all.Go(func() { errs[i] = f(ctx, n) })
	}
	all.Wait()
	return errs
}

func (b *Backend) notify(e driver.Notice) {
	if b.opts.Notify != nil {
		b.opts.Notify(e)
	}
}

// checkTimeout refuses a TTL that is shorter than the node timeout.
func (b *Backend) checkTimeout(ttl time.Duration) error {
	if b.opts.NodeTimeout > ttl {
		return driver.Invalid("NodeTimeout", "(node_timeout) %v is over the TTL of the request, %v: shorten it, or leave it out, which makes it a twentieth of the TTL", b.opts.NodeTimeout, ttl)
	}
	return nil
}

// timeout is how long one node may take for one request.
func (b *Backend) timeout(ttl time.Duration) time.Duration {
	if b.opts.NodeTimeout > 0 {
		return b.opts.NodeTimeout
	}
	return max(leastTimeout, ttl/20)
}

// begin counts a call, so that Close can wait for the call's work in the background.
func (b *Backend) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.closed:
		return driver.ErrClosed
	default:
		b.calls.Add(1)
		return nil
	}
}

// tripped returns the nodes that are skipped.
func (b *Backend) tripped() set { return b.which(func(n *node) bool { return n.tripped.Load() }) }

// late returns the nodes whose last request timed out.
func (b *Backend) late() set { return b.which(func(n *node) bool { return n.late.Load() }) }

func (b *Backend) which(is func(*node) bool) (s set) {
	for i, n := range b.nodes {
		if is(n) {
			s.add(i)
		}
	}
	return s
}

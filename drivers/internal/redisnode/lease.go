package redisnode

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/async"
)

// A Lease is one acquisition of one lock.
type Lease struct {
	node   *Node
	key    string
	owner  string
	value  string // as stored: owner|token
	names  siblings
	quorum *driver.Quorum
	own    driver.Quorum // what quorum points to

	renewing sync.Mutex // one renewal at a time

	mu       sync.Mutex
	grant    driver.Grant
	released bool
	late     []inDoubtCall // tries of the acquisition whose outcome is not known
	bound    time.Time     // the Expires of a renewal whose outcome is not known…
	bounded  time.Time     // …and which may take effect until then
}

var (
	_ driver.Lease = (*Lease)(nil)
	_ async.Lease  = (*Lease)(nil)
)

// Grant returns the grant as of the last success.
func (l *Lease) Grant() driver.Grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.grant
}

// Renew extends the lease, if this acquisition still has the lock. Renewals of one
// lease go one after the other.
func (l *Lease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	if err := l.checkRenewal(r); err != nil {
		return driver.Grant{}, err
	}
	ctx = within(ctx, l.node.timeout(max(r.TTL, r.Keep)))
	l.renewing.Lock()
	defer l.renewing.Unlock()
	return l.renewal(r).run(ctx)
}

// StartRenew is Renew for a caller that does not wait: see package async.
func (l *Lease) StartRenew(ctx context.Context, r *driver.Renewal, until time.Time, done func(driver.Grant, error)) bool {
	if l.checkRenewal(r) != nil || !l.renewing.TryLock() {
		return false
	}
	t := l.renewal(r)
	if !t.start(ctx, earlier(until, time.Now().Add(l.node.timeout(max(r.TTL, r.Keep)))), done) {
		l.renewing.Unlock()
		return false
	}
	return true
}

func (l *Lease) checkRenewal(r *driver.Renewal) error {
	n := l.node
	if err := n.Info().CheckRenewal(r); err != nil {
		return err
	}
	if r.MinFence > driver.MaxFence {
		return driver.Invalid("MinFence", "%d is over the largest token, %d", r.MinFence, uint64(driver.MaxFence))
	}
	if n.closed.Load() {
		return driver.ErrClosed
	}
	if l.over() {
		return driver.ErrLost
	}
	return nil
}

// A renewal is one Renew. The lease's turn is its own meanwhile.
type renewal struct {
	lease *Lease
	ttl   time.Duration

	ask         request
	span        *span
	keep, least string
	deadline    time.Time
	sent        time.Time

	again, tardy bool // as of an attempt

	ctx  context.Context // of a renewal that was started
	done func(driver.Grant, error)
}

func (l *Lease) renewal(r *driver.Renewal) *renewal {
	n := l.node
	t := &renewal{
		lease: l, ttl: r.TTL, least: strconv.FormatUint(r.MinFence, 10), keep: millis(r.Keep),
		span: n.span(max(r.TTL, r.Keep), l.quorum),
	}
	q := n.guard.of(l.quorum)
	t.ask.op, t.ask.q, t.ask.ttl, t.ask.script = opRenew, q, r.TTL, t
	t.ask.keys = n.fenced(t.ask.room.keys[:0], n.names.lock(l.key), l.names.counter, l.key, q)
	return t
}

func (t *renewal) args(p *process, args []string) []string {
	px := "0" // the holder is done
	switch {
	case t.ttl == 0:
	case t.span.lock == t.lease.node.kept(t.ttl, t.lease.quorum):
		px = t.span.px
	default: // it is kept for longer than the TTL
		px = millis(t.lease.node.kept(t.ttl, t.lease.quorum))
	}
	return append(args, notAfter(p, t.deadline), t.lease.value, px, t.least, t.span.life, t.keep)
}

func (t *renewal) run(ctx context.Context) (driver.Grant, error) {
	t.deadline, _ = ctx.Deadline()
	for {
		t.sent = time.Now()
		a, err := t.lease.node.router.run(ctx, &t.ask)
		if g, err := t.heard(ctx, a, err); !errors.Is(err, errAgain) {
			return g, t.lease.node.explain(t.lease.key, err)
		}
	}
}

// start is run for a caller that does not wait. It gives the lease's turn back.
func (t *renewal) start(ctx context.Context, until time.Time, done func(driver.Grant, error)) bool {
	t.deadline, t.sent, t.ctx, t.done = until, time.Now(), ctx, done
	t.ask.then = t
	return t.lease.node.router.start(ctx, &t.ask, until)
}

// answered is told what a renewal that was started brought.
func (t *renewal) answered(a *answer, err error) {
	n := t.lease.node
	ctx := &bounded{context.WithoutCancel(t.ctx), t.deadline}
	finish := func(g driver.Grant, err error) {
		t.lease.renewing.Unlock()
		t.done(g, err)
	}
	g, err := t.heard(ctx, a, err)
	if !errors.Is(err, errAgain) {
		finish(g, n.explain(t.lease.key, err))
		return
	}
	n.aside(func() { finish(t.run(ctx)) })
}

// heard reads an answer, or the error instead. The error errAgain says to ask once more.
func (t *renewal) heard(ctx context.Context, a *answer, err error) (driver.Grant, error) {
	l := t.lease
	n := l.node
	if err != nil {
		if !n.unknown(err) {
			return driver.Grant{}, err
		}
		l.inDoubt(driver.Expires(t.sent, t.ttl), t.deadline)
		if t.again || ended(ctx) {
			return driver.Grant{}, err
		}
		t.again = true
		return driver.Grant{}, errAgain
	}
	clock := a.learn(1)
	switch code, _ := number(a.Reply, 0); code {
	case 1:
		if err := n.replicated(a); err != nil {
			l.inDoubt(driver.Expires(t.sent, t.ttl), time.Now())
			return driver.Grant{}, err
		}
		return l.extend(a, clock, t.ttl), nil
	case 0:
		return driver.Grant{}, driver.ErrLost
	case -1:
		if t.tardy {
			return driver.Grant{}, errTooLate
		}
		t.tardy = true
		return driver.Grant{}, errAgain
	}
	return driver.Grant{}, errGarbled
}

// inDoubt notes a renewal that may yet take effect, until the instant until: a later
// and longer one must not promise more than this one would leave.
func (l *Lease) inDoubt(expires, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bounded.Before(time.Now()) || expires.Before(l.bound) {
		l.bound = expires
	}
	if until.After(l.bounded) {
		l.bounded = until
	}
}

func (l *Lease) extend(a *answer, clock time.Time, ttl time.Duration) driver.Grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.grant.Expires = driver.Expires(a.sent, ttl)
	if a.received.Before(l.bounded) && l.bound.Before(l.grant.Expires) {
		l.grant.Expires = l.bound
	}
	l.grant.Clock, l.grant.Server, l.grant.Terms = clock, a.process.run, a.terms(l.quorum)
	return l.grant
}

func (l *Lease) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.released
}

// Release frees the lock, if this acquisition has it, and wakes its waiters. It
// works after ctx has ended, and takes at most three call timeouts: three seconds
// by default. For a node of a quorum, which tries again by itself, the deadline of a
// ctx that has not ended holds.
func (l *Lease) Release(ctx context.Context) error {
	n := l.node
	if n.closed.Load() {
		return driver.ErrClosed
	}
	if l.over() {
		return nil
	}
	if l.quorum == nil || ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	found, err := n.releasing(l.key, l.value, "", l.names).run(ctx, releaseTries)
	return l.freed(ctx, found, err)
}

// StartRelease is Release for a caller that does not wait: see package async.
func (l *Lease) StartRelease(ctx context.Context, until time.Time, done func(error)) bool {
	n := l.node
	if n.closed.Load() || l.over() {
		return false
	}
	t := n.releasing(l.key, l.value, "", l.names)
	t.lease, t.ctx, t.done = l, ctx, done
	t.until = until // also of what it tries again
	t.ask.then = t
	return n.router.start(ctx, &t.ask, earlier(until, time.Now().Add(n.cfg.CallTimeout)))
}

// freed ends the lease, given what its release found.
func (l *Lease) freed(ctx context.Context, found bool, err error) error {
	if err != nil {
		return l.node.explain(l.key, err)
	}
	l.mu.Lock()
	first := !l.released
	l.released = true
	late := l.late
	l.mu.Unlock()
	if len(late) > 0 && first {
		// A try of the acquisition is still on its way somewhere.
		l.node.cleanUp(ctx, &attempt{node: l.node, key: l.key, owner: l.owner, late: late})
	}
	if !found && first {
		return driver.ErrLost
	}
	return nil
}

// release frees the lock, if its value is this one, or begins with it where that ends
// in '|', and reports whether it was. It tries
// again where the outcome is unknown; "not found" counts as found then.
func (n *Node) release(ctx context.Context, key, value string, tries int) (found bool, err error) {
	return n.releasePlace(ctx, key, value, "", tries)
}

// releasePlace is release, and gives up a place in line, if there is one.
func (n *Node) releasePlace(ctx context.Context, key, value, place string, tries int) (found bool, err error) {
	return n.releasing(key, value, place, siblings{channel: n.names.channel(key), waitQueue: n.names.waitQueue(key)}).run(ctx, tries)
}

// A releasing is one release, which may be sent several times.
type releasing struct {
	node  *Node
	key   string
	place string // in line, to give up
	value string
	names siblings
	ask   request
	again bool // one of those that were sent may have taken effect

	lease *Lease // of a release that was started; until is its deadline
	ctx   context.Context
	until time.Time
	done  func(error)
}

func (n *Node) releasing(key, value, place string, beside siblings) *releasing {
	t, _ := n.releasings.Get().(*releasing)
	if t == nil {
		t = new(releasing)
	}
	t.node, t.key, t.value, t.place, t.names = n, key, value, place, beside
	t.ask.op, t.ask.script = opRelease, t
	t.ask.keys = append(t.ask.room.keys[:0], n.names.lock(key))
	return t
}

// free lets t be used again: nobody has it any more, and its calls are answered.
func (t *releasing) free() {
	if t.again {
		return
	}
	n, wake := t.node, t.ask.first.wake
	*t = releasing{}
	t.ask.first.wake = wake
	n.releasings.Put(t)
}

func (t *releasing) args(p *process, args []string) []string {
	n, tells := t.node, "1"
	if n.cfg.Cluster { // PUBLISH counts those of one node
		tells = "0"
	}
	args = append(args, "0", t.value, t.names.channel, t.names.waitQueue, n.waiterChannels, tells)
	if t.place != "" {
		return append(args, t.place)
	}
	if left, _ := n.gap(p); left > 0 {
		args = append(args, "", "gap")
	}
	return args
}

// run sends the release, so many times at the most, and reports whether it has found the lock.
func (t *releasing) run(ctx context.Context, tries int) (found bool, err error) {
	n := t.node
	a, err := n.router.run(within(ctx, n.cfg.CallTimeout), &t.ask)
	found, err, over := t.heard(a, err)
	if !over {
		return t.more(within(ctx, 2*n.cfg.CallTimeout), tries-1, err)
	}
	if err == nil {
		t.free()
	}
	return found, err
}

// answered is told what a release that was started brought.
func (t *releasing) answered(a *answer, err error) {
	l, ctx, done := t.lease, t.ctx, t.done
	found, err, over := t.heard(a, err)
	if !over {
		t.node.aside(func() {
			found, err := t.more(&bounded{context.WithoutCancel(ctx), t.until}, releaseTries-1, err)
			done(l.freed(ctx, found, err))
		})
		return
	}
	if err == nil {
		t.free()
	}
	done(l.freed(ctx, found, err))
}

// heard reads an answer, or the error instead; over tells that another try is no use.
func (t *releasing) heard(a *answer, err error) (found bool, _ error, over bool) {
	n := t.node
	if err != nil {
		var reply ServerError
		if errors.As(err, &reply) && n.verdict(t.key, reply) != nil {
			return false, err, true
		}
		t.again = t.again || n.unknown(err)
		return false, err, false
	}
	code := a.code()
	if code == 2 {
		n.publishRefused.Do(func() {
			n.cfg.Event(driver.Notice{Kind: driver.NoticeDegraded, Node: n.cfg.Addr, Detail: "PUBLISH is not allowed: who waits for a lock learns of its release by polling only (allow the channel " + n.cfg.Prefix + layout + "*)"})
		})
	}
	if code == 3 {
		n.waiters.handedOver(t.key)
	}
	return code != 0 || t.again, nil, true
}

// more tries so many times more, with pauses; err is the error of the first try.
func (t *releasing) more(ctx context.Context, tries int, err error) (found bool, _ error) {
	n, pause := t.node, releasePause
	for range tries {
		if !n.pause(ctx, pause) {
			break
		}
		pause *= 4
		var a *answer
		var over bool
		a, err = n.router.run(within(ctx, n.cfg.CallTimeout), &t.ask)
		if found, err, over = t.heard(a, err); over {
			return found, err
		}
	}
	return false, err
}

// pause pauses, and reports whether ctx and Close leave time to go on.
func (n *Node) pause(ctx context.Context, pause time.Duration) bool {
	return await(within(ctx, pause), n.over) != nil && ctx.Err() == nil
}

// try runs a script once, with these ARGV.
func (n *Node) try(ctx context.Context, o op, keys []string, args ...string) (*answer, error) {
	return n.router.run(within(ctx, n.cfg.CallTimeout), &request{op: o, keys: keys, script: fixed(args)})
}

// fixed are ARGV that do not depend on the process.
type fixed []string

func (f fixed) args(*process, []string) []string { return f }

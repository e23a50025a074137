package dlock

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/boot"
	"github.com/redlock-go/redlock/driver/printable"
	"github.com/redlock-go/redlock/driver/quorum"
)

// A Locker takes locks. Applications accept a Locker instead of a *Client, which is one. The
// interface never grows.
type Locker interface {
	// Lock waits until it gets the lock named key, or ctx ends: see Client.Lock.
	Lock(ctx context.Context, key string, opts ...LockOption) (*Lease, error)
	// TryLock makes one attempt: see Client.TryLock.
	TryLock(ctx context.Context, key string, opts ...LockOption) (*Lease, error)
}

var _ Locker = (*Client)(nil)

// A Client takes locks from one backend. It is safe for concurrent use, and meant to
// live as long as the program: make one, share it, Close it.
type Client struct {
	backend  driver.Backend
	info     driver.Info
	config   // the defaults of every lock
	clock    *boot.Clock
	sched    scheduler
	renewals renewals
	queues   *waitQueues
	losses   losses
	outages  seldom // failures of the backend
	losts    seldom // leases lost
	polling  seldom // waits that poll
	toHooks  eventQueue
	toLog    eventQueue
	count    counters
	life     context.Context // ends with Close
	end      context.CancelFunc

	mu     sync.Mutex
	closed bool
	leases map[*Lease]struct{} // held, or kept for their WithMinHold
	calls  sync.WaitGroup      // calls of the backend that are under way
}

// New returns a Client of a backend. Use it if the program has a Redis client or a pool of
// its own; Open does the same after it has found the driver. The client owns the backend and
// closes it; if New fails, the backend is still the caller's. New does no network I/O. Errors
// are ErrInvalid: a backend or an option that is nil, or an option that the backend cannot
// honour.
func New(b driver.Backend, opts ...Option) (*Client, error) {
	if b == nil {
		return nil, fmt.Errorf("dlock: %w", driver.Invalid("backend", "is nil"))
	}
	var c config
	c.reset()
	return newClient(b, c, opts)
}

func newClient(b driver.Backend, cfg config, opts []Option) (*Client, error) {
	for _, o := range opts {
		if o == nil {
			cfg.bad("option", "is nil")
			continue
		}
		o.setClient(&cfg)
	}
	c := &Client{
		backend: b,
		info:    b.Info(),
		config:  cfg,
		clock:   boot.New(boot.Source{}),
		leases:  map[*Lease]struct{}{},
	}
	c.life, c.end = context.WithCancel(context.Background())
	c.sched.clock = c.clock
	c.losses.look, c.losses.watches = c.lookForLosses, map[<-chan struct{}]*watch{}
	c.sched.idle.L = &c.sched.mu
	c.renewals.held = &c.count.held
	c.outages = seldom{c: c, first: "dlock: backend unavailable", more: "dlock: backend still unavailable"}
	c.losts = seldom{c: c, first: "dlock: lease lost", more: "dlock: more leases lost"}
	c.polling = seldom{c: c, first: "dlock: waiters poll, since the backend cannot signal them", more: "dlock: waiters still poll"}
	c.queues = newWaitQueues(c.life.Done())
	if err := c.checkDefaults(); err != nil {
		c.end()
		return nil, fmt.Errorf("dlock: %w", err)
	}
	if c.notices != nil {
		c.notices.to.Store(c)
	}
	return c, nil
}

func (c *Client) checkDefaults() error {
	if err := c.checkLock(); err != nil {
		return err
	}
	if unknown := c.require &^ knownFeatures; unknown != 0 {
		return driver.Invalid("WithRequire", "feature %#x is unknown", uint32(unknown))
	}
	if missing := c.require &^ c.info.Features; missing != 0 {
		return driver.Invalid("WithRequire", "%s lacks %s", c.info.Name, missing)
	}
	if c.mode == driver.Shared && !c.info.Features.Has(driver.FeatureShared) {
		return driver.Invalid("WithShared", "%s has no shared mode", c.info.Name)
	}
	if c.hasTTL() || c.ttlSet {
		if !c.ttlSet {
			c.ttl = min(max(c.ttl, c.info.MinTTL), c.info.MaxTTL)
		}
		if err := c.info.CheckTTL(c.ttl); err != nil {
			return err
		}
		return c.checkMargin(c.ttl)
	}
	return c.checkMargin(0)
}

// hasTTL reports whether the backend's leases end by time.
func (c *Client) hasTTL() bool { return c.info.MaxTTL != 0 }

// Backend returns the client's backend, for what it has beyond locks: a driver.Inspector and a
// driver.Admin for operators, or a quorum.Admin. It ends with the client.
func (c *Client) Backend() driver.Backend { return c.backend }

// String returns where the client locks: the backend's address without any secret, or its
// name if it has no address.
func (c *Client) String() string {
	if s, ok := c.backend.(fmt.Stringer); ok {
		return s.String()
	}
	return c.info.Name
}

// TTL returns how long a lease lasts unless it is renewed, by the client's options and URL. It
// is zero if leases live with a session and have no TTL.
func (c *Client) TTL() time.Duration {
	if !c.hasTTL() {
		return 0
	}
	return c.ttl
}

// pingKey is the key that Ping takes and gives back.
const pingKey = "dlock.ping"

// Ping takes and releases a lock on a key of its own, "dlock.ping", and so learns whether the
// backend can be reached and grants. ctx bounds it. If a ping of another client holds the key,
// Ping succeeds too. Ping calls no hook and changes no Stats. Errors are an *Error, as from
// TryLock.
func (c *Client) Ping(ctx context.Context) error {
	r := &request{op: "ping", lockConfig: c.lockConfig, began: time.Now(), attempts: 1}
	r.Key, r.name, r.mode = pingKey, pingKey, driver.Exclusive
	err := c.check(r)
	if err == nil {
		err = c.begin()
	}
	if err != nil {
		return c.newError(ctx, r, err)
	}
	defer c.calls.Done()
	r.Owner = newOwner(c.label)
	held, err := c.backend.Acquire(ctx, &r.Request)
	if err == nil {
		err = held.Release(values(ctx))
	} else if errors.Is(err, ErrHeld) {
		err = nil
	}
	if err != nil && !errors.Is(err, ErrLost) {
		return c.newError(ctx, r, err)
	}
	return nil
}

// Lock waits until it gets the lock named key, and returns a lease that renews itself.
//
// key is 1 to driver.MaxKey bytes, the prefix included. ctx bounds the waiting and
// nothing else: it can be cancelled once Lock has returned. Its values are kept for the
// renewals and the release. The calls of one client for one key are served in order.
//
// Lock waits out contention, temporary refusals and outages until ctx ends. The error then
// matches ctx.Err(), and also ErrHeld if the last answer was "held", or ErrUnavailable if it
// was an outage. ErrInvalid (before any I/O), ErrClosed and a permanent refusal return at once.
// Every error is an *Error.
func (c *Client) Lock(ctx context.Context, key string, opts ...LockOption) (*Lease, error) {
	return c.obtain(ctx, "lock", key, opts)
}

// TryLock makes one attempt to get the lock named key. It does not wait for a holder,
// and is bounded by the driver even if ctx is not. Errors are as for Lock.
func (c *Client) TryLock(ctx context.Context, key string, opts ...LockOption) (*Lease, error) {
	return c.obtain(ctx, "trylock", key, opts)
}

// A request is one call of Lock or TryLock.
type request struct {
	driver.Request
	lockConfig
	op       string
	name     string // the key as the caller named it
	slot     int
	began    time.Time
	attempts int
	verdict  error // the last definite answer; nil: none yet
}

func (c *Client) obtain(ctx context.Context, op, key string, opts []LockOption) (*Lease, error) {
	r := &request{op: op, lockConfig: c.lockConfig, began: time.Now()}
	r.Key, r.name = key, key
	for _, o := range opts {
		if o == nil {
			r.bad("option", "is nil")
			continue
		}
		o.setLock(&r.lockConfig)
	}
	if c.hooks.Start != nil {
		ctx = c.hooks.Start(ctx, op, key)
	}
	if err := c.check(r); err != nil {
		return nil, c.failed(ctx, r, err)
	}
	var l *Lease
	err := ctx.Err()
	if err == nil && r.slots > 0 {
		l, err = c.takeSlot(ctx, r)
	} else if err == nil && op == "lock" {
		l, err = c.lock(ctx, r)
	} else if err == nil {
		l, err = c.attempt(ctx, r, false)
	}
	if err != nil {
		return nil, c.failed(ctx, r, err)
	}
	if op == "lock" {
		c.count.waitedNanosecs.Add(uint64(time.Since(r.began)))
	}
	if c.hooks.Event != nil {
		done := false
		defer l.unlockUnless(&done)
		e := l.event(op, nil)
		e.Attempt, e.Waited = r.attempts, time.Since(r.began)
		c.hooks.Event(l.ctx, e)
		done = true
	}
	return l, nil
}

// check finds misuse before any I/O, and completes the request.
func (c *Client) check(r *request) error {
	if err := r.checkLock(); err != nil {
		return err
	}
	r.Mode = r.mode
	if c.hasTTL() || r.ttlSet {
		r.TTL = r.ttl
	}
	r.Owner = c.label // made unique for every attempt
	if err := c.info.Check(c.prefix, &r.Request); err != nil {
		return err
	}
	if err := r.checkMargin(r.TTL); err != nil {
		return err
	}
	if n := len(c.prefix) + len(slotKey(r.Key, max(r.slots-1, 0))); n > driver.MaxKey {
		return driver.Invalid("key", "has %d bytes with its prefix and the number of a slot, the limit is %d", n, driver.MaxKey)
	}
	return nil
}

// attempt makes one request, and tells the hook. The hook comes when the call of the backend
// is over, so that Close does not wait for it.
func (c *Client) attempt(ctx context.Context, r *request, wait bool) (*Lease, error) {
	if err := c.begin(); err != nil {
		return nil, err
	}
	l, latency, err := c.request(ctx, r, wait)
	done := l == nil
	defer l.unlockUnless(&done)
	c.tally(ctx, r, l, err, latency)
	done = true
	return l, err
}

// request makes one request that begin has counted.
func (c *Client) request(ctx context.Context, r *request, wait bool) (*Lease, time.Duration, error) {
	defer c.calls.Done()
	r.attempts++
	r.Owner = newOwner(c.label)
	r.Wait = wait
	at := c.clock.Now() // before start, so that deadlines computed from it are early rather than late
	start := time.Now()
	held, err := c.backend.Acquire(ctx, &r.Request)
	var l *Lease
	if err == nil {
		l, err = c.hold(ctx, r, held, at, start)
	}
	return l, time.Since(start), err
}

// tally counts an attempt and tells the hook.
func (c *Client) tally(ctx context.Context, r *request, l *Lease, err error, latency time.Duration) {
	switch {
	case err == nil:
		c.count.acquired.Add(1)
	case errors.Is(err, ErrHeld):
		c.count.contended.Add(1)
	case !contextOnly(ctx, err):
		c.count.failed.Add(1)
	}
	if err == nil {
		r.verdict = nil
	} else if !contextOnly(ctx, err) {
		r.verdict = err
	}
	if c.hooks.Event == nil {
		return
	}
	e := Event{Op: "attempt", Key: r.Key, Attempt: r.attempts, Latency: latency, Waited: time.Since(r.began), Err: err}
	var q *quorum.Error
	if l != nil {
		e.Fence, e.Votes = l.fence, l.held.Grant().Votes
		e.Deadline, _ = l.Deadline()
	} else if errors.As(err, &q) {
		e.Votes = q.Votes
	}
	c.hooks.Event(ctx, e)
}

// hold makes a lease of a grant, unless it is too late for it.
func (c *Client) hold(ctx context.Context, r *request, held driver.Lease, at boot.Instant, start time.Time) (*Lease, error) {
	l := newLease(ctx, c, r, held, at, start)
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.leases[l] = struct{}{}
	}
	c.mu.Unlock()
	if closed || !l.begin() {
		_ = held.Release(l.ctx) // if this fails the lock ends with its TTL
		c.forget(l)
		if c.life.Err() != nil {
			return nil, ErrClosed
		}
		return nil, fmt.Errorf("granted too late: it took %v of a TTL of %v (use a longer TTL)", printable.Duration(time.Since(start)), r.TTL)
	}
	return l, nil
}

// failed makes the error that a caller gets, and tells the hook.
func (c *Client) failed(ctx context.Context, r *request, err error) error {
	e := c.newError(ctx, r, err)
	if c.hooks.Event != nil {
		c.hooks.Event(ctx, Event{Op: r.op, Key: r.Key, Attempt: r.attempts, Waited: e.Waited, Err: e})
	}
	return e
}

// newError makes the error that a caller gets.
func (c *Client) newError(ctx context.Context, r *request, err error) *Error {
	e := &Error{Op: r.op, Key: r.name, Attempts: r.attempts, Waited: time.Since(r.began), Err: err}
	bare := contextOnly(ctx, err)
	if bare {
		e.Err = r.verdict
	}
	if end := driver.ContextErr(ctx); end != nil && (bare || errors.Is(err, end) || r.op == "lock" && !permanent(err)) {
		e.ContextErr = end
		settle(ctx)
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, e.ContextErr) {
			e.ContextErr = fmt.Errorf("%w: %w", e.ContextErr, cause)
		}
		e.Err = withoutContext(e.Err)
	}
	return e
}

// begin counts a call of the backend. After it the caller must call c.calls.Done.
func (c *Client) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.calls.Add(1)
	return nil
}

var ownerEncoding = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// newOwner returns "label/random". Every attempt is an owner of its own: the release
// of one that failed may arrive when the next one has been granted.
func newOwner(label string) string {
	var random [10]byte
	_, _ = rand.Read(random[:]) // never fails
	buf := make([]byte, 0, maxLabel+1+16)
	buf = append(buf, label...)
	buf = append(buf, '/')
	return string(ownerEncoding.AppendEncode(buf, random[:]))
}

// Close ends the client: calls that wait fail with ErrClosed, the Done of every lease is
// closed, then the leases are released and the backend is closed. It blocks for the releases,
// which the driver bounds to some seconds, and on a session backend for the rest of
// WithMinHold; other backends keep such a lock by its TTL. Then it waits up to 5 s for hooks
// and log lines that are under way. Nothing that the client started is left. A second call
// returns nil. Do not call Close from a hook or a log handler: it would wait for itself.
//
// The error joins the errors of all releases that failed, and says if a hook or a log handler
// has not returned. A lock whose release failed ends with its TTL.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.mu.Unlock()

	var held []*Lease
	for _, l := range c.holding() {
		if l.finish(errClientClosed) {
			held = append(held, l)
		}
	}
	c.end()
	errs := each(held, (*Lease).giveUp)
	c.calls.Wait()
	c.sched.stop()
	c.renewals.stop()
	errs = append(errs, each(c.holding(), (*Lease).close)...)
	if err := c.backend.Close(); err != nil {
		errs = append(errs, fmt.Errorf("dlock: close %s: %w", c.info.Name, err))
	}
	c.losses.stop()
	for _, s := range []*seldom{&c.outages, &c.losts, &c.polling} {
		s.stop()
	}
	for what, m := range map[string]*eventQueue{"hook": &c.toHooks, "log handler": &c.toLog} {
		if !m.drain(closePatience) {
			errs = append(errs, fmt.Errorf("dlock: close: a %s has not returned within %v", what, closePatience))
		}
	}
	return errors.Join(errs...)
}

// closePatience is for how long Close waits for hooks and log handlers.
const closePatience = 5 * time.Second

// holding returns the leases that are held, and those that are kept for their
// WithMinHold.
func (c *Client) holding() []*Lease {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.leases))
}

// each calls end for every lease, a bounded number at a time, and returns the errors other than
// losses.
func each(leases []*Lease, end func(*Lease) error) (errs []error) {
	const most = 64
	var (
		mu    sync.Mutex
		wg    sync.WaitGroup
		slots = make(chan struct{}, most)
	)
	for _, l := range leases {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			err := end(l)
			if err == nil || errors.Is(err, ErrLost) {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, &Error{Op: "unlock", Key: l.key, Attempts: 1, Err: err})
		})
	}
	wg.Wait()
	return errs
}

package dlock

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/boot"
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
	backend driver.Backend
	info    driver.Info
	config  // the defaults of every lock
	clock   *boot.Clock
	queues  queues
	outages seldom // failures of the backend
	losts   seldom // leases lost
	polling seldom // waits that poll
	toHooks eventQueue
	toLog   eventQueue
	count   counters
	life    context.Context // ends with Close
	end     context.CancelFunc

	renewals renewals

	mu      sync.Mutex
	closed  bool
	calls   sync.WaitGroup // calls of the backend that are under way
	leases  leaseHeap      // held, or kept for their WithMinHold
	timer   *time.Timer    // calls run
	armed   boot.Instant   // when the timer fires; zero: never
	running bool           // run is under way
	watched map[<-chan struct{}]int
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
	return newClient(b, defaults(), opts)
}

func newClient(b driver.Backend, cfg config, opts []Option) (*Client, error) {
	for _, o := range opts {
		if o == nil {
			cfg.bad("option", "is nil")
			continue
		}
		o.setClient(&cfg)
	}
	c := &Client{backend: b, info: b.Info(), config: cfg, clock: boot.New(boot.Source{}), watched: map[<-chan struct{}]int{}}
	if err := c.checkDefaults(); err != nil {
		return nil, fmt.Errorf("dlock: %w", err)
	}
	c.life, c.end = context.WithCancel(context.Background())
	c.queues = queues{closed: c.life.Done(), byKey: map[string]*queue{}, hot: map[string]heat{}}
	c.outages = seldom{c: c, first: "dlock: backend unavailable", more: "dlock: backend still unavailable"}
	c.losts = seldom{c: c, first: "dlock: lease lost", more: "dlock: more leases lost"}
	c.polling = seldom{c: c, first: "dlock: waiters poll, since the backend cannot signal them", more: "dlock: waiters still poll"}
	return c, nil
}

// checkDefaults finds misuse of the client's options, and fits the default TTL to the backend.
func (c *Client) checkDefaults() error {
	if unknown := c.require &^ knownFeatures; unknown != 0 {
		return driver.Invalid("WithRequire", "feature %#x is unknown", uint32(unknown))
	}
	if missing := c.require &^ c.info.Features; missing != 0 {
		return driver.Invalid("WithRequire", "%s lacks %s", c.info.Name, missing)
	}
	if !c.ttlSet {
		c.ttl = min(max(c.ttl, c.info.MinTTL), c.info.MaxTTL)
	}
	return c.check(&request{Request: driver.Request{Key: "k"}, lockConfig: c.lockConfig})
}

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
func (c *Client) TTL() time.Duration { return c.ttl }

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
		err = held.Release(context.WithoutCancel(ctx))
	}
	if err == nil || errors.Is(err, ErrHeld) || errors.Is(err, ErrLost) {
		return nil
	}
	return c.newError(ctx, r, err)
}

// Lookup returns the state of key: its holders, their tokens and remaining times, and how many
// wait, as far as the backend can tell. A key that nobody holds has no Holders. ctx
// bounds the call, which takes one round trip on most backends. It takes no lock and never
// delays one.
//
// Errors are an *Error. It matches errors.ErrUnsupported and ErrInvalid if the backend cannot
// tell, ErrInvalid if the key is invalid, ErrClosed if the client is closed, and ErrUnavailable
// after any other failure.
func (c *Client) Lookup(ctx context.Context, key string) (*driver.State, error) {
	s, err := c.lookup(ctx, key)
	if err != nil {
		return nil, c.newError(ctx, &request{op: "lookup", name: key, attempts: 1, began: time.Now()}, err)
	}
	return s, nil
}

func (c *Client) lookup(ctx context.Context, key string) (*driver.State, error) {
	i, ok := c.backend.(driver.Inspector)
	if !ok {
		return nil, &kindError{c.info.Name + " cannot tell who holds what", []error{errors.ErrUnsupported, ErrInvalid}}
	}
	if err := c.info.Check(c.prefix, &driver.Request{Key: key, Owner: c.label, TTL: c.ttl}); err != nil {
		return nil, err
	}
	if err := c.begin(); err != nil {
		return nil, err
	}
	defer c.calls.Done()
	return i.Lookup(ctx, key)
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
	verdict  error  // the last definite answer; nil: none yet
	passes   bool   // its lock may be passed on, to it and from it
	tokens   uint32 // how many leases its tenure may give out; zero: it gets none
	passed   bool   // it got its lease within this process
}

func (c *Client) obtain(ctx context.Context, op, key string, opts []LockOption) (l *Lease, err error) {
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
	if err = c.check(r); err == nil {
		err = ctx.Err()
	}
	switch {
	case err != nil:
	case op == "lock":
		l, err = c.lock(ctx, r)
	default:
		l, err = c.try(ctx, r, false)
	}
	waited := time.Since(r.began)
	if err != nil {
		err = c.newError(ctx, r, err)
	} else if op == "lock" {
		c.count.waitedNanosecs.Add(uint64(waited))
	}
	if c.hooks.Event != nil {
		c.tell(ctx, l, Event{Op: op, Key: r.Key, Attempt: r.attempts, Waited: waited, Passed: r.passed, Err: err})
	}
	return l, err
}

// check finds misuse before any I/O, and completes the request.
func (c *Client) check(r *request) error {
	if r.maxHold > 0 && r.minHold > r.maxHold {
		r.bad("WithMinHold", "%v is over the maximum hold of %v (WithMaxHold)", r.minHold, r.maxHold)
	}
	if r.slots > 0 && r.mode == driver.Shared {
		r.bad("WithSlots", "has no shared mode: leave WithShared or WithSlots out")
	}
	if r.err != nil {
		return r.err
	}
	r.Mode, r.TTL = r.mode, r.ttl
	r.Owner = c.label // made unique for every attempt
	if err := c.info.Check(c.prefix, &r.Request); err != nil {
		return err
	}
	if r.margin > r.TTL/2 {
		if r.TTL == 0 {
			return driver.Invalid("WithMargin", "the leases have no TTL, and so no deadline")
		}
		return driver.Invalid("WithMargin", "%v must be at most half of the TTL of %v", r.margin, r.TTL)
	}
	if r.slots == 0 {
		return nil
	}
	if n := len(c.prefix) + len(slotKey(r.Key, r.slots-1)); n > driver.MaxKey {
		return driver.Invalid("key", "has %d bytes with its prefix and the number of a slot, the limit is %d", n, driver.MaxKey)
	}
	return nil
}

// attempt makes one request, counts its outcome, and tells the hook. The hook comes when the call of
// the backend is over, so that Close does not wait for it.
func (c *Client) attempt(ctx context.Context, r *request, wait bool) (*Lease, error) {
	if err := c.begin(); err != nil {
		return nil, err
	}
	start := time.Now()
	l, err := c.request(ctx, r, wait)
	e := Event{Op: "attempt", Key: r.Key, Attempt: r.attempts, Latency: time.Since(start), Waited: time.Since(r.began), Err: err}
	switch {
	case err == nil:
		c.count.acquired.Add(1)
		r.verdict = nil
	case contextOnly(ctx, err):
	case errors.Is(err, ErrHeld):
		c.count.contended.Add(1)
		r.verdict = err
	default:
		c.count.failed.Add(1)
		r.verdict = err
	}
	if c.hooks.Event == nil {
		return l, err
	}
	var q *quorum.Error
	if l != nil {
		e.Votes = l.held.Grant().Votes
	} else if errors.As(err, &q) {
		e.Votes = q.Votes
	}
	c.tell(ctx, l, e)
	return l, err
}

// request makes one request that begin has counted. A grant that no caller gets is given back.
func (c *Client) request(ctx context.Context, r *request, wait bool) (*Lease, error) {
	defer c.calls.Done()
	r.attempts++
	r.Owner = newOwner(c.label)
	r.Wait = wait
	if c.info.Features.Has(driver.FeatureTokens) {
		r.Tokens = r.tokens
	}
	at, start := c.clock.Now(), time.Now() // at comes first, so that deadlines are early rather than late
	held, err := c.backend.Acquire(ctx, &r.Request)
	if err != nil {
		return nil, err
	}
	l, err := c.newLease(ctx, r, held, at, start)
	if err != nil {
		_ = held.Release(context.WithoutCancel(ctx)) // if this fails the lock ends with its TTL
		return nil, err
	}
	return l, nil
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
	if c.timer != nil {
		c.timer.Stop()
	}
	leases := slices.Clone(c.leases)
	c.mu.Unlock()

	leases = slices.DeleteFunc(leases, func(l *Lease) bool { return !l.close() })
	c.end()
	errs := each(leases, (*Lease).giveBack)
	c.calls.Wait()
	c.renewals.workers.Wait()
	if err := c.backend.Close(); err != nil {
		errs = append(errs, fmt.Errorf("dlock: close %s: %w", c.info.Name, err))
	}
	c.outages.stop()
	c.losts.stop()
	c.polling.stop()
	if !c.toHooks.drain(closePatience) {
		errs = append(errs, fmt.Errorf("dlock: close: a hook has not returned within %v", closePatience))
	}
	if !c.toLog.drain(closePatience) {
		errs = append(errs, fmt.Errorf("dlock: close: a log handler has not returned within %v", closePatience))
	}
	return errors.Join(errs...)
}

// closePatience is for how long Close waits for hooks, and for log handlers.
const closePatience = 5 * time.Second

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
			errs = append(errs, l.notReleased(err))
		})
	}
	wg.Wait()
	return errs
}

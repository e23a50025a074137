// Package both takes each lock on two backends, for changing from one to the other while programs
// run. Import it for its URL, which names the old backend, a space, and the new one:
//
//	both:redis://10.0.0.1:6379/0 postgres://locks@10.0.0.2/app
//
// The parameters ttl and prefix stand behind them, each after a space. First every instance
// changes from the old URL to this one; when all have, every instance changes from this to the new
// one. In each of the two rollouts any two instances have one backend in common, and so exclude
// each other. A single rollout from old to new would let two instances hold the lock.
//
// Every instance takes the lock on old first and then on new, and releases them in reverse order.
// A lease is over when either lock is; its Deadline is the earlier one, and renewals go to both.
// TTLs are in the bounds of both; a backend without TTLs keeps its lock as long as its session.
//
// The token is the larger of both. Acquire waits for as long as the tokens differ, and for the
// [driver.Info.TokenLag] of the backend with the smaller one, so that its later ones are larger. They
// may not be, for up to a second or two, if a counter is ahead of its clock (one that was set back;
// etcd's on slow servers) or if a quorum's client has a slow clock: then an instance that uses this
// backend alone may get a smaller one. If the tokens are more than 5 s apart the request is refused
// and the error says so. There are no tokens if either backend has none, or if its tokens do not
// follow a clock, as those of PostgreSQL and NATS: then [driver.FeatureFencing] is missing.
//
// Operators ask each backend by its own URL: the two name one holder differently, and Break tells
// holders by their tokens, so a common driver.Inspector would show what neither server has.
package both

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
	"github.com/redlock-go/redlock/driver/printable"
)

func init() { dlock.Register("both", opener{}) }

type opener struct{}

// Open opens both backends.
func (opener) Open(cfg *driver.Config) (driver.Backend, error) {
	urls := strings.Fields(strings.TrimPrefix(cfg.DSN, "both:"))
	if len(urls) != 2 {
		return nil, driver.Invalid("URL", "must be both:OLD NEW, two URLs with a space between them")
	}
	old, err := cfg.Resolve(urls[0])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", oldSide, err)
	}
	new, err := cfg.Resolve(urls[1])
	if err != nil {
		_ = old.Close() // nothing was sent
		return nil, fmt.Errorf("%s: %w", newSide, err)
	}
	b := New(old, new)
	if b.old.String() == b.new.String() {
		_ = b.Close() // nothing was sent
		return nil, driver.Invalid("URL", "names one backend twice: must be both:OLD NEW, of two different ones")
	}
	return b, nil
}

const oldSide, newSide = "old backend", "new backend"

// Backend takes each lock on two backends.
type Backend struct {
	old, new side
	info     driver.Info

	calls base.Calls // of Acquire, and goroutines that merge channels

	mu     sync.Mutex
	merges map[pair]*merge
}

// A pair has the Lost of one lease on each backend.
type pair [2]<-chan struct{}

// A merge closes its channel when either of a pair is closed. Leases whose pairs are the same share it,
// and it ends with the last of them.
type merge struct {
	either chan struct{}
	leases int
	unused chan struct{} // closed when there are none
}

// side is one of the two backends.
type side struct {
	driver.Backend
	name string
	info driver.Info
}

var _ driver.Backend = (*Backend)(nil)

// New returns a backend that takes each lock on old and then on new. It owns both, and closes
// them.
func New(old, new driver.Backend) *Backend {
	b := &Backend{
		old:    side{old, oldSide, old.Info()},
		new:    side{new, newSide, new.Info()},
		calls:  base.Calls{Name: "both"},
		merges: map[pair]*merge{},
	}
	o, n := b.old.info, b.new.info
	const inBoth = driver.FeatureShared | driver.FeatureFencing | driver.FeatureOrdered | driver.FeatureKeep
	b.info = driver.Info{
		Name:     o.Name + " and " + n.Name,
		Features: o.Features&n.Features&inBoth | (o.Features|n.Features)&driver.FeatureSession | driver.FeatureQueueing,
		MinTTL:   max(o.MinTTL, n.MinTTL),
		MaxTTL:   shorter(o.MaxTTL, n.MaxTTL),
	}
	if o.TokenLag < 0 || n.TokenLag < 0 {
		b.info.Features &^= driver.FeatureFencing
	}
	return b
}

// shorter returns the smaller duration of those that are not zero.
func shorter(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return a + b
	}
	return min(a, b)
}

// Info has the features that both backends have.
func (b *Backend) Info() driver.Info { return b.info }

// String names both backends' addresses.
func (b *Backend) String() string { return b.old.String() + " and " + b.new.String() }

func (s side) String() string {
	if a, ok := s.Backend.(fmt.Stringer); ok {
		return a.String()
	}
	return s.info.Name
}

// Close ends the calls under way, lets them undo what they did, and closes both backends.
func (b *Backend) Close() error {
	b.calls.Close()
	err := errors.Join(b.old.Close(), b.new.Close())
	b.mu.Lock()
	defer b.mu.Unlock()
	for both, m := range b.merges { // their goroutines have ended
		if (isClosed(both[0]) || isClosed(both[1])) && !isClosed(m.either) {
			close(m.either)
		}
	}
	return err
}

// forever bounds a wait, which its context ends.
const forever = 1 << 60 * time.Nanosecond

// Acquire takes the lock on old, and then on new while it holds the first.
func (b *Backend) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if err := b.info.Check("", r); err != nil {
		return nil, err
	}
	call, err := b.calls.Begin(ctx, forever)
	if err != nil {
		return nil, err
	}
	defer call.End()
	ctx, cancel := context.WithCancel(call)
	defer cancel()
	old, err := b.old.acquire(ctx, r)
	if err != nil {
		return nil, call.Failed(err)
	}
	oldAt := time.Now()
	end, kept := make(chan struct{}), make(chan error, 1)
	go func() {
		lost := b.old.renewUntil(context.WithoutCancel(ctx), end, old, r.TTL)
		if lost != nil {
			cancel() // the wait
		}
		kept <- lost
	}()
	l, err := b.acquireNew(ctx, r, old, oldAt)
	close(end)
	if lost := <-kept; lost != nil {
		if err == nil {
			_ = l.Release(context.WithoutCancel(ctx)) // otherwise it ends with its TTL
		}
		// The outcome is unknown and no loss: no lease was returned.
		err = fmt.Errorf("the lock on the old backend ended during the wait for the lock on the new one: %v", lost) //nolint:errorlint // see above
	}
	if err != nil {
		_ = old.Release(context.WithoutCancel(ctx)) // otherwise it ends with its TTL
		return nil, call.Failed(err)
	}
	return l, nil
}

func (b *Backend) acquireNew(ctx context.Context, r *driver.Request, old driver.Lease, oldAt time.Time) (driver.Lease, error) {
	new, err := b.new.acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	l := &lease{b: b, old: old, new: new}
	if !b.info.Features.Has(driver.FeatureFencing) {
		return l, nil
	}
	l.fence, err = agreeOnToken(ctx, token{old.Grant().Fence, oldAt, b.old.info.TokenLag}, token{new.Grant().Fence, time.Now(), b.new.info.TokenLag})
	if err != nil {
		_ = new.Release(context.WithoutCancel(ctx)) // otherwise it ends with its TTL
		return nil, err
	}
	return l, nil
}

// acquire takes the lock on one side. If r.Wait is set it waits: in the backend's queue, for a
// signal, or by asking again.
func (s side) acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	req := *r
	if s.info.MaxTTL == 0 {
		req.TTL = 0
	}
	queues := s.info.Features.Has(driver.FeatureQueueing)
	req.Wait = r.Wait && queues
	watcher, _ := s.Backend.(driver.Watcher)
	var signal <-chan struct{}
	for {
		l, err := s.Acquire(ctx, &req)
		var held *driver.HeldError
		if err == nil || !r.Wait || queues || !errors.As(err, &held) || ctx.Err() != nil {
			return l, s.wrap(err)
		}
		pause := 20*time.Millisecond + mathrand.N(60*time.Millisecond)
		if watcher != nil && signal == nil {
			if signal, err = watcher.Watch(ctx, r.Key); err == nil {
				continue
			}
		} else if signal != nil {
			pause = max(held.PollAfter, pause)
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-signal:
		case <-ctx.Done():
			err = fmt.Errorf("%w: %w", ctx.Err(), held)
		}
		t.Stop()
		if ctx.Err() != nil {
			return nil, s.wrap(err)
		}
	}
}

func (s side) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", s.name, err)
}

// renewUntil renews a lease while the other lock is waited for, and returns why it was lost, or nil at
// the end.
func (s side) renewUntil(ctx context.Context, end chan struct{}, l driver.Lease, ttl time.Duration) error {
	g := l.Grant()
	var due <-chan time.Time
	if !g.Expires.IsZero() {
		t := time.NewTicker(ttl / 3)
		defer t.Stop()
		due = t.C
	}
	for {
		select {
		case <-end:
			return nil
		case <-g.Lost: // perhaps of another lease
			if g = l.Grant(); isClosed(g.Lost) {
				return driver.ErrLost
			}
			continue
		case <-due:
		}
		ctx, cancel := context.WithTimeout(ctx, ttl/3)
		err := s.renew(ctx, l, &driver.Renewal{TTL: ttl})
		cancel()
		if g = l.Grant(); errors.Is(err, driver.ErrLost) || !time.Now().Before(g.Expires) {
			return cmp.Or(err, driver.ErrLost)
		}
	}
}

// tokensApart is how far apart the tokens of two backends may be. Usually they differ as much
// as the servers' clocks do, or as much as a counter is ahead of its clock.
const tokensApart = 5 * time.Second

// A token is that of one backend, which is at most lag behind its servers' clock.
type token struct {
	fence uint64
	at    time.Time // when it arrived
	lag   time.Duration
}

// agreeOnToken returns the larger of two tokens. It waits until later tokens of the backend with the
// smaller one are larger.
func agreeOnToken(ctx context.Context, low, high token) (uint64, error) {
	if low.fence > high.fence {
		low, high = high, low
	}
	gap := time.Duration(min(high.fence-low.fence, driver.MaxFence/1000)) * time.Microsecond
	switch {
	case gap == 0:
		return high.fence, nil
	case gap > tokensApart:
		return 0, &driver.RefusedError{
			RetryAfter: gap,
			Reason:     fmt.Sprintf("the tokens of the old and the new backend are %v apart: check the clocks of their servers", printable.Duration(gap)),
		}
	}
	// A token is in microseconds of its server's clock. Wait for one microsecond more, and for
	// drift.
	t := time.NewTimer(time.Until(low.at.Add(low.lag + gap + gap/100 + time.Microsecond)))
	defer t.Stop()
	select {
	case <-t.C:
		return high.fence, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("waiting for a token that is larger on both backends: %w", ctx.Err())
	}
}

// lease is one lease on each backend.
type lease struct {
	b        *Backend
	old, new driver.Lease
	fence    uint64

	// The backend's mutex guards these.
	lost     pair
	merge    *merge // of lost; nil: none yet
	released bool
}

var _ driver.Lease = (*lease)(nil)

// Grant returns the earlier end and the larger token.
func (l *lease) Grant() driver.Grant {
	o, n := l.old.Grant(), l.new.Grant()
	g := driver.Grant{Expires: o.Expires, Fence: l.fence, Lost: l.either(o.Lost, n.Lost)}
	if g.Expires.IsZero() || !n.Expires.IsZero() && n.Expires.Before(g.Expires) {
		g.Expires = n.Expires
	}
	return g
}

// either returns a channel that is closed when either is: the same one for the same two.
func (l *lease) either(x, y <-chan struct{}) <-chan struct{} {
	if y == nil || isClosed(x) {
		return x
	}
	if x == nil || isClosed(y) {
		return y
	}
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	both := pair{x, y}
	if l.merge != nil && l.lost == both {
		return l.merge.either
	}
	if l.released {
		return y // nobody is told any more
	}
	m := l.b.merge(both)
	if m == nil {
		return y // Close has ended both
	}
	l.leave()
	l.lost, l.merge = both, m
	m.leases++
	return m.either
}

// merge returns the merge of two channels, or nil after Close. The caller holds b.mu.
func (b *Backend) merge(both pair) *merge {
	m := b.merges[both]
	if m != nil {
		return m
	}
	m = &merge{either: make(chan struct{}), unused: make(chan struct{})}
	merging := b.calls.Go(func(ctx context.Context) {
		select {
		case <-both[0]:
		case <-both[1]:
		case <-m.unused:
		case <-ctx.Done():
		}
		if isClosed(both[0]) || isClosed(both[1]) { // whoever has left may still wait for what it had
			close(m.either)
		}
	})
	if !merging {
		return nil
	}
	b.merges[both] = m
	return m
}

// leave ends the lease's part in its merge. The caller holds b.mu.
func (l *lease) leave() {
	if l.merge == nil {
		return
	}
	if l.merge.leases--; l.merge.leases == 0 {
		delete(l.b.merges, l.lost)
		close(l.merge.unused)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Renew renews both at the same time.
func (l *lease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	if err := l.b.info.CheckRenewal(r); err != nil {
		return driver.Grant{}, err
	}
	var oldErr, newErr error
	var wg sync.WaitGroup
	wg.Go(func() { oldErr = l.b.old.renew(ctx, l.old, r) })
	newErr = l.b.new.renew(ctx, l.new, r)
	wg.Wait()
	if oldErr != nil && !errors.Is(newErr, driver.ErrLost) {
		return driver.Grant{}, oldErr
	}
	if newErr != nil {
		return driver.Grant{}, newErr
	}
	return l.Grant(), nil
}

func (s side) renew(ctx context.Context, l driver.Lease, r *driver.Renewal) error {
	renewal := *r
	if s.info.MaxTTL == 0 {
		renewal.TTL = 0
	}
	_, err := l.Renew(ctx, &renewal)
	return s.wrap(err)
}

// Release releases the lock on new and then the one on old, so that the next holder of old need
// not wait for new.
func (l *lease) Release(ctx context.Context) error {
	l.b.mu.Lock()
	if !l.released {
		l.released = true
		l.leave()
	}
	l.b.mu.Unlock()
	newErr, oldErr := l.b.new.wrap(l.new.Release(ctx)), l.b.old.wrap(l.old.Release(ctx))
	if newErr != nil && (oldErr == nil || errors.Is(oldErr, driver.ErrLost)) {
		return newErr
	}
	return oldErr
}

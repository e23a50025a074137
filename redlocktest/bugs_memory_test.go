package redlocktest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

// broken is a memory backend with one bug. Fields that are nil leave the sound behaviour.
type broken struct {
	*memory.Backend
	acquire func(ctx context.Context, req *driver.Request) (driver.Lease, error)
	renew   func(ctx context.Context, l *brokenLease, r *driver.Renewal) (driver.Grant, error)
	release func(ctx context.Context, l *brokenLease) error
	grant   func(l *brokenLease, g driver.Grant) driver.Grant
	watch   func(ctx context.Context, key string) (<-chan struct{}, error)
	close   func() error
	code    func(code string) string // replaces the code of each finding
	list    func(err error) error    // replaces the error of List
	tokens  *counters                // gives tokens of its own
	link    link
}

func (b *broken) Lookup(ctx context.Context, key string) (*driver.State, error) {
	if err := b.link.to(ctx); err != nil {
		return nil, err
	}
	s, err := b.Backend.Lookup(ctx, key)
	if err != nil {
		return nil, err
	}
	for i := range s.Holders {
		s.Holders[i].Fence = b.tokens.other(key, s.Holders[i].Fence, false)
	}
	return s, nil
}

func (b *broken) List(ctx context.Context, prefix string, yield func(*driver.State) bool) error {
	err := b.link.to(ctx)
	if err == nil {
		err = b.Backend.List(ctx, prefix, yield)
	}
	if b.list != nil {
		err = b.list(err)
	}
	return err
}

func (b *broken) Break(ctx context.Context, key string, h driver.Holder) error {
	if err := b.link.to(ctx); err != nil {
		return err
	}
	h.Fence = b.tokens.other(key, h.Fence, true)
	return b.Backend.Break(ctx, key, h)
}

func (b *broken) Check(ctx context.Context) ([]driver.Diagnostic, error) {
	if err := b.link.to(ctx); err != nil {
		return nil, err
	}
	found, err := b.Backend.Check(ctx)
	if b.code != nil {
		found = append(found, driver.Diagnostic{Code: b.code("one-process"), Summary: "it lives in one process"})
	}
	return found, err
}

func (b *broken) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	acquire := b.acquire
	if acquire == nil {
		acquire = b.Backend.Acquire
	}
	l, err := acquire(ctx, req)
	if err != nil {
		return nil, err
	}
	if l, ok := l.(*brokenLease); ok {
		return l, nil
	}
	return &brokenLease{Lease: l, b: b, req: req, sent: *req}, nil
}

func (b *broken) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if b.watch != nil {
		return b.watch(ctx, key)
	}
	return b.Backend.Watch(ctx, key)
}

func (b *broken) Close() error {
	if b.close != nil {
		return b.close()
	}
	return b.Backend.Close()
}

// brokenLease is a lease of a broken backend.
type brokenLease struct {
	driver.Lease
	b       *broken
	req     *driver.Request // the caller's own request
	sent    driver.Request
	over    atomic.Bool
	renewed atomic.Pointer[driver.Grant]
	lost    chan struct{}
	changes sync.Mutex
}

func (l *brokenLease) Grant() driver.Grant { return l.change(l.Lease.Grant()) }

func (l *brokenLease) change(g driver.Grant) driver.Grant {
	g.Lost = nil // as of a server, which tells its clients nothing
	if l.b.grant == nil {
		return g
	}
	return l.b.grant(l, g)
}

func (l *brokenLease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	renew := l.Lease.Renew
	if l.b.renew != nil {
		renew = func(ctx context.Context, r *driver.Renewal) (driver.Grant, error) { return l.b.renew(ctx, l, r) }
	}
	g, err := renew(ctx, r)
	return l.change(g), err
}

func (l *brokenLease) Release(ctx context.Context) error {
	if l.b.release != nil {
		return l.b.release(ctx, l)
	}
	return l.Lease.Release(ctx)
}

// sends plants a bug: what is sent is not what was asked for.
func (b *broken) sends(change func(req *driver.Request)) {
	b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
		sent := *req
		change(&sent)
		return b.Backend.Acquire(ctx, &sent)
	}
}

// answers plants a bug in what is made of the answer to an attempt.
func (b *broken) answers(change func(ctx context.Context, req *driver.Request, l driver.Lease, err error) (driver.Lease, error)) {
	sound := b.acquire
	b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
		acquire := sound
		if acquire == nil {
			acquire = b.Backend.Acquire
		}
		l, err := acquire(ctx, req)
		return change(ctx, req, l, err)
	}
}

// renews plants a bug in what is made of the answer to a renewal.
func (b *broken) renews(change func(ctx context.Context, l *brokenLease, r *driver.Renewal, g driver.Grant, err error) (driver.Grant, error)) {
	sound := b.renew
	b.renew = func(ctx context.Context, l *brokenLease, r *driver.Renewal) (driver.Grant, error) {
		renew := sound
		if renew == nil {
			renew = func(ctx context.Context, l *brokenLease, r *driver.Renewal) (driver.Grant, error) {
				return l.Lease.Renew(ctx, r)
			}
		}
		g, err := renew(ctx, l, r)
		return change(ctx, l, r, g, err)
	}
}

// These plant a bug that replaces one function of a backend, or changes what it sends or answers.
func onAcquire(f func(ctx context.Context, b *broken, req *driver.Request) (driver.Lease, error)) func(*broken) {
	return func(b *broken) {
		b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) { return f(ctx, b, req) }
	}
}

func onRenew(f func(ctx context.Context, b *broken, l *brokenLease, r *driver.Renewal) (driver.Grant, error)) func(*broken) {
	return func(b *broken) {
		b.renew = func(ctx context.Context, l *brokenLease, r *driver.Renewal) (driver.Grant, error) {
			return f(ctx, b, l, r)
		}
	}
}

func onRelease(f func(ctx context.Context, b *broken, l *brokenLease) error) func(*broken) {
	return func(b *broken) {
		b.release = func(ctx context.Context, l *brokenLease) error { return f(ctx, b, l) }
	}
}

func onWatch(f func(ctx context.Context, b *broken, key string) (<-chan struct{}, error)) func(*broken) {
	return func(b *broken) {
		b.watch = func(ctx context.Context, key string) (<-chan struct{}, error) { return f(ctx, b, key) }
	}
}

func onGrant(f func(b *broken, l *brokenLease, g driver.Grant) driver.Grant) func(*broken) {
	return func(b *broken) {
		b.grant = func(l *brokenLease, g driver.Grant) driver.Grant { return f(b, l, g) }
	}
}

func onSend(f func(b *broken, req *driver.Request)) func(*broken) {
	return func(b *broken) { b.sends(func(req *driver.Request) { f(b, req) }) }
}

func afterAcquire(f func(ctx context.Context, b *broken, req *driver.Request, l driver.Lease, err error) (driver.Lease, error)) func(*broken) {
	return func(b *broken) {
		b.answers(func(ctx context.Context, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
			return f(ctx, b, req, l, err)
		})
	}
}

func afterRenew(f func(ctx context.Context, b *broken, l *brokenLease, r *driver.Renewal, g driver.Grant, err error) (driver.Grant, error)) func(*broken) {
	return func(b *broken) {
		b.renews(func(ctx context.Context, l *brokenLease, r *driver.Renewal, g driver.Grant, err error) (driver.Grant, error) {
			return f(ctx, b, l, r, g, err)
		})
	}
}

// grantUntil returns the grant of a lease as if it had just been renewed with this TTL.
func (l *brokenLease) grantUntil(ttl time.Duration) driver.Grant {
	g := l.Lease.Grant()
	g.Expires = driver.Expires(time.Now(), ttl)
	return g
}

// claim makes the client claim to have that grant.
func (l *brokenLease) claim(ttl time.Duration) driver.Grant {
	g := l.grantUntil(ttl)
	l.renewed.Store(&g)
	return g
}

// waits tries to get a lock, and again after each value of a channel that next returns.
func (b *broken) waits(ctx context.Context, req *driver.Request, next func() (<-chan struct{}, error)) (driver.Lease, error) {
	once := *req
	once.Wait = false
	var last error
	for {
		l, err := b.Backend.Acquire(ctx, &once)
		switch {
		case req.Wait && errors.Is(err, driver.ErrHeld):
			last = err
		case err != nil && last != nil:
			return nil, fmt.Errorf("%w: %w", err, last)
		default:
			return l, err
		}
		again, err := next()
		if err != nil {
			return nil, err
		}
		select {
		case <-again:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ctx.Err(), last)
		}
	}
}

// filtered is a watch that drops the values that passes does not accept.
func (b *broken) filtered(ctx context.Context, key string, passes func() bool) (<-chan struct{}, error) {
	in, err := b.Backend.Watch(ctx, key)
	out := make(chan struct{}, 1)
	go forward(ctx, in, out, passes)
	return out, err
}

// holder returns the holder of a key, or the zero Holder.
func (b *broken) holder(ctx context.Context, key string) driver.Holder {
	if s, err := b.Lookup(ctx, key); err == nil && len(s.Holders) > 0 {
		return s.Holders[0]
	}
	return driver.Holder{}
}

// elsewhere returns the request for a lock that excludes no other.
func elsewhere(req *driver.Request) *driver.Request {
	other := *req
	other.Key += "/elsewhere"
	return &other
}

// checkThenSet plants a bug: of two that find a key free, the second takes it from the first.
func checkThenSet(b *broken) {
	b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
		if s, err := b.Lookup(ctx, req.Key); err == nil && len(s.Holders) == 0 && len(req.Key) > 0 {
			time.Sleep(time.Millisecond)
			b.Expire(req.Key)
		}
		return b.Backend.Acquire(ctx, req)
	}
}

// memoryBugs are planted in a memory backend.
var memoryBugs = []bug{
	{name: "a finding has no code", want: "operator/check", rule: "driver.Inspector", says: "code", plant: func(b *broken) {
		b.code = func(string) string { return "" }
	}},
	{name: "the code of a finding is a sentence", want: "operator/check", rule: "driver.Inspector", says: "code", plant: func(b *broken) {
		b.code = func(code string) string { return "One process" }
	}},
	{name: "two spaces", stress: true, want: "basic/held", rule: "exclusion", plant: func(b *broken) { b.Backend = memory.New() }},
	{name: "check, then set", stress: true, want: "exclusion/race", rule: "exclusion", plant: checkThenSet},
	{name: "check, then set, one at a time in each client", want: "exclusion/race-clients", rule: "exclusion", plant: func(b *broken) {
		checkThenSet(b)
		racy, turn := b.acquire, make(chan struct{}, 1)
		b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
			if req.Wait {
				return b.Backend.Acquire(ctx, req)
			}
			turn <- struct{}{}
			defer func() { <-turn }()
			return racy(ctx, req)
		}
	}},
	{name: "reentrant", stress: true, want: "exclusion/reentrancy", rule: "rule 6", plant: func(b *broken) {
		var mine sync.Map
		b.answers(func(ctx context.Context, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
			if old, ok := mine.Load(req.Key); ok && errors.Is(err, driver.ErrHeld) && !old.(*brokenLease).over.Load() {
				return old.(*brokenLease), nil
			}
			if err != nil {
				return nil, err
			}
			got := &brokenLease{Lease: l, b: b, req: req, sent: *req}
			mine.Store(req.Key, got)
			return got, nil
		})
		b.release = func(ctx context.Context, l *brokenLease) error {
			l.over.Store(true)
			return l.Lease.Release(ctx)
		}
	}},
	{name: "ErrHeld without HeldError", stress: true, want: "verdict/held", rule: "rule 1", plant: afterAcquire(func(ctx context.Context, _ *broken, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
		if errors.Is(err, driver.ErrHeld) && ctx.Err() == nil {
			err = fmt.Errorf("sorry: %w", driver.ErrHeld)
		}
		return l, err
	})},
	{name: "names the asker as holder", stress: true, want: "verdict/held", rule: "driver.HeldError", plant: afterAcquire(func(ctx context.Context, _ *broken, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
		var he *driver.HeldError
		if errors.As(err, &he) {
			he.Holder = req.Owner
		}
		return l, err
	})},
	{name: "release ignores the owner", stress: true, want: "verdict/lost", rule: "driver.Lease.Release", plant: onRelease(func(_ context.Context, b *broken, l *brokenLease) error {
		b.Expire(l.sent.Key)
		return nil
	})},
	{name: "the first Release after a loss frees the next owner's lock", want: "expiry/first-release", rule: "driver.Lease.Release", plant: firstRelease},
	{name: "a lease that is over is revived if nobody had the key since", want: "expiry/revived", rule: "driver.Lease.Renew", says: "free key", plant: func(b *broken) {
		b.renews(func(ctx context.Context, l *brokenLease, r *driver.Renewal, g driver.Grant, err error) (driver.Grant, error) {
			s, _ := b.Lookup(ctx, l.sent.Key)
			if !errors.Is(err, driver.ErrLost) || l.over.Load() || s == nil || s.Fence != l.Lease.Grant().Fence {
				return g, err
			}
			again, err := b.Backend.Acquire(ctx, &l.sent)
			if err != nil {
				return g, driver.ErrLost
			}
			return again.Grant(), nil
		})
		b.release = func(ctx context.Context, l *brokenLease) error {
			l.over.Store(true)
			return l.Lease.Release(ctx)
		}
	}},
	{name: "second release fails", stress: true, want: "verdict/lost", rule: "driver.Lease.Release", plant: onRelease(func(ctx context.Context, _ *broken, l *brokenLease) error {
		if l.over.Swap(true) {
			return errors.New("not locked")
		}
		return l.Lease.Release(ctx)
	})},
	{name: "releases later", stress: true, want: "basic/grant", rule: "driver.Lease.Release", plant: onRelease(func(ctx context.Context, _ *broken, l *brokenLease) error {
		time.AfterFunc(time.Millisecond, func() { _ = l.Lease.Release(context.Background()) })
		return nil
	})},
	{name: "renew takes again", stress: true, want: "verdict/lost", rule: "driver.Lease.Renew", plant: afterRenew(func(ctx context.Context, b *broken, l *brokenLease, r *driver.Renewal, g driver.Grant, err error) (driver.Grant, error) {
		if !errors.Is(err, driver.ErrLost) {
			return g, err
		}
		again, err := b.Backend.Acquire(ctx, &l.sent)
		if err != nil {
			return g, driver.ErrLost
		}
		return again.Grant(), nil
	})},
	{name: "renew ignores the owner", stress: true, want: "verdict/lost", rule: "driver.Lease.Renew", plant: afterRenew(func(ctx context.Context, b *broken, l *brokenLease, r *driver.Renewal, g driver.Grant, err error) (driver.Grant, error) {
		if s, _ := b.Lookup(ctx, l.sent.Key); errors.Is(err, driver.ErrLost) && s != nil && len(s.Holders) > 0 {
			return l.grantUntil(r.TTL), nil
		}
		return g, err
	})},
	{name: "renew extends nothing", stress: true, want: "expiry/renewal", rule: "rule 1", says: "ErrLost", plant: func(b *broken) {
		b.renew = func(ctx context.Context, l *brokenLease, r *driver.Renewal) (driver.Grant, error) {
			s, err := b.Lookup(ctx, l.sent.Key)
			if err != nil || b.Info().CheckRenewal(r) != nil || len(s.Holders) == 0 || s.Holders[0].Owner != l.sent.Owner {
				return l.Lease.Renew(ctx, r)
			}
			return l.claim(r.TTL), nil
		}
		b.grant = claimed
	}},
	{name: "ignores Keep", want: "expiry/keep", rule: "driver.Renewal.Keep", plant: onRenew(func(ctx context.Context, _ *broken, l *brokenLease, r *driver.Renewal) (driver.Grant, error) {
		return l.Lease.Renew(ctx, &driver.Renewal{TTL: max(r.TTL, driver.MinTTL), MinFence: r.MinFence})
	})},
	{name: "keeps for half the TTL", stress: true, want: "expiry/free", rule: "rule 3", plant: func(b *broken) {
		b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
			if err := b.Info().Check("", req); err != nil {
				return nil, err
			}
			half := *req
			half.TTL = max(req.TTL/2, driver.MinTTL)
			l, err := b.Backend.Acquire(ctx, &half)
			if err != nil {
				return nil, err
			}
			return &brokenLease{Lease: l, b: b, req: req, sent: *req}, nil
		}
		b.grant = func(l *brokenLease, g driver.Grant) driver.Grant {
			g.Expires = g.Expires.Add(l.sent.TTL / 2)
			return g
		}
	}},
	{name: "no drift", stress: true, want: "expiry/expires", rule: "rule 3", plant: onGrant(func(_ *broken, l *brokenLease, g driver.Grant) driver.Grant {
		g.Expires = g.Expires.Add(driver.Drift(l.sent.TTL))
		return g
	})},
	{name: "tokens of whole milliseconds", stress: true, want: "fence/rises", rule: "rule 8", plant: onGrant(func(_ *broken, _ *brokenLease, g driver.Grant) driver.Grant {
		g.Fence = g.Fence / 1000 * 1000
		return g
	})},
	{name: "the counter rises to the first token of a range only", want: "fence/ranges", rule: "driver.Request.Tokens", plant: firstOnly},
	{name: "a node of a quorum gives half of a range", want: "fence/ranges", rule: "driver.Request.Tokens", plant: func(b *broken) {
		b.sends(func(req *driver.Request) { req.Tokens /= 2 })
	}},
	{name: "the counter rises by one token until the lock expires", want: "fence/range-expires", rule: "driver.Request.Tokens", plant: firstOnly},
	{name: "tokens from 1", stress: true, want: "fence/rises", rule: "rule 8", plant: onGrant(func(_ *broken, _ *brokenLease, g driver.Grant) driver.Grant {
		g.Fence -= uint64(time.Now().Add(-time.Hour).UnixMicro())
		return g
	})},
	{name: "unknown mode is exclusive", want: "request/misuse", rule: "rule 4", plant: onSend(func(_ *broken, req *driver.Request) {
		if req.Mode > driver.Shared {
			req.Mode = driver.Exclusive
		}
	})},
	{name: "key cut to 511 bytes", want: "request/long-key", rule: "driver.Request", plant: onSend(func(_ *broken, req *driver.Request) {
		if len(req.Key) == driver.MaxKey {
			req.Key = req.Key[:driver.MaxKey-1]
		}
	})},
	{name: "key ends at NUL", want: "request/odd-keys", rule: "driver.Request", plant: onSend(func(_ *broken, req *driver.Request) {
		if i := strings.IndexByte(req.Key, 0); i > 0 {
			req.Key = req.Key[:i]
		}
	})},
	{name: "clamps the TTL", want: "request/ttl-bounds", rule: "rule 4", plant: func(b *broken) {
		b.sends(func(req *driver.Request) { req.TTL = min(max(req.TTL, driver.MinTTL), memory.MaxTTL) })
	}},
	{name: "keeps the caller's request", stress: true, want: "request/reuse", rule: "rule 2", says: "did not become free", plant: onRelease(func(_ context.Context, b *broken, l *brokenLease) error {
		if s, _ := b.Lookup(context.Background(), l.req.Key); len(s.Holders) == 1 && s.Holders[0].Fence == l.Lease.Grant().Fence {
			b.Expire(l.req.Key)
		}
		return nil
	})},
	{name: "cancelled acquire leaves the lock", want: "cancel/during", rule: "rule", plant: onAcquire(func(ctx context.Context, b *broken, req *driver.Request) (driver.Lease, error) {
		if req.Wait || ctx.Err() != nil {
			return b.Backend.Acquire(ctx, req)
		}
		l, err := b.Backend.Acquire(context.WithoutCancel(ctx), req)
		time.Sleep(100 * time.Microsecond)
		if err == nil && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return l, err
	})},
	{name: "release needs its context", want: "cancel/release", rule: "rule 2", plant: onRelease(func(ctx context.Context, _ *broken, l *brokenLease) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return l.Lease.Release(ctx)
	})},
	{name: "a cancelled renewal is a loss", want: "cancel/renew", rule: "rule 1", plant: afterRenew(func(ctx context.Context, _ *broken, l *brokenLease, r *driver.Renewal, g driver.Grant, err error) (driver.Grant, error) {
		if err != nil && ctx.Err() != nil {
			err = driver.ErrLost
		}
		return g, err
	})},
	{name: "waiting ignores its context", want: "cancel/waiting", rule: "driver.Backend.Acquire", plant: onAcquire(func(ctx context.Context, b *broken, req *driver.Request) (driver.Lease, error) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return b.Backend.Acquire(context.WithoutCancel(ctx), req)
	})},
	{name: "the end of a wait is held alone", stress: true, want: "cancel/waiting", rule: "driver.Request.Wait", plant: afterAcquire(func(ctx context.Context, _ *broken, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
		var he *driver.HeldError
		if errors.As(err, &he) {
			return nil, he
		}
		return l, err
	})},
	{name: "native wait subscribes too late", want: "wait/wakes", rule: "driver.Request.Wait", plant: onAcquire(func(ctx context.Context, b *broken, req *driver.Request) (driver.Lease, error) {
		return b.waits(ctx, req, func() (<-chan struct{}, error) {
			time.Sleep(time.Millisecond)
			return b.Backend.Watch(ctx, req.Key)
		})
	})},
	{name: "waiters in no order", want: "wait/order", rule: "driver.FeatureQueueing", plant: onAcquire(func(ctx context.Context, b *broken, req *driver.Request) (driver.Lease, error) {
		return b.waits(ctx, req, func() (<-chan struct{}, error) {
			over := make(chan struct{})
			time.AfterFunc(time.Duration(1+req.Owner[len(req.Owner)-1]%7)*time.Millisecond, func() { close(over) })
			return over, nil
		})
	})},
	{name: "watch loses the first value", want: "watch/wakes", rule: "driver.Watcher", plant: onWatch(func(ctx context.Context, b *broken, key string) (<-chan struct{}, error) {
		n := 0
		return b.filtered(ctx, key, func() bool { n++; return n > 1 })
	})},
	{name: "shared lets exclusive in", stress: true, want: "shared/many", rule: "driver.Shared", plant: afterAcquire(func(ctx context.Context, b *broken, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
		if s, _ := b.Lookup(ctx, req.Key); errors.Is(err, driver.ErrHeld) && s != nil && s.Mode == driver.Shared {
			share := *req
			share.Mode = driver.Shared
			return b.Backend.Acquire(ctx, &share)
		}
		return l, err
	})},
	{name: "a second release drops another's share", stress: true, want: "shared/stale", rule: "driver.Shared", says: "beside a shared one", plant: onRelease(func(ctx context.Context, b *broken, l *brokenLease) error {
		if l.over.Swap(true) && l.sent.Mode == driver.Shared {
			b.Expire(l.sent.Key)
		}
		return l.Lease.Release(ctx)
	})},
	{name: "the key ends with the first reader", stress: true, want: "expiry/reader", rule: "driver.Shared", says: "beside a shared one", plant: afterAcquire(func(ctx context.Context, b *broken, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
		if key := req.Key; err == nil && req.Mode == driver.Shared {
			time.AfterFunc(req.TTL, func() {
				if s, err := b.Lookup(context.Background(), key); err == nil && s.Mode == driver.Shared {
					b.Expire(key)
				}
			})
		}
		return l, err
	})},
	{name: "readers are counted, and one that is left to its TTL outlives it", want: "expiry/reader", rule: "rule 3 | driver.Lease.Renew", plant: func(b *broken) {
		var counted sync.Map
		b.answers(func(ctx context.Context, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
			if err == nil && req.Mode == driver.Shared {
				more := *req
				more.Owner, more.TTL = req.Owner+"/counted", memory.MaxTTL
				if count, err := b.Backend.Acquire(context.WithoutCancel(ctx), &more); err == nil {
					counted.Store(req.Owner, count)
				}
			}
			return l, err
		})
		b.release = func(ctx context.Context, l *brokenLease) error {
			if count, ok := counted.LoadAndDelete(l.sent.Owner); ok {
				_ = count.(driver.Lease).Release(ctx)
			}
			return l.Lease.Release(ctx)
		}
	}},
	{name: "a reader that ended is renewed as long as others read", want: "expiry/reader", rule: "driver.Lease.Renew", says: "after its end", plant: afterRenew(func(ctx context.Context, b *broken, l *brokenLease, r *driver.Renewal, g driver.Grant, err error) (driver.Grant, error) {
		if s, _ := b.Lookup(ctx, l.sent.Key); errors.Is(err, driver.ErrLost) && l.sent.Mode == driver.Shared && s.Mode == driver.Shared {
			return l.grantUntil(r.TTL), nil
		}
		return g, err
	})},
	{name: "a reader that releases beside others keeps the key until its TTL", want: "expiry/readers-shorten", rule: "rule 3 | driver.Lease.Renew", plant: onRelease(func(ctx context.Context, b *broken, l *brokenLease) error {
		if s, _ := b.Lookup(ctx, l.sent.Key); s != nil && len(s.Holders) > 1 {
			return nil
		}
		return l.Lease.Release(ctx)
	})},
	{name: "a reader's token is not above the writer's before it", stress: true, want: "shared/many", rule: "rule 8", plant: onGrant(func(_ *broken, l *brokenLease, g driver.Grant) driver.Grant {
		if l.sent.Mode == driver.Shared {
			g.Fence -= 5
		}
		return g
	})},
	{name: "a writer's token is not above the readers' before it", stress: true, want: "shared/many", rule: "rule 8", plant: onGrant(func(_ *broken, l *brokenLease, g driver.Grant) driver.Grant {
		if l.sent.Mode == driver.Exclusive {
			g.Fence -= 5
		}
		return g
	})},
	{name: "join above the counter", want: "node/join", rule: "driver.Request.ExactFence", plant: afterAcquire(func(ctx context.Context, b *broken, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
		if req.ExactFence != 0 && errors.Is(err, driver.ErrRefused) {
			plain := *req
			plain.ExactFence = 0
			return b.Backend.Acquire(ctx, &plain)
		}
		return l, err
	})},
	{name: "MinFence is ignored", want: "node/raise", rule: "driver.Renewal.MinFence", plant: onRenew(func(ctx context.Context, _ *broken, l *brokenLease, r *driver.Renewal) (driver.Grant, error) {
		return l.Lease.Renew(ctx, &driver.Renewal{TTL: r.TTL, Keep: r.Keep})
	})},
	{name: "the floor is not clamped", want: "node/floor", rule: "driver.Request.FenceFloor", plant: onGrant(func(_ *broken, l *brokenLease, g driver.Grant) driver.Grant {
		g.Fence = max(g.Fence, l.sent.FenceFloor)
		return g
	})},
	{name: "renew knows owners, not acquisitions", want: "expiry/instance", rule: "driver.FeatureQuorumNode", plant: afterRenew(func(ctx context.Context, b *broken, l *brokenLease, r *driver.Renewal, g driver.Grant, err error) (driver.Grant, error) {
		if s, _ := b.Lookup(ctx, l.sent.Key); errors.Is(err, driver.ErrLost) && len(s.Holders) > 0 && s.Holders[0].Owner == l.sent.Owner {
			return l.grantUntil(r.TTL), nil
		}
		return g, err
	})},
	{name: "ExactFence is ignored", want: "node/join", rule: "driver.Request.ExactFence", says: "joined at", plant: func(b *broken) {
		b.sends(func(req *driver.Request) { req.ExactFence = 0 })
	}},
	{name: "a join takes the key from its holder", want: "node/join", rule: "exclusion", says: "while another's lease", plant: onAcquire(func(ctx context.Context, b *broken, req *driver.Request) (driver.Lease, error) {
		if h := b.holder(ctx, req.Key); req.ExactFence != 0 && h.Owner != "" {
			_ = b.Break(ctx, req.Key, h)
		}
		return b.Backend.Acquire(ctx, req)
	})},
	{name: "a join is refused to the attempt that has the key", want: "node/join-own", rule: "driver.Request.ExactFence", plant: onAcquire(func(ctx context.Context, b *broken, req *driver.Request) (driver.Lease, error) {
		if h := b.holder(ctx, req.Key); req.ExactFence != 0 && h.Owner == req.Owner {
			return nil, &driver.RefusedError{Reason: "the key has another token"}
		}
		return b.Backend.Acquire(ctx, req)
	})},
	{name: "the renewal of a lease that is over raises the counter", want: "node/raise", rule: "driver.Renewal.MinFence", says: "raised the counter", plant: afterRenew(func(ctx context.Context, b *broken, l *brokenLease, r *driver.Renewal, g driver.Grant, err error) (driver.Grant, error) {
		if errors.Is(err, driver.ErrLost) && r.MinFence > 0 {
			raised := l.sent
			raised.ExactFence = r.MinFence
			if raise, err := b.Backend.Acquire(ctx, &raised); err == nil {
				_ = raise.Release(ctx)
			}
		}
		return g, err
	})},
	{name: "a release knows owners, not their attempts", want: "node/instance", rule: "driver.Lease.Release", says: "freed the next owner's lock", plant: onRelease(func(ctx context.Context, b *broken, l *brokenLease) error {
		err := l.Lease.Release(ctx)
		mine, _, _ := strings.Cut(l.sent.Owner, "/")
		if h := b.holder(ctx, l.sent.Key); strings.HasPrefix(h.Owner, mine+"/") {
			_ = b.Break(ctx, l.sent.Key, h)
		}
		return err
	})},
	{name: "grants without the server's clock", want: "node/clock", rule: "driver.FeatureQuorumNode", says: "has Clock", plant: onGrant(func(_ *broken, _ *brokenLease, g driver.Grant) driver.Grant {
		g.Clock = time.Time{}
		return g
	})},
	{name: "the grace of a quorum is ignored", want: "expiry/quorum", rule: "driver.FeatureQuorumNode", says: "came free after", plant: func(b *broken) {
		b.sends(func(req *driver.Request) { req.Quorum = nil })
	}},
	{name: "exclusive lets shared in", want: "shared/excluded", rule: "driver.Shared", says: "beside an exclusive one", plant: afterAcquire(func(ctx context.Context, b *broken, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
		if req.Mode == driver.Shared && errors.Is(err, driver.ErrHeld) {
			return b.Backend.Acquire(ctx, elsewhere(req))
		}
		return l, err
	})},
	{name: "the only reader gets the lock exclusively as well", want: "shared/upgrade", rule: "rule 6", says: "exclusively as well", plant: afterAcquire(func(ctx context.Context, b *broken, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
		if s, _ := b.Lookup(ctx, req.Key); errors.Is(err, driver.ErrHeld) && s != nil && s.Mode == driver.Shared && len(s.Holders) == 1 {
			return b.Backend.Acquire(ctx, elsewhere(req))
		}
		return l, err
	})},
	{name: "a Release beside another one is refused", want: "verdict/concurrent-release", rule: "driver.Lease.Release", says: "eight Releases at once", plant: onRelease(func(ctx context.Context, _ *broken, l *brokenLease) error {
		if !l.over.CompareAndSwap(false, true) {
			return &driver.RefusedError{Reason: "the lease is being released"}
		}
		defer l.over.Store(false)
		time.Sleep(time.Millisecond)
		return l.Lease.Release(ctx)
	})},
	{name: "close leaves the waiting", want: "close/waiting", rule: "driver.Backend.Close", plant: func(b *broken) {
		b.close = func() error { return nil }
	}},
	{name: "closed and still granting", want: "close/after", rule: "driver.Backend.Close", plant: func(b *broken) {
		var done atomic.Bool
		open := b.Peer()
		b.close = func() error {
			done.Store(true)
			return b.Backend.Close()
		}
		b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
			if done.Load() {
				return open.Acquire(ctx, req)
			}
			return b.Backend.Acquire(ctx, req)
		}
	}},
	{name: "password in an error", want: "request/misuse", rule: "rule 9", plant: func(b *broken) {
		b.answers(func(ctx context.Context, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
			if req.Key == "" {
				err = fmt.Errorf("dial redis://me:canary-42@host: %w", err)
			}
			return l, err
		})
	}, harness: func(h *Harness) { h.Secret = "canary-42" }},
}

// firstOnly plants a bug: a grant has the range that was asked for, and the counter rises to its
// first token only.
func firstOnly(b *broken) {
	b.sends(func(req *driver.Request) { req.Tokens = 0 })
	b.grant = func(l *brokenLease, g driver.Grant) driver.Grant {
		if n := l.sent.Tokens; n > 1 {
			g.Fence, g.Tokens = g.Fence+uint64(n)-1, n
		}
		return g
	}
}

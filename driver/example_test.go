package driver_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// toy is a whole driver: exclusive locks with tokens, in the memory of this process.
type toy struct {
	mu   sync.Mutex
	keys map[string]held
}

// held is what the server stores. The token stays when the lock goes, as the counter.
type held struct {
	owner string
	fence uint64
	until time.Time
}

// Open knows no parameter, and does no I/O.
func (t *toy) Open(cfg *driver.Config) (driver.Backend, error) {
	if cfg.DSN != "toy:" {
		return nil, driver.Invalid("URL", "must be toy: and nothing else")
	}
	return &toyBackend{toy: t, prefix: cfg.Prefix}, nil
}

type toyBackend struct {
	toy    *toy
	prefix string
	closed bool
}

func (b *toyBackend) Info() driver.Info {
	return driver.Info{Name: "toy", Features: driver.FeatureFencing, MinTTL: driver.MinTTL, MaxTTL: time.Hour}
}

func (b *toyBackend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	if err := b.Info().Check(b.prefix, req); err != nil {
		return nil, err // before any I/O (rule 4)
	}
	l := &toyLease{backend: b, key: b.prefix + req.Key, owner: req.Owner}
	err := b.do(ctx, func(start time.Time) error {
		h := b.toy.keys[l.key]
		if start.Before(h.until) {
			return &driver.HeldError{Holder: h.owner, RetryAfter: h.until.Sub(start)}
		}
		l.grant.Fence = driver.NextFence(h.fence, req.FenceFloor, start)
		l.extend(start, req.TTL)
		return nil
	})
	if err != nil {
		return nil, err // nothing was done, so there is nothing to undo (rule 2)
	}
	return l, nil
}

// do is the round trip to the server, which does one thing at a time.
func (b *toyBackend) do(ctx context.Context, op func(start time.Time) error) error {
	start := time.Now() // before the first byte is sent (rule 3)
	b.toy.mu.Lock()
	defer b.toy.mu.Unlock()
	if b.closed {
		return driver.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return op(start)
}

func (b *toyBackend) Close() error {
	b.toy.mu.Lock()
	defer b.toy.mu.Unlock()
	b.closed = true
	return nil
}

type toyLease struct {
	backend    *toyBackend
	key, owner string
	grant      driver.Grant
}

func (l *toyLease) extend(start time.Time, ttl time.Duration) {
	l.backend.toy.keys[l.key] = held{l.owner, l.grant.Fence, start.Add(ttl)}
	l.grant.Expires = driver.Expires(start, ttl)
}

// mine is the check that makes a late call harmless: owner and token, and in time.
func (l *toyLease) mine(now time.Time) bool {
	h := l.backend.toy.keys[l.key]
	return h.owner == l.owner && h.fence == l.grant.Fence && now.Before(h.until)
}

func (l *toyLease) Grant() driver.Grant {
	l.backend.toy.mu.Lock()
	defer l.backend.toy.mu.Unlock()
	return l.grant
}

func (l *toyLease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	if err := l.backend.Info().CheckTTL(r.TTL); err != nil {
		return driver.Grant{}, err
	}
	err := l.backend.do(ctx, func(start time.Time) error {
		if !l.mine(start) {
			return driver.ErrLost
		}
		l.extend(start, r.TTL)
		return nil
	})
	if err != nil {
		return driver.Grant{}, err
	}
	return l.Grant(), nil
}

func (l *toyLease) Release(ctx context.Context) error {
	return l.backend.do(context.WithoutCancel(ctx), func(now time.Time) error {
		if l.mine(now) {
			l.backend.toy.keys[l.key] = held{fence: l.grant.Fence}
		}
		return nil // it is free of this lease, whoever freed it
	})
}

// A whole driver, used as dlock uses it.
func Example() {
	d := &toy{keys: map[string]held{}}
	b, err := d.Open(&driver.Config{DSN: "toy:", Prefix: "app:"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close() //nolint:errcheck // of a toy

	ctx := context.Background()
	first, err := b.Acquire(ctx, &driver.Request{Key: "nightly", Owner: "web-1/a", TTL: time.Minute})
	fmt.Println("first:", err)

	_, err = b.Acquire(ctx, &driver.Request{Key: "nightly", Owner: "web-2/b", TTL: time.Minute})
	fmt.Println("second:", err)
	fmt.Println("is ErrHeld:", errors.Is(err, driver.ErrHeld))

	fmt.Println("release:", first.Release(ctx))
	second, err := b.Acquire(ctx, &driver.Request{Key: "nightly", Owner: "web-2/b", TTL: time.Minute})
	fmt.Println("second:", err)
	fmt.Println("its token is larger:", second.Grant().Fence > first.Grant().Fence)

	_, err = first.Renew(ctx, &driver.Renewal{TTL: time.Minute})
	fmt.Println("renewal of the first:", err)

	_, err = b.Acquire(ctx, &driver.Request{Key: "nightly", Owner: "web-3/c", TTL: time.Millisecond})
	fmt.Println("third:", err)

	// Output:
	// first: <nil>
	// second: held by web-1/a; its lease ends in 1m0s unless it is renewed
	// is ErrHeld: true
	// release: <nil>
	// second: <nil>
	// its token is larger: true
	// renewal of the first: lock was lost
	// third: TTL: 1ms is under the minimum of toy, 10ms
}

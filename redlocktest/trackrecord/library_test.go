package trackrecord

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/dsn"
)

// locks are the locks of another library. lock takes one lock with one call of the library;
// close ends the library's clients.
type locks interface {
	lock(ctx context.Context, key string, req *driver.Request) (*lease, error)
	close()
}

// A library is a driver over another library. It adds the parts of the contract that the
// library lacks: URLs, checks of requests, and Close. It has no tokens.
type library struct {
	open    func(u *dsn.URL) (locks, error)
	session bool // its locks have a context that ends with the lock, but no TTL
}

// Open opens a URL whose scheme is the library's name, with one server or, for redsync, several
// whose majority decides.
func (l library) Open(cfg *driver.Config) (driver.Backend, error) {
	u, err := dsn.Parse(cfg.DSN, "6379", "redsync", "redislock", "valkeylock")
	if err != nil {
		return nil, err
	}
	if u.Scheme != "redsync" && len(u.Hosts) > 1 {
		return nil, driver.Invalid("host", "must be one: %s locks on one server", u.Scheme)
	}
	all, err := l.open(u)
	if err := errors.Join(u.Params.Err(), err); err != nil {
		return nil, err
	}
	b := &backend{locks: all, prefix: cfg.Prefix, address: u.String()}
	b.info = driver.Info{Name: u.Scheme, MinTTL: 20 * time.Millisecond, MaxTTL: 24 * time.Hour}
	if l.session {
		b.info = driver.Info{Name: u.Scheme, Features: driver.FeatureSession}
	}
	return b, nil
}

type backend struct {
	locks
	info            driver.Info
	prefix, address string

	mu     sync.Mutex
	closed bool
}

var _ driver.Backend = (*backend)(nil)

func (b *backend) Info() driver.Info { return b.info }

func (b *backend) String() string { return b.address }

func (b *backend) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.closed = true
		b.close()
	}
	return nil
}

func (b *backend) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

// Acquire returns the library's verdict.
func (b *backend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	switch {
	case b.isClosed():
		return nil, driver.ErrClosed
	case b.info.Check(b.prefix, req) != nil:
		return nil, b.info.Check(b.prefix, req)
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	l, err := b.lock(ctx, b.prefix+req.Key, req)
	if err != nil {
		return nil, b.explain(ctx, err)
	}
	l.b = b
	return l, nil
}

// explain adds to an error of the library that the backend was closed, or that ctx has ended.
func (b *backend) explain(ctx context.Context, err error) error {
	switch {
	case b.isClosed():
		return fmt.Errorf("%w: %w", driver.ErrClosed, err)
	case ctx.Err() != nil && !errors.Is(err, ctx.Err()):
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// A lease is a lock of the library.
type lease struct {
	b       *backend
	renew   func(ctx context.Context, ttl time.Duration) (expires time.Time, err error)
	release func() error

	renewing sync.Mutex // one renewal at a time
	mu       sync.Mutex
	grant    driver.Grant
	over     bool
}

func (l *lease) Grant() driver.Grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.grant
}

func (l *lease) isOver() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

func (l *lease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	if err := l.b.info.CheckRenewal(r); err != nil {
		return driver.Grant{}, err
	}
	l.renewing.Lock()
	defer l.renewing.Unlock()
	if l.isOver() {
		return driver.Grant{}, driver.ErrLost
	}
	expires, err := l.renew(ctx, r.TTL)
	if err != nil {
		return driver.Grant{}, l.b.explain(ctx, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.grant.Expires = expires
	return l.grant, nil
}

func (l *lease) Release(context.Context) error {
	if l.isOver() {
		return nil
	}
	err := l.release()
	if l.b.isClosed() && err != nil {
		err = fmt.Errorf("%w: %w", driver.ErrClosed, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = l.over || err == nil || errors.Is(err, driver.ErrLost)
	return err
}

package driver_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
	"github.com/redlock-go/redlock/driver/dsn"
)

// server stands for the server and its client library: rows with versions, a clock, and one
// request that changes a row if it still has the version that was read.
type server struct {
	mu   sync.Mutex
	rows map[string]row
}

// row is what the server stores for a key. It stays when the lock goes, because of its token.
type row struct {
	version int
	owner   string // empty: the key is free
	fence   uint64
	since   time.Time
	until   time.Time // by the server's clock
}

func (s *server) get(ctx context.Context, key string) (r row, now time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows[key], time.Now(), ctx.Err()
}

func (s *server) swap(ctx context.Context, key string, r row) (swapped bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil || s.rows[key].version != r.version {
		return false, err
	}
	r.version++
	s.rows[key] = r
	return true, nil
}

// Here begins a whole driver: exclusive locks with tokens, Lookup, List and Break.

type kvDriver struct{ server *server }

// Open knows no parameter, and does no I/O.
func (d *kvDriver) Open(cfg *driver.Config) (driver.Backend, error) {
	url, query, _ := strings.Cut(cfg.DSN, "?")
	if url != "kv:" {
		return nil, driver.Invalid("URL", "must be kv:")
	}
	if err := dsn.Query(query).Err(); err != nil { // it names a parameter that was not asked for
		return nil, err
	}
	if err := base.CheckPrefix(cfg.Prefix); err != nil {
		return nil, err
	}
	return &backend{server: d.server, prefix: cfg.Prefix, calls: base.Calls{Name: "kv", Timeout: time.Second}}, nil
}

type backend struct {
	server *server
	prefix string
	calls  base.Calls
}

var (
	_ driver.Inspector = (*backend)(nil)
	_ driver.Admin     = (*backend)(nil)
)

func (b *backend) Info() driver.Info {
	return driver.Info{Name: "kv", Features: driver.FeatureFencing, MinTTL: 100 * time.Millisecond, MaxTTL: time.Hour}
}

func (b *backend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	call, err := b.calls.BeginAcquire(ctx, b.Info(), b.prefix, req)
	if err != nil {
		return nil, err // before any I/O (rule 4)
	}
	defer call.End()
	l := &lease{b: b, key: b.prefix + req.Key, owner: req.Owner}
	err = l.take(call, req)
	if err != nil && !errors.Is(err, driver.ErrHeld) { // it may have the lock, or may get it yet (rule 2)
		b.calls.Undo(time.Now().Add(2*req.TTL), l.undo)
	}
	if err != nil {
		return nil, call.Failed(err)
	}
	return base.NewLease(&b.calls, b.Info(), l.grant, l.renew, l.release), nil
}

func (b *backend) Close() error {
	b.calls.Close()
	return nil // a driver closes its client here, if it made it
}

// lease is one acquisition: an owner and a token.
type lease struct {
	b          *backend
	key, owner string
	grant      driver.Grant
}

// take takes the lock if it is free. Only this loop goes round if others change the row meanwhile.
func (l *lease) take(call *base.Call, req *driver.Request) error {
	for {
		start := time.Now() // before the first byte is sent (rule 3)
		r, now, err := l.b.server.get(call, l.key)
		switch {
		case err != nil:
			return err
		case r.owner == l.owner && now.Before(r.until): // the client library has repeated the request
			l.grant.Fence = r.fence
			return nil
		case r.owner != "" && now.Before(r.until):
			return &driver.HeldError{Holder: r.owner, RetryAfter: r.until.Sub(now), Since: r.since, Clock: now}
		}
		r.owner, r.fence, r.since, r.until = l.owner, driver.NextFence(r.fence, req.FenceFloor, now), now, now.Add(req.TTL)
		l.grant = driver.Grant{Fence: r.fence, Expires: driver.Expires(start, req.TTL), Clock: now}
		if swapped, err := l.b.server.swap(call, l.key, r); swapped || err != nil {
			return err
		}
	}
}

// undo writes the row in any case: a request of this attempt that is still under way then finds
// another version, and does nothing.
func (l *lease) undo(call *base.Call) error {
	for {
		r, _, err := l.b.server.get(call, l.key)
		if r.owner == l.owner {
			r.owner = ""
		}
		if err != nil {
			return err
		}
		if swapped, err := l.b.server.swap(call, l.key, r); swapped || err != nil {
			return err
		}
	}
}

// change changes the row if this very acquisition still has the lock: owner, token, and in time.
func (l *lease) change(call *base.Call, f func(r *row, now time.Time)) error {
	for {
		r, now, err := l.b.server.get(call, l.key)
		if err != nil {
			return err
		}
		if r.owner != l.owner || r.fence != l.grant.Fence || !now.Before(r.until) {
			return driver.ErrLost
		}
		f(&r, now)
		if swapped, err := l.b.server.swap(call, l.key, r); swapped || err != nil {
			return err
		}
	}
}

func (l *lease) renew(call *base.Call, r *driver.Renewal) (driver.Grant, error) {
	start, grant := time.Now(), l.grant
	grant.Expires = driver.Expires(start, r.TTL)
	return grant, l.change(call, func(row *row, now time.Time) { row.until, grant.Clock = now.Add(r.TTL), now })
}

func (l *lease) release(call *base.Call) error {
	return l.change(call, func(row *row, _ time.Time) { row.owner = "" })
}

func (b *backend) Lookup(ctx context.Context, key string) (*driver.State, error) {
	call, err := b.calls.Begin(ctx, b.calls.Bound(0))
	if err != nil {
		return nil, err
	}
	defer call.End()
	r, now, err := b.server.get(call, b.prefix+key)
	if err != nil {
		return nil, call.Failed(err)
	}
	var queue []base.Entry
	if r.owner != "" && now.Before(r.until) {
		queue = []base.Entry{{Holder: driver.Holder{Owner: r.owner, Fence: r.fence, Since: r.since, TTL: r.until.Sub(now)}}}
	}
	return base.QueueState(key, r.fence, queue), nil
}

func (b *backend) List(ctx context.Context, prefix string, yield func(*driver.State) bool) error {
	if b.calls.Closed() {
		return driver.ErrClosed
	}
	b.server.mu.Lock() // the server's list of keys
	var keys []string
	for key := range b.server.rows {
		if strings.HasPrefix(key, b.prefix+prefix) {
			keys = append(keys, strings.TrimPrefix(key, b.prefix))
		}
	}
	b.server.mu.Unlock()
	for _, key := range keys {
		s, err := b.Lookup(ctx, key)
		if err != nil {
			return err
		}
		if len(s.Holders) > 0 && !yield(s) {
			return nil
		}
	}
	return nil
}

func (b *backend) Check(ctx context.Context) ([]driver.Diagnostic, error) {
	found, sent := base.Findings{Node: "kv"}, time.Now()
	return found.Result(b.calls.Do(ctx, b.calls.Bound(0), func(call *base.Call) error {
		_, now, err := b.server.get(call, "")
		if err == nil {
			found.Clock(now, sent)
			found.Add("version", driver.SeverityNote, "", "version 1")
		}
		return err
	}))
}

func (b *backend) Break(ctx context.Context, key string, h driver.Holder) error {
	s, err := b.Lookup(ctx, key)
	if err != nil {
		return err
	}
	if len(s.Holders) == 0 || s.Holders[0].Fence != h.Fence {
		return driver.ErrLost
	}
	l := &lease{b: b, key: b.prefix + key, owner: s.Holders[0].Owner, grant: driver.Grant{Fence: h.Fence}}
	return b.calls.Do(ctx, b.calls.Bound(0), l.release)
}

// A whole driver, used as dlock uses it.
func Example() {
	d := &kvDriver{server: &server{rows: map[string]row{}}}
	b, err := d.Open(&driver.Config{DSN: "kv:", Prefix: "app:"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close() //nolint:errcheck // of an example

	ctx := context.Background()
	first, err := b.Acquire(ctx, &driver.Request{Key: "nightly", Owner: "web-1/a", TTL: time.Minute})
	fmt.Println("first:", err)

	_, err = b.Acquire(ctx, &driver.Request{Key: "nightly", Owner: "web-2/b", TTL: time.Minute})
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
	// is ErrHeld: true
	// release: <nil>
	// second: <nil>
	// its token is larger: true
	// renewal of the first: lock was lost
	// third: TTL: 1ms is under the minimum of kv, 100ms
}

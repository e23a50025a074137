package memory

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
	"github.com/redlock-go/redlock/driver/dsn"
)

// MaxTTL is the longest TTL that is granted.
const MaxTTL = 24 * time.Hour

// own is the Info of this package's backends.
var own = driver.Info{
	Name: "memory", MinTTL: driver.MinTTL, MaxTTL: MaxTTL,
	Features: driver.FeatureShared | driver.FeatureFencing | driver.FeatureQueueing | driver.FeatureQuorumNode | driver.FeatureKeep | driver.FeatureOrdered | driver.FeatureTokens,
}

// Driver opens backends by URL and keeps the named lock spaces. The zero Driver is ready for
// use. Two Drivers share nothing.
type Driver struct {
	mu     sync.Mutex
	spaces map[string]*space
}

var _ driver.Driver = (*Driver)(nil)

// Open returns a backend on the space that cfg.DSN names: "memory:" or "memory:name",
// the name of letters, digits, '.', '_' and '-'. It has no parameters of its own.
func (d *Driver) Open(cfg *driver.Config) (driver.Backend, error) {
	rest, ok := strings.CutPrefix(cfg.DSN, "memory:")
	if !ok {
		return nil, driver.Invalid("URL", "must be memory: or memory:name")
	}
	name, query, _ := strings.Cut(rest, "?")
	if strings.ContainsFunc(name, notInName) {
		return nil, driver.Invalid("URL", "must be memory: or memory:name, the name of letters, digits, '.', '_' and '-'")
	}
	if err := dsn.Query(query).Err(); err != nil {
		return nil, err
	}
	return &Backend{space: d.space(name), prefix: cfg.Prefix, info: own}, nil
}

func (d *Driver) space(name string) *space {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.spaces[name]
	if s == nil {
		s = newSpace("memory:" + name)
		if d.spaces == nil {
			d.spaces = map[string]*space{}
		}
		d.spaces[name] = s
	}
	return s
}

func notInName(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		return false
	}
	return !strings.ContainsRune("._-", r)
}

// Backend grants leases on the keys of a lock space. It stands for one process
// among those that share the space. Make one with New, Peer or a Driver.
type Backend struct {
	space  *space
	prefix string

	info   driver.Info            // own, or of the backend that it replaces in a test
	outage atomic.Pointer[outage] // nil: there is none

	// Guarded by space.mu.
	closed bool
	lost   chan struct{} // closed when one of the leases is lost; nil: nobody asked since
}

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Watcher   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
	_ driver.Admin     = (*Backend)(nil)
)

// Options are the settings of New.
type Options struct {
	// Info is the Info of a backend that this one replaces in a test: it then has the same
	// name, features and bounds of TTLs, and behaves accordingly. Without FeatureShared it
	// refuses a shared request, without FeatureFencing it gives no tokens, without
	// FeatureQueueing it never waits by itself; with FeatureSession its locks end when it is
	// closed, and with a MaxTTL of zero they have no TTL. dlock.OpenBackend(url) returns a
	// backend with such an Info and connects to nothing. The zero Info is this package's own.
	Info driver.Info
	_    struct{}
}

// New returns a backend on a lock space of its own, which no URL reaches. It takes one
// *Options at most; none and nil stand for the zero Options.
func New(o ...*Options) *Backend {
	b := &Backend{space: newSpace(""), info: own}
	if len(o) > 0 && o[0] != nil && o[0].Info != (driver.Info{}) {
		b.info = o[0].Info
	}
	return b
}

// Peer returns another backend on the same lock space, like one in another process: SetOutage
// and Close of one do not affect the other.
func (b *Backend) Peer() *Backend {
	return &Backend{space: b.space, prefix: b.prefix, info: b.info}
}

// Info describes the backend: with all features of this package, or those of Options.
func (b *Backend) Info() driver.Info { return b.info }

// String returns the address of the lock space: the URL that opens it, or a unique
// name where New made it.
func (b *Backend) String() string { return b.space.address }

// Acquire takes the lock, or waits in its queue if req.Wait is set.
//
// A request whose owner has the key already is a repetition: it gets the same lease, whose TTL
// starts anew.
func (b *Backend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	if err := b.Info().Check(b.prefix, req); err != nil {
		return nil, err
	}
	if req.ExactFence > driver.MaxFence {
		return nil, driver.Invalid("ExactFence", "%d is over the largest token, %d", req.ExactFence, uint64(driver.MaxFence))
	}
	var l *lease
	var w *waiter
	err := b.call(ctx, false, func(start, now time.Time) error {
		e := b.space.entry(b.prefix+req.Key, now)
		taken, err := e.take(b, req, now)
		switch {
		case err == nil:
			l = taken.confirm(start, now, req.TTL)
		case req.Wait && b.info.Features.Has(driver.FeatureQueueing) && errors.Is(err, driver.ErrHeld):
			w = e.enqueue(b, req, now)
		default:
			return err
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case l != nil:
		return l, nil
	}
	return b.wait(ctx, w)
}

// wait returns once w was granted and confirmed, or ctx or the backend ended.
func (b *Backend) wait(ctx context.Context, w *waiter) (driver.Lease, error) {
	for {
		select {
		case <-w.ready:
		case <-ctx.Done():
		}
		if l, err := b.confirm(ctx, w); l != nil || err != nil {
			return l, err
		}
	}
}

// confirm is the round trip after a native wait, from whose start the lease counts (rule 3).
// Any time may have passed since the grant. If the TTL has passed, w goes back into the queue,
// and confirm returns neither a lease nor an error: go on waiting. On an error nothing of w is
// left.
func (b *Backend) confirm(ctx context.Context, w *waiter) (driver.Lease, error) {
	start, err := b.applyOutage(ctx, false)
	b.space.mu.Lock()
	defer b.space.mu.Unlock()
	now := time.Now()
	if w.interrupted != nil {
		err = w.interrupted
	}
	if err == nil {
		err = b.usable(ctx)
	}
	if err != nil {
		return nil, base.Waited(err, w.entry.abandon(w, now))
	}
	if w.lease == nil {
		return nil, nil
	}
	w.entry.purge(now)
	if slices.Contains(w.entry.holders, w.lease) {
		w.lease.until = end(&w.req, now)
		return w.lease.confirm(start, now, w.req.TTL), nil
	}
	w.lease = nil
	w.entry = b.space.entry(w.entry.key, now) // the old one may have been dropped
	w.entry.queue = append(w.entry.queue, w)
	w.entry.settle(now)
	return nil, nil
}

// usable returns an error if the backend is closed or ctx has ended.
func (b *Backend) usable(ctx context.Context) error {
	if b.closed {
		return driver.ErrClosed
	}
	return driver.ContextErr(ctx)
}

// call is a call of the backend, which began at start if an outage delayed it: it calls f under the
// space's mutex.
func (b *Backend) call(ctx context.Context, renewal bool, f func(start, now time.Time) error) error {
	start, err := b.applyOutage(ctx, renewal)
	if err != nil {
		return err
	}
	b.space.mu.Lock()
	defer b.space.mu.Unlock()
	if err := b.usable(ctx); err != nil {
		return err
	}
	return f(start, time.Now())
}

// Watch returns a channel that gets a value when a holder of key or a waiter for it
// goes, and when the backend fails or closes. It does not block.
func (b *Backend) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if key == "" {
		return nil, driver.Invalid("key", "is empty")
	}
	w := &watch{backend: b, ch: make(chan struct{}, 1)}
	err := b.call(ctx, false, func(_, now time.Time) error {
		w.entry = b.space.entry(b.prefix+key, now)
		if w.entry.watches == nil {
			w.entry.watches = map[*watch]struct{}{}
		}
		w.entry.watches[w] = struct{}{}
		w.entry.arm(now)
		context.AfterFunc(ctx, func() {
			b.space.mu.Lock()
			defer b.space.mu.Unlock()
			delete(w.entry.watches, w)
		})
		return nil
	})
	return w.ch, err
}

// Close ends the backend: its waiting calls, later calls, and calls on its leases return
// ErrClosed. The locks that it holds stay until their TTL ends; with FeatureSession they end
// now.
func (b *Backend) Close() error {
	b.space.mu.Lock()
	defer b.space.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	b.setOutage(nil)
	b.interrupt(driver.ErrClosed)
	for _, e := range b.space.entries {
		if b.info.Features.Has(driver.FeatureSession) {
			e.evict(time.Now(), func(l *lease) bool { return l.backend.Load() == b })
		}
		for w := range e.watches {
			if w.backend == b {
				delete(e.watches, w)
			}
		}
	}
	return nil
}

// interrupt ends the waiting calls of b with err and wakes its watchers.
func (b *Backend) interrupt(err error) {
	for _, e := range b.space.entries {
		for _, w := range e.queue {
			if w.backend == b {
				w.interrupted = err
				w.wake()
			}
		}
		for w := range e.watches {
			if w.backend == b {
				w.wake()
			}
		}
	}
}

func newSpace(address string) *space {
	id := strings.ToLower(rand.Text())
	if address == "" {
		address = fmt.Sprintf("memory-%s", id[:8])
	}
	return &space{address: address, server: id, entries: map[string]*entry{}}
}

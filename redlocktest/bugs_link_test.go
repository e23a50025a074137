package redlocktest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

// link is the connection between a client and its lock space. Tests can break it.
type link struct {
	mu     sync.Mutex
	broken bool
	paused chan struct{} // closed when the pause is over
	slow   time.Duration
	drop   bool // drop the next reply
	kills  atomic.Int64
	late   []func() // requests that arrive when the link is mended
}

var (
	errBroken  = errors.New("connection reset")
	errTimeout = errors.New("no answer in time")
)

const linkTimeout = 300 * time.Millisecond

func (l *link) cutOff() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken
}

// to carries a request. It returns an error if the request never arrives.
func (l *link) to(ctx context.Context) error {
	l.mu.Lock()
	broken, paused := l.broken, l.paused
	l.mu.Unlock()
	if broken {
		return errBroken
	}
	if paused == nil {
		return nil
	}
	select {
	case <-paused:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(linkTimeout):
		return errTimeout
	}
}

// from carries a reply. It returns an error if the reply is lost or too late.
func (l *link) from(ctx context.Context) error {
	l.mu.Lock()
	slow, drop := l.slow, l.drop
	l.drop = false
	l.mu.Unlock()
	if drop {
		return errBroken
	}
	if slow <= 0 {
		return ctx.Err() // no timer: in a bubble with -race, timers that are due at once crash Go's runtime
	}
	select {
	case <-time.After(slow):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *link) set(f func()) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	return nil
}

// overLinks opens clients with links that the harness breaks. plant breaks the client
// itself.
func overLinks(plant func(*broken)) Harness {
	var mu sync.Mutex
	var all []*broken
	space := memory.New()
	each := func(f func(b *broken)) error {
		mu.Lock()
		defer mu.Unlock()
		for _, b := range all {
			f(b)
		}
		return nil
	}
	breakAll := func(cut bool) error {
		return each(func(b *broken) { _ = b.link.set(func() { b.link.broken = cut }) })
	}
	var resume chan struct{}
	return Harness{
		Open: func() (driver.Backend, error) {
			b := &broken{Backend: space.Peer()}
			b.linked()
			plant(b)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, b)
			return b, nil
		},
		TTL: 200 * time.Millisecond,
		Faults: &Faults{
			Kill: func() error {
				_ = each(func(b *broken) { b.cut() }) // connections break, and the waiters notice it
				return breakAll(true)
			},
			Restart: func(memory bool) error {
				if !memory {
					_ = space.List(context.Background(), "", func(s *driver.State) bool {
						space.Expire(s.Key)
						return true
					})
				}
				return breakAll(false)
			},
			Pause: func() error {
				resume = make(chan struct{})
				return each(func(b *broken) { _ = b.link.set(func() { b.link.paused = resume }) })
			},
			Resume: func() error {
				close(resume)
				return each(func(b *broken) { _ = b.link.set(func() { b.link.paused = nil }) })
			},
			Partition: func(c driver.Backend) error {
				return c.(*broken).link.set(func() { c.(*broken).link.broken = true })
			},
			Heal: func(c driver.Backend) error {
				var late []func()
				l := &c.(*broken).link
				_ = l.set(func() { l.broken, late, l.late = false, l.late, nil })
				for _, arrive := range late {
					arrive()
				}
				return nil
			},
			Reset: func(c driver.Backend) error { c.(*broken).cut(); return nil },
			Slow: func(c driver.Backend, d time.Duration) error {
				return c.(*broken).link.set(func() { c.(*broken).link.slow = d })
			},
			DropReply: func(c driver.Backend) error {
				return c.(*broken).link.set(func() { c.(*broken).link.drop = true })
			},
		},
	}
}

// cut breaks the connections, and the waiters notice it.
func (b *broken) cut() {
	b.link.kills.Add(1)
	b.Fail(errBroken)
	b.Fail(nil)
}

// arrivesLate plants a bug: a request that a broken link has delayed takes the lock when the
// link is mended.
func arrivesLate(b *broken, then func(driver.Lease)) {
	b.answers(func(ctx context.Context, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
		if errors.Is(err, errBroken) {
			sent := *req
			_ = b.link.set(func() {
				b.link.late = append(b.link.late, func() {
					if l, err := b.Backend.Acquire(context.Background(), &sent); err == nil {
						then(l)
					}
				})
			})
		}
		return l, err
	})
}

// mended waits until the link is mended.
func (b *broken) mended(ctx context.Context) {
	for ctx.Err() == nil && b.link.cutOff() {
		<-time.After(10 * time.Millisecond)
	}
}

// diesWithItsConnection plants a bug: a watch never signals again once its connection has broken.
func diesWithItsConnection(b *broken) {
	b.watch = func(ctx context.Context, key string) (<-chan struct{}, error) {
		return b.filtered(ctx, key, func() bool { return b.link.kills.Load() == 0 })
	}
}

// linked makes b a sound client over its link.
func (b *broken) linked() {
	b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
		if err := b.Info().Check("", req); err != nil {
			return nil, err
		}
		if err := b.link.to(ctx); err != nil {
			return nil, err
		}
		l, err := b.Backend.Acquire(ctx, req)
		if lost := b.link.from(ctx); lost != nil && err == nil {
			_ = l.Release(context.WithoutCancel(ctx))
			return nil, lost
		}
		return l, err
	}
	b.renew = func(ctx context.Context, l *brokenLease, r *driver.Renewal) (driver.Grant, error) {
		if err := b.link.to(ctx); err != nil {
			return driver.Grant{}, err
		}
		g, err := l.Lease.Renew(ctx, r)
		if lost := b.link.from(ctx); lost != nil && err == nil {
			return driver.Grant{}, lost
		}
		return g, err
	}
	b.release = func(ctx context.Context, l *brokenLease) error {
		ctx = context.WithoutCancel(ctx)
		if err := b.link.to(ctx); err != nil {
			return err
		}
		err := l.Lease.Release(ctx)
		if lost := b.link.from(ctx); lost != nil {
			return lost
		}
		return err
	}
}

// linkBugs show only under a fault.
var linkBugs = []bug{
	{name: "an attempt whose request was late is not undone", want: "cancel/cut-off", rule: "rule 2 | rule 7", over: overLinks, plant: func(b *broken) {
		arrivesLate(b, func(driver.Lease) {})
	}},
	{name: "a request that arrives late takes the lock for a moment", want: "link/late-request", rule: "rule 2", says: "counter", over: overLinks, plant: func(b *broken) {
		arrivesLate(b, func(l driver.Lease) { _ = l.Release(context.Background()) })
	}},
	{name: "a request that arrives late takes the lock, and it stays", want: "link/late-request", rule: "rule 2", over: overLinks, plant: func(b *broken) {
		arrivesLate(b, func(driver.Lease) {})
	}},
	{name: "a call waits for ever behind a link that hangs", want: "link/hung", rule: "driver.Backend.Acquire", says: "hangs", over: overLinks, plant: afterAcquire(func(ctx context.Context, b *broken, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
		if errors.Is(err, errBroken) {
			b.mended(ctx)
		}
		return l, err
	})},
	{name: "a connection for each call that hangs", want: "link/hung", rule: "rule 7", says: "grow", over: overLinks,
		harness: func(h *Harness) {
			var open atomic.Int64
			sound := h.Open
			h.Open = func() (driver.Backend, error) {
				b, err := sound()
				if err != nil {
					return nil, err
				}
				acquire := b.(*broken).acquire
				b.(*broken).acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
					l, err := acquire(ctx, req)
					if errors.Is(err, errBroken) {
						open.Add(1)
					}
					return l, err
				}
				return b, nil
			}
			h.Connections = func() (int, error) { return int(open.Load()), nil }
		}, plant: func(*broken) {}},
	{name: "Close waits for a link that hangs", want: "link/hung-close", rule: "driver.Backend.Close", says: "does not return", over: overLinks, plant: func(b *broken) {
		b.close = func() error {
			b.mended(context.Background())
			return b.Backend.Close()
		}
	}},
	{name: "a waiter that hangs keeps the lock", want: "link/silent-waiter", rule: "driver.Request.Wait", over: overLinks, plant: func(b *broken) {
		sound := b.acquire
		b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
			if !req.Wait || req.TTL > time.Second {
				return sound(ctx, req)
			}
			longer := *req
			longer.TTL = time.Hour
			return sound(ctx, &longer)
		}
	}},
	{name: "a lease dies with its connection", stress: true, want: "link/reset-lease", rule: "rule 1", over: overLinks, plant: func(b *broken) {
		sound := b.renew
		b.renew = func(ctx context.Context, l *brokenLease, r *driver.Renewal) (driver.Grant, error) {
			if b.link.kills.Load() > 0 {
				return driver.Grant{}, driver.ErrLost
			}
			return sound(ctx, l, r)
		}
	}},
	{name: "a watch does not survive a break", want: "link/reset-watch", rule: "driver.Watcher", over: overLinks, plant: diesWithItsConnection},
	{name: "a waiter is forgotten with its connection", want: "link/reset-waiter", rule: "driver.Request.Wait", over: overLinks, plant: afterAcquire(func(ctx context.Context, _ *broken, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
		if req.Wait && errors.Is(err, errBroken) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return l, err
	})},
	{name: "an outage is contention", stress: true, want: "fault/outage", rule: "rule 1", over: overLinks, plant: afterAcquire(func(ctx context.Context, _ *broken, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
		if errors.Is(err, errBroken) {
			err = &driver.HeldError{}
		}
		return l, err
	})},
	{name: "List needs no server", want: "fault/outage", rule: "driver.Inspector", says: "List", over: overLinks, plant: func(b *broken) {
		b.list = func(error) error { return nil }
	}},
	{name: "asks the server about misuse", want: "fault/outage", rule: "rule 4", over: overLinks, plant: func(b *broken) {
		sound := b.acquire
		b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
			if err := b.link.to(ctx); err != nil {
				return nil, err
			}
			return sound(ctx, req)
		}
	}},
	{name: "a broken connection is a loss", want: "fault/partition", rule: "rule 1", over: overLinks, plant: afterRenew(func(ctx context.Context, _ *broken, l *brokenLease, r *driver.Renewal, g driver.Grant, err error) (driver.Grant, error) {
		if errors.Is(err, errBroken) {
			err = driver.ErrLost
		}
		return g, err
	})},
	{name: "Expires counts from the answer", want: "fault/slow-expires", rule: "rule 3", over: overLinks, plant: func(b *broken) {
		b.answers(func(ctx context.Context, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
			if err != nil {
				return nil, err
			}
			late := &brokenLease{Lease: l, b: b, req: req, sent: *req}
			late.claim(req.TTL)
			return late, nil
		})
		b.grant = func(l *brokenLease, g driver.Grant) driver.Grant {
			if late := l.renewed.Swap(nil); late != nil {
				return *late
			}
			return g
		}
	}},
	{name: "what was not heard is not undone", want: "fault/lost-reply-acquire", rule: "rule", over: overLinks, plant: func(b *broken) {
		b.acquire = nil // which undoes
		b.answers(func(ctx context.Context, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
			if lost := b.link.from(context.WithoutCancel(ctx)); lost != nil && err == nil {
				return nil, lost
			}
			return l, err
		})
	}},
	{name: "what came too late is not undone", want: "fault/slow-deadline", rule: "rule", over: overLinks, plant: func(b *broken) {
		sound := b.acquire
		b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
			l, err := sound(context.WithoutCancel(ctx), req)
			if err == nil && ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return l, err
		}
	}},
	{name: "a release that was not heard frees another's lock later", want: "fault/lost-reply-release", rule: "exclusion", says: "while another's lease", over: overLinks, plant: func(b *broken) {
		sound := b.release
		b.release = func(ctx context.Context, l *brokenLease) error {
			if l.over.Load() {
				b.Expire(l.sent.Key)
			}
			err := sound(ctx, l)
			if errors.Is(err, errBroken) {
				l.over.Store(true)
			}
			return err
		}
	}},
}

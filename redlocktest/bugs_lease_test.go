package redlocktest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// brief is the timeout for cases that find a bug by waiting for something that never happens.
func brief(h *Harness) { h.Timeout = 4 * time.Second }

// leaseBugs concern concurrent calls of one lease, and data that is left behind.
var leaseBugs = []bug{
	{name: "Grant sees half of a renewal", want: "verdict/concurrent-lease", rule: "driver.Lease.Renew", says: "token 0", plant: func(b *broken) {
		b.renews(func(ctx context.Context, l *brokenLease, r *driver.Renewal, g driver.Grant, err error) (driver.Grant, error) {
			if err == nil {
				half := g
				half.Fence = 0
				l.renewed.Store(&half)
				time.Sleep(200 * time.Microsecond)
				l.renewed.Store(&g)
			}
			return g, err
		})
		b.grant = claimed
	}},
	{name: "Grant goes back beside a renewal", stress: true, want: "verdict/concurrent-lease", rule: "driver.Lease.Renew", says: "Expires", plant: func(b *broken) {
		var reads atomic.Int64
		b.grant = func(_ *brokenLease, g driver.Grant) driver.Grant {
			if reads.Add(1)%7 == 0 {
				g.Expires = g.Expires.Add(-time.Second)
			}
			return g
		}
	}},
	{name: "a Renew beside a Release takes the lock again", want: "verdict/renew-beside-release", rule: "driver.Lease.Renew", plant: onRenew(func(ctx context.Context, b *broken, l *brokenLease, r *driver.Renewal) (driver.Grant, error) {
		s, _ := b.Lookup(ctx, l.sent.Key)
		mine := s != nil && len(s.Holders) > 0 && s.Holders[0].Owner == l.sent.Owner
		time.Sleep(50 * time.Microsecond)
		g, err := l.Lease.Renew(ctx, r)
		if !mine || !errors.Is(err, driver.ErrLost) {
			return g, err
		}
		again, err := b.Backend.Acquire(ctx, &l.sent)
		if err != nil {
			return g, driver.ErrLost
		}
		return again.Grant(), nil
	})},
	{name: "the renewal of a lease that expired passes for the next owner's", want: "expiry/stale", rule: "driver.Lease.Renew", plant: func(b *broken) {
		expired(b, func(ctx context.Context, l *brokenLease, r *driver.Renewal) (driver.Grant, error) {
			if b.holder(ctx, l.sent.Key) == (driver.Holder{}) {
				return driver.Grant{}, driver.ErrLost
			}
			return l.grantUntil(r.TTL), nil
		})
	}},
	{name: "the renewal of a lease that expired takes a free lock", want: "expiry/revived", rule: "driver.Lease.Renew", plant: func(b *broken) {
		expired(b, func(ctx context.Context, l *brokenLease, _ *driver.Renewal) (driver.Grant, error) {
			again, err := b.Backend.Acquire(ctx, &l.sent)
			if err != nil {
				return driver.Grant{}, driver.ErrLost
			}
			return again.Grant(), nil
		})
	}},
	{name: "a connection leaked by each cancelled Acquire", want: "leak/connections-cancelled", rule: "rule 7", over: overConnections(func(b *broken, open *atomic.Int64) {
		b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
			if err := b.Info().Check("", req); err != nil {
				return nil, err
			}
			select {
			case <-time.After(100 * time.Microsecond):
			case <-ctx.Done():
				open.Add(1)
				return nil, ctx.Err()
			}
			return b.Backend.Acquire(ctx, req)
		}
	})},
	{name: "a connection leaked by each backend", want: "leak/connections-backend", rule: "rule 7", over: overConnections(func(b *broken, open *atomic.Int64) {
		open.Add(1)
	})},
	{name: "a goroutine for each lease", want: "leak/goroutines-lease", rule: "rule 7", says: "are held", alone: true, harness: brief, plant: func(b *broken) {
		b.answers(func(ctx context.Context, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
			if err != nil {
				return nil, err
			}
			got := &brokenLease{Lease: l, b: b, req: req, sent: *req, lost: make(chan struct{})}
			go func() { <-got.lost }()
			return got, nil
		})
		b.release = func(ctx context.Context, l *brokenLease) error {
			if !l.over.Swap(true) {
				close(l.lost)
			}
			return l.Lease.Release(ctx)
		}
	}},
	{name: "a goroutine left by each wait", want: "leak/waits", rule: "rule 7", says: "goroutines", alone: true, harness: brief, plant: func(b *broken) {
		closed := make(chan struct{})
		var once sync.Once
		b.watch = func(ctx context.Context, key string) (<-chan struct{}, error) {
			go func() { <-closed }()
			return b.Backend.Watch(ctx, key)
		}
		b.close = func() error {
			once.Do(func() { close(closed) })
			return b.Backend.Close()
		}
	}},
	{name: "a goroutine left by each lease", want: "leak/goroutines-lease", rule: "rule 7", says: "were released", alone: true, harness: brief, plant: func(b *broken) {
		closed := make(chan struct{})
		var once sync.Once
		b.release = func(ctx context.Context, l *brokenLease) error {
			go func() { <-closed }()
			return l.Lease.Release(ctx)
		}
		b.close = func() error {
			once.Do(func() { close(closed) })
			return b.Backend.Close()
		}
	}},
	{name: "a goroutine outlives Close", want: "watch/wakes", rule: "rule 7", says: "left after Close", alone: true, harness: brief, plant: onWatch(func(ctx context.Context, b *broken, key string) (<-chan struct{}, error) {
		go func() { <-time.After(time.Minute) }()
		return b.Backend.Watch(ctx, key)
	})},
	{name: "a call hangs until Close", want: "cancel/renew", rule: "driver.Backend.Acquire", says: "hangs", plant: func(b *broken) {
		closed := make(chan struct{})
		b.renews(func(ctx context.Context, _ *brokenLease, _ *driver.Renewal, g driver.Grant, err error) (driver.Grant, error) {
			if ctx.Err() != nil {
				<-closed
			}
			return g, err
		})
		b.close = sync.OnceValue(func() error { close(closed); return b.Backend.Close() })
	}},
	{name: "a call hangs, even after Close", want: "cancel/renew", rule: "driver.Backend.Acquire", says: "cancelledRenew", plant: afterRenew(func(ctx context.Context, _ *broken, _ *brokenLease, _ *driver.Renewal, g driver.Grant, err error) (driver.Grant, error) {
		if ctx.Err() != nil {
			<-time.After(time.Minute)
		}
		return g, err
	})},
	{name: "a panic", want: "shared/excluded", rule: "driver.Backend.Acquire", says: "panicked: not yet", plant: onAcquire(func(ctx context.Context, b *broken, req *driver.Request) (driver.Lease, error) {
		if req.Mode == driver.Shared {
			panic("not yet")
		}
		return b.Backend.Acquire(ctx, req)
	})},
	{name: "Release swallows its error", want: "fault/outage-release", rule: "driver.Lease.Release", says: "swallowed", over: overLinks, plant: func(b *broken) {
		sound := b.release
		b.release = func(ctx context.Context, l *brokenLease) error {
			_ = sound(ctx, l)
			return nil
		}
	}},
	{name: "an unknown layout is taken for a free lock", want: "fault/layout", rule: "rule 10", over: overLayouts(nil)},
	{name: "an unknown layout is taken for a held lock", want: "fault/layout", rule: "rule 10", says: "not ErrRefused", over: overLayouts(&driver.HeldError{})},
	{name: "the hooks of the harness do nothing", stress: true, want: "history/faults", rule: "a run that proves nothing", says: "had an effect", over: func(func(*broken)) Harness {
		h := overMemory(func(*broken) {})
		nothing := func(driver.Backend) error { return nil }
		h.Faults = &Faults{Partition: nothing, Heal: nothing}
		return h
	}},
	{name: "no reply is dropped", stress: true, want: "history/faults", rule: "a run that proves nothing", says: "had an effect", over: func(func(*broken)) Harness {
		h := overMemory(func(*broken) {})
		h.Faults = &Faults{DropReply: func(driver.Backend) error { return nil }}
		return h
	}},
}

// expired plants a bug in the renewal of a lease that ended by itself, and was not released.
func expired(b *broken, renew func(ctx context.Context, l *brokenLease, r *driver.Renewal) (driver.Grant, error)) {
	b.renews(func(ctx context.Context, l *brokenLease, r *driver.Renewal, g driver.Grant, err error) (driver.Grant, error) {
		if errors.Is(err, driver.ErrLost) && !l.over.Load() {
			return renew(ctx, l, r)
		}
		return g, err
	})
	b.release = func(ctx context.Context, l *brokenLease) error {
		l.over.Store(true)
		return l.Lease.Release(ctx)
	}
}

// overConnections opens clients that count their connections.
func overConnections(plant func(b *broken, open *atomic.Int64)) func(func(*broken)) Harness {
	return func(func(*broken)) Harness {
		var open atomic.Int64
		h := overMemory(func(b *broken) { plant(b, &open) })
		h.Connections = func() (int, error) { return int(open.Load()), nil }
		return h
	}
}

// overLayouts opens clients of a store that another release has written to, which then give an error,
// or go on.
func overLayouts(answer error) func(func(*broken)) Harness {
	return func(func(*broken)) Harness {
		var future atomic.Bool
		h := overMemory(func(b *broken) {
			b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
				if future.Load() && answer != nil {
					return nil, answer
				}
				return b.Backend.Acquire(ctx, req)
			}
		})
		h.FutureLayout = func() (func() error, error) {
			future.Store(true)
			return func() error { future.Store(false); return nil }, nil
		}
		return h
	}
}

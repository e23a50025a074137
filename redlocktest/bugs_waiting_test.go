package redlocktest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

var closedChannel = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// seizes grants the lock to every twentieth owner that was woken, even if another has it.
func seizes(b *broken, woken *atomic.Int64, req *driver.Request, err error) bool {
	if !errors.Is(err, driver.ErrHeld) || woken.Add(1)%20 != 0 {
		return false
	}
	b.Expire(req.Key)
	return true
}

// unqueuing is a backend that does not queue: its waiters watch.
type unqueuing struct{ *broken }

// Info leaves out that the backend queues and orders.
func (u unqueuing) Info() driver.Info {
	i := u.broken.Info()
	i.Features &^= driver.FeatureQueueing | driver.FeatureOrdered
	return i
}

func (u unqueuing) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	once := *req
	once.Wait = false
	return u.broken.Acquire(ctx, &once)
}

// overUnqueuing is like overMemory, for backends whose waiters watch.
func overUnqueuing(plant func(*broken)) Harness {
	h := overMemory(plant)
	open := h.Open
	h.Open = func() (driver.Backend, error) {
		b, err := open()
		return unqueuing{b.(*broken)}, err
	}
	return h
}

// waitingBugs concern waiters.
var waitingBugs = []bug{
	{name: "waiters use up the connections of their client", want: "wait/crowd", rule: "driver.Request.Wait", harness: brief, plant: func(b *broken) {
		pool := make(chan struct{}, 20)
		for range cap(pool) {
			pool <- struct{}{}
		}
		call := func(ctx context.Context, f func() error) error {
			select {
			case <-pool:
				defer func() { pool <- struct{}{} }()
				return f()
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		b.acquire = func(ctx context.Context, req *driver.Request) (l driver.Lease, err error) {
			if err := b.Info().Check("", req); err != nil {
				return nil, err
			}
			err = call(ctx, func() error {
				l, err = b.Backend.Acquire(ctx, req)
				return err
			})
			return l, err
		}
		b.release = func(ctx context.Context, l *brokenLease) error {
			if ctx.Err() != nil {
				ctx = context.WithoutCancel(ctx)
			}
			return call(ctx, func() error { return l.Lease.Release(ctx) })
		}
	}},
	{name: "one wake-up in twenty lets two in", stress: true, want: "wait/everyone", rule: "exclusion", says: "critical section", plant: func(b *broken) {
		var woken atomic.Int64
		b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
			if !req.Wait {
				return b.Backend.Acquire(ctx, req)
			}
			freed, err := b.Backend.Watch(ctx, req.Key)
			if err != nil {
				return nil, err
			}
			return b.waits(ctx, req, func() (<-chan struct{}, error) {
				if seizes(b, &woken, req, driver.ErrHeld) {
					return closedChannel, nil
				}
				return freed, nil
			})
		}
	}},
	{name: "one wake-up in twenty of a watch lets two in", stress: true, want: "watch/waiters", rule: "exclusion", says: "critical section", over: overLettingTwoIn},
	{name: "one wake-up in twenty lets two in, in a history", stress: true, want: "history/steady", rule: "linearizability | exclusion", tries: 30, over: overLettingTwoIn},
	{name: "the numbers of a key's queue end, and all later ones are equal", want: "history/steady", rule: "linearizability | exclusion | rule 8", tries: 30, over: overEqualNumbers},
	{name: "a shared waiter is never woken", want: "shared/waiters", rule: "driver.Request.Wait", plant: onAcquire(func(ctx context.Context, b *broken, req *driver.Request) (driver.Lease, error) {
		return b.sleeps(ctx, req, req.Mode == driver.Shared)
	})},
	{name: "a writer is never woken", want: "shared/writer-waits", rule: "driver.Request.Wait", plant: onAcquire(func(ctx context.Context, b *broken, req *driver.Request) (driver.Lease, error) {
		s, _ := b.Lookup(ctx, req.Key)
		return b.sleeps(ctx, req, req.Mode == driver.Exclusive && s != nil && s.Mode == driver.Shared)
	})},
	{name: "readers of one process starve a writer", stress: true, want: "shared/writer-starved", rule: "driver.FeatureQueueing", plant: func(b *broken) {
		(&readers{}).join(b)
	}},
	{name: "readers of several processes starve a writer", stress: true, want: "shared/writer-starved-clients", rule: "driver.FeatureQueueing", over: func(plant func(*broken)) Harness {
		all := &readers{}
		return overMemory(func(b *broken) { all.join(b) })
	}},
	{name: "writers starve a reader", want: "shared/reader-starved", rule: "driver.FeatureQueueing", plant: onAcquire(func(ctx context.Context, b *broken, req *driver.Request) (driver.Lease, error) {
		if req.Mode != driver.Shared {
			return b.Backend.Acquire(ctx, req)
		}
		return b.waits(ctx, req, func() (<-chan struct{}, error) { // beside a queue, which is never empty
			again := make(chan struct{})
			time.AfterFunc(time.Millisecond, func() { close(again) })
			return again, nil
		})
	})},
	{name: "readers are woken one by one", want: "shared/waiters", rule: "driver.Request.Wait", over: func(func(*broken)) Harness {
		var turns sync.Map // by key
		turn := func(key string) chan struct{} {
			t, _ := turns.LoadOrStore(key, make(chan struct{}, 1))
			return t.(chan struct{})
		}
		return overMemory(func(b *broken) {
			b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
				if !req.Wait || req.Mode != driver.Shared {
					return b.Backend.Acquire(ctx, req)
				}
				select {
				case turn(req.Key) <- struct{}{}:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
				l, err := b.Backend.Acquire(ctx, req)
				if err != nil {
					<-turn(req.Key)
				}
				return l, err
			}
			b.release = func(ctx context.Context, l *brokenLease) error {
				if l.sent.Wait && l.sent.Mode == driver.Shared && !l.over.Swap(true) {
					defer func() { <-turn(l.sent.Key) }()
				}
				return l.Lease.Release(ctx)
			}
		})
	}},
	{name: "Watch returns before it has subscribed", want: "watch/wakes", rule: "driver.Watcher", plant: onWatch(func(ctx context.Context, b *broken, key string) (<-chan struct{}, error) {
		out := make(chan struct{}, 1)
		go func() {
			time.Sleep(time.Millisecond)
			if in, err := b.Backend.Watch(ctx, key); err == nil {
				forward(ctx, in, out, func() bool { return true })
			}
		}()
		return out, nil
	})},
	{name: "Watch is silent on expiry", want: "expiry/watch", rule: "driver.Watcher", plant: func(b *broken) {
		var releases, told atomic.Int64
		b.release = func(ctx context.Context, l *brokenLease) error {
			releases.Add(1)
			return l.Lease.Release(ctx)
		}
		b.answers(func(ctx context.Context, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
			var he *driver.HeldError
			if errors.As(err, &he) {
				he.RetryAfter = 0
			}
			return l, err
		})
		b.watch = func(ctx context.Context, key string) (<-chan struct{}, error) {
			return b.filtered(ctx, key, func() bool { n := releases.Load(); return told.Swap(n) != n })
		}
	}},
	{name: "a waiter only polls", want: "wait/wakes", rule: "driver.Request.Wait", says: "noticed", plant: func(b *broken) {
		b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
			for once := *req; ; <-time.After(time.Second) {
				once.Wait = false
				l, err := b.Backend.Acquire(ctx, &once)
				if err == nil || !req.Wait || ctx.Err() != nil {
					return l, err
				}
			}
		}
	}},
	{name: "every third watch signals by a timer alone", want: "watch/wakes", rule: "driver.Watcher", says: "noticed", over: func(func(*broken)) Harness {
		var watches atomic.Int64
		return overUnqueuing(onWatch(func(ctx context.Context, b *broken, key string) (<-chan struct{}, error) {
			if watches.Add(1)%3 != 0 {
				return b.Backend.Watch(ctx, key)
			}
			signal := make(chan struct{}, 1)
			time.AfterFunc(2*time.Second, func() { signal <- struct{}{} })
			return signal, nil
		}))
	}},
	{name: "a watch does not survive a restart", want: "fault/restart-watch", rule: "driver.Watcher", over: overLinks, plant: diesWithItsConnection},
	{name: "a watch misses what happened behind a partition", want: "fault/partition-watch", rule: "driver.Watcher", over: overLinks, plant: onWatch(func(ctx context.Context, b *broken, key string) (<-chan struct{}, error) {
		return b.filtered(ctx, key, func() bool { return !b.link.cutOff() })
	})},
}

// overLettingTwoIn grants the lock to every twentieth owner that a watch woke, even if another
// has it.
func overLettingTwoIn(func(*broken)) Harness {
	var woken atomic.Int64
	return overUnqueuing(func(b *broken) { letsTwoIn(b, &woken) })
}

func letsTwoIn(b *broken, woken *atomic.Int64) {
	var watched sync.Map
	b.watch = func(ctx context.Context, key string) (<-chan struct{}, error) {
		watched.Store(key, true)
		return b.Backend.Watch(ctx, key)
	}
	b.answers(func(ctx context.Context, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
		if _, ok := watched.Load(req.Key); ok && seizes(b, woken, req, err) {
			return b.Backend.Acquire(ctx, req)
		}
		return l, err
	})
}

// overEqualNumbers numbers the owners of a key. After the last number all have the same one, so that
// each is the first in the queue.
func overEqualNumbers(func(*broken)) Harness {
	const last = 64
	var mu sync.Mutex
	numbers := map[string]int{}
	return overMemory(func(b *broken) {
		b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
			mu.Lock()
			numbers[req.Key]++
			over := numbers[req.Key] > last
			mu.Unlock()
			if over {
				return memory.New().Acquire(ctx, req)
			}
			return b.Backend.Acquire(ctx, req)
		}
	})
}

// sleeps lets a waiting request sleep until its context ends, if whom is true.
func (b *broken) sleeps(ctx context.Context, req *driver.Request, whom bool) (driver.Lease, error) {
	if !req.Wait || !whom {
		return b.Backend.Acquire(ctx, req)
	}
	once := *req
	once.Wait = false
	l, err := b.Backend.Acquire(ctx, &once)
	if !errors.Is(err, driver.ErrHeld) {
		return l, err
	}
	<-ctx.Done()
	return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
}

// forward forwards the values that passes accepts.
func forward(ctx context.Context, in <-chan struct{}, out chan<- struct{}, passes func() bool) {
	for {
		select {
		case <-in:
		case <-ctx.Done():
			return
		}
		if passes() {
			select {
			case out <- struct{}{}:
			default:
			}
		}
	}
}

// readers let all readers share one lease: a later reader joins it, even if a writer waits.
type readers struct {
	mu     sync.Mutex
	shares map[string]*share
}

type share struct {
	lease driver.Lease
	n     int
}

func (r *readers) join(b *broken) {
	b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
		if req.Mode != driver.Shared || b.Info().Check("", req) != nil || ctx.Err() != nil {
			return b.Backend.Acquire(ctx, req)
		}
		r.mu.Lock()
		s := r.shares[req.Key]
		if s != nil {
			s.n++
			r.mu.Unlock()
			return &brokenLease{Lease: s.lease, b: b, req: req, sent: *req}, nil
		}
		r.mu.Unlock()
		l, err := b.Backend.Acquire(ctx, req)
		if err != nil {
			return nil, err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.shares == nil {
			r.shares = map[string]*share{}
		}
		if r.shares[req.Key] == nil {
			r.shares[req.Key] = &share{lease: l, n: 1}
		}
		return &brokenLease{Lease: l, b: b, req: req, sent: *req}, nil
	}
	b.release = func(ctx context.Context, l *brokenLease) error {
		r.mu.Lock()
		s := r.shares[l.sent.Key]
		last := s == nil || s.lease != l.Lease
		if !last && !l.over.Swap(true) {
			if s.n--; s.n == 0 {
				delete(r.shares, l.sent.Key)
				last = true
			}
		}
		r.mu.Unlock()
		if !last {
			return nil
		}
		return l.Lease.Release(ctx)
	}
}

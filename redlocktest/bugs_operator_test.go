package redlocktest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

// viewed is a broken backend with bugs in what it says of itself and of locks, and in Break.
type viewed struct {
	*broken
	info   func(driver.Info) driver.Info
	state  func(*driver.State)
	prefix func(string) string
	breaks func(ctx context.Context, key string, fence uint64) error
}

func (v *viewed) Info() driver.Info {
	if v.info == nil {
		return v.broken.Info()
	}
	return v.info(v.broken.Info())
}

func (v *viewed) Lookup(ctx context.Context, key string) (*driver.State, error) {
	s, err := v.broken.Lookup(ctx, key)
	if err == nil && v.state != nil {
		v.state(s)
	}
	return s, err
}

func (v *viewed) List(ctx context.Context, prefix string, yield func(*driver.State) bool) error {
	if v.prefix != nil {
		prefix = v.prefix(prefix)
	}
	return v.broken.List(ctx, prefix, yield)
}

func (v *viewed) Break(ctx context.Context, key string, h driver.Holder) error {
	if v.breaks != nil {
		return v.breaks(ctx, key, h.Fence)
	}
	return v.broken.Break(ctx, key, h)
}

// inView makes the harness for a bug of a viewed backend.
func inView(plant func(*viewed)) func(func(*broken)) Harness {
	return func(func(*broken)) Harness {
		h := overMemory(func(*broken) {})
		open := h.Open
		h.Open = func() (driver.Backend, error) {
			b, err := open()
			if err != nil {
				return nil, err
			}
			v := &viewed{broken: b.(*broken)}
			plant(v)
			return v, nil
		}
		return h
	}
}

// blind hides from a backend that a context has ended in this way.
func blind(b *broken, to error) {
	b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
		if errors.Is(ctx.Err(), to) {
			ctx = context.WithoutCancel(ctx)
		}
		return b.Backend.Acquire(ctx, req)
	}
}

// firstRelease plants a bug: a lease that no call has told of its loss frees whoever has the key.
func firstRelease(b *broken) {
	b.renews(func(ctx context.Context, l *brokenLease, r *driver.Renewal, g driver.Grant, err error) (driver.Grant, error) {
		if errors.Is(err, driver.ErrLost) {
			l.over.Store(true)
		}
		return g, err
	})
	b.release = func(_ context.Context, l *brokenLease) error {
		if !l.over.Swap(true) {
			b.Expire(l.sent.Key)
		}
		return nil
	}
}

// aside plants a bug: while a lock is being broken its key is free to others for a moment, as if its
// file were put aside and put back.
func aside(plant func(*broken)) Harness {
	var breaking atomic.Pointer[string]
	free := memory.New()
	return inView(func(v *viewed) {
		v.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
			if key := breaking.Load(); key != nil && *key == req.Key {
				return free.Acquire(ctx, req)
			}
			return v.Backend.Acquire(ctx, req)
		}
		v.breaks = func(ctx context.Context, key string, fence uint64) error {
			breaking.Store(&key)
			time.Sleep(time.Millisecond)
			breaking.Store(nil)
			return v.broken.Break(ctx, key, driver.Holder{Fence: fence})
		}
	})(plant)
}

// operatorBugs concern what a backend says of itself and of locks, the operator's actions, and the
// ends of contexts, leases and backends.
var operatorBugs = []bug{
	{name: "Info changes", want: "basic/info", rule: "driver.Info", over: inView(func(v *viewed) {
		var calls atomic.Int64
		v.info = func(i driver.Info) driver.Info {
			i.MinTTL += time.Duration(calls.Add(1))
			return i
		}
	})},
	{name: "tokens without the feature", want: "basic/grant", rule: "rule 8", over: inView(func(v *viewed) {
		v.info = func(i driver.Info) driver.Info {
			i.Features &^= driver.FeatureFencing | driver.FeatureQuorumNode
			return i
		}
	})},
	{name: "Lookup names another holder", want: "operator/lookup", rule: "driver.Inspector", over: inView(func(v *viewed) {
		v.state = func(s *driver.State) {
			for i := range s.Holders {
				s.Holders[i].Owner = ownerLabel + "somebody"
			}
		}
	})},
	{name: "a node never answers Lookup, and the others miss the holder", want: "operator/lookup", rule: "driver.Inspector", over: inView(func(v *viewed) {
		v.state = func(s *driver.State) {
			s.Holders, s.Nodes = nil, []driver.NodeState{{Node: "silent", Err: "did not answer in time"}}
		}
	})},
	{name: "Lookup misses one of the readers", want: "operator/lookup", rule: "driver.Inspector", over: inView(func(v *viewed) {
		v.state = func(s *driver.State) {
			if s.Mode == driver.Shared {
				s.Holders = s.Holders[1:]
			}
		}
	})},
	{name: "Break takes the key from all readers", stress: true, want: "operator/break-reader", rule: "driver.Shared", over: inView(func(v *viewed) {
		v.breaks = func(ctx context.Context, key string, fence uint64) error {
			err := v.broken.Break(ctx, key, driver.Holder{Fence: fence})
			if s, _ := v.broken.Lookup(ctx, key); err == nil && s.Mode == driver.Shared {
				v.Expire(key)
			}
			return err
		}
	})},
	{name: "List takes a longer prefix for no prefix", want: "operator/list", rule: "driver.Inspector", over: inView(func(v *viewed) {
		v.prefix = func(prefix string) string { return prefix[:len(prefix)-2] }
	})},
	{name: "Break ignores the token", want: "operator/break", rule: "driver.Admin", over: inView(func(v *viewed) {
		v.breaks = func(ctx context.Context, key string, fence uint64) error {
			if s, err := v.broken.Lookup(ctx, key); err == nil && len(s.Holders) > 0 {
				fence = s.Holders[0].Fence
			}
			return v.broken.Break(ctx, key, driver.Holder{Fence: fence})
		}
	})},
	{name: "Break looks at the token, and then takes the lock from anybody", want: "operator/break-beside", rule: "exclusion", says: "critical section", tries: 30, over: inView(func(v *viewed) {
		v.breaks = func(ctx context.Context, key string, fence uint64) error {
			if v.broken.holder(ctx, key).Fence != fence {
				return driver.ErrLost
			}
			time.Sleep(time.Millisecond)
			v.broken.Expire(key)
			return nil
		}
	})},
	{name: "a Break beside a grant lets two in", want: "operator/break-beside", rule: "exclusion", says: "critical section", tries: 30, over: aside},
	{name: "the Release of a broken lease frees the next owner's lock", want: "operator/break-beside", rule: "exclusion", says: "critical section", plant: firstRelease},
	{name: "a cancelled context is not seen", want: "cancel/before", rule: "driver.Backend.Acquire", says: "context canceled", plant: func(b *broken) { blind(b, context.Canceled) }},
	{name: "a deadline that is over is not seen", want: "cancel/deadline-before", rule: "driver.Backend.Acquire", says: "context deadline exceeded", plant: func(b *broken) { blind(b, context.DeadlineExceeded) }},
	{name: "a second Close fails", want: "close/after", rule: "driver.Backend.Close", plant: func(b *broken) {
		var closed atomic.Bool
		b.close = func() error {
			if closed.Swap(true) {
				return errors.New("closed already")
			}
			return b.Backend.Close()
		}
	}},
	{name: "what is granted while Close begins is refused, and stays", want: "close/busy", rule: "rule 7 | rule 2", harness: brief, plant: func(b *broken) {
		var closed atomic.Bool
		b.close = func() error {
			closed.Store(true)
			return b.Backend.Close()
		}
		b.answers(func(ctx context.Context, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
			if err != nil {
				return nil, err
			}
			time.Sleep(rand.N(100 * time.Microsecond))
			if closed.Load() {
				return nil, driver.ErrClosed
			}
			return l, nil
		})
	}},
	{name: "a Close that takes long leaves what was in doubt", want: "close/busy", rule: "rule 7 | rule 2", harness: brief, plant: func(b *broken) {
		var closed atomic.Bool
		b.close = func() error {
			closed.Store(true)
			time.Sleep(time.Second)
			return b.Backend.Close()
		}
		b.answers(func(ctx context.Context, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
			if time.Sleep(rand.N(100 * time.Microsecond)); err == nil && closed.Load() {
				return nil, driver.ErrClosed
			}
			return l, err
		})
	}},
	{name: "Close drops the locks", want: "close/leases", rule: "exclusion", says: "while another's lease", plant: func(b *broken) {
		var keys sync.Map
		b.answers(func(ctx context.Context, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
			if err == nil {
				keys.Store(req.Key, true)
			}
			return l, err
		})
		b.close = func() error {
			keys.Range(func(key, _ any) bool { b.Expire(key.(string)); return true })
			return b.Backend.Close()
		}
	}},
	{name: "an owner without a name", want: "request/misuse", rule: "rule 4", plant: onAcquire(func(ctx context.Context, b *broken, req *driver.Request) (driver.Lease, error) {
		named := *req
		if named.Owner == "" {
			named.Owner = "somebody"
		}
		return b.Backend.Acquire(ctx, &named)
	})},
	{name: "a renewal takes any TTL", want: "request/renewal-ttl-bounds", rule: "rule 4", plant: onRenew(func(ctx context.Context, b *broken, l *brokenLease, r *driver.Renewal) (driver.Grant, error) {
		fit := *r
		fit.TTL = min(max(r.TTL, b.Info().MinTTL), b.Info().MaxTTL)
		return l.Lease.Renew(ctx, &fit)
	})},
	{name: "the renewal of a lease that was released is an outage", want: "verdict/lost", rule: "driver.Lease.Renew", says: "gave no certain answer", plant: afterRenew(func(ctx context.Context, _ *broken, l *brokenLease, r *driver.Renewal, g driver.Grant, err error) (driver.Grant, error) {
		if errors.Is(err, driver.ErrLost) {
			err = errors.New("no such lock")
		}
		return g, err
	})},
	{name: "a watch has room for ten values", want: "watch/channel", rule: "driver.Watcher", says: "capacity", plant: onWatch(func(ctx context.Context, b *broken, key string) (<-chan struct{}, error) {
		in, err := b.Backend.Watch(ctx, key)
		out := make(chan struct{}, 10)
		go forward(ctx, in, out, func() bool { return true })
		return out, err
	})},
	{name: "one watch of a key gets all values", want: "watch/many", rule: "driver.Watcher", plant: func(b *broken) {
		var first sync.Map
		b.watch = func(ctx context.Context, key string) (<-chan struct{}, error) {
			if _, watched := first.LoadOrStore(key, true); watched {
				return make(chan struct{}, 1), nil
			}
			return b.Backend.Watch(ctx, key)
		}
	}},
	{name: "the end of a lease wakes nobody", want: "expiry/waiter", rule: "rule 3", says: "did not become free", plant: onAcquire(func(ctx context.Context, b *broken, req *driver.Request) (driver.Lease, error) {
		s, _ := b.Lookup(ctx, req.Key)
		return b.sleeps(ctx, req, s != nil && len(s.Holders) > 0 && s.Holders[0].TTL < time.Second)
	})},
}

package redlocktest

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/redlock-go/redlock/driver"
)

var watchCases = []testCase{
	{name: "wakes", needs: []condition{watches}, do: watchWakes},
	{name: "channel", needs: []condition{watches}, do: watchChannel},
	{name: "many", needs: []condition{watches}, do: watchMany},
	{name: "waiters", needs: []condition{watches}, do: watchWaiters},
}

func (r *run) watch(ctx context.Context, b driver.Backend, key string) (ch <-chan struct{}) {
	v, _, err := r.settle(watching, "Watch", func() (err error) {
		ch, err = b.(driver.Watcher).Watch(ctx, key)
		return err
	})
	if v != granted || ch == nil {
		r.fatal(watching, "Watch gives a channel: %v, and %v: %v", ch != nil, v, err)
	}
	return ch
}

// value waits for a value of a watch.
func (r *run) value(ch <-chan struct{}, why string) {
	select {
	case _, ok := <-ch:
		if !ok {
			r.fatal(watching, "the channel is closed")
		}
	case <-r.ctx.Done():
		r.fatal(watching, "no value came after %s", why)
	}
}

// watchWakes subscribes and then frees the key, from the same client and from another one, in some
// rounds just when Watch returns: a driver that subscribes later misses the release.
func watchWakes(r *run) {
	a, b := r.pair()
	r.wakes(30, watching, func(i int) time.Time {
		key := r.key()
		l := r.grant(a, driver.Request{Key: key})
		ctx, cancel := context.WithCancel(r.ctx)
		defer cancel()
		ch := r.watch(ctx, []driver.Backend{a, b}[i%2], key)
		if i%4 > 1 {
			r.pause(rand.N(time.Millisecond))
		}
		r.release(l)
		released := time.Now()
		r.value(ch, "the lock was released: Watch must subscribe before it returns")
		r.free(b, key)
		return released
	})
}

func watchChannel(r *run) {
	a, b := r.pair()
	key := r.key()
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	ch := r.watch(ctx, b, key)
	if cap(ch) != 1 {
		r.record(watching, "the channel's capacity is %d", cap(ch))
	}
	for range 5 { // nobody reads: values coalesce, and nothing blocks
		r.release(r.grant(a, driver.Request{Key: key}))
	}
	r.value(ch, "five releases")
	cancel()
	ended, stop := context.WithTimeout(r.ctx, 20*time.Millisecond)
	defer stop()
	for {
		select {
		case _, ok := <-ch:
			if !ok {
				r.fatal(watching, "the channel is closed after its context has ended")
			}
			continue
		case <-ended.Done():
		}
		return
	}
}

// watchMany checks that each watch of a key gets a value of its own, and that releases of other
// keys do not count.
func watchMany(r *run) {
	a, b := r.pair()
	keys := []string{r.key(), r.key(), r.key()}
	leases := make([]*lease, len(keys))
	var chans [][]<-chan struct{}
	for i, key := range keys {
		leases[i] = r.grant(a, driver.Request{Key: key})
		chans = append(chans, []<-chan struct{}{r.watch(r.ctx, b, key), r.watch(r.ctx, b, key), r.watch(r.ctx, a, key)})
	}
	for i := range keys {
		r.release(leases[i])
		for _, ch := range chans[i] {
			r.value(ch, "the lock was released")
		}
	}
}

// watchUntil acquires as package dlock does with a Watcher: it tries, watches, tries again, and
// sleeps until a signal comes or the lock that it saw ends by itself.
func (r *run) watchUntil(b driver.Backend, req driver.Request) *lease {
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	var signal <-chan struct{}
	var last error
	for {
		l, err := r.try(b, req)
		last = r.latest(last, err)
		pause := poll
		switch v := r.saw(err); v {
		case granted:
			return l
		case held:
			if signal == nil {
				signal = r.watch(ctx, b, req.Key)
				continue // the lock may have been released earlier
			}
			pause = r.left()
			var he *driver.HeldError
			switch errors.As(err, &he); {
			case he != nil && he.PollAfter > 0:
				pause = min(pause, he.PollAfter)
			case he != nil && he.RetryAfter > 0:
				pause = min(pause, he.RetryAfter+time.Millisecond)
			}
		case later, unknown:
		default:
			r.fatal(fourOutcomes, "Acquire gives %v: %v", v, err)
		}
		t := time.NewTimer(pause)
		select {
		case <-signal:
		case <-t.C:
		case <-r.ctx.Done():
		}
		t.Stop()
		if r.ctx.Err() != nil {
			r.fatal(watching, "an owner that watches key %q was not woken before the case's time was over, though the key came free; the last verdict: %v", short(req.Key), last)
		}
	}
}

// watchWaiters lets owners of several processes wait as package dlock does, one per process,
// and checks that all of them get the lock, each alone.
func watchWaiters(r *run) {
	const n = 5
	clients, key := r.clients(n), r.key()
	get := func(i int) *lease { return r.watchUntil(clients[i], driver.Request{Key: key}) }
	r.serial(n, r.h.times(30), get, r.rising())
}

// watchExpiry checks that a watcher learns of the end of a lease, by a value or by RetryAfter
// in the verdict before, so that it does not wait for a dead holder.
func watchExpiry(r *run) {
	_, b, key, old := r.holding(driver.Request{TTL: r.short()})
	ch := r.watch(r.ctx, b, key)
	_, err := r.try(b, driver.Request{Key: key})
	var he *driver.HeldError
	if !errors.As(err, &he) {
		r.startOver("a lease of %v was over before anybody else tried: %v", old.last().ttl, err)
	}
	if he.RetryAfter > 0 || he.ReservedForWaiter {
		r.eventually(b, driver.Request{Key: key})
		return
	}
	kept := r.kept(old.last())
	select {
	case <-ch:
	case <-time.After(kept + r.limit/4):
		r.fatal(watching, "a lock ended by its TTL of %v: neither did a value come, nor had the verdict before a RetryAfter", old.last().ttl)
	}
}

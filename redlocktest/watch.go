package redlocktest

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/redlock-go/redlock/driver"
)

var watchCases = []testCase{
	{name: "wakes", do: watchWakes},
	{name: "channel", do: watchChannel},
	{name: "many", do: watchMany},
}

func (r *run) watcher(b driver.Backend) driver.Watcher {
	w, ok := b.(driver.Watcher)
	if !ok {
		r.skip("%s is no driver.Watcher", r.info.Name)
	}
	return w
}

func (r *run) watch(ctx context.Context, b driver.Backend, key string) <-chan struct{} {
	for {
		ch, err := r.watcher(b).Watch(ctx, key)
		switch v := r.saw(err); {
		case v == granted && ch == nil:
			r.fatal(watching, "Watch returned neither a channel nor an error")
		case v == granted:
			return ch
		case v != unknown && v != later:
			r.fatal(watching, "Watch gives %v: %v", v, err)
		}
		if !r.pause(poll) {
			r.fatal(watching, "Watch fails: %v", err)
		}
	}
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

// watchWakes subscribes and then frees the key, from the same client and from
// another one.
func watchWakes(r *run) {
	a, b := r.pair()
	for i := range 30 {
		key := r.key()
		l := r.grant(a, driver.Request{Key: key})
		ctx, cancel := context.WithCancel(r.ctx)
		ch := r.watch(ctx, []driver.Backend{a, b}[i%2], key)
		r.pause(rand.N(time.Millisecond))
		r.release(l)
		r.value(ch, "the lock was released")
		r.free(b, key)
		cancel()
	}
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

// watchMany: each watch of a key has a value of its own, and other keys' releases
// replace none.
func watchMany(r *run) {
	a, b := r.pair()
	keys := []string{r.key(), r.key(), r.key()}
	leases := make([]driver.Lease, len(keys))
	var chans [][]<-chan struct{}
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	for i, key := range keys {
		leases[i] = r.grant(a, driver.Request{Key: key})
		chans = append(chans, []<-chan struct{}{r.watch(ctx, b, key), r.watch(ctx, b, key), r.watch(ctx, a, key)})
	}
	for i := range keys {
		r.release(leases[i])
		for _, ch := range chans[i] {
			r.value(ch, "the lock was released")
		}
	}
}

package redlocktest

import (
	"context"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// linkCases are those in which the link of one client hangs, or breaks, while all others' links
// work.
var linkCases = []testCase{
	{name: "late-request", needs: []condition{partitions}, do: lateRequest},
	{name: "hung", needs: []condition{partitions}, do: hungLink},
	{name: "hung-close", needs: []condition{partitions}, do: hungClose},
	{name: "silent-waiter", ttl: true, needs: []condition{partitions}, do: silentWaiter},
	{name: "reset-lease", without: driver.FeatureSession, needs: []condition{resets}, do: resetLease},
	{name: "reset-watch", needs: []condition{watches, resets}, do: resetWatch},
	{name: "reset-waiter", needs: []condition{resets}, do: resetWaiter},
}

// cutOff lets nothing pass between b and the servers until heal is called.
func (r *run) cutOff(b driver.Backend) (heal func()) {
	f := r.h.Faults
	return r.inject(func() error { return f.Partition(b) }, func() error { return f.Heal(b) })
}

// reset breaks the connections of b.
func (r *run) reset(b driver.Backend) {
	r.must(r.h.Faults.Reset(b), "break the connections")
}

// lateRequest: a request that reaches the servers long after its caller has given up leaves no
// lock. A quorum's node must not take the key even for a moment, as its counter shows. In other
// backends the clean-up may come before the request, and then the TTL ends the lock.
func lateRequest(r *run) {
	a, b := r.pair()
	key, node := r.key(), r.info.Features.Has(driver.FeatureQuorumNode)
	req := driver.Request{Key: key}
	if !node && r.info.MaxTTL != 0 {
		req.TTL = r.short()
	}
	r.release(r.grant(a, driver.Request{Key: r.key()})) // it is connected
	heal := r.cutOff(a)
	ctx, cancel := context.WithTimeout(r.ctx, 50*time.Millisecond)
	_, err := r.tryCtx(ctx, a, req)
	cancel()
	r.outcomeUnknown("Acquire behind a partition", err)
	last := uint64(0)
	if node {
		r.pause(time.Second) // the server's clock is known to within less
		l := r.grant(b, driver.Request{Key: key})
		last = l.Grant().Fence
		r.release(l)
	}
	heal()
	r.release(r.eventually(a, driver.Request{Key: r.key()}))
	r.close(a) // the clean-up has come to its end
	if node {
		r.untouched(b, key, last)
	}
	r.nothingStored(b, key)
	r.free(b, key)
}

// untouched asserts that no owner took the key of a quorum's node after the one with token
// last: the key's counter is not above last.
func (r *run) untouched(b driver.Backend, key string, last uint64) {
	for doubtful := false; ; {
		l, err := r.try(b, driver.Request{Key: key, ExactFence: last})
		switch v := r.saw(err); {
		case v == granted:
			r.release(l)
			return
		case v == unknown:
			doubtful = true
		case v == later, v == held && doubtful: // by the attempt before, until it is undone
		default:
			r.fatal(undoes, "a request that arrived a second after its caller's deadline took the key: the counter is above %d, the token of the last owner: %v", last, err)
		}
		if !r.pause(poll) {
			r.fatal(undoes, "key %q could not be asked for before the case's time was over: %v", short(key), err)
		}
	}
}

// hungLink: behind a link that carries nothing each call returns by itself, without a verdict.
// The calls share connections: with one connection for each call, many clients would bring the
// server down.
func hungLink(r *run) {
	a, b := r.pair()
	r.release(r.grant(a, driver.Request{Key: r.key()}))
	const callers = 40
	connections := r.suite.connections()
	if connections == nil {
		connections = func() (int, error) { return 0, nil }
	}
	heal := r.cutOff(a)
	keys := make([]string, callers)
	if left, grew := r.grows(connections, callers/2, func() {
		r.together(callers, func(i int) {
			keys[i] = r.key()
			_, err := r.tryCtx(context.WithoutCancel(r.ctx), a, driver.Request{Key: keys[i]})
			r.outcomeUnknown("Acquire behind a link that hangs", err)
		})
	}); grew {
		r.suspect(noLeaks, "behind a link that hangs the connections grow with every %d calls, to %d", callers, left)
	}
	heal()
	r.release(r.eventually(a, driver.Request{Key: r.key()}))
	for _, key := range keys {
		r.free(b, key)
	}
}

// hungClose: Close returns behind a link that carries nothing, and so do the calls that are under
// way.
func hungClose(r *run) {
	a, b := r.client(), r.open()
	key := r.key()
	l := r.grant(a, driver.Request{Key: key})
	r.release(r.grant(b, driver.Request{Key: r.key()}))
	r.cutOff(b)
	calls := r.async(func() {
		r.together(6, func(i int) {
			_, err := r.tryCtx(context.WithoutCancel(r.ctx), b, driver.Request{Key: key, Wait: i%2 == 0})
			if v := r.saw(err); v != closed && v != unknown && v != later {
				r.fatal(closing, "a call that was under way at Close gives %v behind a link that hangs: %v", v, err)
			}
		})
	})
	r.pause(5 * time.Millisecond)
	over := r.async(func() {
		if err := b.Close(); err != nil {
			r.note("Close behind a link that hangs gives %v", err)
		}
	})
	r.await(over, closing, "Close does not return behind a link that hangs")
	r.await(calls, closing, "a call that was under way at Close does not return behind a link that hangs")
	r.join(calls)
	r.release(l)
}

// resetLease: a lease does not live in a connection: a break loses nothing.
func resetLease(r *run) {
	a, b, key, l := r.holding(driver.Request{})
	for range 3 {
		r.reset(a)
		r.renew(l, driver.Renewal{})
		r.reset(a)
		r.refuse(b, driver.Request{Key: key}, l)
	}
	r.reset(a)
	r.release(l)
	r.release(r.again(b, key))
}

// resetWatch: a watch signals a release during or after a break of its connection.
func resetWatch(r *run) {
	a, b := r.pair()
	key := r.key()
	ch := r.watch(r.ctx, b, key)
	for range 3 {
		l := r.grant(a, driver.Request{Key: key})
		r.valueAfter(ch, func() { r.reset(b); r.release(l) }, "the lock was released right after the watch's connection had broken")
	}
}

// resetWaiter: a waiter goes on waiting after its connections broke several times.
func resetWaiter(r *run) {
	_, b, key, l := r.holding(driver.Request{})
	woken := r.async(func() { r.release(r.asDlock(b, driver.Request{Key: key})) })
	for range 3 {
		r.pause(20 * time.Millisecond)
		r.reset(b)
	}
	r.release(l)
	r.join(woken)
}

// asDlock acquires as package dlock does: by a waiting call if the backend queues, else after
// signals if it can watch, else by polling.
func (r *run) asDlock(b driver.Backend, req driver.Request) *lease {
	if _, ok := b.(driver.Watcher); ok && !r.info.Features.Has(driver.FeatureQueueing) {
		return r.watchUntil(b, req)
	}
	req.Wait = true
	l, _ := r.eventuallyRule(waiting, b, req, nil)
	return l
}

// silentWaiter: two waiters are first in the queue: one is closed, and the link of the other
// hangs. They may delay the next waiter, by their TTL at most, but do not keep the lock from it.
func silentWaiter(r *run) {
	a, silent := r.pair()
	gone, alive, key := r.open(), r.open(), r.key()
	l := r.grant(a, driver.Request{Key: key})
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	queue := func(b driver.Backend) (unheard <-chan struct{}) {
		unheard = r.async(func() {
			_, _ = r.tryCtx(ctx, b, driver.Request{Key: key, TTL: r.short(), Wait: true})
		})
		if _, ok := b.(driver.Watcher); ok {
			r.watch(ctx, b, key)
			_, _ = r.try(b, driver.Request{Key: key, TTL: r.short()})
		}
		r.pause(20 * time.Millisecond)
		return unheard
	}
	first, second := queue(gone), queue(silent)
	woken := r.async(func() { r.release(r.asDlock(alive, driver.Request{Key: key})) })
	r.pause(20 * time.Millisecond)
	heal := r.cutOff(silent)
	r.close(gone)
	r.release(l)
	r.await(woken, waiting, "a waiter whose link hangs keeps the lock from the next one: it was released, and nobody has got it")
	cancel()
	heal()
	r.join(first)
	r.join(second)
	r.join(woken)
	r.free(a, key)
}

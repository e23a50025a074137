package redlocktest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

var waitCases = []testCase{
	{name: "wakes", after: "cancel/waiting", do: waitWakes},
	{name: "cancelled-gets-nothing", after: "cancel/waiting", do: cancelledWaiter},
	{name: "expires-after-wait", ttl: true, after: "cancel/waiting", do: expiresAfterWait},
	{name: "everyone", after: "cancel/waiting", do: everyone},
	{name: "crowd", needs: []condition{waits}, after: "cancel/waiting", do: crowd},
	{name: "order", features: driver.FeatureQueueing, after: "cancel/waiting", do: func(r *run) { r.order(r.clients(1)) }},
	{name: "order-clients", features: driver.FeatureQueueing, after: "cancel/waiting", do: func(r *run) { r.order(r.clients(waiters)) }},
}

// waits: owners can wait without polling.
var waits = anyOf(watches, offers("queueing", func(s *suite) bool { return s.info.Features.Has(driver.FeatureQueueing) }))

// unwilling handles a refusal as held of a request that may wait. It is allowed unless the
// backend has FeatureQueueing.
func (r *run) unwilling(err error) {
	if r.info.Features.Has(driver.FeatureQueueing) {
		r.fatal(queueing, "a request that may wait gives at once: %v", err)
	}
	r.pass("%s does not wait by itself", r.info.Name)
}

// waitEnds checks that a wait ends with its context, returns the context's error, and also
// matches ErrHeld.
func waitEnds(r *run) {
	_, b, key, l := r.holding(driver.Request{})
	for patience := 50 * time.Millisecond; ; patience *= 2 {
		ctx, cancel := context.WithTimeout(r.ctx, patience)
		_, err := r.tryCtx(ctx, b, driver.Request{Key: key, Wait: true})
		ended := ctx.Err()
		if deadline, _ := ctx.Deadline(); ended == nil && !time.Now().Before(deadline) {
			ended = context.DeadlineExceeded // the context's timer is late
		}
		cancel()
		switch {
		case err == nil && r.valid(l):
			r.fatal(exclusion, "a waiter was granted a key that is held")
		case err == nil:
			r.startOver("a lease ended under the case")
		case ended == nil && r.saw(err) == held:
			r.unwilling(err)
		case ended == nil && r.saw(err) == unknown, ended == nil && r.saw(err) == later:
			r.note("a wait gave %v", err)
		case !errors.Is(err, context.DeadlineExceeded) && r.atOnce(err) && patience <= r.limit/8:
			r.note("a wait of %v gave %v", patience, err) // and the deadline came before we looked, perhaps
		case !errors.Is(err, context.DeadlineExceeded):
			r.fatal(waiting, "a wait whose context's deadline passed gives %v", err)
		case r.saw(err) == held || !r.info.Features.Has(driver.FeatureQueueing):
			r.cancelledWait(b, key, l)
			return
		}
		// Perhaps the deadline came before the holder was seen: give it more time.
		if r.ctx.Err() != nil || patience > r.limit/4 {
			r.fatal(waiting, "a wait of %v for a holder gives an error that is not ErrHeld: %v", patience, err)
		}
	}
}

// atOnce reports whether a wait may end with err before its context does.
func (r *run) atOnce(err error) bool {
	switch r.saw(err) {
	case held:
		return !r.info.Features.Has(driver.FeatureQueueing)
	case unknown, later:
		return true
	}
	return false
}

func (r *run) cancelledWait(b driver.Backend, key string, l *lease) {
	ctx, cancel := context.WithCancel(r.ctx)
	t := time.AfterFunc(20*time.Millisecond, cancel)
	defer t.Stop()
	_, err := r.tryCtx(ctx, b, driver.Request{Key: key, Wait: true})
	cancel()
	if !errors.Is(err, context.Canceled) && !r.atOnce(err) {
		r.fatal(waiting, "a wait whose context was cancelled gives %v", err)
	}
	r.release(l)
	r.nothingStored(b, key)
	r.free(b, key)
}

// waitWakes releases at about the time when the wait begins, when a wake-up is lost most
// easily.
func waitWakes(r *run) {
	r.wakes(30, waiting, func(int) time.Time {
		_, b, key, l := r.holding(driver.Request{})
		woken := r.async(func() { r.waitFor(b, key, l) })
		r.pause(rand.N(2 * time.Millisecond))
		r.release(l)
		released := time.Now()
		r.join(woken)
		return released
	})
}

// wakes makes up to n rounds. Each ends when the release of a lock has been noticed, and returns when
// it was released. If n rounds of such waits would last longer than three quarters of the usual
// Timeout, and the calls before the releases took no tenth of the waits, the machine is not busy:
// releases are noticed late.
func (r *run) wakes(n int, broken rule, round func(i int) (released time.Time)) {
	n, made := r.h.times(n), 0
	var calls, waits time.Duration
	for i := range r.rounds(n) {
		start := time.Now()
		released := round(i)
		calls, waits, made = calls+released.Sub(start), waits+time.Since(released), made+1
	}
	if each := waits / time.Duration(made); each > min(r.h.Timeout, defaultTimeout)*3/4/time.Duration(n) && waits > 10*calls {
		r.suspect(broken, "releases are noticed %v late on average, in %d rounds, where the calls before took %v: a poll or a timer may have found them",
			each.Round(time.Millisecond), made, (calls / time.Duration(made)).Round(time.Microsecond))
	}
}

// waitFor waits until the lock is granted, and releases it.
func (r *run) waitFor(b driver.Backend, key string, holder *lease) {
	for {
		l, err := r.try(b, driver.Request{Key: key, Wait: true})
		switch v := r.saw(err); {
		case v == granted:
			r.release(l)
			return
		case v == held && r.ctx.Err() == nil:
			r.unwilling(err)
		case v == held || r.ctx.Err() != nil:
			r.fatal(waiting, "the lock was released, and its waiter not woken: %v", err)
		case v != unknown && v != later:
			r.fatal(waiting, "a wait gives %v: %v", v, err)
		}
		r.pause(poll)
	}
}

// cancelledWaiter checks that a waiter that gave up gets no lock later, and does not block the
// waiter behind it.
func cancelledWaiter(r *run) {
	r.wakes(10, waiting, func(int) time.Time {
		a, b, key, l := r.holding(driver.Request{})
		ctx, cancel := context.WithCancel(r.ctx)
		defer cancel()
		quit := r.async(func() { r.giveUp(ctx, b, key) })
		r.pause(rand.N(4 * time.Millisecond))
		if rand.N(2) == 0 {
			cancel()
		} else { // both at once
			go cancel()
		}
		r.release(l)
		r.join(quit)
		released := time.Now()
		r.nothingStored(a, key)
		r.free(a, key)
		return released
	})
}

// giveUp waits under a context that the case cancels.
func (r *run) giveUp(ctx context.Context, b driver.Backend, key string) {
	l, err := r.tryCtx(ctx, b, driver.Request{Key: key, Wait: true})
	switch {
	case err == nil:
		r.releaseCtx(ctx, l)
	case errors.Is(err, ctx.Err()):
	case r.saw(err) == held && ctx.Err() == nil:
		r.unwilling(err)
	case r.saw(err) != unknown && r.saw(err) != later && r.saw(err) != held:
		r.fatal(waiting, "a cancelled wait gives %v", err)
	}
}

// expiresAfterWait checks that a lease counts from its grant and not from the beginning of the
// wait.
func expiresAfterWait(r *run) {
	a, b, key, l := r.holding(driver.Request{})
	ttl := r.short()
	woken := r.async(func() {
		next, err := r.try(b, driver.Request{Key: key, TTL: ttl, Wait: true})
		switch v := r.saw(err); v {
		case granted:
			r.notLate(next.Grant(), ttl, "a wait")
			if g := next.Grant(); !g.Expires.IsZero() && !time.Now().Before(g.Expires) {
				r.startOver("a lease of %v was over when it was granted after a wait", ttl)
			}
		case held:
			r.unwilling(err)
		}
	})
	r.pause(ttl + ttl/4)
	r.release(l)
	r.join(woken)
	r.free(a, key)
}

// everyone lets many owners wait for one key through several clients, and checks that each has
// it alone.
func everyone(r *run) {
	const n = 12
	clients, key := r.clients(3), r.key()
	get := func(i int) *lease {
		return r.eventually(clients[i%len(clients)], driver.Request{Key: key, Wait: true})
	}
	r.serial(n, r.h.times(12), get, r.rising())
}

// crowd lets a hundred owners wait through one client, each for a lock of another owner of this
// client, and checks that everybody can still be served: waiters that use up the connections of
// their client or of the server would keep the holders from releasing.
func crowd(r *run) {
	b, n := r.client(), r.h.times(120)
	var woken []<-chan struct{}
	leases := make([]*lease, n)
	for i := range leases {
		key := r.key()
		leases[i] = r.grant(b, driver.Request{Key: key})
		woken = append(woken, r.async(func() { r.release(r.asDlock(b, driver.Request{Key: key})) }))
	}
	r.pause(50 * time.Millisecond) // until most wait; the others come later
	served := r.async(func() {
		r.renew(leases[0], driver.Renewal{})
		for _, c := range []driver.Backend{b, r.open()} {
			r.release(r.grant(c, driver.Request{Key: r.key()}))
		}
		for _, l := range leases {
			r.release(l)
		}
		for _, done := range woken {
			<-done
		}
	})
	r.await(served, waiting, fmt.Sprintf("while %d owners wait through one client, it and others are not served", n))
	r.join(served)
}

const (
	waiters     = 6
	orderRounds = 14 // a backend without order passes two of them once in 5,700 runs
)

// order lets several owners begin to wait, one after another, and checks the order in which
// they get the lock. The case cannot know when a waiter is in the queue, so one round out of
// order proves nothing. A backend without order passes a round by luck once in 720 times, so
// two rounds must be in order.
func (r *run) order(clients []driver.Backend) {
	var got []int
	inRow, gap, widest := 0, 20*time.Millisecond, time.Duration(0)
	for round := 0; round < orderRounds && r.left() > 3*waiters*gap; round++ {
		var shows, told bool
		if got, shows, told = r.orderOnce(clients, gap); !shows {
			continue
		}
		if inOrder(got) {
			if inRow++; inRow == 2 {
				return
			}
			continue
		}
		if told { // a longer wait would show less: some servers keep the order of short waits only
			r.note("the server said that each waited, and the order was %v", got)
			widest = time.Second
			continue
		}
		r.note("with %v between the waiters the order was %v", gap, got)
		widest = max(widest, gap)
		if gap *= 2; gap > 2*time.Second {
			gap = 20 * time.Millisecond
		}
	}
	if widest < 50*time.Millisecond {
		r.startOver("the time of the case sufficed for no longer gap between waiters than %v", widest)
	}
	r.fatal(queueing, "waiters that came in the order 0 to %d got the lock in the order %v", waiters-1, got)
}

// orderOnce returns the order in which waiters got the lock; whether that shows anything, because
// a waiter whose call ended without an answer came again, and lost its place; and whether the
// server told of each waiter before the next came.
func (r *run) orderOnce(clients []driver.Backend, gap time.Duration) (got []int, shows, told bool) {
	key := r.key()
	l := r.grant(r.client(), driver.Request{Key: key})
	var mu sync.Mutex
	var all []<-chan struct{}
	told = len(clients) > 1 // those of one client may wait in the client
	for i := range waiters {
		all = append(all, r.async(func() {
			w := r.eventually(clients[i%len(clients)], driver.Request{Key: key, Wait: true})
			mu.Lock()
			got = append(got, i)
			mu.Unlock()
			r.release(w)
		}))
		if told = told && r.waiting(key, i+1); !told {
			r.pause(gap)
		}
	}
	r.release(l)
	for _, done := range all {
		<-done
	}
	if r.over() {
		r.join(all[0])
	}
	return got, !r.doubtful(key), told
}

// waiting reports whether the server says, before long, that n wait for key.
func (r *run) waiting(key string, n int) bool {
	i, ok := r.client().(driver.Inspector)
	for end := time.Now().Add(500 * time.Millisecond); ok && time.Now().Before(end) && r.pause(poll); {
		if s, err := i.Lookup(r.ctx, key); err == nil && s.Waiters >= n {
			return true
		}
	}
	return false
}

func inOrder(got []int) bool { return len(got) == waiters && slices.IsSorted(got) }

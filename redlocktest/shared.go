package redlocktest

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver"
)

var sharedCases = []testCase{
	{name: "many", features: driver.FeatureShared, do: sharedMany},
	{name: "excluded", features: driver.FeatureShared, do: sharedExcluded},
	{name: "upgrade", features: driver.FeatureShared, do: sharedUpgrade},
	{name: "stale", features: driver.FeatureShared, do: sharedStale},
	{name: "waiters", features: driver.FeatureShared, do: sharedWaiters},
	{name: "writer-waits", features: driver.FeatureShared, do: writerWaits},
	{name: "writer-starved", features: driver.FeatureShared | driver.FeatureQueueing, do: func(r *run) { r.starve(r.clients(1), driver.Exclusive) }},
	{name: "writer-starved-clients", features: driver.FeatureShared | driver.FeatureOrdered, do: func(r *run) { r.starve(r.clients(5), driver.Exclusive) }},
	{name: "reader-starved", features: driver.FeatureShared | driver.FeatureOrdered, do: func(r *run) { r.starve(r.clients(5), driver.Shared) }},
}

func (r *run) share(b driver.Backend, key string) *lease {
	return r.grant(b, driver.Request{Key: key, Mode: driver.Shared})
}

// sharedMany checks that many owners can share a lock, and that an exclusive request is refused
// until the last of them has released it. Each token is above those before it, of readers and writers.
func sharedMany(r *run) {
	clients, key := r.clients(3), r.key()
	rises := r.rising()
	var leases []*lease
	for i := range 12 {
		l := r.share(clients[i%len(clients)], key)
		rises(l)
		leases = append(leases, l)
	}
	for i, l := range leases {
		r.keepsOut(clients[(i+1)%len(clients)], key, l)
		r.renew(l, driver.Renewal{})
		r.release(l)
	}
	l := r.grant(clients[0], driver.Request{Key: key})
	rises(l)
	r.release(l)
	l = r.share(clients[1], key)
	rises(l)
	r.release(l)
}

// readerExpires checks that a reader that is left to its TTL ends by itself, whether it came before
// or after a reader that stays, that the other stays, and that the one that ended is not revived beside
// the other.
func readerExpires(r *run) {
	a, b := r.pair()
	r.together(2, func(i int) {
		key := r.key()
		var stays, old *lease
		for j := range 2 {
			if i == j {
				old = r.grant(a, driver.Request{Key: key, Mode: driver.Shared, TTL: r.short()})
			} else {
				stays = r.share(b, key)
			}
		}
		if old.Grant().Expires.IsZero() {
			r.pass("a grant of %s has no end to wait for", r.info.Name)
		}
		t := old.last()
		for end := t.received.Add(r.kept(t) + t.ttl/2 + 100*time.Millisecond); time.Now().Before(end) && r.pause(t.ttl/8); {
			r.keepsOut(a, key, stays)
		}
		if r.renewEnded(old) == granted {
			r.suspect(renewing, "a reader of %v was renewed %v after its end, beside another reader", t.ttl, time.Since(t.received.Add(t.ttl)).Round(time.Millisecond))
		}
		r.renew(stays, driver.Renewal{})
		r.release(stays)
		next, _ := r.eventuallyRule(expires, a, driver.Request{Key: key}, old)
		r.lost(old)
		r.holds(b, key, next)
		r.release(next)
	})
}

// readersShorten checks that a reader with a long TTL that releases, or renews with a short one, keeps
// nobody out any more: the key becomes free when the reader that is left ends.
func readersShorten(r *run) {
	a, b := r.pair()
	r.together(3, func(i int) {
		key := r.key()
		if i == 2 {
			old := r.share(a, key)
			r.renew(old, driver.Renewal{TTL: r.short()})
			r.release(r.succeed(b, key, old, false))
			return
		}
		var long, old *lease
		for j := range 2 {
			if i == j {
				old = r.grant(a, driver.Request{Key: key, Mode: driver.Shared, TTL: r.short()})
			} else {
				long = r.share(b, key)
			}
		}
		r.release(long)
		r.release(r.succeed(b, key, old, false))
		r.lost(old)
	})
}

// keepsOut is refuse, with the rule on sharing.
func (r *run) keepsOut(b driver.Backend, key string, holder *lease) {
	_, err := r.try(b, driver.Request{Key: key})
	if r.saw(err) == granted && r.valid(holder) {
		r.fatal(sharing, "an exclusive lock was granted beside a shared one")
	}
	r.refuse(b, driver.Request{Key: key}, holder)
}

func sharedExcluded(r *run) {
	a, b, key, l := r.holding(driver.Request{})
	for _, c := range []driver.Backend{a, b} {
		_, err := r.try(c, driver.Request{Key: key, Mode: driver.Shared})
		if r.saw(err) == granted && r.valid(l) {
			r.fatal(sharing, "a shared lock was granted beside an exclusive one")
		}
		r.refuse(c, driver.Request{Key: key, Mode: driver.Shared}, l)
	}
	r.release(l)
	r.release(r.share(b, key))
}

// sharedUpgrade checks that a process that shares a lock does not get it exclusively, nor the
// reverse; locks of a session often allow that.
func sharedUpgrade(r *run) {
	b, key := r.client(), r.key()
	l := r.share(b, key)
	again, err := r.try(b, driver.Request{Key: key})
	if r.saw(err) == granted && r.valid(l) {
		r.fatal(noReentrancy, "a process that shares the key got it exclusively as well, with token %d", again.Grant().Fence)
	}
	r.holds(b, key, l)
	r.release(l)
}

// sharedStale checks that releasing an ended share repeatedly does not end another owner's
// share.
func sharedStale(r *run) {
	a, b := r.pair()
	key := r.key()
	old, other := r.share(a, key), r.share(b, key)
	r.release(old)
	r.lost(old)
	for range 3 {
		r.releaseEnded(old)
	}
	r.keepsOut(a, key, other)
	r.renew(other, driver.Renewal{})
	r.release(other)
	r.free(a, key)
}

// sharedWaiters checks that all waiting readers get the lock together when an exclusive owner
// releases it.
func sharedWaiters(r *run) {
	clients := r.clients(3)
	r.wakes(6, waiting, func(int) time.Time {
		key := r.key()
		l := r.grant(clients[0], driver.Request{Key: key})
		const n = 6
		var all []<-chan struct{}
		var in sync.WaitGroup
		in.Add(n)
		for i := range n {
			all = append(all, r.async(func() {
				entered := sync.OnceFunc(in.Done)
				defer entered()
				share := r.asDlock(clients[i%len(clients)], driver.Request{Key: key, Mode: driver.Shared})
				entered()
				in.Wait() // no reader releases before all have the lock
				r.release(share)
			}))
		}
		r.pause(rand.N(4 * time.Millisecond))
		r.release(l)
		released := time.Now()
		r.joinAll(all, "a lock was released, and not all who wait to share it were let in")
		return released
	})
}

// writerWaits checks that a waiting exclusive owner gets the lock when the last reader releases it.
func writerWaits(r *run) {
	clients := r.clients(3)
	r.wakes(6, waiting, func(i int) time.Time {
		key := r.key()
		shares := []*lease{r.share(clients[0], key), r.share(clients[1], key), r.share(clients[0], key)}
		woken := r.async(func() { r.release(r.asDlock(clients[i%len(clients)], driver.Request{Key: key})) })
		r.pause(rand.N(4 * time.Millisecond))
		for _, l := range shares {
			r.release(l)
		}
		released := time.Now()
		r.joinAll([]<-chan struct{}{woken}, "all who shared a lock have released it, and the exclusive owner who waits was not let in")
		return released
	})
}

// joinAll waits for the goroutines that async started.
func (r *run) joinAll(all []<-chan struct{}, what string) {
	for _, done := range all {
		r.await(done, waiting, what)
	}
	if r.over() {
		r.join(all[0])
	}
}

// starve lets owners of one mode have a key without a gap while one of the other mode waits, and
// checks that later ones wait behind it.
func (r *run) starve(clients []driver.Backend, waits driver.Mode) {
	const many, starved = 4, 200 // in order, the waiter is overtaken by no more than began to wait before it
	key := r.key()
	first := r.grant(clients[0], driver.Request{Key: key, Mode: driver.Exclusive + driver.Shared - waits})
	stop, enough := make(chan struct{}), make(chan struct{})
	var overtook atomic.Int64
	var all []<-chan struct{}
	for i := range many {
		all = append(all, r.async(func() {
			for !over(stop) && !r.over() {
				l := r.asDlock(clients[i%len(clients)], driver.Request{Key: key, Mode: driver.Exclusive + driver.Shared - waits})
				if overtook.Add(1) == starved {
					close(enough)
				}
				r.pause(3*time.Millisecond + rand.N(4*time.Millisecond)) // longer than the pauses between two
				r.release(l)
			}
		}))
	}
	waiter := r.async(func() {
		r.release(r.asDlock(clients[len(clients)-1], driver.Request{Key: key, Mode: waits}))
	})
	r.pause(20 * time.Millisecond)
	r.release(first)
	select {
	case <-waiter:
		close(stop)
	case <-enough:
		close(stop)
		r.fatal(queueing, "%d grants of the other mode overtook a waiter that asks for the %v mode", starved, waits)
	}
	for _, done := range all {
		<-done
	}
	if r.over() {
		r.join(waiter)
	}
}

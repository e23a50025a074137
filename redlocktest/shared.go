package redlocktest

import (
	"math/rand/v2"
	"sync"
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
	{name: "writer-starved", features: driver.FeatureShared | driver.FeatureQueueing, do: func(r *run) { r.starve(r.clients(1)) }},
	{name: "writer-starved-clients", features: driver.FeatureShared | driver.FeatureQueueing, do: func(r *run) { r.starve(r.clients(5)) }},
}

func (r *run) share(b driver.Backend, key string) *lease {
	return r.grant(b, driver.Request{Key: key, Mode: driver.Shared})
}

// sharedMany checks that many owners can share a lock, and that an exclusive request is refused
// until the last of them has released it.
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
	for range r.h.times(6) {
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
		r.joinAll(all, "a lock was released, and not all who wait to share it were let in")
	}
}

// writerWaits checks that a waiting exclusive owner gets the lock when the last reader releases it.
func writerWaits(r *run) {
	clients := r.clients(3)
	for i := range r.h.times(6) {
		key := r.key()
		shares := []*lease{r.share(clients[0], key), r.share(clients[1], key), r.share(clients[0], key)}
		woken := r.async(func() { r.release(r.asDlock(clients[i%len(clients)], driver.Request{Key: key})) })
		r.pause(rand.N(4 * time.Millisecond))
		for _, l := range shares {
			r.release(l)
		}
		r.joinAll([]<-chan struct{}{woken}, "all who shared a lock have released it, and the exclusive owner who waits was not let in")
	}
}

// joinAll waits for the goroutines that async started, at most a quarter of the case's time.
func (r *run) joinAll(all []<-chan struct{}, what string) {
	end := time.After(r.limit / 4)
	for _, done := range all {
		select {
		case <-done:
		case <-end:
			r.fatal(waiting, "%s", what)
		}
	}
	if r.over() {
		r.join(all[0])
	}
}

// starve lets readers share a key without a gap while an exclusive owner waits, and checks that
// later readers wait behind it.
func (r *run) starve(clients []driver.Backend) {
	const readers = 4
	key := r.key()
	first := r.share(clients[0], key)
	stop := make(chan struct{})
	var all []<-chan struct{}
	for i := range readers {
		all = append(all, r.async(func() {
			for !over(stop) && !r.over() {
				l, err := r.try(clients[i%len(clients)], driver.Request{Key: key, Mode: driver.Shared, Wait: true})
				if r.saw(err) != granted {
					r.pause(poll)
					continue
				}
				r.pause(3*time.Millisecond + rand.N(4*time.Millisecond)) // longer than the readers' pauses
				r.release(l)
			}
		}))
	}
	writer := r.async(func() {
		r.release(r.asDlock(clients[len(clients)-1], driver.Request{Key: key}))
	})
	r.pause(20 * time.Millisecond)
	r.release(first)
	select {
	case <-writer:
		close(stop)
	case <-time.After(r.limit / 4):
		close(stop)
		r.fatal(queueing, "readers who come later overtake the exclusive owner who waits, for %v and without end", r.limit/4)
	}
	for _, done := range all {
		<-done
	}
	if r.over() {
		r.join(writer)
	}
}

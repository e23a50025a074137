package dlock

import (
	"sync"
	"sync/atomic"
	"time"
)

// renewals runs the renewals that are due, a bounded number at a time, on goroutines that
// exist while there are any. Leases whose last renewal failed have a bound of their own: one
// server that hangs among several takes no lease of the others.
type renewals struct {
	held *atomic.Int64 // how many leases the client holds

	mu      sync.Mutex
	sets    [2]renewalSet // the first time, and after a failure
	stopped bool
	workers sync.WaitGroup
}

type renewalSet struct {
	due     []*Lease // in the order in which they became due
	running int
}

const (
	// mostRenewals is how many renewals of one set run at a time: 10,000 leases with a TTL of
	// 10 s and a renewal each 3 s need it where a round trip takes 80 ms.
	mostRenewals = 256
	// leastPatience is the shortest time that a renewal has because others wait for its place.
	leastPatience = 250 * time.Millisecond
)

// start renews l, at once or after those that are due before it. It does not block.
func (r *renewals) start(l *Lease, again bool) {
	set := &r.sets[0]
	if again {
		set = &r.sets[1]
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.stopped:
	case set.running < mostRenewals:
		set.running++
		r.workers.Go(func() { r.work(set, l) })
	default:
		set.due = append(set.due, l)
	}
}

func (r *renewals) work(set *renewalSet, l *Lease) {
	for ; l != nil; l = r.next(set) {
		l.renewOnce(r.patience(l.ttl))
	}
}

func (r *renewals) next(set *renewalSet) *Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped || len(set.due) == 0 {
		set.due = nil
		set.running--
		return nil
	}
	l := set.due[0]
	set.due[0] = nil
	set.due = set.due[1:]
	return l
}

// patience is how long a renewal may take: a third of the TTL, so that one that hangs leaves
// time for another; less where there are more leases than places, so that each has its turn
// within a third of the TTL.
func (r *renewals) patience(ttl time.Duration) time.Duration {
	third := ttl / 3
	share := third
	if held := r.held.Load(); held > mostRenewals {
		share = max(leastPatience, third/time.Duration(held)*mostRenewals)
	}
	return min(third, share)
}

// stop ends the renewals, and waits for those that are under way, whose contexts ended.
func (r *renewals) stop() {
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	r.workers.Wait()
}

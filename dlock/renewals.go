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
	sets    [2]renewalSet // 0: the last renewal succeeded; 1: it failed
	usual   time.Duration // how long a renewal takes that succeeds
	failed  int           // how many failed since the last success
	stopped bool
	workers sync.WaitGroup
}

type renewalSet struct {
	due     []*Lease // in the order in which they became due
	running int
}

const (
	// mostRenewals is how many renewals of one set run at a time: 10,000 leases with a TTL of
	// 10 s, each renewed every 3 s, need this many if a round trip takes 80 ms.
	mostRenewals = 256
	// A renewal that others wait behind may take leastPatience, or manyTimes the usual time if
	// that is more: a slow backend does not hang.
	leastPatience = 250 * time.Millisecond
	manyTimes     = 10
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
// time for another. It is shorter if there are more leases than places and some renewals
// succeed, so that each lease is renewed within a third of its TTL.
func (r *renewals) patience(ttl time.Duration) time.Duration {
	third := ttl / 3
	held := r.held.Load()
	r.mu.Lock()
	defer r.mu.Unlock()
	if held <= mostRenewals || r.failed > mostRenewals {
		return third
	}
	return min(third, max(leastPatience, manyTimes*r.usual, third/time.Duration(held)*mostRenewals))
}

// note records the outcome of a renewal.
func (r *renewals) note(err error, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.failed++
		return
	}
	r.failed = 0
	r.usual += (took - r.usual) / 16
}

// stop ends the renewals, and waits for those under way: their contexts have ended.
func (r *renewals) stop() {
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	r.workers.Wait()
}

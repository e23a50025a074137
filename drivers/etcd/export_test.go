package etcd

import (
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// SetClock makes b's own clock wrong.
func (b *Backend) SetClock(ahead time.Duration) {
	b.now = func() time.Time { return time.Now().Add(ahead) }
}

// EndsRenewedLeases tells whether a version of etcd has that fault.
func EndsRenewedLeases(version string) bool { return endsRenewedLeases(version) }

// Lease returns the etcd lease that b's next locks of a minute use.
func (b *Backend) Lease() clientv3.LeaseID {
	s := b.join(time.Minute)
	defer s.leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// AwaitQueue waits until so many requests wait for those under way.
func (b *Backend) AwaitQueue(n int) {
	for {
		b.pipe.mu.Lock()
		waiting := len(b.pipe.queue)
		b.pipe.mu.Unlock()
		if waiting == n {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

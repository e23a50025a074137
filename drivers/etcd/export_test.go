package etcd

import (
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// SetClock makes b's own clock wrong.
func (b *Backend) SetClock(ahead time.Duration) {
	b.now = func() time.Time { return time.Now().Add(ahead) }
}

// FaultsOf returns the codes of the faults that a version of etcd has.
func FaultsOf(version string) (codes []string) {
	for _, f := range faults {
		if f.in(version) {
			codes = append(codes, f.code)
		}
	}
	return codes
}

// Lease returns the etcd lease that b's next locks of a minute use.
func (b *Backend) Lease() clientv3.LeaseID {
	s := b.join(time.Minute)
	defer s.leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

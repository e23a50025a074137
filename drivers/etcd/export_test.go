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

// Leases returns the etcd leases that b's next locks use.
func (b *Backend) Leases() (ids []clientv3.LeaseID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.sessions {
		ids = append(ids, s.id)
	}
	return ids
}

package postgres

import "time"

// IdleRead is how long nobody reads on a connection that is not used.
const IdleRead = idleRead

// SliceTime is how long a waiter is in the server's queue before it asks again.
const SliceTime = sliceTime

// WritersLock returns the two numbers of the lock that a writer holds while it waits for the lock n.
func WritersLock(n int64) string { return number(n).writers() }

// Pids returns the server processes of the backend's connections, without those that have ended
// and are about to be forgotten.
func (b *Backend) Pids() []uint32 {
	var pids []uint32
	for _, c := range b.all() {
		c.mu.Lock()
		if c.end == nil && c.w != nil {
			pids = append(pids, c.w.pid)
		}
		c.mu.Unlock()
	}
	return pids
}

// Grace is how long after a lease of this TTL the server, at the latest, frees a dead holder's
// locks.
func Grace(ttl time.Duration) time.Duration { return classOf(ttl) + grace(classOf(ttl)) - ttl }

// Conns returns how many connections the backend has. One that the server does not answer for a
// while does not count: another may be opened in its place.
func (b *Backend) Conns() (n int) {
	for _, c := range b.all() {
		c.mu.Lock()
		if c.silence() <= suspectAfter {
			n++
		}
		c.mu.Unlock()
	}
	return n
}

// Queued returns how many callers in this process wait for a key.
func (b *Backend) Queued(key string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if k := b.hot[numberOf(b.opt.Prefix, key)]; k != nil {
		return k.waiters
	}
	return 0
}

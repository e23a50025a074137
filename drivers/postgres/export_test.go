package postgres

import (
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Pids are the server processes of the backend's sessions, without those that have ended
// and are about to be forgotten.
func (b *Backend) Pids() []uint32 {
	var pids []uint32
	for _, s := range b.all() {
		s.mu.Lock()
		if s.end == nil {
			pids = append(pids, s.w.pid)
		}
		s.mu.Unlock()
	}
	return pids
}

// Collide gives every key the same advisory lock.
func (b *Backend) Collide() {
	b.number = func(string, string) lockNumber { return lockNumber{n: -42} }
}

// Number is the advisory lock of a key.
func (b *Backend) Number(key string) int64 { return b.number(b.opt.Prefix, key).n }

// Grace is how long after a lease of this TTL the server, at the latest, frees a dead
// holder's locks.
func Grace(ttl time.Duration) time.Duration { return classOf(ttl) + grace(classOf(ttl)) - ttl }

// Conns is how many connections the backend has.
func (b *Backend) Conns() int { return len(b.all()) }

// Steal unlocks a key under the backend's first session that has it, which does not know.
func (b *Backend) Steal(key string) {
	n := b.number(b.opt.Prefix, key)
	for _, s := range b.all() {
		s.mu.Lock()
		has := s.holds[n] > 0
		if has {
			s.send(&statement{sql: n.unlock(driver.Exclusive)})
		}
		s.mu.Unlock()
		if has {
			return
		}
	}
}

// Queued is how many of this process wait for a key.
func (b *Backend) Queued(key string) int {
	b.table.mu.Lock()
	defer b.table.mu.Unlock()
	if e := b.table.byNumber[b.number(b.opt.Prefix, key)]; e != nil {
		return len(e.queue)
	}
	return 0
}

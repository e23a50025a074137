package postgres

import "time"

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
func (b *Backend) Collide() { b.id = func(string, string) int64 { return -42 } }

// LockID is the advisory lock of a key.
func (b *Backend) LockID(key string) int64 { return b.id(b.opt.Prefix, key) }

// Grace is how long after a lease of this TTL the server, at the latest, frees a dead
// holder's locks.
func Grace(ttl time.Duration) time.Duration { return classOf(ttl) + grace(classOf(ttl)) - ttl }

// Conns is how many connections the backend has.
func (b *Backend) Conns() int { return len(b.all()) }

// Steal unlocks a key under the backend's first session that has it, which does not know.
func (b *Backend) Steal(key string) {
	id := b.LockID(key)
	for _, s := range b.all() {
		s.mu.Lock()
		has := s.holds[id] > 0
		if has {
			s.send(&statement{name: stUnlock, id: id})
		}
		s.mu.Unlock()
		if has {
			return
		}
	}
}

// InLine is how many of this process wait for a key.
func (b *Backend) InLine(key string) int {
	b.table.mu.Lock()
	defer b.table.mu.Unlock()
	if e := b.table.byID[b.LockID(key)]; e != nil {
		return len(e.line)
	}
	return 0
}

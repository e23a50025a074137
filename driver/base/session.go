package base

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// Sessions are the sessions of a backend with its servers. All locks of one class of TTLs share one.
// S is the driver's session, which embeds a Session. The zero Sessions is ready.
type Sessions[S interface{ Shared() *Session }] struct {
	// Idle is how long a session without users is kept; zero means a minute. A lock and its release are
	// then two requests.
	Idle time.Duration

	mu  sync.Mutex
	all map[int]S // that new locks use, by their class
}

// A Session is what the sessions of all drivers have. The mutex of the Sessions guards its fields.
type Session struct {
	class int
	users int       // attempts and leases
	idle  time.Time // since when it has no users
}

// Shared returns s.
func (s *Session) Shared() *Session { return s }

// Join returns the session of a class, and makes it if there is none. The caller calls Leave.
func (p *Sessions[S]) Join(class int, make func() S) S {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.all[class]
	if !ok {
		s = make()
		s.Shared().class = class
		if p.all == nil {
			p.all = map[int]S{}
		}
		p.all[class] = s
	}
	s.Shared().users++
	return s
}

// Leave ends what Join began.
func (p *Sessions[S]) Leave(s S) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Shared().users--
	s.Shared().idle = time.Now()
}

// Retire lets later locks use another session. The locks that use this one keep it.
func (p *Sessions[S]) Retire(s S) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current(s) {
		delete(p.all, s.Shared().class)
	}
}

// current reports whether later locks use the session; p.mu is held.
func (p *Sessions[S]) current(s S) bool {
	now, ok := p.all[s.Shared().class]
	return ok && now.Shared() == s.Shared()
}

// Unused retires a session that has had no users for long, and reports whether it has none and is
// retired.
func (p *Sessions[S]) Unused(s S) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	current := p.current(s)
	if s.Shared().users > 0 || current && time.Since(s.Shared().idle) < cmp.Or(p.Idle, time.Minute) {
		return false
	}
	if current {
		delete(p.all, s.Shared().class)
	}
	return true
}

// Run renews a session, until it has had no users for long, or gone is closed, or ctx ends. It reports
// whether the session has users then, who may have locks.
func (p *Sessions[S]) Run(ctx context.Context, s S, every time.Duration, gone <-chan struct{}, renew func(context.Context)) (used bool) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for over := false; !over && !p.Unused(s); {
		select {
		case <-tick.C:
			renew(ctx)
		case <-gone:
			over = true
		case <-ctx.Done():
			over = true
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return s.Shared().users > 0
}

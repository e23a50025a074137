package postgres

import (
	"slices"
	"time"

	"github.com/redlock-go/redlock/drivers/postgres/internal/session"
)

// A connRequest is one caller's request for a connection for waiting.
type connRequest struct {
	ready chan *session.Session // gets the connection; its capacity is one
}

// want requests a connection for waiting.
func (b *Backend) want() *connRequest {
	r := &connRequest{ready: make(chan *session.Session, 1)}
	b.mu.Lock()
	b.wanting = append(b.wanting, r)
	b.mu.Unlock()
	b.offer()
	return r
}

// unwant withdraws a request.
func (b *Backend) unwant(r *connRequest) {
	b.mu.Lock()
	if i := slices.Index(b.wanting, r); i >= 0 {
		b.wanting = slices.Delete(b.wanting, i, i+1)
	}
	b.mu.Unlock()
	select {
	case s := <-r.ready:
		s.Free()
	default:
	}
}

// wanted reports whether a caller waits for such a connection.
func (b *Backend) wanted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.wanting) > 0
}

// offer gives idle connections to the callers that want one, in order, and opens more for the
// others. It reports whether the limit is reached.
func (b *Backend) offer() (full bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.wanting) > 0 {
		s := b.idleWaiter()
		if s == nil {
			break
		}
		b.wanting[0].ready <- s
		b.wanting = b.wanting[1:]
	}
	for n := len(b.wanting) - b.coming; n > 0 && !b.closing(); n-- {
		if len(b.waiters)+b.coming >= b.opt.MaxWaiters {
			return true
		}
		if time.Now().Before(b.noWaiter) {
			break
		}
		b.coming++
		b.open(&b.waiters, func(err error) {
			b.coming--
			if err != nil { // for example, the server is full; callers poll meanwhile
				b.noWaiter = time.Now().Add(noWaiterFor)
			}
		})
	}
	return false
}

// noWaiterFor is how long no connection for waiting is opened after a failure.
const noWaiterFor = 5 * time.Second

// idleWaiter reserves a connection that holds nothing; b.mu is held.
func (b *Backend) idleWaiter() *session.Session {
	for _, s := range b.waiters {
		if s.Reserve() {
			return s
		}
	}
	if len(b.sessions) < 2 || len(b.waiters)+b.coming >= b.opt.MaxWaiters {
		return nil
	}
	for _, s := range b.sessions { // most likely one that was a waiter before
		if s.Reserve() {
			b.sessions = without(b.sessions, s)
			b.waiters = append(b.waiters, s)
			return s
		}
	}
	return nil
}

// settle ends the reservation of a connection that got its lock, and moves it to the sessions
// if they have room.
func (b *Backend) settle(s *session.Session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.Free()
	if len(b.sessions)+len(b.opening) >= b.opt.MaxSessions {
		return
	}
	if n := len(b.waiters); n > 0 {
		if b.waiters = without(b.waiters, s); len(b.waiters) < n {
			b.sessions = append(b.sessions, s)
		}
	}
}

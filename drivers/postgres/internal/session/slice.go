package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/postgres/internal/claims"
	"github.com/redlock-go/redlock/drivers/postgres/internal/verdict"
)

// This file waits for a lock on a reserved session, one slice at a time: see advisory.Slice.

// Reserve takes a session that holds nothing for a wait.
func (s *Session) Reserve() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil || s.suspect || !s.idle() || time.Now().Before(s.notBefore) {
		return false
	}
	s.waiting, s.used = true, time.Now()
	return true
}

// Slice waits for a lock in the server's queue, for length at most, on a reserved session. It
// returns the lease if the lock is granted; nil and nil if the slice is over, which keeps the
// reservation; and an error if ctx ends or the request fails, which ends the reservation.
func (s *Session) Slice(ctx context.Context, c *claims.Claim, ttl, length time.Duration) (*Lease, error) {
	o := s.startSlice(c, ttl, length)
	if !s.answer(ctx, o, time.Minute) {
		s.quitSlice(o)
		return nil, verdict.Ended(ctx)
	}
	if o.err != nil {
		s.Free()
	}
	return o.lease, o.err
}

// quitSlice lets a slice whose caller has gone run to its end, which costs no connection.
func (s *Session) quitSlice(o *op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-o.done:
	default:
		o.gone = true
		return
	}
	if s.end != nil {
		return
	}
	if o.lease != nil {
		s.unlock(o.lease)
	}
	s.leave(false)
	s.flush()
}

// startSlice sends one slice.
func (s *Session) startSlice(c *claims.Claim, ttl, slice time.Duration) *op {
	o := newOp()
	o.claim, o.ttl, o.sent = c, ttl, true
	s.mu.Lock()
	defer s.mu.Unlock()
	o.late = s.late
	if s.end != nil {
		o.finish(s.end)
		return o
	}
	var out []*statement
	// If the client does not confirm the grant in time, the server takes it back. The timeout
	// for that is set in a message of its own, because cancelling a statement undoes its
	// settings and keeps a lock that was granted at that moment.
	if s.told != unconfirmed {
		out = append(out, tell(unconfirmed))
	}
	s.send(append(out,
		&statement{sql: fmt.Sprintf("SET lock_timeout = %d", slice.Milliseconds())},
		&statement{
			sql: s.h.SQL.Slice(c.Number, c.Mode, !s.shows), ops: []*op{o}, do: (*Session).sliceEnded,
			most: 2 * slice, // a reader waits twice: for the writer and for the lock
		})...)
	return o
}

// sliceEnded handles the answer to a slice: a token, or null. The time of the grant is unknown,
// so the lease counts from the round trip that confirms it. That round trip is as cheap as
// possible, because all other waiters wait for it too.
func (s *Session) sliceEnded(st *statement) {
	o := st.ops[0]
	if o.claim.Mode == driver.Exclusive && len(st.values) == 2 {
		s.shows = st.values[0] == 1
		st.values = st.values[1:]
	}
	switch {
	case st.err != nil: // the connection may have the lock nevertheless, and no other
		s.shows = true // perhaps
		if o.gone {
			s.leave(true)
		}
		o.finish(verdict.Of(st.err.Code, st.err, s.server.PerTransaction))
	case len(st.values) != 1:
		s.failWith(st.ops, errors.New("postgres: a wait ended without a value"))
	case o.gone:
		s.leave(st.values[0] > 0)
		o.finish(verdict.ErrTimeout)
	case st.values[0] <= 0:
		o.finish(nil)
	default:
		o.asked, o.token = st.sent, st.values[0]
		confirm := tell(ClassOf(o.ttl))
		confirm.ops, confirm.do = st.ops, (*Session).confirmed
		s.send(confirm)
		if s.shows {
			s.shows = false
			s.cleanUp(o.claim.Number.UnlockWriters(), nil, retries, func() {})
		}
	}
}

// confirmed handles the answer to the round trip that confirms a grant.
func (s *Session) confirmed(st *statement) {
	o := st.ops[0]
	if st.err != nil {
		s.leave(true)
		o.finish(verdict.ErrTimeout)
		return
	}
	s.class = st.class
	now := time.Now()
	s.h.Hot.Note(o.claim.Number, st.sent.Sub(o.asked) > 2*now.Sub(st.sent))
	s.decide(o, o.token, st.sent)
	if o.gone {
		s.waiting = false
	}
}

// leave ends the reservation of a connection that holds no lease after a wait; the mutex is held.
func (s *Session) leave(locked bool) {
	s.waiting = false
	if locked || s.shows {
		s.shows = false
		s.cleanUp("SELECT pg_advisory_unlock_all()", nil, retries, func() {})
	}
}

// Free ends the reservation of a connection.
func (s *Session) Free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end == nil {
		s.leave(false)
		s.flush()
	}
}

package session

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/postgres/internal/advisory"
	"github.com/redlock-go/redlock/drivers/postgres/internal/verdict"
)

const beat = "SELECT pg_backend_pid()"

// milliseconds returns how long the server keeps a silent session of this class.
func milliseconds(class time.Duration) string {
	return strconv.FormatInt((class + grace(class)).Milliseconds(), 10)
}

// IdleTimeout returns the server's timeout for a session without leases, in milliseconds.
func IdleTimeout() string { return milliseconds(idleClass) }

// tell is the statement that sets the session's timeout.
func tell(class time.Duration) *statement {
	return &statement{sql: "SET idle_session_timeout = " + milliseconds(class), class: class}
}

// plan takes a round out of the queue. Unlocks go first. Locks of one kind are one statement.
// All shared leases of one lock in a session share one lock on the server: the first lease
// takes it, the last one releases it, and the others only check that no writer waits and draw a
// token.
func (s *Session) plan() []*statement {
	if s.beat == nil && len(s.queue) == 0 {
		return nil
	}
	var unlock, unshare, lock, share, again, later []*op
	most := min(len(s.queue), maxRound)
	given := map[advisory.Number]bool{} // released in this round
	for _, o := range s.queue[:most] {
		n := o.claim.Number
		switch {
		case !o.leaves:
			continue
		case o.claim.Mode == driver.Exclusive:
			unlock = append(unlock, o)
		case s.holds[n] > 1:
			s.removeLease(o.lease)
			o.finish(nil)
		default:
			unshare = append(unshare, o)
			given[n] = true
		}
		o.sent = true
	}
	asked := map[advisory.Number]bool{}
	for _, o := range s.queue[:most] {
		n := o.claim.Number
		switch {
		case o.leaves:
			continue
		case o.claim.Mode == driver.Exclusive:
			lock = append(lock, o)
		case asked[n] || given[n]: // one at a time: the session's holds must be known
			later = append(later, o)
			continue
		case s.holds[n] > 0:
			again = append(again, o)
		default:
			share = append(share, o)
		}
		asked[n] = true
		o.sent = true
	}
	s.queue = append(later, s.queue[most:]...)

	var out []*statement
	if class := s.needs(lock, share, again); class != 0 {
		s.class = class
		if class != s.told {
			out = append(out, tell(class))
		}
	}
	out = s.planned(out, unlock, (*Session).unlocked)
	out = s.planned(out, unshare, (*Session).unlocked)
	out = s.planned(out, lock, (*Session).locked)
	out = s.planned(out, share, (*Session).locked)
	for _, o := range again {
		out = append(out, &statement{sql: s.h.SQL.Again(o.claim.Number), ops: []*op{o}, do: (*Session).locked})
	}
	if s.beat != nil {
		s.beating, s.beat = s.beat, nil
		s.beating.sent = true
		if len(out) == 0 || s.h.Pooled {
			out = append(out, &statement{sql: beat, do: (*Session).beaten})
		}
	}
	return out
}

// needs returns the class for the session's leases and the requests; zero if there are none.
// The class falls only when the session has no leases.
func (s *Session) needs(asked ...[]*op) time.Duration {
	class := time.Duration(0)
	if len(s.leases) > 0 {
		class = max(s.class, s.told, s.raise)
	}
	s.raise = 0
	for _, ops := range asked {
		for _, o := range ops {
			class = max(class, ClassOf(o.ttl))
		}
	}
	return class
}

// planned appends the statements for requests of one kind and mode: one statement for all keys
// with a plain number.
func (s *Session) planned(out []*statement, ops []*op, do func(*Session, *statement)) []*statement {
	var together []*op
	var numbers []advisory.Number
	for _, o := range ops {
		if len(ops) > 1 && !o.claim.Number.Pair {
			together, numbers = append(together, o), append(numbers, o.claim.Number)
			continue
		}
		out = append(out, s.single(o, do))
	}
	if len(together) > 0 {
		sql := advisory.Many(ops[0].claim.Mode, ops[0].leaves, numbers)
		out = append(out, &statement{sql: sql, ops: together, do: do})
	}
	return out
}

// single returns the statement for one request.
func (s *Session) single(o *op, do func(*Session, *statement)) *statement {
	st := &statement{ops: []*op{o}, do: do}
	if o.leaves {
		st.sql = o.claim.Number.Unlock(o.claim.Mode)
	} else {
		st.sql = s.h.SQL.Try(o.claim.Number, o.claim.Mode)
	}
	return st
}

// locked handles the answer to locks. After an error some of them may be granted, because a
// lock stays if a later part of its statement fails. So locked unlocks all of them, except
// those that the session held before (shared locks).
func (s *Session) locked(st *statement) {
	switch {
	case st.err == nil && len(st.values) == len(st.ops):
		for i, o := range st.ops {
			s.decide(o, st.values[i], st.sent)
		}
		return
	case st.err == nil:
		s.failWith(st.ops, fmt.Errorf("postgres: %d rows for %d locks", len(st.values), len(st.ops)))
		return
	}
	unlocks := ""
	for _, o := range st.ops {
		if s.holds[o.claim.Number] == 0 {
			unlocks += o.claim.Number.Unlock(o.claim.Mode) + "; "
		}
	}
	s.cleanUp(unlocks, st.ops, retries, func() {
		for _, o := range st.ops {
			if len(st.ops) == 1 {
				s.refuse(o, st.err)
			} else { // one by one, to find the request that the error is about
				s.send(s.single(o, (*Session).locked))
			}
		}
	})
}

// retries is how often a statement that must not fail is sent again after a cancellation,
// before the session is given up.
const retries = 20

// cleanUp unlocks the locks that ops may have taken, and afterwards calls the function then.
// The mutex is held.
func (s *Session) cleanUp(unlocks string, ops []*op, retries int, then func()) {
	if unlocks == "" {
		then()
		return
	}
	s.send(&statement{sql: unlocks, ops: ops, do: func(s *Session, st *statement) {
		switch {
		case st.err == nil:
			then()
		case retries > 0:
			s.cleanUp(unlocks, ops, retries-1, then)
		default:
			s.failWith(ops, fmt.Errorf("postgres: a lock could not be given back: %w", st.err))
		}
	}})
}

// decide answers a request: with a token it is granted, without one refused.
func (s *Session) decide(o *op, token int64, sent time.Time) {
	if token <= 0 {
		s.h.Table.Drop(o.claim)
		o.finish(&driver.HeldError{Server: s.server.ID})
		return
	}
	l := s.grant(o, token, sent)
	if l.fence > driver.MaxFence {
		s.unlock(l)
		o.finish(s.h.NoToken)
		return
	}
	// Give it back if it is over, its caller has gone, or the session's timeout is too short
	// for it.
	if o.gone || !time.Now().Before(driver.Expires(sent, o.ttl)) || s.known < ClassOf(o.ttl) {
		s.unlock(l)
		o.finish(verdict.ErrTimeout)
		return
	}
	o.lease = l
	o.finish(nil)
}

// grant makes the lease of a lock that was requested at sent.
func (s *Session) grant(o *op, token int64, sent time.Time) *Lease {
	l := &Lease{s: s, claim: o.claim, ttl: o.ttl, start: sent}
	if s.h.Fencing {
		if l.fence = uint64(token); l.fence <= driver.MaxFence {
			s.h.SawToken(l.fence)
		}
	}
	s.leases[l] = struct{}{}
	if s.holds[o.claim.Number]++; s.holds[o.claim.Number] == 1 {
		s.h.Locks.Add(1)
	}
	if end := l.end(); len(s.leases) == 1 || end.Before(s.nextEnd) {
		s.nextEnd = end
	}
	s.h.Table.Granted(o.claim)
	s.schedule(time.Now())
	return l
}

// removeLease removes a lease from the session and the table.
func (s *Session) removeLease(l *Lease) {
	delete(s.leases, l)
	if s.holds[l.claim.Number]--; s.holds[l.claim.Number] <= 0 {
		delete(s.holds, l.claim.Number)
		s.h.Locks.Add(-1)
	}
	s.h.Table.Drop(l.claim)
}

func (s *Session) refuse(o *op, e *pgconn.PgError) {
	s.h.Table.Drop(o.claim)
	o.finish(verdict.Of(e.Code, e, s.server.PerTransaction))
}

// unlocked handles the answer to unlocks: false means that the session did not have the lock.
// After an error (a cancelled statement) the outcome is unknown, and each unlock is sent again.
func (s *Session) unlocked(st *statement) {
	if st.err == nil && len(st.values) != len(st.ops) {
		s.failWith(st.ops, fmt.Errorf("postgres: %d rows for %d unlocks", len(st.values), len(st.ops)))
		return
	}
	for i, o := range st.ops {
		switch {
		case st.err != nil && o.tries == retries:
			s.failWith(st.ops[i:], fmt.Errorf("postgres: unlock: %w", st.err))
			return
		case st.err != nil:
			o.tries++
			s.send(s.single(o, (*Session).unlocked))
		default:
			s.removeLease(o.lease)
			var err error
			if st.values[i] != 1 && o.tries == 0 {
				err = driver.ErrLost
			}
			o.finish(err)
		}
	}
}

// beaten handles the answer to a heartbeat. If it comes from another server process, a pooler
// that does not pool sessions has given the locks to another client.
func (s *Session) beaten(st *statement) {
	switch {
	case st.err != nil && s.h.Pooled:
		s.send(&statement{sql: beat, do: (*Session).beaten})
	case st.err == nil && (len(st.values) != 1 || st.values[0] != int64(s.w.PID())):
		s.fail(errors.New("postgres: the pooler has changed the server process under a session"), false)
	}
}

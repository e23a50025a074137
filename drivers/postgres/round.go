package postgres

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/postgres/internal/advisory"
	"github.com/redlock-go/redlock/drivers/postgres/internal/verdict"
	"github.com/redlock-go/redlock/drivers/postgres/internal/wire"
)

const beat = "SELECT pg_backend_pid()"

// maxRound bounds the unlocks, and the locks, of one round, and so the size of a message and the
// time that the server spends on it.
const maxRound = 256

func (st *statement) row(v []byte) { st.values = append(st.values, wire.Value(v)) }

// tell is the statement that sets the session's timeout.
func tell(class time.Duration) *statement {
	return &statement{sql: "SET idle_session_timeout = " + milliseconds(class), class: class}
}

// plan takes a round out of the queue. Unlocks go first. Those of one mode are one statement, and
// so are the locks. All shared leases of one lock on a connection share one lock on the server:
// the first lease takes it, the last one releases it, and the others only check that no writer
// waits and draw a token.
func (c *conn) plan() (out []*statement) {
	unlocks, locks, beats := c.queue.take()
	var unlock, lock [2][]*op
	for _, o := range unlocks {
		l := o.lease
		if c.held[l.number] != l || l.next != nil { // not the last of several shared leases
			c.remove(l)
			o.finish(nil)
			continue
		}
		unlock[l.mode] = append(unlock[l.mode], o)
	}
	var again, later []*op
	class := time.Duration(0)
	if c.leases > 0 {
		class = max(c.class, c.told)
	}
	for _, o := range locks {
		l := o.lease
		first := c.asked[l.number]
		switch held := c.refusal(l); {
		case o.gone:
			continue
		case time.Now().Before(c.server.notBefore):
			o.finish(c.guarded())
			continue
		case held != nil:
			o.finish(held)
			continue
		case first != nil && first.lease.mode == l.mode:
			first.also = append(first.also, o)
			continue
		case first != nil || c.leaving(l.number):
			later = append(later, o)
			continue
		case c.held[l.number] != nil:
			again = append(again, o)
		default:
			c.asked[l.number] = o
			lock[l.mode] = append(lock[l.mode], o)
		}
		class = max(class, o.class)
	}
	c.queue.locks = append(later, c.queue.locks...)
	for _, o := range beats {
		class = max(class, o.class)
	}
	if class != 0 {
		if c.class = class; class != c.told {
			out = append(out, tell(class))
		}
	}
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		out = c.planned(out, unlock[mode], true)
	}
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		out = c.planned(out, lock[mode], false)
	}
	for _, o := range again {
		out = append(out, &statement{sql: c.b.sql.Again(o.lease.number), ops: []*op{o}, do: (*conn).locked})
	}
	if len(beats) > 0 {
		if len(out) == 0 || c.b.opt.Pooler != "" {
			out = append(out, &statement{sql: beat, do: (*conn).beaten})
		}
		out[len(out)-1].beats = beats
	}
	return out
}

// take takes the requests of one round.
func (q *queue) take() (unlocks, locks, beats []*op) {
	n, m := min(len(q.unlocks), maxRound), min(len(q.locks), maxRound)
	unlocks, locks, beats = q.unlocks[:n:n], q.locks[:m:m], q.beats
	q.unlocks, q.locks, q.beats = q.unlocks[n:], q.locks[m:], nil
	return unlocks, locks, beats
}

// refusal returns a HeldError if a lease of this connection excludes l. Advisory locks are
// reentrant within a session, even from shared to exclusive: the server would grant a lock twice.
func (c *conn) refusal(l *Lease) *driver.HeldError {
	for h := c.held[l.number]; h != nil; h = h.next {
		if h.leaving == nil && (h.mode == driver.Exclusive || l.mode == driver.Exclusive) {
			return l.heldBy(h)
		}
	}
	return nil
}

// leaving reports whether the connection is unlocking this lock.
func (c *conn) leaving(n advisory.Number) bool {
	h := c.held[n]
	for ; h != nil && h.leaving != nil; h = h.next {
	}
	return h == nil && c.held[n] != nil
}

func (c *conn) guarded() error {
	return &driver.RefusedError{RetryAfter: time.Until(c.server.notBefore), Reason: "postgres: the server was started less than the restart guard ago, and may have forgotten locks"}
}

// planned appends the statements for requests of one kind and mode: one statement for all keys
// with a plain number.
func (c *conn) planned(out []*statement, ops []*op, unlock bool) []*statement {
	var together []*op
	var numbers []advisory.Number
	for _, o := range ops {
		if len(ops) > 1 && !o.lease.number.Pair {
			together, numbers = append(together, o), append(numbers, o.lease.number)
			continue
		}
		out = append(out, c.single(o, unlock))
	}
	if len(together) > 0 {
		st := c.single(together[0], unlock)
		st.sql, st.ops = advisory.Many(ops[0].lease.mode, unlock, numbers), together
		out = append(out, st)
	}
	return out
}

// single returns the statement for one request.
func (c *conn) single(o *op, unlock bool) *statement {
	if unlock {
		return &statement{sql: o.lease.number.Unlock(o.lease.mode), ops: []*op{o}, do: (*conn).unlocked}
	}
	return &statement{sql: c.b.sql.Try(o.lease.number, o.lease.mode), ops: []*op{o}, do: (*conn).locked}
}

// locked handles the answer to locks. After an error some of them may be granted, because a
// lock stays if a later part of its statement fails. So locked unlocks all of them, except
// those that the connection held before (shared locks).
func (c *conn) locked(st *statement) {
	switch {
	case st.err == nil && len(st.values) == len(st.ops):
		for i, o := range st.ops {
			c.decide(o, st.values[i], st.sent)
		}
		return
	case st.err == nil:
		c.failWith(st.ops, fmt.Errorf("postgres: %d rows for %d locks", len(st.values), len(st.ops)))
		return
	}
	unlocks := ""
	for _, o := range st.ops {
		if c.held[o.lease.number] == nil {
			unlocks += o.lease.number.Unlock(o.lease.mode) + "; "
		}
	}
	c.cleanUp(unlocks, st.ops, retries, func() {
		for _, o := range st.ops {
			if len(st.ops) == 1 {
				c.refuse(o, st.err)
			} else { // one by one, to find the request that the error is about
				c.write(c.single(o, false))
			}
		}
	})
}

// retries is how often a statement that must not fail is sent again after a cancellation,
// before the connection is given up.
const retries = 20

// cleanUp unlocks the locks that ops may have taken, and afterwards calls the function then.
// The mutex is held.
func (c *conn) cleanUp(unlocks string, ops []*op, retries int, then func()) {
	if unlocks == "" {
		then()
		return
	}
	c.write(&statement{sql: unlocks, ops: ops, do: func(c *conn, st *statement) {
		switch {
		case st.err == nil:
			then()
		case retries > 0:
			c.cleanUp(unlocks, ops, retries-1, then)
		default:
			c.failWith(ops, fmt.Errorf("postgres: a lock could not be given back: %w", st.err))
		}
	}})
}

// decide answers a request: with a token it is granted, without one refused.
func (c *conn) decide(o *op, token int64, sent time.Time) {
	l := o.lease
	delete(c.asked, l.number)
	if token <= 0 {
		held := &driver.HeldError{Server: c.server.id}
		finish([]*op{o}, held)
		return
	}
	c.queue.locks = append(o.also, c.queue.locks...) // they see this lease
	o.also = nil
	c.grant(l, token, sent)
	// Give it back if it is over, its caller has gone, or the session's timeout is too short
	// for it.
	switch {
	case l.fence > driver.MaxFence:
		c.unlock(l)
		o.finish(c.b.noToken())
	case o.gone || !time.Now().Before(driver.Expires(sent, l.ttl)) || c.known < o.class:
		c.unlock(l)
		o.finish(verdict.ErrTimeout)
	default:
		o.finish(nil)
	}
}

// grant enters a lease that was requested at sent.
func (c *conn) grant(l *Lease, token int64, sent time.Time) {
	l.c, l.start, l.since = c, sent, time.Now()
	if c.b.schema != "" {
		if l.fence = uint64(token); l.fence <= driver.MaxFence {
			c.b.sawToken(l.fence)
		}
	}
	l.next = c.held[l.number]
	c.held[l.number] = l
	if l.next == nil {
		c.b.locks.Add(1)
	}
	if c.leases++; c.leases == 1 || l.end().Before(c.nextEnd) {
		c.nextEnd = l.end()
	}
	c.schedule(l.since)
}

// remove removes a lease.
func (c *conn) remove(l *Lease) {
	c.leases--
	if at := c.held[l.number]; at != l {
		for at.next != l {
			at = at.next
		}
		at.next = l.next
		return
	}
	if c.held[l.number] = l.next; l.next == nil {
		delete(c.held, l.number)
		c.b.locks.Add(-1)
	}
}

// refuse answers a request with the server's error. Nothing is known of the others for the lock.
func (c *conn) refuse(o *op, e *pgconn.PgError) {
	delete(c.asked, o.lease.number)
	c.queue.locks = append(o.also, c.queue.locks...)
	o.also = nil
	o.finish(verdict.Of(e.Code, e, c.server.perTransaction))
}

// unlocked handles the answer to unlocks: false means that the session did not have the lock.
// After an error (a cancelled statement) the outcome is unknown, and each unlock is sent again.
func (c *conn) unlocked(st *statement) {
	if st.err == nil && len(st.values) != len(st.ops) {
		c.failWith(st.ops, fmt.Errorf("postgres: %d rows for %d unlocks", len(st.values), len(st.ops)))
		return
	}
	for i, o := range st.ops {
		switch {
		case st.err != nil && o.tries == retries:
			c.failWith(st.ops[i:], fmt.Errorf("postgres: unlock: %w", st.err))
			return
		case st.err != nil:
			o.tries++
			c.write(c.single(o, true))
		default:
			c.remove(o.lease)
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
func (c *conn) beaten(st *statement) {
	switch {
	case st.err != nil && c.b.opt.Pooler != "":
		c.write(&statement{sql: beat, beats: st.beats, do: (*conn).beaten})
		st.beats = nil
	case st.err == nil && (len(st.values) != 1 || st.values[0] != int64(c.w.PID())):
		c.failWith(st.beats, errors.New("postgres: the pooler has changed the server process under a session"))
	}
}

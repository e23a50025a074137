package postgres

import (
	"errors"
	"time"

	"github.com/redlock-go/redlock/driver"
)

const beat = "SELECT pg_backend_pid()"

// maxRound bounds the unlocks, and the locks, of one round, and so the size of a message and the
// time that the server spends on it.
const maxRound = 256

// tell is the statement that sets the session's timeout.
func tell(class time.Duration) *statement {
	return &statement{sql: "SET idle_session_timeout = " + milliseconds(class), class: class}
}

// plan takes a round out of the queue. Unlocks go first. Those of one mode are one statement, and
// so are the locks. All shared leases of one lock on a connection share one lock on the server:
// the first lease takes it, the last one releases it, and the others only check that no writer
// waits and draw a token.
func (c *conn) plan() (out []*statement) {
	q := &c.queue
	n, m := min(len(q.unlocks), maxRound), min(len(q.locks), maxRound)
	unlocks, locks, beats := q.unlocks[:n:n], q.locks[:m:m], q.beats
	q.unlocks, q.locks, q.beats = q.unlocks[n:], q.locks[m:], nil
	guarded := time.Now().Before(c.server.notBefore)
	clear(c.firsts)
	var unlock, lock [2][]*op // by mode
	for _, o := range unlocks {
		if l := o.l; c.held[l.number] != l || l.next != nil { // not the last of several shared leases
			c.remove(l)
			o.finish(nil)
		} else {
			unlock[l.mode] = append(unlock[l.mode], o)
		}
	}
	class := time.Duration(0)
	if c.leases > 0 {
		class = max(c.class, c.told)
	}
	var single []*statement // a lock each
	var later []*op
	for _, o := range locks {
		l := o.l
		first := c.firsts[l.number]
		switch held := c.refusal(&l.want); {
		case o.gone:
			continue
		case guarded:
			o.finish(c.server.guarded())
			continue
		case held != nil:
			o.finish(held)
			continue
		case first != nil && first.l.mode == l.mode:
			first.also = append(first.also, o)
			continue
		case first != nil || c.leaving(l.number):
			later = append(later, o)
			continue
		case c.held[l.number] != nil:
			single = append(single, lockStatement(c.b.sql.again(l.number), o))
		case l.tokens > 0:
			c.firsts[l.number] = o
			single = append(single, lockStatement(c.b.sql.try(l.number, l.mode, l.tokens), o))
		default:
			c.firsts[l.number] = o
			lock[l.mode] = append(lock[l.mode], o)
		}
		class = max(class, o.class)
	}
	q.locks = append(later, q.locks...)
	for _, o := range beats {
		class = max(class, o.class)
	}
	if class != 0 {
		if c.class = class; class != c.told {
			out = append(out, tell(class))
		}
	}
	for mode, ops := range unlock {
		if len(ops) > 0 {
			out = append(out, &statement{sql: executeAll(unlockNames[mode], ops), ops: ops, rows: len(ops), do: (*conn).unlocked})
		}
	}
	for mode, ops := range lock {
		if len(ops) > 0 {
			out = append(out, lockStatement(executeAll(lockNames[mode], ops), ops...))
		}
	}
	out = append(out, single...)
	if len(beats) > 0 {
		if len(out) == 0 || c.b.opt.Pooler != "" {
			out = append(out, &statement{sql: beat, rows: 1, do: (*conn).beaten})
		}
		out[len(out)-1].beats = beats
	}
	return out
}

// refusal returns a HeldError if a lease of this connection excludes w. Advisory locks are
// reentrant within a session, even from shared to exclusive: the server would grant a lock twice.
func (c *conn) refusal(w *want) *driver.HeldError {
	for h := c.held[w.number]; h != nil; h = h.next {
		if !h.leaving && (h.mode == driver.Exclusive || w.mode == driver.Exclusive) {
			return &driver.HeldError{Holder: h.owner, Since: h.since, Clock: time.Now()}
		}
	}
	return nil
}

// leaving reports whether the connection is unlocking this lock.
func (c *conn) leaving(n number) bool {
	h := c.held[n]
	for ; h != nil && h.leaving; h = h.next {
	}
	return h == nil && c.held[n] != nil
}

func (s *server) guarded() error {
	return &driver.RefusedError{RetryAfter: time.Until(s.notBefore), Reason: "postgres: the server was started less than the restart guard ago, and may have forgotten locks"}
}

// lockStatement has a row for each of these requests for locks.
func lockStatement(sql string, ops ...*op) *statement {
	return &statement{sql: sql, ops: ops, rows: len(ops), fails: true, do: (*conn).locked}
}

// locked handles the answer to locks. After an error some of them may be granted, because a
// lock stays if a later part of its statement fails. So locked unlocks all of them, except
// those that the connection held before (shared locks), and then refuses all requests.
func (c *conn) locked(st *statement) {
	if st.err == nil {
		now := time.Now()
		for i, o := range st.ops {
			c.decide(o, st.values[i], st.sent, now)
		}
		return
	}
	err := refusalOf(st.err)
	clean := &statement{ops: st.ops, do: func(_ *conn, st *statement) {
		for _, o := range st.ops {
			o.finish(err)
		}
	}}
	for _, o := range st.ops {
		if c.held[o.l.number] == nil {
			clean.sql += execute(unlockNames[o.l.mode], o.l.number) + "; "
			clean.rows++
		}
	}
	if clean.rows == 0 {
		clean.do(c, clean)
		return
	}
	c.write(clean)
}

// decide answers a request: with a token it is granted, without one refused.
func (c *conn) decide(o *op, token int64, sent, now time.Time) {
	l := o.l
	if token <= 0 {
		o.finish(&driver.HeldError{Server: c.server.id})
		return
	}
	if len(o.also) > 0 {
		c.queue.locks = append(o.also, c.queue.locks...) // they see this lease
		o.also = nil
	}
	c.grant(l, token, sent, now)
	// Give it back if it is over, or its caller has gone.
	err := error(nil)
	switch {
	case l.fence > driver.MaxFence:
		err = c.b.noToken()
	case o.gone || !now.Before(driver.Expires(sent, l.ttl)):
		err = errLate
	}
	if err != nil {
		c.unlock(l)
	}
	o.finish(err)
}

// grant enters a lease that was requested at sent.
func (c *conn) grant(l *lease, token int64, sent, now time.Time) {
	l.c, l.start, l.since, l.fence = c, sent, now, uint64(token)
	if l.fence <= driver.MaxFence {
		c.b.sawToken(l.fence)
	}
	l.next = c.held[l.number]
	c.held[l.number] = l
	c.leases++
}

// remove removes a lease.
func (c *conn) remove(l *lease) {
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
	}
}

// unlocked handles the answer to unlocks: false means that the session did not have the lock.
func (c *conn) unlocked(st *statement) {
	for i, o := range st.ops {
		c.remove(o.l)
		if st.values[i] != 1 {
			o.finish(driver.ErrLost)
		} else {
			o.finish(nil)
		}
	}
}

// beaten handles the answer to a heartbeat. If it comes from another server process, a pooler
// that does not pool sessions has given the locks to another client.
func (c *conn) beaten(st *statement) {
	if st.values[0] != int64(c.w.pid) {
		c.fail(errors.New("the pooler has changed the server process under a session"), st.beats...)
	}
}

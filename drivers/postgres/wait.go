package postgres

import (
	"errors"
	"maps"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// A hotKey is a lock that callers of this process wait for, or that was refused lately.
type hotKey struct {
	turn             chan struct{} // empty while a caller waits on the server; the others follow in their order
	waiters, writers int
	refused          time.Time
	seen             *driver.HeldError // the last refusal
}

const (
	// hotFor is how long after a refusal a caller that may wait for the lock does so at once, without
	// an attempt; hotKeys bounds the locks that are remembered.
	hotFor  = time.Second
	hotKeys = 1024
	// pollEvery is the interval at which callers without a connection for waiting poll, all of a
	// process at the same time, so that they share one statement.
	pollEvery = 25 * time.Millisecond
	// scarceFor is how long after a wait that found no connection the others leave theirs when their
	// slices end, so that all take turns: where a key is handed from waiter to waiter, a poll never
	// finds it free.
	scarceFor = time.Second / 2
	// A slice stays below the server's deadlock_timeout, 1 s by default, after which every wait is
	// examined and may be logged. It is as long as that permits, because waiters are served in the
	// order of the server's queue only within a slice.
	sliceTime = 850 * time.Millisecond
)

// expected returns the last refusal if a request for a lock is likely to wait, and reports whether
// a writer of this process waits.
func (b *Backend) expected(n number) (seen *driver.HeldError, writer bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.hot[n]
	switch {
	case k == nil:
		return nil, false
	case time.Since(k.refused) < hotFor:
		seen = k.seen
	case k.waiters > 0:
		seen = &driver.HeldError{}
	}
	return seen, k.writers > 0
}

// heat notes that a lock was refused, and that so many more callers wait for it.
func (b *Backend) heat(w *want, seen *driver.HeldError, waiters int) *hotKey {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.hot[w.number]
	if k == nil {
		if len(b.hot) >= hotKeys {
			maps.DeleteFunc(b.hot, func(_ number, k *hotKey) bool { return k.waiters == 0 })
		}
		k = &hotKey{turn: make(chan struct{}, 1)}
		k.turn <- struct{}{}
		b.hot[w.number] = k
	}
	if seen != nil {
		k.refused, k.seen = time.Now(), seen
	}
	k.waiters += waiters
	if w.mode == driver.Exclusive {
		k.writers += waiters
	}
	return k
}

// wait waits in the server's queue. Of the callers for one lock, which are served in the order
// of their arrival, only the first waits there. Without a connection for it, it polls.
func (b *Backend) wait(call *base.Call, w *want, seen *driver.HeldError) (l *lease, err error) {
	k := b.heat(w, nil, 1)
	defer b.heat(w, nil, -1)
	if err = call.Await(k.turn); err == nil {
		defer func() { k.turn <- struct{}{} }()
		err = driver.ErrHeld
	}
	for over := false; call.Over() == nil && (errors.Is(err, driver.ErrHeld) || errors.Is(err, errEnded)); over = true {
		c := b.reserve(w)
		if c != nil {
			l, err = b.waitOn(call, c, w, over)
			err = call.Failed(err)
		}
		if c == nil || errors.Is(err, driver.ErrHeld) { // another key's turn
			l, err = b.poll(call, w)
		}
	}
	over := call.Over()
	if err == nil || over == nil {
		return l, err
	}
	return nil, base.Waited(over, seen)
}

// poll makes an attempt at the next multiple of pollEvery.
func (b *Backend) poll(call *base.Call, w *want) (*lease, error) {
	if !base.Pause(call, pollEvery-time.Duration(time.Now().UnixNano())%pollEvery) {
		return nil, call.Over()
	}
	return b.try(call.Caller(), w)
}

// waitOn waits on a reserved connection, until the lock is granted or the call ends. If other callers
// want the connection it returns ErrHeld after a slice. A writer shows from its second slice on that it
// waits, because showing costs a handoff a tenth; over: it has waited before.
func (b *Backend) waitOn(call *base.Call, c *conn, w *want, over bool) (*lease, error) {
	if err := call.Await(c.opened); err != nil {
		c.free()
		return nil, err
	}
	for ; ; over = true {
		l := &lease{want: *w}
		err := c.slice(call, l, over)
		if !errors.Is(err, driver.ErrHeld) {
			return l, err
		}
		if call.Over() != nil || b.scarce() {
			c.free()
			return nil, err
		}
	}
}

// free ends a reservation.
func (c *conn) free() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end == nil {
		c.leave(false)
		c.flush()
		c.readOn()
	}
}

// leave ends the reservation of a connection that holds no lease after a wait; the mutex is held.
func (c *conn) leave(locked bool) {
	c.waiting = false
	if locked || c.shows {
		c.shows = false
		c.write(&statement{sql: "SELECT pg_advisory_unlock_all()", rows: 1})
	}
}

// slice waits for a lock in the server's queue, for sliceTime at most, on a reserved connection; see
// queries.slice. A writer shows that it waits if show is set. ErrHeld says that the slice is over,
// which keeps the reservation. Any other answer ends it. If its caller gives up, the slice runs to its
// end, which costs no connection.
//
// The server keeps the lock for the lease's class after the grant, from the moment when its answer
// leaves. The class is set before the slice, so that no round trip confirms a grant while the others
// wait; the lease counts from the sending of the slice.
func (c *conn) slice(call *base.Call, l *lease, show bool) error {
	c.mu.Lock()
	switch {
	case c.end != nil:
		c.mu.Unlock()
		return errEnded
	case time.Now().Before(c.server.notBefore):
		c.leave(false)
		c.mu.Unlock()
		return c.server.guarded()
	}
	show = show && !c.shows && l.mode == driver.Exclusive
	o := &l.taking
	l.c, l.taking = c, op{l: l, class: classOf(l.ttl)}
	var out []*statement
	if c.class = o.class; c.told != o.class {
		out = append(out, tell(o.class))
	}
	st := &statement{
		sql: c.b.sql.slice(l.number, l.mode, l.tokens, show), ops: []*op{o}, rows: 1, fails: true, do: (*conn).sliceEnded,
		most: 2 * sliceTime, // a reader waits twice: for the writer and for the lock
	}
	if show {
		st.rows = 2
	}
	c.write(append(out, st)...)
	return c.await(call, o)
}

// sliceEnded handles the answer to a slice: a token, or null. A grant late in the lease's time is
// confirmed by a round trip, from which it then counts.
func (c *conn) sliceEnded(st *statement) {
	o, values := st.ops[0], st.values
	if len(values) == 2 {
		c.shows = values[0] == 1
		values = values[1:]
	}
	switch {
	case st.err != nil: // the connection may have the lock nevertheless, and no other
		c.leave(true)
		o.finish(refusalOf(st.err))
		return
	}
	switch token := values[0]; {
	case o.gone:
		c.leave(token > 0)
	case token <= 0:
		o.finish(&driver.HeldError{})
	case time.Since(st.sent) < o.l.ttl/4:
		c.granted(o, token, st.sent)
	default:
		confirm := tell(o.class)
		confirm.ops, confirm.do = st.ops, func(c *conn, confirmed *statement) {
			c.granted(o, token, confirmed.sent)
		}
		c.write(confirm)
	}
}

// granted answers a wait with its lease.
func (c *conn) granted(o *op, token int64, sent time.Time) {
	c.waiting = false
	if c.shows {
		c.shows = false
		c.write(&statement{sql: "SELECT pg_advisory_unlock(" + o.l.number.writers() + ")", rows: 1})
	}
	c.decide(o, token, sent, time.Now())
}

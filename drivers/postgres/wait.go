package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/postgres/internal/advisory"
	"github.com/redlock-go/redlock/drivers/postgres/internal/verdict"
)

// A place is that of a caller in the line for one lock, which has the callers of this process that
// wait for it, in order. Only the first waits on the server.
type place struct {
	mode  driver.Mode
	first chan struct{} // closed when it is the first
}

// enter puts l at the end of the line for its lock.
func (b *Backend) enter(l *Lease) *place {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := &place{l.mode, make(chan struct{})}
	if b.lines[l.number] = append(b.lines[l.number], p); len(b.lines[l.number]) == 1 {
		close(p.first)
	}
	return p
}

func (b *Backend) leave(n advisory.Number, p *place) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.lines[n]
	i := slices.Index(q, p)
	switch q = slices.Delete(q, i, i+1); {
	case len(q) == 0:
		delete(b.lines, n)
		return
	case i == 0:
		close(q[0].first)
	}
	b.lines[n] = q
}

// hotFor is how long after a refusal a caller that may wait for the lock does so at once, without
// an attempt; hotKeys bounds the locks that are remembered.
const (
	hotFor  = time.Second
	hotKeys = 1024
)

// A refusal is the last one of a lock.
type refusal struct {
	at   time.Time
	seen *driver.HeldError
	slow time.Time // when a slice ended without the lock
}

// slowFor is how long after a slice that ended without the lock a writer shows from its first slice on
// that it waits. Otherwise the first slice does without, because showing costs a handoff a tenth.
const slowFor = 10 * time.Second

// expected returns the last refusal if a request for a lock is likely to wait, and reports whether
// a writer of this process waits.
func (b *Backend) expected(n advisory.Number) (seen *driver.HeldError, writer bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q, last := b.lines[n], b.hot[n]
	switch {
	case time.Since(last.at) < hotFor:
		seen = last.seen
	case len(q) > 0:
		seen = &driver.HeldError{}
	}
	return seen, slices.ContainsFunc(q, func(p *place) bool { return p.mode == driver.Exclusive })
}

// heat notes that a lock was refused.
func (b *Backend) heat(n advisory.Number, seen *driver.HeldError) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.hot) >= hotKeys {
		clear(b.hot)
	}
	b.hot[n] = refusal{time.Now(), seen, b.hot[n].slow}
}

// isSlow reports whether waits for a lock take long, and notes it if over is set.
func (b *Backend) isSlow(n advisory.Number, over bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.hot[n]
	if over {
		r.slow = time.Now()
		b.hot[n] = r
	}
	return time.Since(r.slow) < slowFor
}

// wait waits in the server's queue. Of the callers for one lock, which are served in the order
// of their arrival, only the first waits there.
func (b *Backend) wait(ctx context.Context, l *Lease, seen *driver.HeldError) error {
	p := b.enter(l)
	defer b.leave(l.number, p)
	err := error(nil)
	select {
	case <-p.first:
		err = b.waitFirst(ctx, l)
	case <-ctx.Done():
		err = ctx.Err()
	case <-b.ctx.Done():
		return driver.ErrClosed
	}
	if err != nil && ctx.Err() != nil {
		return waited(ctx, seen)
	}
	return err
}

// waitFirst waits on a connection of its own, and polls while it has none.
func (b *Backend) waitFirst(ctx context.Context, l *Lease) error {
	for warned := false; ; {
		c, full := b.reserve(classOf(l.ttl))
		if full && !warned {
			warned = true
			b.report(driver.Notice{Kind: driver.NoticeDegraded, Key: l.key, Detail: fmt.Sprintf("more keys are waited for than there are connections for waiting (max_conns=%d): keys without one are polled", b.opt.MaxConns)})
		}
		err := b.poll(ctx, c, l)
		if c != nil && err == errTurn { //nolint:errorlint // never wrapped
			err = b.waitOn(ctx, c, l)
		}
		if err != errTurn && !errors.Is(err, driver.ErrHeld) && !errors.Is(err, errEnded) { //nolint:errorlint // never wrapped
			return err
		}
	}
}

// errTurn says that it is another caller's turn, or that the turn has come.
var errTurn = errors.New("postgres: the turn changes")

// pollEvery is the interval at which callers without a connection for waiting poll, all of a
// process at the same time, so that they share one statement.
const pollEvery = 25 * time.Millisecond

// poll makes attempts until c, if there is one, is open: the error is then errTurn. Without a
// connection it makes one attempt.
func (b *Backend) poll(ctx context.Context, c *conn, l *Lease) (err error) {
	var opened chan struct{}
	if c != nil {
		if opened = c.opened; c.isOpen() {
			return errTurn
		}
		defer func() {
			if err != errTurn { //nolint:errorlint // never wrapped
				c.free()
			}
		}()
	}
	b.polling.Add(1)
	defer b.polling.Add(-1)
	for {
		timer := time.NewTimer(pollEvery - time.Duration(time.Now().UnixNano())%pollEvery)
		select {
		case <-opened:
			timer.Stop()
			return errTurn
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return verdict.Ended(ctx)
		case <-b.ctx.Done():
			timer.Stop()
			return driver.ErrClosed
		}
		if err := b.try(ctx, l); c == nil || !errors.Is(err, driver.ErrHeld) {
			return err
		}
	}
}

// A slice stays below the server's deadlock_timeout, 1 s by default, after which every wait is
// examined and may be logged. It is as long as that permits, because waiters are served in the
// order of the server's queue only within a slice. It is short if more keys are waited for than
// there are connections.
const (
	longSlice  = 850 * time.Millisecond
	shortSlice = 200 * time.Millisecond
)

// waitOn waits on a reserved connection, until the lock is granted or ctx ends. If another caller
// wants the connection it returns errTurn between two slices.
func (b *Backend) waitOn(ctx context.Context, c *conn, l *Lease) error {
	for over := false; ; over = true {
		length := longSlice
		if b.polling.Load() > 0 {
			length = shortSlice
		}
		err := c.slice(ctx, l, length, b.isSlow(l.number, over))
		if !errors.Is(err, driver.ErrHeld) {
			return err
		}
		if b.polling.Load() > 0 {
			c.free()
			return errTurn
		}
	}
}

// reserve takes a connection that is open and holds nothing for a wait.
func (c *conn) reserve() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end != nil || c.suspect || !c.idle() {
		return false
	}
	c.waiting, c.used = true, time.Now()
	return true
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
		c.cleanUp("SELECT pg_advisory_unlock_all()", nil, retries, func() {})
	}
}

// slice waits for a lock in the server's queue, for length at most, on a reserved connection; see
// advisory.Slice. A writer shows that it waits if show is set. ErrHeld says that the slice is over, which keeps the reservation. Any other answer
// ends it.
//
// The server keeps the lock for the lease's class after the grant, from the moment when its answer
// leaves. The class is set before the slice, so that no round trip confirms a grant while the others
// wait; the lease counts from the sending of the slice.
func (c *conn) slice(ctx context.Context, l *Lease, length time.Duration, show bool) error {
	c.mu.Lock()
	switch {
	case c.end != nil:
		c.mu.Unlock()
		return errEnded
	case time.Now().Before(c.server.notBefore):
		c.leave(false)
		c.mu.Unlock()
		return c.guarded()
	}
	l.c = c
	o := c.newOp(l, time.Minute)
	var out []*statement
	if c.class = o.class; c.told != o.class {
		out = append(out, tell(o.class))
	}
	if c.timeout != length {
		c.timeout = length
		out = append(out, &statement{sql: fmt.Sprintf("SET lock_timeout = %d", length.Milliseconds()), do: func(c *conn, st *statement) {
			if st.err != nil { // it was cancelled: set it again
				c.timeout = 0
			}
		}})
	}
	c.write(append(out, &statement{
		sql: c.b.sql.Slice(l.number, l.mode, show && !c.shows), ops: []*op{o}, do: (*conn).sliceEnded,
		most: 2 * length, // a reader waits twice: for the writer and for the lock
	})...)
	if c.await(ctx, o) {
		return o.err
	}
	c.quit(o)
	return verdict.Ended(ctx)
}

// quit lets a slice whose caller has gone run to its end, which costs no connection.
func (c *conn) quit(o *op) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !o.answered() {
		o.gone = true
		return
	}
	if c.end != nil {
		return
	}
	if o.err == nil {
		c.unlock(o.lease)
	}
	c.leave(false)
	c.flush()
	c.readOn()
}

// sliceEnded handles the answer to a slice: a token, or null. A grant late in the lease's time is
// confirmed by a round trip, from which it then counts.
func (c *conn) sliceEnded(st *statement) {
	o := st.ops[0]
	l := o.lease
	if l.mode == driver.Exclusive && len(st.values) == 2 {
		c.shows = st.values[0] == 1
		st.values = st.values[1:]
	}
	switch {
	case st.err != nil: // the connection may have the lock nevertheless, and no other
		c.leave(true)
		o.finish(verdict.Of(st.err.Code, st.err, c.server.perTransaction))
	case len(st.values) != 1:
		c.failWith(st.ops, errors.New("postgres: a wait ended without a value"))
	case o.gone:
		c.leave(st.values[0] > 0)
	case st.values[0] <= 0:
		o.finish(&driver.HeldError{})
	case time.Since(st.sent) < l.ttl/4:
		c.granted(o, st.values[0], st.sent)
	default:
		confirm := tell(o.class)
		confirm.ops, confirm.do = st.ops, func(c *conn, confirmed *statement) {
			if confirmed.err != nil {
				c.leave(true)
				o.finish(verdict.ErrTimeout)
				return
			}
			c.granted(o, st.values[0], confirmed.sent)
		}
		c.write(confirm)
	}
}

// granted answers a wait with its lease.
func (c *conn) granted(o *op, token int64, sent time.Time) {
	c.waiting = false
	if c.shows {
		c.shows = false
		c.cleanUp(o.lease.number.UnlockWriters(), nil, retries, func() {})
	}
	c.decide(o, token, sent)
}

// waited returns the error of a wait that ended with its context. It includes the last refusal.
func waited(ctx context.Context, seen *driver.HeldError) error {
	return fmt.Errorf("postgres: %w: %w", ctx.Err(), seen)
}

package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// A want is what a caller asks for.
type want struct {
	number number
	key    string
	owner  string
	mode   driver.Mode
	ttl    time.Duration
	tokens uint32 // the length of its range; zero: one token
}

// A lease is one attempt to lock, and the lock if that is granted. The connection's mutex guards its
// fields.
type lease struct {
	want
	c       *conn
	fence   uint64
	start   time.Time // Expires counts from here
	since   time.Time // when it was granted
	next    *lease    // another shared lease of the same lock
	taking  op        // its lock
	freeing op        // its unlock, if it is leaving
	leaving bool
	expired bool          // it was not renewed, and the driver unlocked it
	woken   chan struct{} // wakes its caller; nil: no caller waits for another goroutine
}

// signal wakes the caller; the connection's mutex is held.
func (l *lease) signal() {
	select {
	case l.woken <- struct{}{}:
	default: // there is no caller, or a signal already
	}
}

// grant returns the grant as of the last success. All leases of a connection have the same channel
// Lost. The mutex is held, or the caller does not have the lease yet: only renew changes what it reads.
func (l *lease) grant() driver.Grant {
	return driver.Grant{
		Expires: driver.Expires(l.start, l.ttl), Fence: l.fence, Tokens: l.tokens,
		Server: l.c.server.id, Lost: l.c.lost,
	}
}

// renew extends the lease. One heartbeat renews all leases of a connection. So does any other
// answer of the server that is at most a twentieth of the TTL old and has not renewed this lease
// yet: many leases that are renewed one by one cost together one statement every twentieth of the
// TTL.
func (l *lease) renew(call *base.Call, r *driver.Renewal) (driver.Grant, error) {
	c, called := l.c, time.Now()
	for newest := called.Add(-r.TTL / 20); ; newest = called {
		c.mu.Lock()
		g, err := l.renewed(r.TTL, newest)
		if g.Lost != nil || err != nil {
			c.mu.Unlock()
			return g, err
		}
		o := &op{l: l, class: classOf(r.TTL)}
		c.queue.beats = append(c.queue.beats, o)
		c.flush()
		if err := c.await(call, o); err != nil && !c.ended() {
			return g, err
		}
	}
}

// renewed extends the lease if the server has answered anything since newest; the mutex is held.
func (l *lease) renewed(ttl time.Duration, newest time.Time) (driver.Grant, error) {
	c := l.c
	switch {
	case c.end != nil:
		return driver.Grant{}, fmt.Errorf("%w: %w", driver.ErrLost, c.end)
	case l.leaving:
		return driver.Grant{}, driver.ErrLost
	case c.known >= classOf(ttl) && c.answered.After(l.start) && !c.answered.Before(newest):
		l.start, l.ttl = c.answered, ttl
		return l.grant(), nil
	}
	return driver.Grant{}, nil
}

// ended reports whether the connection has ended.
func (c *conn) ended() bool {
	select {
	case <-c.lost:
		return true
	default:
		return false
	}
}

// overTimeout bounds the release of a lease that is over, whose caller only learns whether the lock
// is free.
const overTimeout = time.Second / 2

// release unlocks. It waits for the server's answer at most as long as the call lasts, and half a
// second if the lease is over. The unlock is sent even after that.
func (l *lease) release(call *base.Call) error {
	c := l.c
	c.mu.Lock()
	if c.end != nil && !l.leaving { // else an unlock may have been answered before the end
		c.mu.Unlock()
		return l.afterEnd(call)
	}
	c.unlock(l)
	o := &l.freeing
	o.by, _ = call.Deadline()
	if now := time.Now(); !now.Before(driver.Expires(l.start, l.ttl)) && o.by.Sub(now) > overTimeout {
		o.by = now.Add(overTimeout)
	}
	c.flush()
	err := c.await(call, o)
	switch {
	case err == nil && l.expired:
		return driver.ErrLost
	case err == nil, err == driver.ErrLost, !c.ended(): //nolint:errorlint // set by unlocked, never wrapped
		return err
	}
	return l.afterEnd(call)
}

// afterEnd is release after the connection's end. The server frees the locks when it notices the
// end, or after the session's timeout since the last message that it received. The client does not
// know when that was, so afterEnd asks the server.
func (l *lease) afterEnd(ctx context.Context) error {
	c := l.c
	c.mu.Lock()
	end := c.end
	c.mu.Unlock()
	if errors.Is(end, driver.ErrClosed) {
		return driver.ErrLost
	}
	if said := (*pgconn.PgError)(nil); !c.lockFreed(ctx, errors.As(end, &said)) {
		return fmt.Errorf("the lock stays until the server notices that its session has ended: %w", end)
	}
	return driver.ErrLost
}

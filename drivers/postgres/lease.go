package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
	"github.com/redlock-go/redlock/drivers/postgres/internal/advisory"
)

// A lease is one owner's lock, or its request for the lock. The connection's mutex guards its
// fields from the grant on.
type lease struct {
	number advisory.Number
	key    string
	owner  string
	mode   driver.Mode
	ttl    time.Duration

	c       *conn
	fence   uint64
	start   time.Time // Expires counts from here
	since   time.Time // when it was granted
	next    *lease    // another shared lease of the same lock
	leaving *op       // its unlock; nil: none yet
	expired bool      // it was not renewed, and the driver unlocked it
}

// grant returns the grant as of the last success. All leases of a connection have the same channel
// Lost. The mutex is held, or the caller does not have the lease yet: only renew changes what it reads.
func (l *lease) grant() driver.Grant {
	return driver.Grant{
		Expires: driver.Expires(l.start, l.ttl), Fence: l.fence,
		Server: l.c.server.id, Lost: l.c.lost,
	}
}

// renew extends the lease. One heartbeat renews all leases of a connection. So does any other
// answer of the server that is at most a twentieth of the TTL old and has not renewed this lease
// yet: many leases that are renewed one by one cost together one statement every twentieth of the
// TTL.
func (l *lease) renew(call *base.Call, r *driver.Renewal) (driver.Grant, error) {
	c, class, called := l.c, classOf(r.TTL), time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for newest := called.Add(-r.TTL / 20); ; newest = called {
		switch {
		case c.end != nil:
			return driver.Grant{}, fmt.Errorf("%w: %w", driver.ErrLost, c.end)
		case l.leaving != nil:
			return driver.Grant{}, driver.ErrLost
		case c.known >= class && c.answered.After(l.start) && !c.answered.Before(newest):
			l.start, l.ttl = c.answered, r.TTL
			return l.grant(), nil
		}
		o := c.newOp(l, r.TTL)
		c.queue.beats = append(c.queue.beats, o)
		c.flush()
		if err := c.await(call, o); err != nil && c.end == nil {
			return driver.Grant{}, err
		}
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
	defer c.mu.Unlock()
	if !time.Now().Before(driver.Expires(l.start, l.ttl)) {
		call = call.Within(overTimeout)
		defer call.End()
	}
	if c.end == nil || l.leaving != nil { // an unlock may have been answered before the end
		o := c.unlock(l)
		c.flush()
		err := c.await(call, o)
		switch {
		case err == nil && l.expired:
			return driver.ErrLost
		case err == nil, err == driver.ErrLost, c.end == nil: //nolint:errorlint // set by unlocked, never wrapped
			return err
		}
	}
	return l.afterEnd(call)
}

// afterEnd is release after the connection's end; the mutex is held. The server frees the locks when
// it notices the end, or after the session's timeout since the last message that it received. The
// client does not know when that was, so afterEnd asks the server.
func (l *lease) afterEnd(ctx context.Context) error {
	c := l.c
	if errors.Is(c.end, driver.ErrClosed) {
		return driver.ErrLost
	}
	fatal := c.fatal
	c.mu.Unlock()
	defer c.mu.Lock()
	if fatal { // the end comes within a second
		<-c.closed
	}
	if !c.lockFreed(ctx) {
		return fmt.Errorf("the lock stays until the server notices that its session has ended: %w", c.end)
	}
	return driver.ErrLost
}

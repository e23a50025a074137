package postgres

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/postgres/internal/advisory"
	"github.com/redlock-go/redlock/drivers/postgres/internal/verdict"
)

// A Lease is one owner's lock, or its request for the lock. The connection's mutex guards its
// fields from the grant on.
type Lease struct {
	number advisory.Number
	key    string
	owner  string
	mode   driver.Mode
	ttl    time.Duration

	c       *conn
	fence   uint64
	start   time.Time // Expires counts from here
	since   time.Time // when it was granted
	next    *Lease    // another shared lease of the same lock
	leaving *op       // its unlock; nil: none yet
	expired bool      // it was not renewed, and the driver unlocked it
	told    bool      // the caller knows that it is over

	collides string // another key with this number that refused it
}

var _ driver.Lease = (*Lease)(nil)

// heldBy returns the verdict that h, of the same backend, has the lock.
func (l *Lease) heldBy(h *Lease) *driver.HeldError {
	if h.key != l.key {
		l.collides = h.key
	}
	return &driver.HeldError{Holder: h.owner, Since: h.since, Clock: time.Now()}
}

// end returns when the driver unlocks the lease unless it is renewed.
func (l *Lease) end() time.Time { return l.start.Add(l.ttl + grace(l.ttl)/2) }

// Grant returns the grant as of the last success. All leases of a connection have the same
// channel Lost.
func (l *Lease) Grant() driver.Grant {
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	return l.grant()
}

func (l *Lease) grant() driver.Grant {
	return driver.Grant{
		Expires: driver.Expires(l.start, l.ttl), Fence: l.fence,
		Server: l.c.server.id, Lost: l.c.lost,
	}
}

// Renew extends the lease. One heartbeat renews all leases of a connection. So does any other
// answer of the server that is at most a twentieth of the TTL old and has not renewed this
// lease yet.
func (l *Lease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	c := l.c
	if err := c.b.info.CheckRenewal(r); err != nil {
		return driver.Grant{}, err
	}
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, fmt.Errorf("postgres: %w", err)
	}
	class, called := classOf(r.TTL), time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for newest := called.Add(-fresh(r.TTL)); ; newest = called {
		if err := l.alive(); err != nil {
			return driver.Grant{}, err
		}
		if c.known >= class && c.answered.After(l.start) && !c.answered.Before(newest) {
			l.start, l.ttl = c.answered, r.TTL
			if end := l.end(); end.Before(c.nextEnd) {
				c.nextEnd = end
			}
			return l.grant(), nil
		}
		o := c.newOp(l, patience(r.TTL)-time.Since(called))
		o.class = class
		c.queue.beats = append(c.queue.beats, o)
		c.flush()
		answered := c.await(ctx, o)
		c.mu.Lock()
		switch {
		case !answered:
			o.gone = true
			return driver.Grant{}, verdict.Ended(ctx)
		case o.err != nil && c.end == nil:
			return driver.Grant{}, o.err
		}
	}
}

// alive returns why the lease is over, and nil while it is not.
func (l *Lease) alive() error {
	switch {
	case l.c.b.closing():
		return driver.ErrClosed
	case l.c.end != nil:
		return fmt.Errorf("%w: %w", driver.ErrLost, l.c.end)
	case l.leaving != nil:
		return driver.ErrLost
	}
	return nil
}

// releaseTimeout bounds a release, and overTimeout one of a lease that is over, whose caller
// only learns whether the lock is free.
const (
	releaseTimeout = 5 * time.Second
	overTimeout    = time.Second / 2
)

// Release unlocks. It waits at most five seconds for the server's answer, even if ctx has
// ended, and half a second if the lease is over. The unlock is sent even after that.
func (l *Lease) Release(context.Context) error {
	c, ctx := l.c, context.Background()
	c.mu.Lock()
	if !time.Now().Before(driver.Expires(l.start, l.ttl)) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, overTimeout)
		defer cancel()
	}
	if l.told || c.end != nil && l.leaving == nil { // an unlock may have been answered before the end
		c.mu.Unlock()
		return l.afterEnd()
	}
	o := c.unlock(l)
	c.flush()
	if !c.await(ctx, o) {
		return verdict.ErrTimeout
	}
	c.mu.Lock()
	switch {
	case l.told:
		c.mu.Unlock()
		return nil
	case o.err == nil, o.err == driver.ErrLost: //nolint:errorlint // set by unlocked, never wrapped
		l.told = true
		c.mu.Unlock()
		if l.expired {
			return driver.ErrLost
		}
		return o.err
	}
	ended := c.end != nil
	c.mu.Unlock()
	if !ended {
		return o.err
	}
	return l.afterEnd()
}

// afterEnd is Release after the connection's end. The server frees the locks when it notices the
// end, or after the session's timeout since the last message that it received. The client does
// not know when that was, so afterEnd asks the server.
func (l *Lease) afterEnd() error {
	c := l.c
	c.mu.Lock()
	told, fatal := l.told, c.fatal
	c.mu.Unlock()
	if told {
		return nil
	}
	if fatal { // the end comes within a second
		<-c.closed
	}
	if !c.lockFreed() {
		return fmt.Errorf("postgres: the lock stays until the server notices that its session has ended: %w", c.end)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.told {
		return nil
	}
	l.told = true
	return driver.ErrLost
}

// endLookup finds out whether a connection's server process has ended. One caller asks for
// all the leases of the connection.
type endLookup struct {
	mu    sync.Mutex
	asked time.Time
}

// askAgain is how long the answer that the process is still there may be used.
const askAgain = 50 * time.Millisecond

// lockFreed reports whether the locks of a connection that has ended are free for certain.
func (c *conn) lockFreed() bool {
	c.lookup.mu.Lock()
	defer c.lookup.mu.Unlock()
	c.mu.Lock()
	freed := c.freed
	c.mu.Unlock()
	if freed || time.Since(c.lookup.asked) < askAgain {
		return freed
	}
	freed = c.b.processGone(c.w.PID())
	c.lookup.asked = time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.freed = c.freed || freed
	return c.freed
}

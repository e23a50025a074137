package memory

import (
	"context"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// lease is the client's side of one acquisition: a name for a hold, which it may
// have lost without knowing.
type lease struct {
	backend *Backend
	entry   *entry
	owner   string
	fence   uint64
	grace   time.Duration

	// Guarded by the space's mutex.
	expires time.Time
	clock   time.Time
	over    bool // released, or known to be lost: Release has nothing left to do
}

// lease returns the handle of a grant that was made or confirmed now.
//
// Client and server read one clock here, so that the instant of the effect serves as
// the start from which Expires counts.
func (b *Backend) lease(e *entry, req *driver.Request, fence uint64, now time.Time) *lease {
	l := &lease{backend: b, entry: e, owner: req.Owner, fence: fence, expires: driver.Expires(now, req.TTL), clock: now}
	if req.Quorum != nil {
		l.grace = req.Quorum.Grace
	}
	return l
}

// Grant returns the grant as of the last success.
func (l *lease) Grant() driver.Grant {
	l.entry.space.mu.Lock()
	defer l.entry.space.mu.Unlock()
	return l.grant()
}

func (l *lease) grant() driver.Grant {
	return driver.Grant{Expires: l.expires, Fence: l.fence, Clock: wall(l.clock), Server: l.entry.space.server}
}

// Renew extends the lease if this very acquisition still has the lock.
func (l *lease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	if err := l.backend.Info().CheckRenewal(r); err != nil {
		return driver.Grant{}, err
	}
	if r.MinFence > driver.MaxFence {
		return driver.Grant{}, driver.Invalid("MinFence", "%d is over the largest token, %d", r.MinFence, uint64(driver.MaxFence))
	}
	l.entry.space.mu.Lock()
	defer l.entry.space.mu.Unlock()
	now := time.Now()
	if err := l.backend.usable(ctx, now); err != nil {
		return driver.Grant{}, err
	}
	l.entry.purge(now)
	h := l.entry.find(l.owner, l.fence)
	if h == nil {
		return driver.Grant{}, driver.ErrLost
	}
	keep := r.Keep
	if r.TTL > 0 {
		keep = max(keep, r.TTL+l.grace)
	}
	h.until = now.Add(keep)
	l.entry.counter = max(l.entry.counter, r.MinFence)
	l.entry.arm(now)
	l.expires, l.clock = driver.Expires(now, r.TTL), now
	return l.grant(), nil
}

// Release frees the lock if this very acquisition still has it, and answers ErrLost
// if not. ctx does not matter: nothing here can block.
func (l *lease) Release(context.Context) error {
	l.entry.space.mu.Lock()
	defer l.entry.space.mu.Unlock()
	now := time.Now()
	switch {
	case l.over:
		return nil
	case l.backend.closed:
		return driver.ErrClosed
	case l.backend.outage != nil:
		return l.backend.outage
	}
	l.over = true
	if !l.entry.remove(l.owner, l.fence, now) {
		return driver.ErrLost
	}
	return nil
}

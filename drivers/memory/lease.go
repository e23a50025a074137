package memory

import (
	"context"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// lease is the client's side of one acquisition. It refers to a hold, which may be lost
// already.
type lease struct {
	backend *Backend
	entry   *entry
	owner   string
	fence   uint64
	tokens  uint32 // the length of the range; zero: one token
	grace   time.Duration

	// Guarded by the space's mutex.
	expires time.Time
	clock   time.Time
	over    bool // released, or known to be lost: Release has nothing left to do
	evicted bool // Expire, Hold, Break or the end of the session took the lock
}

// lease returns the handle of a grant that was made or confirmed now.
//
// Client and server have one clock here, so Expires counts from the instant of the effect,
// unless an outage delayed the request.
func (b *Backend) lease(e *entry, req *driver.Request, h *hold, start, now time.Time) *lease {
	l := &lease{backend: b, entry: e, owner: h.owner, fence: h.fence, expires: expires(start, now, req.TTL), clock: now}
	if req.Quorum != nil {
		l.grace = req.Quorum.Grace
	}
	if h.count > 1 {
		l.tokens = h.count
	}
	h.lease = l
	return l
}

// expires is the end of a lease that was requested at start, or at now if start is zero.
func expires(start, now time.Time, ttl time.Duration) time.Time {
	if ttl == 0 {
		return time.Time{}
	}
	if start.IsZero() {
		start = now
	}
	return driver.Expires(start, ttl)
}

// Grant returns the grant as of the last success.
func (l *lease) Grant() driver.Grant {
	l.entry.space.mu.Lock()
	defer l.entry.space.mu.Unlock()
	return l.grant()
}

func (l *lease) grant() driver.Grant {
	g := driver.Grant{Expires: l.expires, Clock: wall(l.clock), Server: l.entry.space.server}
	if l.backend.info.Features.Has(driver.FeatureFencing) {
		g.Fence, g.Tokens = l.fence, l.tokens
	}
	switch b := l.backend; {
	case l.evicted:
		g.Lost = closedChannel
	case b.lost == nil:
		b.lost = make(chan struct{})
		fallthrough
	default:
		g.Lost = b.lost
	}
	return g
}

// Renew extends the lease if this very acquisition still has the lock.
func (l *lease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	if err := l.backend.Info().CheckRenewal(r); err != nil {
		return driver.Grant{}, err
	}
	if r.MinFence > driver.MaxFence {
		return driver.Grant{}, driver.Invalid("MinFence", "%d is over the largest token, %d", r.MinFence, uint64(driver.MaxFence))
	}
	var g driver.Grant
	err := l.backend.call(ctx, true, func(start, now time.Time) error {
		l.entry.purge(now)
		h := l.entry.find(l.owner, l.fence)
		if h == nil {
			return driver.ErrLost
		}
		keep := r.Keep
		if r.TTL > 0 {
			keep = max(keep, r.TTL+l.grace)
		}
		h.until = time.Time{} // no TTL: it lasts as long as its session
		if keep > 0 {
			h.until = now.Add(keep)
		}
		l.entry.counter = max(l.entry.counter, r.MinFence)
		l.entry.arm(now)
		l.expires, l.clock = expires(start, now, r.TTL), now
		if r.TTL == 0 && r.Keep > 0 {
			l.expires = now // the lease is over, and the lock is kept
		}
		g = l.grant()
		return nil
	})
	return g, err
}

// Release frees the lock if this very acquisition still has it, and answers ErrLost
// if not. ctx does not matter: only an outage can block it, for a second at most.
func (l *lease) Release(context.Context) error {
	return l.backend.call(context.Background(), false, func(_, now time.Time) error {
		if l.over {
			return nil
		}
		l.over = true
		if !l.entry.remove(l.owner, l.fence, now) {
			return driver.ErrLost
		}
		return nil
	})
}

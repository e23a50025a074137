package memory

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// lease is one owner's lock, and the handle of its user.
type lease struct {
	backend atomic.Pointer[Backend] // that asked for it last; nil: Hold
	entry   *entry
	owner   string
	fence   uint64
	tokens  uint32 // the length of the range; zero and one: one token
	mode    driver.Mode
	grace   time.Duration

	// Guarded by the space's mutex.
	since, until time.Time // of the lock; until is zero if it lasts until it is released
	expires      time.Time // of the lease, for its user
	clock        time.Time
	over         bool // released, or known to be lost: Release has nothing left to do
	evicted      bool // Expire, Hold, Break or the end of the session took the lock
}

func (l *lease) expired(now time.Time) bool { return !l.until.IsZero() && !now.Before(l.until) }

// confirm sets the end of a lease that was granted or renewed now.
//
// Client and server have one clock here, so it counts from the instant of the effect, unless an outage
// delayed the request, which was made at start then.
func (l *lease) confirm(start, now time.Time, ttl time.Duration) *lease {
	if start.IsZero() {
		start = now
	}
	l.expires, l.clock = time.Time{}, now
	if ttl != 0 {
		l.expires = driver.Expires(start, ttl)
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
	b := l.backend.Load()
	g := driver.Grant{Expires: l.expires, Clock: wall(l.clock), Server: l.entry.space.server}
	if b.info.Features.Has(driver.FeatureFencing) {
		g.Fence, g.Tokens = l.fence, l.tokens
	}
	switch {
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
	b := l.backend.Load()
	if err := b.Info().CheckRenewal(r); err != nil {
		return driver.Grant{}, err
	}
	if r.MinFence > driver.MaxFence {
		return driver.Grant{}, driver.Invalid("MinFence", "%d is over the largest token, %d", r.MinFence, uint64(driver.MaxFence))
	}
	var g driver.Grant
	err := b.call(ctx, true, func(start, now time.Time) error {
		l.entry.purge(now)
		if !slices.Contains(l.entry.holders, l) {
			return driver.ErrLost
		}
		keep := r.Keep
		if r.TTL > 0 {
			keep = max(keep, r.TTL+l.grace)
		}
		l.until = time.Time{} // no TTL: it lasts as long as its session
		if keep != 0 {
			l.until = now.Add(keep)
		}
		l.entry.counter = max(l.entry.counter, r.MinFence)
		l.entry.arm(now)
		l.confirm(start, now, r.TTL)
		if r.TTL == 0 && r.Keep != 0 {
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
	return l.backend.Load().call(context.Background(), false, func(_, now time.Time) error {
		if l.over {
			return nil
		}
		l.over = true
		if !l.entry.remove(l, now) {
			return driver.ErrLost
		}
		return nil
	})
}

package etcd

import (
	"errors"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// lease is one lock, by its entry. Its methods are those of base.Lease, which makes one call at a time.
type lease struct {
	b      *Backend
	s      *session
	key    string
	rev    int64
	doubt  bool // the request that made the entry may arrive again
	fence  uint64
	tokens uint32
	ttl    time.Duration // of the request: the session lasts for no longer one
}

// newLease takes over the attempt's entry, and its place in the session, which goes on for other
// leases.
func newLease(a *attempt) driver.Lease {
	l := &lease{b: a.b, s: a.s, key: a.key, rev: a.rev, doubt: a.doubt, fence: a.fence, tokens: a.req.Tokens, ttl: a.req.TTL}
	return base.NewLease(&a.b.calls, a.b.info, l.grant(a.from, a.req.TTL), l.renew, l.release).FreeAtEnd()
}

// grant returns the grant of a lease that counts from this instant.
func (l *lease) grant(from time.Time, ttl time.Duration) driver.Grant {
	return driver.Grant{Fence: l.fence, Tokens: l.tokens, Expires: driver.Expires(from, min(ttl, l.ttl))}
}

// renew keeps the session alive, and checks that the entry is still there.
func (l *lease) renew(call *base.Call, r *driver.Renewal) (driver.Grant, error) {
	_, from, err := l.b.check(call, l.s, l.key, l.rev, r.TTL/20, nil)
	switch {
	case errors.Is(err, errGone) && l.doubt: // it may come again
		l.b.abandon(l.s, l.key, l.doubt)
		return driver.Grant{}, driver.ErrLost
	case errors.Is(err, errGone):
		l.s.leave()
		return driver.Grant{}, driver.ErrLost
	case err != nil:
		return driver.Grant{}, l.b.explain(err)
	}
	return l.grant(from, r.TTL), nil
}

// release deletes the entry.
func (l *lease) release(call *base.Call) error {
	err := l.b.deleteEntry(call, l.s, l.key, l.doubt)
	if err == nil {
		l.s.leave()
	}
	return l.b.explain(err)
}

package etcd

import (
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// A place is an entry of this process in a lock's queue, and one user of its session.
type place struct {
	b     *Backend
	s     *session
	left  bool   // it no longer uses the session
	key   string // of the entry; empty: there is none
	rev   int64  // its create revision
	doubt *part  // the request that makes the entry, if it may be under way, or arrive again
	late  bool   // one that deletes it may
	fence uint64
}

// lease is one lock. Its methods are those of base.Lease, which makes one call at a time.
type lease struct {
	place
	tokens uint32
	ttl    time.Duration // of the request: the session lasts for no longer one
}

// newLease takes over the attempt's place. The session goes on for other leases when this one ends.
func newLease(a *attempt) driver.Lease {
	l := &lease{a.place, a.req.Tokens, a.req.TTL}
	return base.NewLease(&a.b.calls, a.b.info, l.grant(a.from, a.req.TTL), l.renew, l.release).FreeAtEnd()
}

// grant returns the grant of a lease that counts from this instant.
func (l *lease) grant(from time.Time, ttl time.Duration) driver.Grant {
	return driver.Grant{Fence: l.fence, Tokens: l.tokens, Expires: driver.Expires(from, min(ttl, l.ttl))}
}

// renew keeps the session alive, and checks that the entry is still there.
func (l *lease) renew(call *base.Call, r *driver.Renewal) (driver.Grant, error) {
	_, from, err := l.check(call, r.TTL/20, nil)
	switch {
	case errors.Is(err, errGone) && l.doubt != nil: // it may come again
		l.abandon()
		return driver.Grant{}, driver.ErrLost
	case errors.Is(err, errGone):
		l.s.free(l.key)
		l.leave()
		return driver.Grant{}, driver.ErrLost
	case err != nil:
		return driver.Grant{}, l.b.explain(err)
	}
	return l.grant(from, r.TTL), nil
}

// release deletes the entry.
func (l *lease) release(call *base.Call) error {
	return l.b.explain(l.remove(call))
}

// leave ends what join began.
func (p *place) leave() {
	if !p.left {
		p.left = true
		p.s.leave()
	}
}

// abandon deletes the entry in the background, also if servers refuse that for a while, until it is
// deleted or Close gives up: the session may go on for other locks.
func (p *place) abandon() {
	left := *p
	p.b.calls.Undo(time.Time{}, left.remove)
}

// remove deletes the entry, and leaves the session. If the user may not delete it, the entry ends with the
// session, which no later lock uses. If the request that adds the entry may arrive later, the base of the
// tokens becomes another one than it expects, unless it is that already: servers that are slow get no more to
// do.
func (p *place) remove(call *base.Call) error {
	deletion := []clientv3.Op{clientv3.OpDelete(p.key)}
	x := &part{then: deletion}
	if p.doubt != nil {
		x.otherwise = deletion
		if p.doubt.done != nil { // until then it may be sent again
			if err := call.Await(p.doubt.done); err != nil {
				return err
			}
		}
		x.least = p.doubt.expected + 1
	}
	sure, err := p.b.do(call, x)
	if !sure && !p.late {
		p.late = true // its name cannot be used again
		if p.s.late.Add(1) > mostLate {
			p.s.retire()
		}
	}
	switch {
	case err == nil && !p.late:
		p.s.free(p.key)
	case forbidden(err):
		p.s.retire()
		if p.leave(); p.b.timeToLive(call, p.s.id) < 0 {
			err = nil
		}
	}
	if err == nil {
		p.leave()
	}
	return err
}

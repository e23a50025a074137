package etcd

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// A place is an entry of this process in a lock's queue, and one user of its session.
type place struct {
	b     *Backend
	s     *session
	key   string // of the entry; empty: there is none
	rev   int64  // its create revision
	doubt bool   // the request that makes the entry may be under way, or arrive again
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
	case errors.Is(err, errGone) && l.doubt: // it may come again
		l.abandon()
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
	err := l.remove(call)
	if err == nil {
		l.s.leave()
	}
	return l.b.explain(err)
}

// abandon deletes the entry in the background, until a server has answered or Close gives up: the
// session may go on for other locks. It ends what join began.
func (p *place) abandon() {
	left := *p
	p.b.calls.Undo(time.Time{}, func(call *base.Call) error {
		err := unanswered(left.remove(call))
		if err == nil {
			left.s.leave()
		}
		return err
	})
}

// remove deletes the entry. If the request that adds it may still be under way, a tombstone refuses it;
// the tombstone ends with the lease, and then the request fails anyway.
func (p *place) remove(ctx context.Context) error {
	if p.doubt {
		grave := clientv3.OpPut(p.b.tombstone(p.key), "", clientv3.WithLease(p.s.id))
		_, err := p.b.do(ctx, &part{then: []clientv3.Op{grave, clientv3.OpDelete(p.key)}})
		if !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			if p.s.doubts.Add(1) > mostDoubts {
				p.s.retire()
			}
			return err
		}
	}
	_, err := p.b.do(ctx, &part{then: []clientv3.Op{clientv3.OpDelete(p.key)}})
	return err
}

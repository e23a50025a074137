package zookeeper

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// lease is one lock. Its methods are those of base.Lease, which makes one call at a time.
type lease struct {
	b    *Backend
	s    *session
	dir  string
	node string

	mu    sync.Mutex // lapse is called beside a renewal
	grant driver.Grant
	over  bool // it is given up, or lost
	timer *time.Timer
}

// newLease takes over the attempt's entry, and its place among the session's users.
func newLease(a *attempt) driver.Lease {
	l := &lease{b: a.b, s: a.s, dir: a.dir, node: a.node}
	l.grant = driver.Grant{Fence: a.fence, Expires: a.s.end(a.sent, a.req.TTL), Lost: a.s.lost}
	l.mu.Lock() // lapse uses the timer
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(time.Until(l.grant.Expires), l.lapse)
	return base.NewLease(&a.b.calls, a.b.info, l.grant, l.renew, l.release)
}

// renew extends the lease, and checks that its entry is still there.
func (l *lease) renew(call *base.Call, r *driver.Renewal) (driver.Grant, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return driver.Grant{}, driver.ErrLost
	}
	err := l.s.lengthen(call, r.TTL)
	var sent time.Time
	if err == nil {
		sent, err = confirm(call, l.s, l.node)
	}
	switch {
	case errors.Is(err, errGone), errors.Is(err, errExpired):
		l.end(true)
		return driver.Grant{}, driver.ErrLost
	case err != nil:
		return driver.Grant{}, l.b.failed(call, l.s, err)
	}
	l.grant.Expires = l.s.end(sent, r.TTL)
	l.timer.Reset(time.Until(l.grant.Expires))
	return l.grant, nil
}

// end gives up the lease's place in the session. If its entry may still exist, it is deleted in
// the background.
func (l *lease) end(gone bool) {
	if l.over {
		return
	}
	l.over = true
	l.timer.Stop()
	if !gone {
		l.s.abandon(orphan{dir: l.dir, node: l.node})
	}
	l.s.leave()
}

// lapse ends a lease that was not renewed in time, because its session goes on for other leases. If
// the backend is closed the servers end the session.
func (l *lease) lapse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if left := time.Until(l.grant.Expires); left > 0 && !l.over {
		l.timer.Reset(left) // it was renewed meanwhile
		return
	}
	l.end(false)
}

// release deletes the entry. If that fails it is tried again in the background.
func (l *lease) release(call *base.Call) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.remove(call)
	if l.end(err == nil); err != nil {
		return l.b.failed(call, l.s, err)
	}
	return nil
}

// remove deletes the entry, through another session if its own can no longer be used.
func (l *lease) remove(ctx context.Context) error {
	s := l.s
	if !s.joinUsable() {
		if s.expired() {
			return nil
		}
		var err error
		if s, err = l.b.session(s.class); err != nil {
			return err
		}
	}
	defer s.leave()
	_, err := again(ctx, s, func(c *zk.Conn) (struct{}, error) { return struct{}{}, c.Delete(l.node, -1) })
	if errors.Is(err, zk.ErrNoNode) || l.s.expired() {
		return nil
	}
	return err
}

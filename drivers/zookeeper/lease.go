package zookeeper

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/redlock-go/redlock/driver"
)

// lease is one lock.
type lease struct {
	b    *Backend
	s    *session
	dir  string
	node string
	busy chan struct{} // has a value while a call changes the lease

	// Only the call that has put a value into busy uses these.
	over  bool // it is given up, or lost
	gone  bool // the entry is certainly gone
	timer *time.Timer

	grant chan driver.Grant // guards the grant
}

// newLease takes over the attempt's entry, and its place among the session's users.
func newLease(a *attempt) *lease {
	l := &lease{b: a.b, s: a.s, dir: a.dir, node: a.node, busy: make(chan struct{}, 1), grant: make(chan driver.Grant, 1)}
	g := driver.Grant{Fence: a.fence, Expires: a.s.end(a.sent, a.req.TTL), Lost: a.s.lost}
	l.grant <- g
	l.busy <- struct{}{} // lapse uses the timer
	l.timer = time.AfterFunc(time.Until(g.Expires), l.lapse)
	<-l.busy
	return l
}

// Grant returns the grant as of the last success.
func (l *lease) Grant() driver.Grant {
	g := <-l.grant
	l.grant <- g
	return g
}

// enter waits for other calls of the lease, begins one, and returns the function that ends it.
func (l *lease) enter(ctx context.Context) (leave func(), err error) {
	if err := l.b.begin(); err != nil {
		return nil, err
	}
	select {
	case l.busy <- struct{}{}:
		return func() { <-l.busy; l.b.wg.Done() }, nil
	case <-ctx.Done():
		l.b.wg.Done()
		return nil, l.b.failed(ctx, l.s, ctx.Err())
	}
}

// Renew extends the lease, and checks that its entry is still there.
func (l *lease) Renew(caller context.Context, r *driver.Renewal) (driver.Grant, error) {
	if err := l.b.info.CheckRenewal(r); err != nil {
		return driver.Grant{}, err
	}
	ctx, cancel := l.b.bound(caller)
	defer cancel()
	leave, err := l.enter(ctx)
	if err != nil {
		return driver.Grant{}, err
	}
	defer leave()
	if l.over {
		return driver.Grant{}, driver.ErrLost
	}
	err = l.s.lengthen(ctx, r.TTL)
	var sent time.Time
	if err == nil {
		sent, err = confirm(ctx, l.s, l.node)
	}
	switch {
	case errors.Is(err, errGone), errors.Is(err, errExpired):
		l.end(true)
		return driver.Grant{}, driver.ErrLost
	case err != nil:
		return driver.Grant{}, l.b.failed(caller, l.s, err)
	}
	g := <-l.grant
	g.Expires = l.s.end(sent, r.TTL)
	l.grant <- g
	l.timer.Reset(time.Until(g.Expires))
	return g, nil
}

// end gives up the lease's place in the session. If its entry may still exist, it is deleted in
// the background.
func (l *lease) end(gone bool) {
	l.gone = l.gone || gone
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

// lapse ends a lease that was not renewed in time, because its session goes on for other leases.
func (l *lease) lapse() {
	leave, err := l.enter(l.b.ctx)
	if err != nil {
		return // the backend is closed, and the servers end the session
	}
	defer leave()
	if left := time.Until(l.Grant().Expires); left > 0 {
		l.timer.Reset(left) // it was renewed meanwhile
		return
	}
	l.end(false)
}

// Release deletes the entry. If that fails it is tried again in the background.
func (l *lease) Release(caller context.Context) error {
	caller = context.WithoutCancel(caller)
	ctx, cancel := l.b.bound(caller)
	defer cancel()
	leave, err := l.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if l.gone {
		return nil
	}
	err = l.remove(ctx)
	l.end(err == nil)
	if err != nil {
		return l.b.failed(caller, l.s, err)
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

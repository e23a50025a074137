package zookeeper

import (
	"context"
	"errors"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// A place is an entry of this process in a lock's queue, and one user of its session.
type place struct {
	b     *Backend
	s     *session
	left  bool      // it no longer uses the session
	dir   string    // of the lock
	name  string    // how the entry's name begins
	node  string    // the entry; empty: none is known
	doubt bool      // an entry may exist although its name is unknown
	sent  time.Time // when the last write that found the entry was sent
}

// find searches for the entry after the answer of its creation was lost, when every earlier request of
// the session has taken effect or never will: a write is answered after earlier requests, and servers
// refuse requests that the session sent over a connection to another server.
func (p *place) find(ctx context.Context) error {
	sent, err := p.s.catchUp(ctx, "/")
	if err != nil {
		return err
	}
	all, err := p.s.again(ctx, children(p.dir))
	if err != nil && !errors.Is(err, errNoNode) {
		return err
	}
	entries := parseQueue(all.children)
	if i := find(entries, p.name); i >= 0 {
		p.node, p.sent = p.dir+"/"+entries[i].name, sent
	}
	p.doubt = false
	return nil
}

// confirm finds the entry by a write: the leader confirms the session, and a majority confirms the
// leader. A lease counts from when that was sent. The error is errGone if there is no entry.
func (p *place) confirm(ctx context.Context) error {
	a, err := p.s.again(ctx, check(p.node))
	switch {
	case err == nil:
		p.sent = a.sent
	case errors.Is(err, errNoNode):
		return errGone
	}
	return err
}

// leave ends what Backend.session began.
func (p *place) leave() {
	if !p.left {
		p.left = true
		p.s.leave()
	}
}

// remove deletes the entry, if there is one, and leaves the session. If the user may not delete it, it ends
// with the session, which no later lock uses.
func (p *place) remove(call *base.Call) (err error) {
	if p.doubt {
		err = p.find(call)
	}
	if err == nil && p.node != "" {
		_, err = p.s.again(call, remove(p.node, -1))
	}
	switch {
	case errors.Is(err, errNoNode), p.s.over() != nil:
		err = nil
	case definite(err):
		p.b.sessions.Retire(p.s)
		p.leave()
	}
	if err == nil {
		p.leave()
	}
	return err
}

// abandon gives the place up, in the background.
func (p *place) abandon() {
	left := *p
	p.node, p.doubt = "", false
	if left.node == "" && !left.doubt {
		left.leave()
		return
	}
	p.b.calls.Undo(time.Time{}, left.remove)
}

// lease is one lock. Its methods are those of base.Lease, which makes one call at a time.
type lease struct {
	place
	fence  uint64
	tokens uint32
	ttl    time.Duration // of the request: the session lasts for no longer one
}

// newLease takes over the attempt's place. The session goes on for other leases when this one ends; if
// the backend is closed the servers end the session.
func newLease(a *attempt) driver.Lease {
	l := &lease{a.place, a.fence, a.req.Tokens, a.req.TTL}
	return base.NewLease(&a.b.calls, a.b.info, l.grant(a.req.TTL), l.renew, l.release).FreeAtEnd()
}

func (l *lease) grant(ttl time.Duration) driver.Grant {
	return driver.Grant{Fence: l.fence, Tokens: l.tokens, Expires: l.s.end(l.sent, min(ttl, l.ttl)), Lost: l.s.lost}
}

// renew checks that the entry is still there.
func (l *lease) renew(call *base.Call, r *driver.Renewal) (driver.Grant, error) {
	err := l.confirm(call)
	switch {
	case errors.Is(err, errGone), errors.Is(err, errExpired):
		l.leave()
		return driver.Grant{}, driver.ErrLost
	case err != nil:
		return driver.Grant{}, l.b.failed(call, l.s, err)
	}
	return l.grant(r.TTL), nil
}

// release deletes the entry.
func (l *lease) release(call *base.Call) error {
	return l.b.failed(call, l.s, l.remove(call))
}

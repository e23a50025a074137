package etcd

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/redlock-go/redlock/driver"
)

// lease is one lock.
type lease struct {
	b    *Backend
	key  string
	rev  int64
	mine string
	busy chan struct{} // has a value while a call changes the lease

	// Only the call that has put a value into busy uses these.
	s     *session
	made  *session // in which the entry was made
	doubt bool     // the request that made it may arrive again
	mod   int64    // the revision at which the entry was last written
	// former are sessions to which the entry may be attached, because a move had no answer.
	former []*session
	over   bool // it is given up, or lost
	gone   bool // the entry is certainly gone
	timer  *time.Timer

	grant chan driver.Grant // guards the grant
}

// newLease takes over the attempt's entry, and its place in the session.
func newLease(a *attempt) *lease {
	l := &lease{
		b: a.b, key: a.key, rev: a.rev, mod: a.rev, mine: a.mine, s: a.s, made: a.s, doubt: a.doubt,
		busy: make(chan struct{}, 1), grant: make(chan driver.Grant, 1),
	}
	g := driver.Grant{Fence: a.fence, Expires: driver.Expires(a.from, a.req.TTL)}
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
		return nil, l.b.failed(ctx, ctx.Err())
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
	var from time.Time
	if l.former != nil || seconds(r.TTL) != l.s.seconds {
		err = l.move(ctx, r.TTL)
	}
	if err == nil {
		_, from, err = l.b.check(ctx, l.s, l.key, l.rev, r.TTL/20, nil)
	}
	switch {
	case errors.Is(err, errGone):
		l.end(true)
		return driver.Grant{}, driver.ErrLost
	case err != nil:
		return driver.Grant{}, l.b.failed(caller, err)
	}
	g := <-l.grant
	g.Expires = driver.Expires(from, r.TTL)
	l.grant <- g
	l.timer.Reset(time.Until(g.Expires))
	return g, nil
}

// move attaches the entry to the session of another TTL. Its transaction names the revision at which
// the entry was last written, so that it changes nothing if it arrives late, after another move.
func (l *lease) move(ctx context.Context, ttl time.Duration) error {
	to, err := l.b.join(ctx, ttl)
	if err != nil {
		return err
	}
	for sure := true; ; {
		p := &part{
			conditions: []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(l.key), "=", l.rev), clientv3.Compare(clientv3.ModRevision(l.key), "=", l.mod)},
			then:       []clientv3.Op{clientv3.OpPut(l.key, l.mine, clientv3.WithLease(to.id))},
			otherwise:  []clientv3.Op{clientv3.OpGet(l.key, clientv3.WithKeysOnly())},
		}
		once, err := l.b.do(ctx, p)
		sure = sure && once
		switch {
		case err != nil && sure:
			to.leave()
			if errors.Is(err, rpctypes.ErrLeaseNotFound) {
				to.retire()
			}
			return err
		case err != nil:
			l.former = append(l.former, to)
			if definite(err) { // an earlier try may have moved the entry: not a refusal
				return errors.New("a request had no answer, and the next one: " + err.Error())
			}
			return err
		}
		if !p.answer.Succeeded {
			found := p.answer.Responses[0].GetResponseRange().GetKvs()
			if len(found) == 0 || found[0].CreateRevision != l.rev {
				to.leave()
				return errGone
			}
			if l.mod = found[0].ModRevision; clientv3.LeaseID(found[0].Lease) != to.id {
				continue
			}
		} else {
			l.mod = p.rev
		}
		leaveAll(append(l.former, l.s))
		l.former, l.s = nil, to
		return nil
	}
}

func leaveAll(sessions []*session) {
	for _, s := range sessions {
		s.leave()
	}
}

// end gives up the lease. If its entry may still exist, it is removed in the background.
func (l *lease) end(gone bool) {
	l.gone = l.gone || gone
	if l.over {
		return
	}
	l.over = true
	l.timer.Stop()
	sessions := append(l.former, l.s)
	if gone {
		leaveAll(sessions)
		return
	}
	l.b.abandon(l.made, l.key, l.doubt, func() { leaveAll(sessions) })
}

// lapse ends a lease that was not renewed in time, because its session goes on for other leases.
func (l *lease) lapse() {
	leave, err := l.enter(l.b.ctx)
	if err != nil {
		return // the backend is closed, and the session ends
	}
	defer leave()
	if left := time.Until(l.Grant().Expires); left > 0 && !l.over {
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
	err = l.b.deleteEntry(ctx, l.made, l.key, l.doubt)
	l.end(err == nil)
	if err != nil {
		return l.b.failed(caller, err)
	}
	return nil
}

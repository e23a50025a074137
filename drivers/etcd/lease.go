package etcd

import (
	"context"
	"errors"
	"time"

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
	life *life
	// former are leases to which the entry was attached, or may be attached.
	former []*life
	unsure bool // which lease the entry is attached to is unknown
	over   bool

	grant chan driver.Grant // guards the grant
}

func newLease(a *attempt) *lease {
	l := &lease{
		b: a.b, key: a.key, rev: a.rev, mine: a.mine, life: a.life,
		busy: make(chan struct{}, 1), grant: make(chan driver.Grant, 1),
	}
	l.grant <- driver.Grant{Fence: a.fence, Expires: driver.Expires(a.life.start, a.req.TTL)}
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
	extend := l.extend
	if l.unsure || seconds(r.TTL) != l.life.seconds {
		extend = func(ctx context.Context) error { return l.move(ctx, r.TTL) }
	}
	switch err := extend(ctx); {
	case errors.Is(err, errGone):
		l.end()
		return driver.Grant{}, driver.ErrLost
	case err != nil:
		return driver.Grant{}, l.b.failed(caller, err)
	}
	g := <-l.grant
	g.Expires = driver.Expires(l.life.start, r.TTL)
	l.grant <- g
	return g, nil
}

// extend keeps alive the etcd lease to which the entry is attached.
func (l *lease) extend(ctx context.Context) error {
	for range 3 {
		done, alive, err := l.b.extend(ctx, l.life, l.key, l.rev, nil)
		switch {
		case err != nil:
			return err
		case done == nil:
			return errGone
		case alive != nil:
			return alive
		case l.life.current(done.Header.RaftTerm):
			return nil
		}
	}
	return errRestless
}

// move attaches the entry to another etcd lease, because the TTL of an etcd lease is fixed. Its
// transaction names the lease to which the entry is attached, so that it changes nothing if it
// arrives late, after another move.
func (l *lease) move(ctx context.Context, ttl time.Duration) error {
	fresh, err := l.b.await(ctx, l.b.order(ctx, ttl))
	if err != nil {
		return err
	}
	answered := true
	for from := l.life.id; ; {
		done, sure, err := call(ctx, l.b, func(ctx context.Context, c *clientv3.Client) (*clientv3.TxnResponse, error) {
			return c.Txn(ctx).
				If(clientv3.Compare(clientv3.CreateRevision(l.key), "=", l.rev), clientv3.Compare(clientv3.LeaseValue(l.key), "=", from)).
				Then(clientv3.OpPut(l.key, l.mine, clientv3.WithLease(fresh.id))).
				Else(clientv3.OpGet(l.key, clientv3.WithKeysOnly())).Commit()
		})
		answered = answered && sure
		switch {
		case err != nil && answered && definite(err):
			l.b.revoke(fresh)
			return err
		case err != nil:
			l.former, l.unsure = append(l.former, fresh), true
			if definite(err) { // an earlier try may have moved the entry: not a refusal
				return errors.New("a request had no answer, and the next one: " + err.Error())
			}
			return err
		case !done.Succeeded:
			found := done.Responses[0].GetResponseRange().GetKvs()
			if len(found) == 0 || found[0].CreateRevision != l.rev {
				l.b.revoke(fresh)
				return errGone
			}
			if from = clientv3.LeaseID(found[0].Lease); from != fresh.id { // else an earlier try moved it
				continue
			}
		}
		for _, old := range append(l.former, l.life) {
			l.b.revoke(old)
		}
		l.former, l.life, l.unsure = nil, fresh, false
		if !fresh.current(done.Header.RaftTerm) {
			return l.extend(ctx)
		}
		return nil
	}
}

// end gives up the etcd leases of a lock that is lost.
func (l *lease) end() {
	l.over = true
	for _, old := range append(l.former, l.life) {
		l.b.revoke(old)
	}
	l.former = nil
}

// Release deletes the entry.
func (l *lease) Release(caller context.Context) error {
	caller = context.WithoutCancel(caller)
	ctx, cancel := l.b.bound(caller)
	defer cancel()
	leave, err := l.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if l.over {
		return nil
	}
	done, _, err := call(ctx, l.b, func(ctx context.Context, c *clientv3.Client) (*clientv3.DeleteResponse, error) {
		return c.Delete(ctx, l.key) // no other lock has this name
	})
	if err != nil {
		return l.b.failed(caller, err)
	}
	l.b.saw(done.Header.Revision)
	if len(l.former) > 0 || l.unsure || done.Deleted == 0 { // 0: the etcd lease may have ended
		l.end()
		return nil
	}
	l.over = true
	l.b.leave(l.life)
	return nil
}

package etcd

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// lease is one lock. Its methods are those of base.Lease, which makes one call at a time.
type lease struct {
	b    *Backend
	key  string
	rev  int64
	mine string

	mu    sync.Mutex // lapse is called beside a renewal
	s     *session
	made  *session // in which the entry was made
	doubt bool     // the request that made it may arrive again
	mod   int64    // the revision at which the entry was last written
	// former are sessions to which the entry may be attached, because a move had no answer.
	former []*session
	grant  driver.Grant
	over   bool // it is given up, or lost
	timer  *time.Timer
}

// newLease takes over the attempt's entry, and its place in the session.
func newLease(a *attempt) driver.Lease {
	l := &lease{b: a.b, key: a.key, rev: a.rev, mod: a.rev, mine: a.mine, s: a.s, made: a.s, doubt: a.doubt}
	l.grant = driver.Grant{Fence: a.fence, Expires: driver.Expires(a.from, a.req.TTL)}
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
	var err error
	if l.former != nil || seconds(r.TTL) != l.s.seconds {
		err = l.move(call, r.TTL)
	}
	var from time.Time
	if err == nil {
		_, from, err = l.b.check(call, l.s, l.key, l.rev, r.TTL/20, nil)
	}
	switch {
	case errors.Is(err, errGone):
		l.end(!l.doubt)
		return driver.Grant{}, driver.ErrLost
	case err != nil:
		return driver.Grant{}, l.b.failed(call, err)
	}
	l.grant.Expires = driver.Expires(from, r.TTL)
	l.timer.Reset(time.Until(l.grant.Expires))
	return l.grant, nil
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

// end gives up the lease. Unless it is clean, its entry may still exist or come again, and is
// deleted in the background.
func (l *lease) end(clean bool) {
	if l.over {
		return
	}
	l.over = true
	l.timer.Stop()
	sessions := append(l.former, l.s)
	if clean {
		leaveAll(sessions)
		return
	}
	l.b.abandon(l.made, l.key, l.doubt, func() { leaveAll(sessions) })
}

// lapse ends a lease that was not renewed or released in time, because its session goes on for other
// leases.
func (l *lease) lapse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if left := time.Until(l.grant.Expires); left > 0 && !l.over {
		l.timer.Reset(left) // it was renewed meanwhile
		return
	}
	l.end(false)
}

// release deletes the entry. If that fails it is repeated, and goes on after the lease's end.
func (l *lease) release(call *base.Call) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.b.deleteEntry(call, l.made, l.key, l.doubt)
	if err != nil {
		return l.b.failed(call, err)
	}
	l.end(true)
	return nil
}

package consul

import (
	"errors"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// lease is one lock. Its methods are those of base.Lease, which makes one call at a time.
type lease struct {
	b     *Backend
	s     *session
	lock  string
	grant driver.Grant
	made  uint64 // the index of the transaction that made the key
	known *state // as it was at the grant, and most likely is; nil: it must be read
	tried bool   // a release may have had an effect
}

// has reports whether the lock is this lease's, whatever another program wrote into it.
func (l *lease) has(p *api.KVPair) bool {
	return p != nil && p.Session == l.s.id && p.CreateIndex == l.made
}

// renew renews the session, and checks that it has the lock.
func (l *lease) renew(call *base.Call, r *driver.Renewal) (driver.Grant, error) {
	failed := l.s.keep(call, r.TTL/20)
	from := l.s.from()
	done, err := l.b.txn(call, get(l.lock))
	if err != nil {
		return l.grant, err
	}
	if !l.has(done[l.lock]) {
		l.s.leave()
		return l.grant, driver.ErrLost
	}
	if failed != nil { // a leader that was replaced may not know the session
		return l.grant, failed
	}
	l.grant.Expires = driver.Expires(from, min(r.TTL, time.Duration(l.s.seconds)*time.Second))
	return l.grant, nil
}

// release frees the lock, or gives it to the first waiter.
func (l *lease) release(call *base.Call) (err error) {
	for {
		st := l.known
		if l.known = nil; st == nil {
			if st, err = l.b.read(call, l.lock); err != nil {
				return err
			}
		}
		switch {
		case l.has(st.lock):
			err = l.b.pass(call, st)
		case l.tried:
			err = nil
		default:
			err = driver.ErrLost
		}
		if err == nil || errors.Is(err, driver.ErrLost) {
			l.s.leave()
			return err
		}
		if l.tried = l.tried || inDoubt(err); !errors.Is(err, errConflict) {
			return err
		}
	}
}

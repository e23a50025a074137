package consul

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// An attempt is one call of Acquire.
type attempt struct {
	user
	b     *Backend
	lock  string // where the lock is
	owner string
	ttl   time.Duration
	id    string        // of its place in the queue, and of its mark; empty: it is not in the queue
	told  chan struct{} // has a value when it may have its lock, or has no place any more
	// doubt is the base that a transaction expects which has no answer; nil: there is none. It does
	// nothing any more once the base has changed.
	doubt *tokenBase
}

// Acquire makes one attempt, or with req.Wait waits in the key's queue.
func (b *Backend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	call, err := b.calls.BeginAcquire(ctx, b.about, b.opt.Prefix, req)
	if err != nil {
		return nil, err
	}
	defer call.End()
	a := &attempt{b: b, lock: b.Path(req.Key), owner: req.Owner, ttl: req.TTL}
	l, err := a.try(call)
	if req.Wait && err != nil {
		l, err = a.wait(call, err)
	}
	if err != nil {
		a.abandon()
		return nil, call.Failed(err)
	}
	return base.NewLease(&b.calls, b.about, l.grant, l.renew, l.release).FreeAtEnd(), nil
}

// enter finds a session that lasts for nearly its whole TTL.
func (a *attempt) enter(ctx context.Context) (err error) {
	for range 2 {
		if a.s == nil {
			a.s = a.b.join(a.ttl)
		}
		if err = a.s.keep(ctx, a.ttl/8); !errors.Is(err, errNoSession) {
			return err
		}
		a.forget() // the machine slept, or an operator ended the session
	}
	return err
}

// forget leaves a session that has ended.
func (a *attempt) forget() {
	a.b.sessions.Retire(a.s)
	a.unregister()
	a.s.leave()
	a.s = nil
}

// change is that of the backend, and notes if the outcome is unknown.
func (a *attempt) change(ctx context.Context, ops func(base uint64) []*api.KVTxnOp) (answer, error) {
	done, old, err := a.b.change(ctx, ops)
	if inDoubt(err) {
		a.doubt = old
	}
	if errors.Is(err, errNoSession) {
		a.forget()
	}
	return done, err
}

// try takes the lock if it is free and nobody waits for it.
func (a *attempt) try(ctx context.Context) (*lease, error) {
	err := a.enter(ctx)
	for st := (&state{key: a.lock}); err == nil; {
		var value []byte
		from := a.s.from()
		done, err := a.change(ctx, func(base uint64) []*api.KVTxnOp {
			value = entry(a.owner, base)
			return append(slices.Concat(remove(a.lock, st.lock), remove(a.b.queue(a.lock), st.flag)), hold(a.lock, a.s.id, value))
		})
		if err == nil {
			done[a.lock].Value = value // the answer leaves it out
			return a.granted(&state{key: a.lock, lock: done[a.lock]}, from), nil
		}
		said := err
		if !errors.Is(err, errConflict) && !errors.Is(err, driver.ErrHeld) {
			return nil, err
		}
		if st, err = a.b.read(ctx, a.lock); err != nil {
			return nil, err
		}
		switch {
		case isHeld(st.lock) && !st.isOf(a.owner):
			return nil, &driver.HeldError{Holder: holder(st.lock).Owner}
		case st.lock != nil && st.lock.Flags != lockFlags:
			return nil, &driver.RefusedError{Reason: "the key " + strconv.Quote(a.lock) + " has data of another program: use another path"}
		case errors.Is(said, driver.ErrHeld): // a lock-delay: the leader alone said so, and a majority follows it
			return nil, said
		case len(st.waiters) > 0: // the holder's session ended; or a leader did not know it, and it was this attempt's
			if bad := a.b.pass(ctx, st); !errors.Is(bad, errConflict) {
				return nil, cmp.Or(bad, error(&driver.HeldError{ReservedForWaiter: true, RetryAfter: lookEvery}))
			}
		}
	}
	return nil, err
}

// granted returns the lease of a lock that was read or taken.
func (a *attempt) granted(st *state, from time.Time) *lease {
	a.unregister()
	return &lease{b: a.b, user: user{s: a.s}, made: st.lock.CreateIndex, lock: a.lock, known: st,
		grant: driver.Grant{Fence: holder(st.lock).Fence, Expires: driver.Expires(from, a.ttl)}}
}

// abandon gives the attempt up, and in the background what it may have.
func (a *attempt) abandon() {
	if a.id != "" || a.doubt != nil {
		a.b.calls.Undo(time.Time{}, func(call *base.Call) error {
			err := a.clean(call)
			if forbidden(err) {
				err = a.end(call, err)
			}
			if err == nil {
				a.unregister()
				a.leave()
			}
			return err
		})
		return
	}
	a.leave()
}

// clean leaves the queue, passes on a lock that it may have got, and sees to it that no transaction
// without an answer has an effect any more.
func (a *attempt) clean(ctx context.Context) error {
	if a.id == "" && a.doubt == nil {
		return nil
	}
	if a.doubt != nil && a.b.base.Load().index <= a.doubt.index { // else another one's change undid this, too
		_, err := a.b.commit(ctx, a.doubt, a.doubt.value+1)
		if err != nil && !errors.Is(err, errConflict) { // a conflict: it has changed
			return err
		}
	}
	st, err := a.b.read(ctx, a.lock, drop(a.b.marks(a.id)))
	if err != nil {
		return err
	}
	i := slices.IndexFunc(st.waiters, func(p *api.KVPair) bool { return p.Key == a.place() })
	switch {
	case st.isOf(a.owner):
		err = a.b.pass(ctx, st)
	case i >= 0:
		leave := remove(a.place(), st.waiters[i])
		if len(st.waiters) == 1 {
			leave = append(leave, remove(a.b.queue(a.lock), st.flag)...)
		}
		_, err = a.b.txn(ctx, leave...)
	}
	if err == nil {
		a.unregister()
		a.doubt = nil
	}
	return err
}

// wait waits in the queue until it has the lock.
func (a *attempt) wait(call *base.Call, last error) (l *lease, err error) {
	var held *driver.HeldError
	for err = last; err != nil; {
		if errors.As(err, &held) && held.Holder != lockDelay { // a queue is of a lock that somebody has
			if err = a.enqueue(call); err == nil {
				l, err = a.sleep(call)
			}
		}
		switch {
		case err == nil, errors.Is(err, driver.ErrRefused), errors.Is(err, driver.ErrClosed):
			return l, err
		case !errors.Is(err, errConflict):
			base.Pause(call, 50*time.Millisecond+rand.N(100*time.Millisecond))
		}
		if over := call.Over(); over != nil {
			return nil, base.Waited(over, held)
		}
		if err = a.clean(call); err == nil {
			l, err = a.try(call)
		}
	}
	return l, err
}

// enqueue takes a place in the queue, if somebody has the lock: whoever frees it after that gives it
// to the first in the queue.
func (a *attempt) enqueue(ctx context.Context) error {
	if err := a.enter(ctx); err != nil {
		return err
	}
	a.register()
	_, err := a.change(ctx, func(uint64) []*api.KVTxnOp {
		return []*api.KVTxnOp{
			{Verb: api.KVGet, Key: a.lock}, // it is there
			{Verb: api.KVSet, Key: a.b.queue(a.lock), Value: []byte(a.place())},
			hold(a.place(), a.s.id, entry(a.owner, 0)),
		}
	})
	if err != nil && a.doubt == nil {
		a.unregister()
	}
	return err
}

// sleep waits until the lock was given to this waiter, and takes it over: its lease counts from then.
func (a *attempt) sleep(call *base.Call) (*lease, error) {
	select {
	case <-a.told:
	case <-a.s.gone.Done():
		return nil, errConflict // it has lost its place
	case <-call.Done():
		return nil, call.Over()
	}
	for {
		var st *state
		err := a.s.keep(call, a.ttl/8)
		from := a.s.from()
		if err == nil {
			st, err = a.b.read(call, a.lock, drop(a.b.marks(a.id)))
		}
		switch {
		case err == nil && st.isOf(a.owner) && st.lock.Session == a.s.id:
			return a.granted(st, from), nil
		case err == nil: // an operator broke it
			return nil, errConflict
		case !inDoubt(err), a.s.ended(), call.Over() != nil:
			return nil, err
		}
		base.Pause(call, 50*time.Millisecond)
	}
}

// A state is what is stored of a lock.
type state struct {
	key        string
	lock, flag *api.KVPair   // nil: it is not there
	waiters    []*api.KVPair // in the order in which they came
}

// read reads the state of a lock, and the base, in one transaction with others.
func (b *Backend) read(ctx context.Context, lock string, more ...*api.KVTxnOp) (*state, error) {
	a, err := b.txn(ctx, append(more, get(b.baseKey()), get(lock), below(b.queue(lock)))...)
	if err == nil {
		err = b.readBase(a)
	}
	if err != nil {
		return nil, err
	}
	st := &state{key: lock, lock: a[lock], flag: a[b.queue(lock)]}
	for key, p := range a {
		if strings.HasPrefix(key, b.queue(lock)) && isHeld(p) {
			st.waiters = append(st.waiters, p)
		}
	}
	slices.SortFunc(st.waiters, func(x, y *api.KVPair) int { return cmp.Compare(x.CreateIndex, y.CreateIndex) })
	return st, nil
}

// isHeld reports whether somebody has a lock.
func isHeld(p *api.KVPair) bool { return p != nil && p.Session != "" }

// isOf reports whether an owner has the lock.
func (st *state) isOf(owner string) bool { return isHeld(st.lock) && holder(st.lock).Owner == owner }

// pass frees a lock, and gives it to the first waiter if there is one, as long as nothing has changed
// since it was read.
func (b *Backend) pass(ctx context.Context, st *state) error {
	ops := remove(st.key, st.lock)
	if len(st.waiters) < 2 {
		ops = append(ops, remove(b.queue(st.key), st.flag)...)
	}
	if len(st.waiters) == 0 {
		_, err := b.txn(ctx, ops...)
		return err
	}
	first := st.waiters[0]
	_, _, err := b.change(ctx, func(base uint64) []*api.KVTxnOp {
		value := entry(holder(first).Owner, base)
		mark := b.marks(strings.TrimPrefix(first.Key, b.queue(st.key)))
		return append(append(ops, remove(first.Key, first)...), hold(st.key, first.Session, value), hold(mark, first.Session, nil))
	})
	if errors.Is(err, errNoSession) { // with its places
		err = errConflict
	}
	return err
}

// lease is one lock. Its methods are those of base.Lease, which makes one call at a time.
type lease struct {
	user
	b     *Backend
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
	switch {
	case err != nil:
		return l.grant, err
	case !l.has(done[l.lock]):
		l.leave()
		return l.grant, driver.ErrLost
	case failed != nil: // a leader that was replaced may not know the session
		return l.grant, failed
	}
	l.grant.Expires = driver.Expires(from, min(r.TTL, time.Duration(l.s.seconds)*time.Second))
	return l.grant, nil
}

// release frees the lock, or gives it to the first waiter. If the token may not do that, the lock ends with the
// session.
func (l *lease) release(call *base.Call) error {
	err := l.b.free(call, l.lock, l.known, l.has)
	l.known = nil
	if l.tried && errors.Is(err, driver.ErrLost) {
		err = nil
	}
	if forbidden(err) {
		err = l.end(call, err)
	}
	if err == nil || errors.Is(err, driver.ErrLost) {
		l.leave()
	} else {
		l.tried = l.tried || inDoubt(err)
	}
	return err
}

// free frees a lock as long as it is this one, or gives it to the first waiter. known is what is most
// likely stored, or nil.
func (b *Backend) free(ctx context.Context, lock string, known *state, is func(*api.KVPair) bool) (err error) {
	for st := known; ; st = nil {
		if st == nil {
			if st, err = b.read(ctx, lock); err != nil {
				return err
			}
		}
		if !is(st.lock) {
			return driver.ErrLost
		}
		if err = b.pass(ctx, st); !errors.Is(err, errConflict) {
			return err
		}
	}
}

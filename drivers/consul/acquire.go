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
	b     *Backend
	lock  string // where the lock is
	owner string
	ttl   time.Duration
	s     *session // nil: none yet
	w     *waiter  // nil: it is not in the queue
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
	a.s.retire()
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
	ctx, cancel := context.WithTimeout(ctx, a.b.calls.Bound(a.ttl))
	defer cancel()
	err := a.enter(ctx)
	for st := (&state{key: a.lock}); err == nil; {
		from, r := a.s.from(), record{Owner: a.owner, Since: a.b.now().UnixMicro()}
		done, err := a.change(ctx, func(base uint64) []*api.KVTxnOp {
			r.Base = base
			return append(slices.Concat(remove(a.lock, st.lock), remove(a.b.queue(a.lock), st.flag)), hold(a.lock, a.s.id, r.text()))
		})
		if err == nil {
			p := done[a.lock]
			p.Value = r.text() // the answer leaves it out
			return a.granted(&state{key: a.lock, lock: p}, from)
		}
		said := err
		if !errors.Is(err, errConflict) && !errors.Is(err, driver.ErrHeld) {
			return nil, err
		}
		if st, err = a.b.read(ctx, a.lock); err != nil {
			return nil, err
		}
		switch {
		case st.held() && !st.isOf(a.owner):
			h := holder(st.lock)
			return nil, &driver.HeldError{Holder: h.Owner, Since: h.Since}
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
func (a *attempt) granted(st *state, from time.Time) (*lease, error) {
	token := fence(st.lock)
	if token > driver.MaxFence {
		return nil, &driver.RefusedError{Reason: "the tokens of the locks under " + strconv.Quote(a.b.opt.Path) + " are at their end: use another path"}
	}
	l := &lease{b: a.b, s: a.s, made: st.lock.CreateIndex, lock: a.lock, known: st}
	l.grant = driver.Grant{Fence: token, Expires: driver.Expires(from, a.ttl)}
	a.unregister()
	return l, nil
}

// abandon gives the attempt up, and in the background what it may have.
func (a *attempt) abandon() {
	if a.w != nil || a.doubt != nil {
		a.b.calls.Undo(time.Time{}, func(call *base.Call) error {
			err := a.clean(call)
			if err == nil {
				a.abandon()
			}
			return err
		})
	} else if a.s != nil {
		a.s.leave()
	}
}

// clean leaves the queue, passes on a lock that it may have got, and sees to it that no transaction
// without an answer has an effect any more.
func (a *attempt) clean(ctx context.Context) error {
	if a.w == nil && a.doubt == nil {
		return nil
	}
	if a.doubt != nil && !a.b.changed(a.doubt) {
		_, err := a.b.commit(ctx, a.doubt.value+1, a.b.setBase(a.doubt, a.doubt.value+1))
		if err != nil && !errors.Is(err, errConflict) {
			return err // a conflict: it has changed
		}
	}
	st, err := a.b.read(ctx, a.lock)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(st.waiters, func(p *api.KVPair) bool { return a.w != nil && p.Key == a.place() })
	switch {
	case st.isOf(a.owner) && a.w != nil:
		err = a.b.pass(ctx, st, drop(a.s.mark(a.w.number)))
	case st.isOf(a.owner):
		err = a.b.pass(ctx, st)
	case i >= 0 && len(st.waiters) == 1:
		_, err = a.b.txn(ctx, append(remove(a.place(), st.waiters[i]), remove(a.b.queue(a.lock), st.flag)...)...)
	case i >= 0:
		_, err = a.b.txn(ctx, remove(a.place(), st.waiters[i])...)
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
		if a.s != nil && a.s.ended() {
			a.forget()
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
	ctx, cancel := context.WithTimeout(ctx, a.b.calls.Bound(a.ttl))
	defer cancel()
	err := a.enter(ctx)
	if err == nil {
		err = a.register()
	}
	if err != nil {
		return err
	}
	r := record{Owner: a.owner, Since: a.b.now().UnixMicro()}
	_, err = a.change(ctx, func(uint64) []*api.KVTxnOp {
		return []*api.KVTxnOp{there(a.lock), set(a.b.queue(a.lock), a.place()), hold(a.place(), a.s.id, r.text())}
	})
	if err != nil && a.doubt == nil {
		a.unregister()
	}
	return err
}

// sleep waits until the lock was given to this waiter.
func (a *attempt) sleep(call *base.Call) (*lease, error) {
	select {
	case <-a.w.told:
	case <-a.s.gone:
		return nil, errConflict // it has lost its place
	case <-call.Done():
		return nil, call.Over()
	}
	for {
		l, err := a.confirm(call)
		if !inDoubt(err) || a.s.ended() || call.Over() != nil {
			return l, err
		}
		base.Pause(call, 50*time.Millisecond)
	}
}

// confirm takes over the lock that was given to this waiter: its lease counts from here.
func (a *attempt) confirm(ctx context.Context) (*lease, error) {
	ctx, cancel := context.WithTimeout(ctx, a.b.calls.Bound(a.ttl))
	defer cancel()
	if err := a.s.keep(ctx, a.ttl/8); err != nil {
		return nil, err
	}
	from := a.s.from()
	st, err := a.b.read(ctx, a.lock, drop(a.s.mark(a.w.number)))
	if err != nil {
		return nil, err
	}
	if !st.isOf(a.owner) || st.lock.Session != a.s.id { // an operator broke it
		return nil, errConflict
	}
	return a.granted(st, from)
}

// A state is what is stored of a lock.
type state struct {
	key        string
	lock, flag *api.KVPair // nil: it is not there
	waiters    []*api.KVPair
}

// read reads the state of a lock, and the base, in one transaction with others.
func (b *Backend) read(ctx context.Context, lock string, more ...*api.KVTxnOp) (*state, error) {
	a, err := b.txn(ctx, append(more, get(b.baseKey()), get(lock), below(b.queue(lock)))...)
	if err == nil {
		_, err = b.readBase(a)
	}
	if err != nil {
		return nil, err
	}
	return &state{key: lock, lock: a[lock], flag: a[b.queue(lock)], waiters: a.tree(b.queue(lock))}, nil
}

func (st *state) held() bool { return st.lock != nil && st.lock.Session != "" }

// isOf reports whether an owner has the lock.
func (st *state) isOf(owner string) bool { return st.held() && parse(st.lock).Owner == owner }

// pass frees a lock, and gives it to the first waiter if there is one, as long as nothing has changed
// since it was read.
func (b *Backend) pass(ctx context.Context, st *state, more ...*api.KVTxnOp) error {
	ops := append(more, remove(st.key, st.lock)...)
	if len(st.waiters) < 2 {
		ops = append(ops, remove(b.queue(st.key), st.flag)...)
	}
	if len(st.waiters) == 0 {
		_, err := b.txn(ctx, ops...)
		return err
	}
	first := st.waiters[0]
	_, number, _ := strings.Cut(first.Key[len(b.queue(st.key)):], ".")
	_, _, err := b.change(ctx, func(base uint64) []*api.KVTxnOp {
		r := record{Owner: parse(first).Owner, Base: base, Since: b.now().UnixMicro()}
		return append(append(ops, remove(first.Key, first)...),
			hold(st.key, first.Session, r.text()), hold(b.marks(first.Session)+number, first.Session, nil))
	})
	if errors.Is(err, errNoSession) { // with its places
		err = errConflict
	}
	return err
}

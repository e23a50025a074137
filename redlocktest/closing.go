package redlocktest

import (
	"context"
	"errors"
	"time"

	"github.com/redlock-go/redlock/driver"
)

var closeCases = []testCase{
	{name: "after", do: afterClose},
	{name: "leases", without: driver.FeatureSession, do: closeAndLeases},
	{name: "session", features: driver.FeatureSession, do: closeEndsSession},
	{name: "waiting", do: closeWaiting},
	{name: "busy", do: closeBusy},
}

// afterClose checks that calls after Close fail, and that Close can be called again, and by many at once.
func afterClose(r *run) {
	b := r.open()
	r.release(r.grant(b, driver.Request{Key: r.key()}))
	before, key := b.Info(), r.key()
	r.close(b)
	if after := b.Info(); after != before {
		r.record(describing, "Info changed with Close from %+v to %+v", before, after)
	}
	_, err := r.try(b, driver.Request{Key: key})
	r.isClosed(err, "Acquire")
	_, err = r.try(b, driver.Request{Key: key, Wait: true})
	r.isClosed(err, "Acquire that may wait")
	if w, ok := b.(driver.Watcher); ok {
		_, err := w.Watch(r.ctx, key)
		r.isClosed(err, "Watch")
	}
	if i, ok := b.(driver.Inspector); ok {
		_, err := i.Lookup(r.ctx, key)
		r.isClosed(err, "Lookup")
		r.isClosed(i.List(r.ctx, key, func(*driver.State) bool { return false }), "List")
	}
	unused := r.open() // it may never have connected
	for _, c := range []driver.Backend{b, unused} {
		r.together(8, func(int) {
			if err := c.Close(); err != nil {
				r.record(closing, "of several Closes one gives %v", err)
			}
		})
	}
	r.free(r.client(), key)
}

func (r *run) isClosed(err error, call string) {
	if r.saw(err) != closed {
		r.record(closing, "%s after Close gives %v, not ErrClosed", call, err)
	}
}

// closeAndLeases checks that a lease's lock outlives its backend.
func closeAndLeases(r *run) {
	a, b := r.client(), r.open()
	key := r.key()
	l := r.grant(b, driver.Request{Key: key, TTL: min(r.long(), 8*r.short())}) // nobody can release it
	r.close(b)
	if _, err := l.Renew(r.ctx, &driver.Renewal{TTL: r.long()}); r.saw(err) != closed {
		r.record(closing, "Renew after Close gives %v, not ErrClosed", err)
	}
	r.refuse(a, driver.Request{Key: key}, l)
	if err := l.Release(r.ctx); err == nil { // then it must be true
		r.release(r.grant(a, driver.Request{Key: key}))
	}
}

func closeEndsSession(r *run) {
	a, b := r.client(), r.open()
	key := r.key()
	l := r.grant(b, driver.Request{Key: key})
	r.close(b)
	next, _ := r.eventuallyRule(sessions, a, driver.Request{Key: key}, nil)
	r.release(next)
	if c := l.Grant().Lost; c != nil {
		r.await(c, losing, "the session was closed, and Lost was not")
	}
	if _, err := l.Renew(r.ctx, &driver.Renewal{TTL: r.long()}); r.saw(err) != closed && r.saw(err) != lost {
		r.record(closing, "Renew after Close gives %v, neither ErrClosed nor ErrLost", err)
	}
}

// closeWaiting checks that Close ends waiting calls with an error.
func closeWaiting(r *run) {
	a, b := r.client(), r.open()
	key := r.key()
	l := r.grant(a, driver.Request{Key: key})
	returned := r.async(func() {
		_, err := r.tryCtx(context.WithoutCancel(r.ctx), b, driver.Request{Key: key, Wait: true})
		if err == nil && r.valid(l) {
			r.fatal(exclusion, "Close granted a key that is held")
		}
		r.saw(err)
	})
	r.pause(20 * time.Millisecond)
	r.close(b)
	select {
	case <-returned:
	case <-r.ctx.Done():
		r.record(closing, "a call that waits did not return on Close")
		r.release(l) // so that it can
	}
	r.join(returned)
	r.release(l)
	r.nothingStored(a, key)
	r.free(a, key)
}

// closeBusy closes during many calls, again and again, when the first has returned, and checks that
// all of them return, and that those that failed leave no lock.
func closeBusy(r *run) {
	a := r.client()
	for range r.rounds(r.h.times(9)) {
		r.closeDuring(a, r.open())
	}
}

func (r *run) closeDuring(a, b driver.Backend) {
	r.release(r.grant(b, driver.Request{Key: r.key()}))
	const n = 40
	keys, got := make([]string, n), make([]*lease, n)
	returned := make(chan struct{}, n)
	for i := range keys {
		keys[i] = r.key()
	}
	r.together(n+1, func(i int) {
		if i == n {
			<-returned
			start := time.Now()
			_ = b.Close() // other cases check its error
			r.closedLate = time.Since(start) > time.Second/2
			return
		}
		defer func() { returned <- struct{}{} }()
		l, err := r.try(b, driver.Request{Key: keys[i], Wait: i%2 == 0})
		switch v := r.saw(err); {
		case v == granted:
			got[i] = l
		case v == closed, v == unknown, v == later, errors.Is(err, context.Canceled):
		default:
			r.record(closing, "an Acquire of a free key during Close gives %v: %v", v, err)
		}
	})
	// Granted locks belong to the caller, and stay unless they end with a session.
	for i, l := range got {
		if l == nil {
			r.nothingStored(a, keys[i])
			r.free(a, keys[i])
		} else if admin, ok := a.(driver.Admin); ok { // its backend can release it no more
			_ = admin.Break(r.ctx, keys[i], driver.Holder{Fence: l.Grant().Fence})
		}
	}
}

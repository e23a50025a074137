package dlock

import (
	"container/list"
	"context"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// queues keeps, per key, the calls of this client that want it, in the order of their
// arrival. Only the first of a queue talks to the backend. While a tenure lasts nobody does: its
// lock is passed on to the waiters.
type queues struct {
	closed <-chan struct{}

	mu    sync.Mutex // guards all fields below, for constant time: no key delays another
	byKey map[string]*queue
	hot   map[string]heat
}

// queue is the calls that want one key.
type queue struct {
	busy    bool          // there is a first
	tenure  *tenure       // whose lock is passed on; nil: none
	waiters list.List     // of *waiter, behind the first or the tenure
	kick    chan struct{} // wakes the first: a lease of this key was released here
	verdict error         // the last one that the first caller heard; nil: none
}

// waiter is a call that waits in a queue.
type waiter struct {
	r    *request
	turn chan *Lease // gets nil when the call becomes the first, or a lease that is passed on to it
}

// heat is what happened to a key of late.
type heat struct {
	signal time.Time // a call got the lock after a signal
	wanted time.Time // a call waited for another call of this client
	passes uint32    // of the last tenure
}

// A key is hot for hotTime after a call waited for its signal. The next caller subscribes before its
// first attempt, and so saves the attempt that only finds the key held.
const (
	hotTime = time.Second
	mostHot = 1024
)

// enter waits until the caller is the first in its key's queue, and reports whether the key is hot; or
// until it gets the lock of a lease, which is over. The first calls leave. r.verdict becomes the last
// one that the caller before it heard.
func (qs *queues) enter(ctx context.Context, r *request) (q *queue, hot bool, from *Lease, err error) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q = qs.byKey[r.name]
	if q == nil {
		q = &queue{kick: make(chan struct{}, 1)}
		qs.byKey[r.name] = q
	}
	if !q.busy && q.tenure == nil {
		q.busy, q.verdict = true, nil // nobody is before this caller
	} else {
		qs.change(r.name, func(h *heat) { h.wanted = time.Now() })
		w := &waiter{r, make(chan *Lease, 1)}
		place := q.waiters.PushBack(w)
		qs.mu.Unlock()
		select {
		case from = <-w.turn:
		case <-ctx.Done():
			err = ctx.Err()
		case <-qs.closed:
			err = ErrClosed
		}
		qs.mu.Lock()
		r.verdict = q.verdict
		if err != nil {
			qs.giveUp(r, q, w, place)
		}
	}
	qs.tokens(r, q)
	return q, recent(qs.hot[r.name].signal), from, err
}

// recent reports whether something that happened to a key still counts.
func recent(at time.Time) bool { return !at.IsZero() && time.Since(at) < hotTime }

// giveUp takes a waiter out of q. What it was given meanwhile goes to the next. qs.mu is held.
func (qs *queues) giveUp(r *request, q *queue, w *waiter, place *list.Element) {
	select {
	case from := <-w.turn:
		if from == nil {
			qs.next(r.name, q)
		} else if !qs.passLocked(from) {
			go from.abandon()
		}
	default:
		q.waiters.Remove(place)
	}
}

// next makes the first waiter of q the first, in place of a caller or a tenure that has left. qs.mu
// is held.
func (qs *queues) next(key string, q *queue) {
	front := q.waiters.Front()
	if front == nil {
		delete(qs.byKey, key)
		return
	}
	q.busy, q.tenure = true, nil
	q.waiters.Remove(front).(*waiter).turn <- nil
}

// leave takes the first out of q. The lease that it got, if it has a tenure, is passed on to the
// waiters. Otherwise the next waiter becomes the first, and is told the verdict that the caller heard
// last.
func (qs *queues) leave(r *request, q *queue, l *Lease) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q.verdict = r.verdict
	if l == nil || l.tenure == nil {
		qs.next(r.name, q)
		return
	}
	q.busy, q.tenure, q.verdict = false, l.tenure, &driver.HeldError{Holder: r.Owner}
	l.tenure.timer = time.AfterFunc(l.tenure.until.Sub(l.granted), func() {
		qs.mu.Lock()
		defer qs.mu.Unlock()
		qs.end(r.name, l.tenure)
	})
}

// note keeps the first caller's verdict for the callers behind it.
func (qs *queues) note(r *request, q *queue) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q.verdict = r.verdict
	qs.tokens(r, q)
}

// change notes what happened to a key. qs.mu is held.
func (qs *queues) change(key string, f func(*heat)) {
	h, ok := qs.hot[key]
	if !ok && len(qs.hot) >= mostHot {
		clear(qs.hot)
	}
	f(&h)
	qs.hot[key] = h
}

// heat notes that a call has just got its key after a signal.
func (qs *queues) heat(r *request) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	qs.change(r.name, func(h *heat) { h.signal = time.Now() })
}

// released wakes the first of the queue of l's key, if there is one. The lease's tenure is over.
func (qs *queues) released(l *Lease) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.byKey[l.key]
	if q == nil {
		return
	}
	if q.busy || q.waiters.Len() > 0 {
		qs.change(l.key, func(h *heat) { h.wanted = time.Now() })
	}
	if l.tenure != nil && q.tenure == l.tenure {
		qs.end(l.key, l.tenure)
		return
	}
	select {
	case q.kick <- struct{}{}:
	default:
	}
}

// empty reports whether nobody is in key's queue.
func (qs *queues) empty(key string) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	return qs.byKey[key] == nil
}

// lock makes attempts until one succeeds.
func (c *Client) lock(ctx context.Context, r *request) (*Lease, error) {
	if r.Mode == driver.Shared && c.queues.empty(r.name) {
		l, err := c.attempt(ctx, r, false) // readers need no order among themselves
		if err == nil || !c.again(ctx, r, err) {
			return l, err
		}
	}
	c.count.waiting.Add(1)
	defer c.count.waiting.Add(-1)
	r.passes = c.passes(r)
	for {
		q, hot, from, err := c.queues.enter(ctx, r)
		switch {
		case err != nil:
			return nil, err
		case from == nil:
			return c.first(ctx, r, q, hot)
		}
		if l, err := c.inherit(ctx, r, from); err == nil || errors.Is(err, ErrClosed) {
			return l, err
		}
	}
}

// first makes attempts, as the first of q, until one succeeds.
func (c *Client) first(ctx context.Context, r *request, q *queue, hot bool) (l *Lease, err error) {
	defer func() {
		c.queues.leave(r, q, l)
		if l != nil && l.tenure != nil && l.Err() != nil { // it was lost before its tenure began
			c.queues.over(l)
		}
	}()
	if hot {
		return c.wait(ctx, r, q, ErrHeld)
	}
	l, err = c.try(ctx, r, false)
	if err == nil || !c.again(ctx, r, err) {
		return l, err
	}
	return c.wait(ctx, r, q, err)
}

// wait makes attempts, each when there is a reason for it: natively where the backend
// queues, at a signal where it can watch, at growing pauses elsewhere. err is the
// outcome of the attempt before.
func (c *Client) wait(ctx context.Context, r *request, q *queue, err error) (*Lease, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()

	native := c.info.Features.Has(driver.FeatureQueueing)
	watcher, _ := c.backend.(driver.Watcher)
	var signal <-chan struct{}
	unwatched := false          // Watch failed, and is tried again after the next pause
	blocked := r.longestPause() // for how long the backend's queue took the last request
	for pause := minBackoff; ; pause = min(2*pause, r.longestPause()) {
		c.queues.note(r, q)
		held := errors.Is(err, ErrHeld)
		switch {
		case native && held && blocked >= pause:
		case signal == nil && held && !native && watcher != nil && !unwatched:
			if signal, err = watcher.Watch(ctx, r.Key); err != nil && ctx.Err() == nil {
				c.polling.log(ctx, slog.String("backend", c.info.Name), slog.String("key", r.Key), slog.Any("err", err))
			}
			unwatched = err != nil
			if permanent(err) {
				watcher = nil
			}
		default:
			unwatched = false
			d := delay(err, pause, signal != nil)
			if r.slots > 0 {
				d = min(d, slotsPause) // the slot that is waited for is not the only one
			}
			c.pause(ctx, q, signal, d)
		}
		if ctx.Err() != nil {
			return nil, c.ended(ctx)
		}
		var l *Lease
		asked := time.Now()
		l, err = c.try(ctx, r, native)
		blocked = time.Since(asked)
		if err == nil {
			if signal != nil {
				c.queues.heat(r)
			}
			return l, nil
		}
		if !c.again(ctx, r, err) {
			if c.life.Err() != nil {
				return nil, ErrClosed
			}
			return nil, err
		}
	}
}

// ended returns why a wait ended.
func (c *Client) ended(ctx context.Context) error {
	if c.life.Err() != nil {
		return ErrClosed
	}
	return ctx.Err()
}

// pause waits for a reason to ask again.
func (c *Client) pause(ctx context.Context, q *queue, signal <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	kick := q.kick
	for {
		select {
		case <-t.C:
		case <-signal:
		case <-ctx.Done():
		case <-kick:
			if signal != nil {
				// The signal goes to the next waiter, which may be in another process. Ask again
				// soon nevertheless, in case the release could not be announced.
				t.Reset(kickedPoll/2 + mathrand.N(kickedPoll))
				kick = nil
				continue
			}
		}
		return
	}
}

const (
	// minBackoff and maxBackoff bound the jittered, growing pause between two attempts where the
	// backend can neither queue nor tell that a lock became free, or is out of reach.
	minBackoff = 5 * time.Millisecond
	maxBackoff = 100 * time.Millisecond
	// watchedPoll is the pause before asking again for a lock whose release will be signalled;
	// kickedPoll is that pause after a release in this process.
	watchedPoll = time.Second
	kickedPoll  = 50 * time.Millisecond
	// slotsPause is for how long a call waits for one slot before it asks for all of them again.
	slotsPause = 700 * time.Millisecond
)

// longestPause is the longest pause between two attempts. It grows with the number of requests that an
// attempt makes.
func (r *request) longestPause() time.Duration {
	return min(max(maxBackoff, time.Duration(r.slots)*minBackoff), slotsPause)
}

// delay is the longest pause before the next attempt, by the verdict of the last one.
func delay(err error, pause time.Duration, watched bool) time.Duration {
	var held *driver.HeldError
	var refused *driver.RefusedError
	hint := time.Duration(0)
	switch {
	case errors.As(err, &held):
		hint = held.RetryAfter
		if watched && held.PollAfter > 0 {
			return held.PollAfter
		}
		if watched {
			pause = watchedPoll
		}
	case errors.As(err, &refused):
		hint, pause = refused.RetryAfter, watchedPoll
	}
	if hint > 0 && hint < pause {
		return hint + mathrand.N(pause/10+1)
	}
	return pause/2 + mathrand.N(pause)
}

// again notes the outcome of an attempt and reports whether waiting may help.
func (c *Client) again(ctx context.Context, r *request, err error) bool {
	if driver.ContextErr(ctx) != nil || permanent(err) {
		return false
	}
	if !errors.Is(err, ErrHeld) {
		c.unavailable(ctx, r.Key, err)
	}
	return true
}

// WithSlots lets n holders have the key at the same time, 1 to 1024: a bound on how many do
// something at once. Each slot is a lock of its own, with its token and its loss; Lease.Slot
// tells which one it is. Slot 0 is the lock named key itself, and slot i the lock named "key#i".
//
// Lock takes any free slot. It waits for one of them as for any lock, and asks for all of them every
// 0.7 s, so that it takes another one that was freed within about a second. The calls of one client
// for one key wait in order. Clients with different numbers of slots exclude each other in the
// slots that both have: while n is changed there are at most as many holders as the larger of
// the numbers.
//
// Tokens rise from one holder of a slot to the next, and tokens of different slots cannot be
// compared: a store that checks them needs one resource for each slot. Shared mode has no
// slots: WithShared beside it is ErrInvalid.
func WithSlots(n int) LockOption {
	return lockOption(func(l *lockConfig) {
		l.slots = n
		if n < 1 || n > mostSlots {
			l.bad("WithSlots", "%d must be 1 to %d", n, mostSlots)
		}
	})
}

const mostSlots = 1024

// slotKey returns the name of a slot's lock.
func slotKey(key string, slot int) string {
	if slot == 0 {
		return key
	}
	return key + "#" + strconv.Itoa(slot)
}

// try makes one attempt, or one at each slot, in random order, until one is granted. If wait is set it
// waits in the backend's queue: for one of the slots, for slotsPause.
func (c *Client) try(ctx context.Context, r *request, wait bool) (l *Lease, err error) {
	if r.slots == 0 {
		return c.attempt(ctx, r, wait)
	}
	for _, r.slot = range mathrand.Perm(r.slots) {
		r.Key = slotKey(r.name, r.slot)
		if l, err = c.attempt(ctx, r, false); !errors.Is(err, ErrHeld) {
			return l, err
		}
	}
	if !wait {
		return nil, err
	}
	round, cancel := context.WithTimeout(ctx, slotsPause)
	defer cancel()
	l, waited := c.attempt(round, r, true)
	if waited == nil || driver.ContextErr(round) == nil {
		err = waited
	}
	return l, err
}

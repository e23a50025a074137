package dlock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// waitQueues keeps, per key, the calls of this client that want it, in the order of their
// arrival. Only the first of a queue talks to the backend.
type waitQueues struct {
	closed <-chan struct{}

	mu    sync.Mutex // guards the fields below, for constant time: no key delays another
	byKey map[string]*waitQueue
	spare *waitQueue // an empty queue, for the next key
	hotAt map[string]time.Time
}

// waitQueue is the calls that want one key.
type waitQueue struct {
	key   string
	users atomic.Int64  // calls that have not left; raised under waitQueues.mu
	kick  chan struct{} // wakes the first: a lease of this key was released here

	mu          sync.Mutex
	taken       bool // there is a first
	front, back *waiter
	last        error // the last verdict of the first caller; nil: none
}

// waiter is a call behind the first.
type waiter struct {
	first      chan struct{} // closed when it becomes the first
	prev, next *waiter
	queued     bool
}

func newWaitQueues(closed <-chan struct{}) *waitQueues {
	return &waitQueues{byKey: map[string]*waitQueue{}, hotAt: map[string]time.Time{}, closed: closed}
}

// enter waits until the caller is the first in key's queue, and reports whether the key is
// hot. A caller that becomes the first calls leave. The verdict is the last one that the caller
// before it got.
func (qs *waitQueues) enter(ctx context.Context, key string) (q *waitQueue, hot bool, verdict, err error) {
	q, hot = qs.join(key)
	q.mu.Lock()
	if !q.taken {
		q.taken = true
		q.mu.Unlock()
		return q, hot, nil, nil
	}
	w := q.push()
	q.mu.Unlock()

	select {
	case <-w.first:
		return q, qs.hot(key), q.said(), nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-qs.closed:
		err = ErrClosed
	}
	verdict = q.abandon(w)
	qs.part(q)
	return nil, false, verdict, err
}

// join returns key's queue, with the caller among its users.
func (qs *waitQueues) join(key string) (q *waitQueue, hot bool) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q = qs.byKey[key]
	if q == nil {
		q, qs.spare = qs.spare, nil
		if q == nil {
			q = &waitQueue{kick: make(chan struct{}, 1)}
		}
		q.key = key
		qs.byKey[key] = q
	}
	q.users.Add(1)
	return q, qs.hotLocked(key)
}

// part takes a caller out of the users of q. The last one leaves q for the next key. Only the
// last one takes qs.mu: a hundred thousand callers that give up together delay no other key.
func (qs *waitQueues) part(q *waitQueue) {
	if q.users.Add(-1) > 0 {
		return
	}
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if q.users.Load() > 0 || qs.byKey[q.key] != q {
		return // another caller has come, or has done this
	}
	delete(qs.byKey, q.key)
	select {
	case <-q.kick:
	default:
	}
	qs.spare = q
}

// abandon takes w, which no longer waits, out of the queue, and returns the last verdict
// there.
func (q *waitQueue) abandon(w *waiter) (verdict error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	verdict = q.last
	if w.queued {
		q.unlink(w)
	} else {
		q.wakeNext() // w had just become the first
	}
	return verdict
}

// push adds a waiter at the end. q.mu is held.
func (q *waitQueue) push() *waiter {
	w := &waiter{first: make(chan struct{}), prev: q.back, queued: true}
	if q.back == nil {
		q.front = w
	} else {
		q.back.next = w
	}
	q.back = w
	return w
}

// unlink takes w out. q.mu is held.
func (q *waitQueue) unlink(w *waiter) {
	if w.prev == nil {
		q.front = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.back = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next, w.queued = nil, nil, false
}

// wakeNext makes the next waiter the first of the queue, and wakes it. q.mu is held.
func (q *waitQueue) wakeNext() {
	w := q.front
	if w == nil {
		q.taken, q.last = false, nil
		return
	}
	q.unlink(w)
	close(w.first)
}

// note keeps the first caller's verdict for the callers behind it.
func (q *waitQueue) note(verdict error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.last = verdict
}

func (q *waitQueue) said() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.last
}

// leave makes the next in q the first, and tells it the verdict that the caller heard last.
func (qs *waitQueues) leave(q *waitQueue, verdict error) {
	q.mu.Lock()
	q.last = verdict
	q.wakeNext()
	q.mu.Unlock()
	qs.part(q)
}

// released wakes the first of key's queue, if there is one.
func (qs *waitQueues) released(key string) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.byKey[key]
	if q == nil {
		return
	}
	select {
	case q.kick <- struct{}{}:
	default:
	}
}

// empty reports whether nobody is in key's queue.
func (qs *waitQueues) empty(key string) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	return qs.byKey[key] == nil
}

// A key is hot for a while after a call waited for its signal. The next caller subscribes
// before its first attempt, and so saves the attempt that only finds the key held.
const (
	hotTime = time.Second
	mostHot = 1024
)

// heat notes that a call has just got key after a signal.
func (qs *waitQueues) heat(key string) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	now := time.Now()
	if len(qs.hotAt) >= mostHot {
		for k, at := range qs.hotAt {
			if now.Sub(at) >= hotTime {
				delete(qs.hotAt, k)
			}
		}
	}
	if len(qs.hotAt) < mostHot {
		qs.hotAt[key] = now
	}
}

// hot reports whether a call has waited for key lately.
func (qs *waitQueues) hot(key string) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	return qs.hotLocked(key)
}

func (qs *waitQueues) hotLocked(key string) bool {
	at, ok := qs.hotAt[key]
	if ok && time.Since(at) >= hotTime {
		delete(qs.hotAt, key)
		ok = false
	}
	return ok
}

package dlock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// waitQueues keeps, per key, the calls of this client that want it, in the order of their
// arrival. Only the first of a queue talks to the backend: it has filled a channel of one, and the
// runtime serves those that wait to send in their order.
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
	first chan struct{} // full while there is a first; the others wait to send, in their order
	kick  chan struct{} // wakes the first: a lease of this key was released here

	mu   sync.Mutex
	last error // the last verdict of the first caller; nil: none
}

func newWaitQueues(closed <-chan struct{}) *waitQueues {
	return &waitQueues{byKey: map[string]*waitQueue{}, hotAt: map[string]time.Time{}, closed: closed}
}

// enter waits until the caller is the first in key's queue, and reports whether the key is
// hot. A caller that becomes the first calls leave. The verdict is the last one that the caller
// before it got.
func (qs *waitQueues) enter(ctx context.Context, key string) (q *waitQueue, hot bool, verdict, err error) {
	q, hot = qs.join(key)
	select {
	case q.first <- struct{}{}:
		q.note(nil) // nobody is before this caller
		return q, hot, nil, nil
	default:
	}
	select {
	case q.first <- struct{}{}:
		return q, qs.hot(key), q.said(), nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-qs.closed:
		err = ErrClosed
	}
	verdict = q.said()
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
			q = &waitQueue{first: make(chan struct{}, 1), kick: make(chan struct{}, 1)}
		}
		q.key, q.last = key, nil
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
	q.note(verdict)
	<-q.first
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

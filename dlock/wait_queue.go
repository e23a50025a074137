package dlock

import (
	"context"
	"sync"
	"time"
)

// lines keeps, per key, the calls of this client that want it, in order. Only the
// first of a line talks to the backend.
type waitQueues struct {
	mu     sync.Mutex
	byKey  map[string]*waitQueue
	spare  *waitQueue // one that ended, for the next key
	hotAt  map[string]time.Time
	closed <-chan struct{}
}

type waitQueue struct {
	behind []chan struct{} // those after the first; closed when one becomes the first
	kick   chan struct{}   // wakes the first: a lease of this key was released here
	last   error           // the last verdict that the first heard; nil: none
}

func newWaitQueues(closed <-chan struct{}) *waitQueues {
	return &waitQueues{byKey: map[string]*waitQueue{}, hotAt: map[string]time.Time{}, closed: closed}
}

// enter waits until the caller is the first in key's line. Whoever entered leaves. The
// verdict is what the one before heard last.
func (ls *waitQueues) enter(ctx context.Context, key string) (l *waitQueue, verdict, err error) {
	ls.mu.Lock()
	l = ls.byKey[key]
	if l == nil {
		l, ls.spare = ls.spare, nil
		if l == nil {
			l = &waitQueue{kick: make(chan struct{}, 1)}
		}
		ls.byKey[key] = l
		ls.mu.Unlock()
		return l, nil, nil
	}
	turn := make(chan struct{})
	l.behind = append(l.behind, turn)
	ls.mu.Unlock()

	select {
	case <-turn:
		return l, ls.said(l), nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-ls.closed:
		err = ErrClosed
	}
	return nil, ls.abandon(key, l, turn), err
}

// abandon takes a caller that no longer waits out of its line, and returns the last
// verdict there.
func (ls *waitQueues) abandon(key string, l *waitQueue, turn chan struct{}) (verdict error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	verdict = l.last
	for i, t := range l.behind {
		if t == turn {
			l.behind = append(l.behind[:i], l.behind[i+1:]...)
			return verdict
		}
	}
	ls.next(key, l) // it had just become the first
	return verdict
}

// note keeps what the first in line heard for those behind it.
func (ls *waitQueues) note(l *waitQueue, verdict error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.last = verdict
}

func (ls *waitQueues) said(l *waitQueue) error {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return l.last
}

// leave makes the next in line the first.
func (ls *waitQueues) leave(key string, l *waitQueue) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.next(key, l)
}

func (ls *waitQueues) next(key string, l *waitQueue) {
	if len(l.behind) == 0 {
		delete(ls.byKey, key)
		select {
		case <-l.kick:
		default:
		}
		l.behind, l.last = nil, nil
		ls.spare = l
		return
	}
	close(l.behind[0])
	l.behind = l.behind[1:]
}

// released wakes the first of key's line, if there is one.
func (ls *waitQueues) released(key string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.byKey[key]
	if l == nil {
		return
	}
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// empty reports whether nobody is in key's line.
func (ls *waitQueues) empty(key string) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.byKey[key] == nil
}

// A key is hot for a while after it was waited for at a signal: who wants it then
// subscribes before the first attempt, which must say that it is held, and saves one.
const (
	hotTime = time.Second
	mostHot = 1024
)

// heat says that key was got at a signal just now.
func (ls *waitQueues) heat(key string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	now := time.Now()
	if len(ls.hotAt) >= mostHot {
		for k, at := range ls.hotAt {
			if now.Sub(at) >= hotTime {
				delete(ls.hotAt, k)
			}
		}
	}
	if len(ls.hotAt) < mostHot {
		ls.hotAt[key] = now
	}
}

// hot reports whether key was waited for lately.
func (ls *waitQueues) hot(key string) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	at, ok := ls.hotAt[key]
	if ok && time.Since(at) >= hotTime {
		delete(ls.hotAt, key)
		ok = false
	}
	return ok
}

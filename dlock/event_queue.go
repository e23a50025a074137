package dlock

import (
	"sync"
	"time"
)

// eventQueue runs functions one after the other, in order, on a goroutine of its own, which
// ends when the queue is empty. A function that blocks there holds up no lease.
type eventQueue struct {
	mu    sync.Mutex
	queue []func()
	busy  bool
	empty []chan struct{} // closed when there is nothing to run
}

// mostQueued is how many functions may wait before optional ones are left out.
const mostQueued = 1024

// put adds f, unless optional is set and too many wait.
func (q *eventQueue) put(f func(), optional bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if optional && len(q.queue) >= mostQueued {
		return
	}
	q.queue = append(q.queue, f)
	if !q.busy {
		q.busy = true
		go q.run()
	}
}

func (q *eventQueue) run() {
	done := false
	defer func() {
		if !done {
			go q.run() // f ended its goroutine, as t.FailNow does
		}
	}()
	for f := q.next(); f != nil; f = q.next() {
		f()
	}
	done = true
}

func (q *eventQueue) next() func() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) == 0 {
		q.queue, q.busy = nil, false
		for _, ch := range q.empty {
			close(ch)
		}
		q.empty = nil
		return nil
	}
	f := q.queue[0]
	q.queue[0] = nil
	q.queue = q.queue[1:]
	return f
}

// drain waits until there is nothing to run, for d at most, and reports whether there is
// nothing.
func (q *eventQueue) drain(d time.Duration) bool {
	q.mu.Lock()
	if !q.busy {
		q.mu.Unlock()
		return true
	}
	ch := make(chan struct{})
	q.empty = append(q.empty, ch)
	q.mu.Unlock()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ch:
		return true
	case <-t.C:
		return false
	}
}

package async

import (
	"sync"
	"time"
)

// A Tracker counts background work. Unlike a sync.WaitGroup it may grow while a goroutine
// waits, because a clean-up starts calls. Its methods are safe for concurrent use.
type Tracker struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when n falls to zero; nil if nobody waits
}

// Add notes that a task begins.
func (t *Tracker) Add() {
	t.mu.Lock()
	t.n++
	t.mu.Unlock()
}

// Done notes that a task has ended.
func (t *Tracker) Done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 && t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}

// Go runs a task on a goroutine.
func (t *Tracker) Go(task func()) {
	t.Add()
	go func() {
		defer t.Done()
		task()
	}()
}

// Idle returns a channel that is closed when no work is left.
func (t *Tracker) Idle() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == 0 {
		return closed
	}
	if t.idle == nil {
		t.idle = make(chan struct{})
	}
	return t.idle
}

// Await waits until no work is left, but not longer than most, and reports whether none is left.
func (t *Tracker) Await(most time.Duration) bool {
	limit := time.NewTimer(most)
	defer limit.Stop()
	select {
	case <-t.Idle():
		return true
	case <-limit.C:
		return false
	}
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

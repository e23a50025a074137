package async

import (
	"sync"
	"time"
)

// Workers are goroutines that run tasks and then wait for more: their stacks have grown to the
// size that the tasks need, which would take a new goroutine longer than the rest of a call.
// The zero Workers has none yet. Its methods are safe for concurrent use and do not block.
type Workers struct {
	mu     sync.Mutex
	n      int
	idle   []*worker // the worker used last is on top
	reaper *time.Timer
	closed bool
}

// A Task is run by a worker.
type Task interface{ Run() }

type worker struct {
	tasks chan Task // of capacity one; closed: end
	since time.Time // idle
}

// idleTime is how long an idle worker stays.
const idleTime = 10 * time.Second

// Start gives a task to an idle worker, or to a new one.
func (w *Workers) Start(t Task) {
	w.mu.Lock()
	last := len(w.idle) - 1
	if last < 0 {
		w.n++
		w.mu.Unlock()
		go w.work(t)
		return
	}
	k := w.idle[last]
	w.idle = w.idle[:last]
	w.mu.Unlock()
	k.tasks <- t // has room: an idle worker's channel is empty
}

// Len returns how many workers there are, busy ones and idle ones.
func (w *Workers) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n
}

// Close ends the idle workers, and the others after their task. Start still works.
func (w *Workers) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.reaper != nil {
		w.reaper.Stop()
	}
	w.end(len(w.idle))
}

// end ends the first n idle workers. w.mu is held.
func (w *Workers) end(n int) {
	for _, k := range w.idle[:n] {
		close(k.tasks)
	}
	w.idle = append([]*worker(nil), w.idle[n:]...)
	w.n -= n
}

func (w *Workers) work(t Task) {
	k := &worker{tasks: make(chan Task, 1)}
	for ok := true; ok; {
		t.Run()
		if ok = w.rest(k); ok {
			t, ok = <-k.tasks
		}
	}
}

// rest puts a worker among the idle ones; false: it has to end.
func (w *Workers) rest(k *worker) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		w.n--
		return false
	}
	k.since = time.Now()
	w.idle = append(w.idle, k)
	if w.reaper == nil {
		w.reaper = time.AfterFunc(idleTime, w.reap)
	}
	return true
}

// reap ends the workers that were idle for long: those at the bottom of the stack.
func (w *Workers) reap() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	old, n := time.Now().Add(-idleTime), 0
	for n < len(w.idle) && !w.idle[n].since.After(old) {
		n++
	}
	w.end(n)
	w.reaper = nil
	if w.n > 0 {
		w.reaper = time.AfterFunc(idleTime, w.reap)
	}
}

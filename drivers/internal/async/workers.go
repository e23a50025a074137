package async

import (
	"sync"
	"time"
)

// Workers are goroutines that run tasks and then wait for more: their stacks have grown to the
// size that the tasks need, which would take a new goroutine longer than the rest of a call.
// The zero Workers has none yet. Its methods are safe for concurrent use and do not block.
type Workers struct {
	Most  int // bounds the workers; zero: no bound
	Queue int // bounds the tasks that wait for a worker

	mu     sync.Mutex
	queue  []Task
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

// Start gives a task to an idle worker or to a new one, or lets it wait for one. It returns
// false, and does nothing, if too many wait.
func (w *Workers) Start(t Task) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch last := len(w.idle) - 1; {
	case last >= 0:
		w.idle[last].tasks <- t // has room: an idle worker's channel is empty
		w.idle = w.idle[:last]
	case w.Most == 0 || w.n < w.Most:
		w.n++
		go w.work(t)
	case len(w.queue) < w.Queue:
		w.queue = append(w.queue, t)
	default:
		return false
	}
	return true
}

// Len returns how many workers there are, busy ones and idle ones.
func (w *Workers) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n
}

// Close ends the idle workers, and the others when no task waits. Start still works.
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
	for t != nil {
		t.Run()
		t = w.next(k)
	}
}

// next returns a worker's next task, for which it may wait; nil: it must end.
func (w *Workers) next(k *worker) Task {
	if t, ok := w.rest(k); ok {
		return t
	}
	return <-k.tasks
}

// rest takes a task that waits, or puts the worker among the idle ones, which returns false.
func (w *Workers) rest(k *worker) (t Task, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case len(w.queue) > 0:
		t, w.queue[0] = w.queue[0], nil
		w.queue = w.queue[1:]
		return t, true
	case w.closed:
		w.n--
		return nil, true
	}
	k.since = time.Now()
	w.idle = append(w.idle, k)
	if w.reaper == nil {
		w.reaper = time.AfterFunc(idleTime, w.reap)
	}
	return nil, false
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

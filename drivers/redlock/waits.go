package redlock

import "sync"

// waits notes since when this client waits for each key. All nodes are told the same time, so
// that their wait queues have the same order.
type waits struct {
	mu    sync.Mutex
	byKey map[string]*waiting
}

type waiting struct {
	watches int
	asked   int    // how often this client asked meanwhile
	since   uint64 // by the nodes' clocks in µs; zero: not known yet, or served since
}

func (w *waits) enter(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byKey == nil {
		w.byKey = map[string]*waiting{}
	}
	if w.byKey[key] == nil {
		w.byKey[key] = &waiting{}
	}
	w.byKey[key].watches++
}

func (w *waits) leave(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.byKey[key]
	if e.watches--; e.watches == 0 {
		delete(w.byKey, key)
	}
}

// served forgets since when key was awaited, because this client got it.
func (w *waits) served(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.byKey[key]; e != nil {
		e.since = 0
	}
}

// asked returns how often this client has asked for key since it waits.
func (w *waits) asked(key string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.byKey[key]; e != nil {
		return e.asked
	}
	return 0
}

// begun notes that this client asks for key, and returns since when this client waits for key, which now tells if it is not known yet;
// zero: it does not wait.
func (w *waits) begun(key string, now func() uint64) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.byKey[key]
	if e == nil {
		return 0
	}
	e.asked++
	if e.since == 0 {
		e.since = now()
	}
	return e.since
}

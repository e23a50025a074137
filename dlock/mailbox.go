package dlock

import (
	"sync"
	"time"
)

// mailbox runs functions one after the other, in their order, on a goroutine of its own,
// which ends when there is nothing to run: what runs there holds up no lease.
type mailbox struct {
	mu    sync.Mutex
	queue []func()
	busy  bool
	empty []chan struct{} // closed when there is nothing to run
}

// mostLetters is for how many functions a mailbox takes what may be left out.
const mostLetters = 1024

// put adds f, unless optional is set and too many wait.
func (m *mailbox) put(f func(), optional bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if optional && len(m.queue) >= mostLetters {
		return
	}
	m.queue = append(m.queue, f)
	if !m.busy {
		m.busy = true
		go m.run()
	}
}

func (m *mailbox) run() {
	done := false
	defer func() {
		if !done {
			go m.run() // f ended its goroutine, as t.FailNow does
		}
	}()
	for f := m.next(); f != nil; f = m.next() {
		f()
	}
	done = true
}

func (m *mailbox) next() func() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.queue) == 0 {
		m.queue, m.busy = nil, false
		for _, ch := range m.empty {
			close(ch)
		}
		m.empty = nil
		return nil
	}
	f := m.queue[0]
	m.queue[0] = nil
	m.queue = m.queue[1:]
	return f
}

// drain waits until there is nothing to run, for d at most, and reports whether it came to
// that.
func (m *mailbox) drain(d time.Duration) bool {
	m.mu.Lock()
	if !m.busy {
		m.mu.Unlock()
		return true
	}
	ch := make(chan struct{})
	m.empty = append(m.empty, ch)
	m.mu.Unlock()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ch:
		return true
	case <-t.C:
		return false
	}
}

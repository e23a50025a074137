package redisnode

import (
	"sync"
	"time"
)

// A tracker counts what goes on in the background. Unlike a sync.WaitGroup it may be
// added to while somebody waits: a clean-up under way begins calls.
type tracker struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when n falls to zero; nil where nobody waits
}

func (t *tracker) add() {
	t.mu.Lock()
	t.n++
	t.mu.Unlock()
}

func (t *tracker) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 && t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}

// wait returns a channel that is closed once nothing goes on.
func (t *tracker) wait() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == 0 {
		return answered
	}
	if t.idle == nil {
		t.idle = make(chan struct{})
	}
	return t.idle
}

// await reports whether nothing goes on any more, after most at the most.
func (t *tracker) await(most time.Duration) bool {
	limit := time.NewTimer(most)
	defer limit.Stop()
	select {
	case <-t.wait():
		return true
	case <-limit.C:
		return false
	}
}

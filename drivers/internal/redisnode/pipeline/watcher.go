package pipeline

import (
	"context"
	"sync"
	"time"
)

// watchEvery is half of the longest time for which a caller whose goroutine makes its call waits
// after its context has ended.
const watchEvery = 50 * time.Millisecond

// A watcher ends the call on its caller's goroutine when the caller's context has ended, to which
// such a call cannot listen. It looks now and then, because most calls end long before.
type watcher struct {
	mu      sync.Mutex
	ctx     context.Context // of the call; nil: there is none
	since   time.Time
	over    bool // the last look has found that ctx has ended
	running bool
}

func (w *watcher) begin(ctx context.Context, abandon func(since time.Time)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ctx, w.since, w.over = ctx, time.Now(), false
	if !w.running {
		w.running = true
		time.AfterFunc(watchEvery, func() { w.look(abandon) })
	}
}

func (w *watcher) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ctx = nil
}

// look holds the mutex meanwhile, so that no other such call begins.
func (w *watcher) look(abandon func(since time.Time)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running = w.ctx != nil; !w.running {
		return
	}
	if w.over {
		abandon(w.since)
	}
	w.over = w.ctx.Err() != nil // the answer may come meanwhile
	time.AfterFunc(watchEvery, func() { w.look(abandon) })
}

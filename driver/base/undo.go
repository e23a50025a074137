package base

import (
	"context"
	"sync"
	"time"
)

// undos are what is left to undo: one after the other, by one goroutine while there is any, so that
// an outage fills no server with requests.
type undos struct {
	mu      sync.Mutex
	list    []undo
	running chan struct{} // closed when the goroutine ends; nil: there is none
	undone  int           // how many were undone
}

type undo struct {
	until time.Time
	try   func(*Call) error
}

// Undo undoes an attempt or a lease whose outcome is unknown, in the background: it calls f, and
// again after growing pauses, up to a second, until f returns nil, which says that nothing is left
// and that nothing can arrive any more; or until the time when the lock has ended by itself, zero if
// it does not. Each call of f is bounded by Timeout. Close waits as long as they succeed, and for
// Timeout without a success.
func (c *Calls) Undo(until time.Time, f func(call *Call) error) {
	u := &c.undos
	u.mu.Lock()
	defer u.mu.Unlock()
	u.list = append(u.list, undo{until, f})
	if u.running != nil {
		return
	}
	done := make(chan struct{})
	if c.Go(func(ctx context.Context) { defer close(done); c.settle(ctx) }) {
		u.running = done
	}
}

// next returns what is first, or ends the goroutine.
func (u *undos) next() (undo, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.list) == 0 {
		u.running = nil
		return undo{}, false
	}
	x := u.list[0]
	u.list = u.list[1:]
	return x, true
}

// settle empties the list.
func (c *Calls) settle(ctx context.Context) {
	const shortest, longest = 10 * time.Millisecond, time.Second
	for pause := shortest; ; {
		x, ok := c.undos.next()
		if !ok {
			return
		}
		if ctx.Err() != nil {
			continue
		}
		call := c.newCall(ctx, nil, c.timeout())
		err := x.try(call)
		call.End()
		if err == nil {
			c.undos.mu.Lock()
			c.undos.undone++
			c.undos.mu.Unlock()
			pause = shortest
			continue
		}
		if !x.until.IsZero() && time.Now().After(x.until) {
			continue
		}
		c.undos.mu.Lock()
		c.undos.list = append(c.undos.list, x)
		c.undos.mu.Unlock()
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
		pause = min(2*pause, longest)
	}
}

// wait returns when nothing is left to undo, or nothing was undone for this long.
func (u *undos) wait(most time.Duration) {
	t := time.NewTicker(most)
	defer t.Stop()
	for before := -1; ; {
		u.mu.Lock()
		running, undone := u.running, u.undone
		u.mu.Unlock()
		if running == nil || undone == before {
			return
		}
		before = undone
		select {
		case <-running:
			return
		case <-t.C:
		}
	}
}

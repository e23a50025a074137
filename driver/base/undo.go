package base

import (
	"context"
	"time"
)

// undo is something to undo: one after the other, by one goroutine while there is any, so that an
// outage fills no server with requests.
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
	c.mu.Lock()
	defer c.mu.Unlock()
	c.start()
	if c.own.Err() != nil {
		return
	}
	c.undos = append(c.undos, undo{until, f})
	if c.undoing == nil {
		done := make(chan struct{})
		c.undoing = done
		c.routines.Go(func() { defer close(done); c.undoAll(c.own) })
	}
}

// lastUndos returns the channel that is closed when nothing is left to undo, nil if nothing is, and
// ends the driver's goroutines when nothing was undone for Timeout.
func (c *Calls) lastUndos() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.undoing != nil && c.patience == nil {
		c.patience = time.AfterFunc(c.timeout(), c.end)
	}
	return c.undoing
}

// next returns what is first, or ends the goroutine.
func (c *Calls) next() (undo, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.undos) == 0 {
		c.undoing = nil
		return undo{}, false
	}
	x := c.undos[0]
	c.undos = c.undos[1:]
	return x, true
}

// undone notes how a try has ended.
func (c *Calls) undone(x undo, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil && c.patience != nil:
		c.patience.Reset(c.timeout())
	case err != nil && (x.until.IsZero() || time.Now().Before(x.until)):
		c.undos = append(c.undos, x)
	}
}

// undoAll empties the list.
func (c *Calls) undoAll(ctx context.Context) {
	const shortest, longest = 10 * time.Millisecond, time.Second
	pause := shortest
	for ctx.Err() == nil {
		x, ok := c.next()
		if !ok {
			return
		}
		call := &Call{calls: c, caller: ctx, by: time.Now().Add(c.timeout())}
		err := x.try(call)
		call.End()
		c.undone(x, err)
		if err == nil {
			pause = shortest
			continue
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, longest)
	}
}

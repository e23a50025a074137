package base

import (
	"errors"
	"time"
)

// undo is something to undo: one after the other, by one goroutine while there is any, so that an
// outage fills no server with requests.
type undo struct {
	until time.Time
	try   func(*Call) error
}

// ErrUnsettled is what a function of Undo returns when the server has answered, nothing is left, and
// something may still arrive. Others are undone meanwhile.
var ErrUnsettled = errors.New("a request may still arrive")

// Undo undoes an attempt or a lease whose outcome is unknown, in the background: it calls f, and
// again after growing pauses, up to a second, until f returns nil, which says that nothing is left
// and that nothing can arrive any more; or until the time when the lock has ended by itself, zero if
// it does not. Each call of f is bounded by Timeout. Close waits as long as the server answers, and
// for Timeout without an answer.
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
		c.routines.Go(func() { defer close(done); c.undoAll() })
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

// undoAll empties the list. It pauses after a failure, and when all of the list is unsettled.
func (c *Calls) undoAll() {
	const shortest, unsettled, longest = 10 * time.Millisecond, 100 * time.Millisecond, time.Second
	c.mu.Lock()
	defer c.mu.Unlock()
	waiting := 0 // how many in a row are unsettled
	for pause := shortest; len(c.undos) > 0 && c.own.Err() == nil; {
		x := c.undos[0]
		c.undos = c.undos[1:]
		c.mu.Unlock()
		call := &Call{calls: c, caller: c.own, by: time.Now().Add(c.timeout())}
		err := x.try(call)
		call.End()
		c.mu.Lock()
		answered := err == nil || errors.Is(err, ErrUnsettled)
		if answered && c.patience != nil {
			c.patience.Reset(c.timeout())
		}
		if err == nil {
			pause, waiting = shortest, 0
			continue
		}
		if x.until.IsZero() || time.Now().Before(x.until) {
			c.undos = append(c.undos, x)
		}
		if answered {
			if waiting++; waiting < len(c.undos) {
				continue
			}
			pause = min(pause, unsettled)
		}
		waiting = 0
		c.mu.Unlock()
		Pause(c.own, pause)
		c.mu.Lock()
		pause = min(2*pause, longest)
	}
	c.undoing = nil
}

package dlock

import (
	"context"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// lock makes attempts until one succeeds.
func (c *Client) lock(ctx context.Context, r *request) (*Lease, error) {
	if r.Mode == driver.Shared && c.queues.empty(r.Key) {
		l, err := c.attempt(ctx, r, false) // readers need no order among themselves
		if err == nil || !c.again(ctx, r, err) {
			return l, err
		}
	}
	if r.slots == 0 { // otherwise takeSlot counts
		c.count.waiting.Add(1)
		defer c.count.waiting.Add(-1)
	}
	q, hot, verdict, err := c.queues.enter(ctx, r.Key)
	if verdict != nil {
		r.verdict = verdict
	}
	if err != nil {
		return nil, err
	}
	defer func() { c.queues.leave(q, r.verdict) }()
	if hot {
		return c.wait(ctx, r, q, ErrHeld)
	}
	l, err := c.attempt(ctx, r, false)
	if err == nil || !c.again(ctx, r, err) {
		return l, err
	}
	q.note(r.verdict)
	return c.wait(ctx, r, q, err)
}

// wait makes attempts, each when there is a reason for it: natively where the backend
// queues, at a signal where it can watch, at growing pauses elsewhere. err is the
// outcome of the attempt before.
func (c *Client) wait(ctx context.Context, r *request, q *waitQueue, err error) (*Lease, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()

	native := c.info.Features.Has(driver.FeatureQueueing)
	watcher, _ := c.backend.(driver.Watcher)
	var signal <-chan struct{}
	unwatched := false    // Watch failed, and is tried again after the next pause
	blocked := maxBackoff // for how long the backend's queue took the last request
	for pause := minBackoff; ; pause = min(2*pause, maxBackoff) {
		held := errors.Is(err, ErrHeld)
		switch {
		case native && held && blocked >= pause:
		case signal == nil && held && !native && watcher != nil && !unwatched:
			if signal, err = watcher.Watch(ctx, r.Key); err != nil && ctx.Err() == nil {
				c.polling.log(ctx, slog.String("backend", c.info.Name), slog.String("key", r.Key), slog.Any("err", err))
			}
			unwatched = err != nil
			if permanent(err) {
				watcher = nil
			}
		default:
			unwatched = false
			c.pause(ctx, q, signal, delay(err, pause, signal != nil))
		}
		if ctx.Err() != nil {
			return nil, c.ended(ctx)
		}
		var l *Lease
		asked := time.Now()
		l, err = c.attempt(ctx, r, native)
		blocked = time.Since(asked)
		if err != nil {
			q.note(r.verdict)
		}
		if err == nil {
			if signal != nil {
				c.queues.heat(r.Key)
			}
			return l, nil
		}
		if !c.again(ctx, r, err) {
			if ctx.Err() != nil && c.life.Err() != nil {
				return nil, ErrClosed
			}
			return nil, err
		}
	}
}

// ended returns why a wait ended.
func (c *Client) ended(ctx context.Context) error {
	if c.life.Err() != nil {
		return ErrClosed
	}
	return ctx.Err()
}

// pause waits for a reason to ask again.
func (c *Client) pause(ctx context.Context, q *waitQueue, signal <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-signal:
	case <-ctx.Done():
	case <-q.kick:
		if signal != nil {
			// The signal goes to the next waiter, which may be in another process. Ask again
			// soon nevertheless, in case the release could not be announced.
			t.Reset(kickedPoll/2 + mathrand.N(kickedPoll))
			select {
			case <-t.C:
			case <-signal:
			case <-ctx.Done():
			}
		}
	}
}

const (
	// minBackoff and maxBackoff bound the jittered, growing pause between two attempts where the
	// backend can neither queue nor tell that a lock became free, or is out of reach.
	minBackoff = 5 * time.Millisecond
	maxBackoff = 100 * time.Millisecond
	// watchedPoll is the pause before asking again for a lock whose release will be signalled;
	// kickedPoll is that pause after a release in this process.
	watchedPoll = time.Second
	kickedPoll  = 50 * time.Millisecond
)

// delay is the longest pause before the next attempt, by the verdict of the last one.
func delay(err error, pause time.Duration, watched bool) time.Duration {
	var held *driver.HeldError
	var refused *driver.RefusedError
	hint := time.Duration(0)
	switch {
	case errors.As(err, &held):
		hint = held.RetryAfter
		if watched && held.PollAfter > 0 {
			return held.PollAfter
		}
		if watched {
			pause = watchedPoll
		}
	case errors.As(err, &refused):
		hint, pause = refused.RetryAfter, watchedPoll
	}
	if hint > 0 && hint < pause {
		return hint + mathrand.N(pause/10+1)
	}
	return pause/2 + mathrand.N(pause)
}

// again notes the outcome of an attempt and reports whether waiting may help.
func (c *Client) again(ctx context.Context, r *request, err error) bool {
	if driver.ContextErr(ctx) != nil || permanent(err) {
		return false
	}
	if !errors.Is(err, ErrHeld) {
		c.unavailable(ctx, r.Key, err)
	}
	return true
}

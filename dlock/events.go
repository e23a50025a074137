package dlock

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/printable"
	"github.com/redlock-go/redlock/driver/quorum"
)

// This file reports background events: to the log, and to the hooks that belong to no
// call of the program. None of it runs on the path that keeps leases alive, or under a mutex.

// logLine queues a line for the log, with the values of ctx.
func (c *Client) logLine(ctx context.Context, level slog.Level, msg string, attrs ...slog.Attr) {
	c.logOptional(ctx, false, level, msg, attrs...)
}

// logOptional queues a line for the log, unless it is optional and too many wait.
func (c *Client) logOptional(ctx context.Context, optional bool, level slog.Level, msg string, attrs ...slog.Attr) {
	ctx = values(ctx)
	for i := range attrs {
		attrs[i].Value = escaped(attrs[i].Value)
	}
	c.toLog.put(func() { c.log.LogAttrs(ctx, level, msg, attrs...) }, optional)
}

// escaped escapes what may disturb a terminal, because a handler may write values as they are.
func escaped(v slog.Value) slog.Value {
	if v.Kind() == slog.KindString {
		return slog.StringValue(printable.Text(v.String()))
	}
	if err, ok := v.Any().(error); ok {
		if text := err.Error(); oneLine(text) != text {
			return slog.AnyValue(&printableError{err})
		}
	}
	return v
}

// A printableError is an error of a driver with a text in one line.
type printableError struct{ error }

func (e *printableError) Error() string { return oneLine(e.error.Error()) }
func (e *printableError) Unwrap() error { return e.error }

// seldom logs the first event of a kind, and then how many more there were, every seldomEvery as
// long as there are any.
type seldom struct {
	c           *Client
	first, more string // the messages

	mu    sync.Mutex
	count int // since the last line
	timer *time.Timer
	open  bool // the timer runs
	ended bool
}

const seldomEvery = 10 * time.Second

func (s *seldom) log(ctx context.Context, attrs ...slog.Attr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return
	case s.open:
		s.count++
		return
	}
	s.c.logLine(ctx, slog.LevelWarn, s.first, attrs...)
	s.arm()
}

func (s *seldom) arm() {
	s.open = true
	if s.timer == nil {
		s.timer = time.AfterFunc(seldomEvery, s.again)
	} else {
		s.timer.Reset(seldomEvery)
	}
}

// again logs the events since the last line.
func (s *seldom) again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open = s.count > 0 && !s.ended; s.open {
		s.flush()
		s.arm()
	}
}

func (s *seldom) flush() {
	s.c.logLine(context.Background(), slog.LevelWarn, s.more, slog.String("backend", s.c.info.Name), slog.Int("times", s.count))
	s.count = 0
}

// stop logs what is left, and ends the timer.
func (s *seldom) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.count > 0 {
		s.flush()
	}
}

// unavailable logs a request whose outcome is unknown.
func (c *Client) unavailable(ctx context.Context, key string, err error) {
	c.outages.log(ctx, slog.String("backend", c.info.Name), slog.String("key", key), slog.Any("err", err))
}

// tellLost reports the loss of a lease.
func (c *Client) tellLost(l *Lease, err error) {
	c.count.lost.Add(1)
	c.losts.log(l.ctx, slog.String("key", l.key), slog.Uint64("fence", l.fence), slog.Any("err", err))
	if c.hooks.Event != nil {
		e := l.event("lost", err)
		e.Held = l.sinceGrant()
		c.toHooks.put(func() { c.hooks.Event(l.ctx, e) }, false)
	}
}

// tellRenewed reports the outcome of a renewal to the hooks.
func (c *Client) tellRenewed(l *Lease, votes []quorum.Vote, err error, latency time.Duration) {
	if c.hooks.Event == nil {
		return
	}
	e := l.event("renew", err)
	e.Latency, e.Votes = latency, votes
	c.toHooks.put(func() { c.hooks.Event(l.ctx, e) }, err == nil)
}

// sinceGrant is how long the lease has been held; more than zero.
func (l *Lease) sinceGrant() time.Duration { return max(l.c.clock.Now().Sub(l.granted), 1) }

// event makes a hook's event of a lease.
func (l *Lease) event(op string, err error) Event {
	e := Event{Op: op, Key: l.key, Fence: l.fence, Err: err}
	e.Deadline, _ = l.Deadline()
	if err == nil {
		e.Votes = l.held.Grant().Votes
	}
	return e
}

// notice passes on a notice of the driver, which may call it under a mutex of its own.
func (c *Client) notice(n driver.Notice) {
	if c.hooks.Event != nil {
		c.toHooks.put(func() { c.hooks.Event(context.Background(), Event{Op: "notice", Key: n.Key, Err: n.Err, Notice: n}) }, true)
	}
	attrs := []slog.Attr{slog.String("kind", string(n.Kind))}
	for _, a := range []slog.Attr{slog.String("node", n.Node), slog.String("key", n.Key), slog.String("detail", n.Detail)} {
		if a.Value.String() != "" {
			attrs = append(attrs, a)
		}
	}
	if n.Err != nil {
		attrs = append(attrs, slog.Any("err", n.Err))
	}
	level := slog.LevelWarn
	if n.Kind == quorum.NoticeNodeRestored || n.Kind == quorum.NoticeBootstrapped {
		level = slog.LevelInfo
	}
	c.logOptional(context.Background(), true, level, "dlock: notice of the driver", attrs...)
}

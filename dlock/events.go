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
	ctx = context.WithoutCancel(ctx)
	for i, a := range attrs { // a handler may write values as they are
		switch v := a.Value; v.Kind() {
		case slog.KindString:
			attrs[i].Value = slog.StringValue(printable.Text(v.String()))
		case slog.KindAny: // an error
			attrs[i].Value = slog.StringValue(printable.Line(v.String()))
		default:
		}
	}
	c.toLog.put(func() { c.log.LogAttrs(ctx, level, msg, attrs...) }, msg == noticeMessage)
}

const noticeMessage = "dlock: notice of the driver"

// seldom logs the first event of a kind, and then how many more there were, every seldomEvery as
// long as there are any.
type seldom struct {
	c           *Client
	first, more string // the messages

	mu    sync.Mutex
	count int         // since the last line
	timer *time.Timer // nil: the next event is the first
	over  bool        // the client was closed
}

const seldomEvery = 10 * time.Second

func (s *seldom) log(ctx context.Context, attrs ...slog.Attr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil || s.over {
		s.count++
		return
	}
	s.timer = time.AfterFunc(seldomEvery, s.again)
	s.c.logLine(ctx, slog.LevelWarn, s.first, attrs...)
}

// again logs the events since the last line.
func (s *seldom) again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count == 0 {
		s.timer = nil
		return
	}
	s.c.logLine(context.Background(), slog.LevelWarn, s.more, slog.String("backend", s.c.info.Name), slog.Int("times", s.count))
	s.count = 0
	s.timer.Reset(seldomEvery)
}

// stop logs what is left, and ends the timer. Nothing is logged afterwards: a hook may delay a call that
// failed until its client is closed.
func (s *seldom) stop() {
	s.again()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	if s.timer != nil {
		s.timer.Stop()
	}
}

// unavailable logs a request whose outcome is unknown.
func (c *Client) unavailable(ctx context.Context, key string, err error) {
	c.outages.log(ctx, slog.String("backend", c.info.Name), slog.String("key", key), slog.Any("err", err))
}

// tellLost reports the loss of a lease. l.mu is held.
func (c *Client) tellLost(l *Lease, err error) {
	c.count.lost.Add(1)
	c.losts.log(l.ctx, slog.String("key", l.key), slog.Uint64("fence", l.fence), slog.Any("err", err))
	c.tellLater(l, Event{Op: "lost", Err: err, Held: l.sinceGrant()}, false)
}

// tellLater queues an event of a lease for the hook. l.mu is held.
func (c *Client) tellLater(l *Lease, e Event, optional bool) {
	if c.hooks.Event == nil {
		return
	}
	e.Key, e.Fence = l.key, l.fence
	e.Deadline, _ = l.deadline()
	c.toHooks.put(func() { c.hooks.Event(l.ctx, e) }, optional)
}

// tell calls the hook for a call of the program. It may have a lease.
func (c *Client) tell(ctx context.Context, l *Lease, e Event) {
	if l == nil {
		c.hooks.Event(ctx, e)
		return
	}
	e.Fence = l.fence
	e.Deadline, _ = l.Deadline()
	l.guard(func() { c.hooks.Event(ctx, e) })
}

// notice passes on a notice of the driver, which may call it under a mutex of its own.
func (c *Client) notice(n driver.Notice) {
	if c.hooks.Event != nil {
		c.toHooks.put(func() { c.hooks.Event(context.Background(), Event{Op: "notice", Key: n.Key, Err: n.Err, Notice: n}) }, true)
	}
	attrs := []slog.Attr{slog.String("kind", n.Kind)}
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
	c.logLine(context.Background(), level, noticeMessage, attrs...)
}

// eventQueue runs functions one after the other, in order, on a goroutine of its own, which
// ends when the queue is empty. A function that blocks there holds up no lease.
type eventQueue struct {
	mu    sync.Mutex
	queue []func()
	busy  bool
}

// mostQueued is how many functions may wait before optional ones are left out.
const mostQueued = 1024

// put adds f, unless optional is set and too many wait.
func (q *eventQueue) put(f func(), optional bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if optional && len(q.queue) >= mostQueued {
		return
	}
	q.queue = append(q.queue, f)
	if !q.busy {
		q.busy = true
		go q.run()
	}
}

func (q *eventQueue) run() {
	done := false
	defer func() {
		if !done {
			go q.run() // f ended its goroutine, as t.FailNow does
		}
	}()
	for f := q.next(); f != nil; f = q.next() {
		f()
	}
	done = true
}

func (q *eventQueue) next() func() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) == 0 {
		q.queue, q.busy = nil, false
		return nil
	}
	f := q.queue[0]
	q.queue[0], q.queue = nil, q.queue[1:]
	return f
}

// drain waits until all that was put before has run, for d at most, and reports whether it has.
func (q *eventQueue) drain(d time.Duration) bool {
	done := make(chan struct{})
	q.put(func() { close(done) }, false)
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

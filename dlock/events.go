package dlock

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver"
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
		attrs[i].Value = printable(attrs[i].Value)
	}
	c.toLog.put(func() { c.log.LogAttrs(ctx, level, msg, attrs...) }, optional)
}

// printable escapes what may disturb a terminal, because a handler may write values as they are.
func printable(v slog.Value) slog.Value {
	if v.Kind() == slog.KindString {
		return slog.StringValue(driver.Printable(v.String()))
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

// outage logs failures of the backend: a line when the first lease or waiting call fails, and
// a line when none of them fails any more. It counts the failures in between.
type outage struct {
	c    *Client
	open atomic.Bool // set under mu

	mu       sync.Mutex
	failing  int // leases and calls whose last request failed
	since    time.Time
	failures int
	lost     int
}

// failed notes a request whose outcome is unknown. in says whether its lease or call counts as
// failing; the caller guards in.
func (o *outage) failed(ctx context.Context, key string, err error, in *bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !*in {
		*in = true
		o.failing++
	}
	o.failures++
	if o.open.Load() {
		return
	}
	o.begin()
	o.c.logLine(ctx, slog.LevelWarn, "dlock: backend unavailable",
		slog.String("backend", o.c.info.Name), slog.String("key", key), slog.Any("err", err))
}

func (o *outage) begin() {
	o.open.Store(true)
	o.since, o.lost = time.Now(), 0
}

// answered notes an answer of the backend.
func (o *outage) answered(in *bool) {
	if !*in && !o.open.Load() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.part(in)
	if o.failing > 0 || !o.open.Load() {
		return
	}
	o.open.Store(false)
	o.c.logLine(context.Background(), slog.LevelInfo, "dlock: backend available again",
		slog.String("backend", o.c.info.Name), slog.Duration("after", time.Since(o.since)),
		slog.Int("failures", o.failures), slog.Int("lost", o.lost))
	o.failures = 0
}

// leave stops counting a lease or a call as failing, because it is over.
func (o *outage) leave(in *bool) {
	if *in {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.part(in)
	}
}

func (o *outage) part(in *bool) {
	if *in {
		*in = false
		o.failing--
	}
}

// leaseLost notes a loss. During an outage only the first loss is logged. silent says that the
// backend did not answer: such a loss begins an outage if there is none.
func (o *outage) leaseLost(l *Lease, err error, silent bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if silent && !o.open.Load() {
		o.begin()
	}
	if o.open.Load() {
		if o.lost++; o.lost > 1 {
			return
		}
	}
	o.c.logLine(l.ctx, slog.LevelWarn, "dlock: lease lost",
		slog.String("key", l.key), slog.Uint64("fence", l.fence), slog.Any("err", err))
}

// degraded logs waits that poll because the backend cannot watch.
type degraded struct {
	c  *Client
	on atomic.Bool
}

// note records the outcome of an attempt to watch key.
func (d *degraded) note(ctx context.Context, key string, err error) {
	if d.on.Load() == (err != nil) || !d.on.CompareAndSwap(err == nil, err != nil) {
		return
	}
	if err == nil {
		d.c.logLine(ctx, slog.LevelInfo, "dlock: waiters are signalled again", slog.String("backend", d.c.info.Name))
		return
	}
	d.c.logLine(ctx, slog.LevelWarn, "dlock: waiters poll, since the backend cannot signal them",
		slog.String("backend", d.c.info.Name), slog.String("key", key), slog.Any("err", err))
}

// tellLost reports the loss of a lease to the hooks.
func (c *Client) tellLost(l *Lease, err error, silent bool) {
	c.count.lost.Add(1)
	c.outage.leaseLost(l, err, silent)
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

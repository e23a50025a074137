package dlock

import (
	"context"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Hooks are called as things happen: for traces, metrics and logs. Any may be nil. They
// are called synchronously, on the goroutine that does the work, possibly several at a
// time, and are to return quickly; Lost alone has a goroutine of its own, since it must
// not hold up the leases of others.
type Hooks struct {
	// Start is called when an operation begins, and returns the context under which
	// the backend is called: a tracer's span can be its parent. It must derive it from
	// ctx.
	Start func(ctx context.Context, op Op) context.Context
	// Attempt is called after every request for a lock, with its outcome.
	Attempt func(context.Context, Event)
	// Acquired is called when Lock or TryLock succeeded.
	Acquired func(context.Context, Event)
	// Failed is called when Lock or TryLock failed.
	Failed func(context.Context, Event)
	// Renewed is called after every renewal, with its outcome.
	Renewed func(context.Context, Event)
	// Lost is called when a lease was lost, after its Done was closed.
	Lost func(context.Context, Event)
	// Released is called after every release, with its outcome.
	Released func(context.Context, Event)
	// Notice is called for what happens in the background of the driver. It gets no
	// events of a backend that was handed to New: its constructor takes them.
	Notice func(driver.Notice)

	_ struct{}
}

// Op is an operation that a hook's Start sees begin.
type Op struct {
	Name string // "lock", "trylock", "renew" or "unlock"
	Key  string
	_    struct{}
}

// Event is what a hook is told. Fields that say nothing are zero.
type Event struct {
	Op       string // as in Op.Name
	Key      string
	Fence    uint64
	Deadline time.Time     // the lease's
	Attempt  int           // which request of this call, from 1
	Latency  time.Duration // of the last request
	Waited   time.Duration // since the call began; for Released and Lost: since the grant
	Votes    []driver.Vote // per node, quorum backends only
	Err      error
	_        struct{}
}

// JoinHooks returns hooks that call each of the given ones in turn. The contexts of
// Start are chained.
func JoinHooks(hooks ...Hooks) Hooks {
	var j Hooks
	for _, h := range hooks {
		j = Hooks{
			Start:    joinStart(j.Start, h.Start),
			Attempt:  joinEvent(j.Attempt, h.Attempt),
			Acquired: joinEvent(j.Acquired, h.Acquired),
			Failed:   joinEvent(j.Failed, h.Failed),
			Renewed:  joinEvent(j.Renewed, h.Renewed),
			Lost:     joinEvent(j.Lost, h.Lost),
			Released: joinEvent(j.Released, h.Released),
			Notice:   joinDriver(j.Notice, h.Notice),
		}
	}
	return j
}

func joinStart(a, b func(context.Context, Op) context.Context) func(context.Context, Op) context.Context {
	if a == nil || b == nil {
		return either(a, b, a != nil)
	}
	return func(ctx context.Context, op Op) context.Context { return b(a(ctx, op), op) }
}

func joinEvent(a, b func(context.Context, Event)) func(context.Context, Event) {
	if a == nil || b == nil {
		return either(a, b, a != nil)
	}
	return func(ctx context.Context, e Event) { a(ctx, e); b(ctx, e) }
}

func joinDriver(a, b func(driver.Notice)) func(driver.Notice) {
	if a == nil || b == nil {
		return either(a, b, a != nil)
	}
	return func(e driver.Notice) { a(e); b(e) }
}

func either[T any](a, b T, first bool) T {
	if first {
		return a
	}
	return b
}

// driverEvent passes on what happened in the background of the driver.
func (c *Client) driverEvent(e driver.Notice) {
	if c.hooks.Notice != nil {
		c.hooks.Notice(e)
	}
	c.log.Warn("dlock: "+string(e.Kind), "node", e.Node, "key", e.Key, "detail", e.Detail, "err", e.Err)
}

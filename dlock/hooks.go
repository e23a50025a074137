package dlock

import (
	"context"
	"time"
)

// Hooks are called as things happen: for traces, metrics and logs. Any may be nil. None is
// called under a mutex, or on the path that keeps leases alive: a hook that blocks delays the
// call that it belongs to, or the hooks behind it, and no lease.
//
// Start, Attempt, Acquired, Failed and Released belong to a call of the program. They are
// called on its goroutine before it returns, so possibly several at a time. Renewed, Lost and
// Notice report background events. They are called afterwards, one after the other and
// in order, on a goroutine of the client's own. Close and the end of WithMinHold call Start and
// Released for the locks that they release. Ping calls none.
type Hooks struct {
	// Start is called when a Lock, TryLock or Unlock begins, and returns the context under
	// which the backend is called: a tracer's span can be its parent. It must derive it from
	// ctx. It is not called for renewals; Renewed has their Latency.
	Start func(ctx context.Context, op Op) context.Context
	// Attempt is called after every request for a lock, with its outcome.
	Attempt func(context.Context, Event)
	// Acquired is called when Lock or TryLock succeeded. The lease renews itself meanwhile.
	Acquired func(context.Context, Event)
	// Failed is called when Lock or TryLock failed.
	Failed func(context.Context, Event)
	// Renewed is called after every renewal, with its outcome and the context of its lease.
	// Successes, and notices, may be left out while more than a thousand hooks wait to be
	// called.
	Renewed func(context.Context, Event)
	// Lost is called after a lease was lost and its Done closed, with the context of the lease.
	Lost func(context.Context, Event)
	// Released is called after every release, with its outcome.
	Released func(context.Context, Event)
	// Notice is called for events in the background of the driver. It gets no notices of a
	// backend that was handed to New: that backend's constructor takes a function for them.
	Notice func(Notice)

	_ struct{}
}

// Op is the operation that begins when Start is called.
type Op struct {
	Name string // "lock", "trylock" or "unlock"
	Key  string
	_    struct{}
}

// Event is the argument of hooks. Fields that do not apply are zero.
type Event struct {
	Op       string // "lock", "trylock", "renew", "lost" or "unlock"
	Key      string
	Fence    uint64        // the lease's token
	Deadline time.Time     // the lease's
	Attempt  int           // which request of this call, from 1: Attempt, Acquired, Failed
	Latency  time.Duration // of the request: Attempt, Renewed, Released
	Waited   time.Duration // since the call began: Attempt, Acquired, Failed
	Held     time.Duration // since the grant, once for each lease: Lost, or else Released
	Votes    []Vote        // per node, quorum backends only
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
			Notice:   joinNotice(j.Notice, h.Notice),
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

func joinNotice(a, b func(Notice)) func(Notice) {
	if a == nil || b == nil {
		return either(a, b, a != nil)
	}
	return func(n Notice) { a(n); b(n) }
}

func either[T any](a, b T, first bool) T {
	if first {
		return a
	}
	return b
}

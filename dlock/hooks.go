package dlock

import (
	"context"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
)

// Hooks are called as things happen: for traces, metrics and logs. Either may be nil. None is
// called under a mutex, or on the path that keeps leases alive: a hook that blocks delays the
// call that it belongs to, or the hooks behind it, and no lease.
//
// Close and the end of WithMinHold call the hooks for the locks that they release. Ping and Lookup
// call none.
type Hooks struct {
	// Start is called when a "lock", "trylock" or "unlock" begins, and returns the context under
	// which the backend is called: a tracer's span can be its parent. It must derive it from
	// ctx. It is not called for renewals; their Event has the Latency.
	Start func(ctx context.Context, op, key string) context.Context
	// Event is called after each step: see Event.Op. The events of a call come before it returns.
	// Those of the background come afterwards, one after the other and in order, on a goroutine of
	// the client's own.
	Event func(ctx context.Context, e Event)

	_ struct{}
}

// Event is the argument of Hooks.Event. Fields that do not apply are zero.
type Event struct {
	// Op says what happened.
	//
	//	attempt          one request of a Lock or TryLock, with its outcome
	//	lock, trylock    the call's end: with a lease, or with Err
	//	unlock           a release, with its outcome
	//	renew            a renewal, in the background; successes may be left out while more
	//	                 than a thousand events wait
	//	lost             a lease was lost, and its Done closed: in the background
	//	notice           something happened in the background of the driver: Notice
	//
	// The context is that of the call, or of the lease; of a notice it is an empty one.
	Op       string
	Key      string
	Fence    uint64        // the lease's token
	Deadline time.Time     // the lease's
	Attempt  int           // which request of this call, from 1; lock: how many
	Latency  time.Duration // of the request: attempt, renew, unlock
	Waited   time.Duration // since the call began: attempt, lock, trylock
	Held     time.Duration // since the grant, once for each lease: lost, or else unlock
	Left     time.Duration // until the deadline, before it was renewed: renew
	Passed   bool          // within this process, without the server: lock, unlock (see WithPassOn)
	Votes    []quorum.Vote // per node, quorum backends only: attempt, renew
	Err      error
	// Notice is never of a backend that was handed to New: its constructor takes a function.
	Notice driver.Notice

	_ struct{}
}

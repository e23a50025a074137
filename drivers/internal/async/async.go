// Package async has what a backend of this module offers beside the contract of package
// driver: calls that their caller does not wait for. A quorum asserts it of its nodes, so
// that a request to a node needs no goroutine of its own.
package async

import (
	"context"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// The methods of Backend and Lease begin what the blocking method of the same name does,
// and report whether they did. They never block. False means that nothing was done and done
// is not called: the call needs something first that takes time (a connection, a handshake),
// or would be refused. The blocking method does that, or says why not.
//
// After true, done is called exactly once: never from within the method, perhaps before it
// returns, often on a goroutine that reads a server's answers. So done must not block, nor
// call the backend's blocking methods. It gets what the blocking method would return with a
// deadline of until; a call without an answer by then ends with an error that matches
// context.DeadlineExceeded, and what of it takes effect later is undone as it is there.
//
// Of ctx only the values count: a call in progress cannot be cancelled.

// A Backend is a driver.Backend that can start attempts.
type Backend interface {
	StartAcquire(ctx context.Context, req *driver.Request, until time.Time, done func(driver.Lease, error)) bool
}

// A Lease is a driver.Lease that can start renewals and its release.
type Lease interface {
	StartRenew(ctx context.Context, r *driver.Renewal, until time.Time, done func(driver.Grant, error)) bool
	StartRelease(ctx context.Context, until time.Time, done func(error)) bool
}

// Package async has interfaces that a backend of this module may implement in addition to the
// contract of package driver: calls for which the caller does not wait. A quorum asserts them
// of its nodes, so that a request to a node needs no goroutine of its own. It also has what counts
// such work and bounds it.
package async

import (
	"context"

	"github.com/redlock-go/redlock/driver"
)

// The methods of Backend and Lease start the blocking method of the same name, and report
// whether they did. They never block. False means that nothing was done and the receiver is not
// called: the call first needs something that takes time (a connection, a handshake), or would
// be refused. The blocking method does this, or returns the refusal.
//
// After true, the receiver is called exactly once: never from within the method, perhaps before
// it returns, often on a goroutine that reads a server's answers. A call without an answer at
// the end of its term ends with an error that matches context.DeadlineExceeded; if it takes
// effect later it is undone, like a blocking call.

// A Backend is a driver.Backend that can start attempts.
type Backend interface {
	// Starts reports whether b is this backend itself. A type around this backend that embeds it
	// has the methods that start calls as well, and they would bypass its own blocking methods.
	Starts(b driver.Backend) bool
	// StartAcquire leaves out Info.Check: the caller has checked the request once for all its
	// nodes, by bounds within those of each node's Info. A key that is too long only with the
	// node's own prefix is not started. It does not keep req, which the caller may change afterwards.
	StartAcquire(t Term, req *driver.Request, r Receiver) bool
}

// A Lease is a driver.Lease that can start renewals and its release.
type Lease interface {
	StartRenew(t Term, renewal *driver.Renewal, r Receiver) bool
	StartRelease(t Term, r Receiver) bool
}

// A Vote is a lease of a quorum's node, which the quorum may never count.
type Vote interface {
	// GiveBack says that the vote was never counted. The next release, and only that one, also
	// sets the key's counter back to what it was before the grant, if the lock is still this
	// grant's and the counter its token. A silent release tells no waiter, because another
	// owner has the lock.
	GiveBack(silent bool)
}

// A Receiver gets the results of the blocking method, by the method that is named after it. The
// methods must not block, nor call the backend's blocking methods.
type Receiver interface {
	Acquired(l driver.Lease, err error)
	Renewed(g driver.Grant, err error)
	Released(err error)
}

// A Term says how long a call may take: until its Deadline. Its Done need not be closed then.
type Term = context.Context

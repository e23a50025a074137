package dlock

import (
	"sync/atomic"
	"time"
)

// Stats are a client's counts since it was made, and its state now.
type Stats struct {
	Held    int // leases that are valid now
	Waiting int // calls of Lock that wait now

	Acquired      uint64 // leases granted by the backend
	Passed        uint64 // leases that got their lock from another one of this client
	Contended     uint64 // requests that were answered "held"
	Failed        uint64 // requests that failed otherwise
	Renewed       uint64 // renewals that succeeded
	RenewalFailed uint64 // renewals that did not
	Lost          uint64 // leases lost, for any reason
	Released      uint64 // releases that succeeded
	ReleaseFailed uint64 // releases whose outcome is unknown

	WaitTime time.Duration // the sum over all calls of Lock that got a lease
	_        struct{}
}

type counters struct {
	held, waiting                           atomic.Int64
	acquired, passed, contended, failed     atomic.Uint64
	renewed, renewalFailed, lost            atomic.Uint64
	released, releaseFailed, waitedNanosecs atomic.Uint64
}

// Stats returns the client's counts. It is cheap, and safe at any time.
func (c *Client) Stats() Stats {
	n := &c.count
	return Stats{
		Held:          int(n.held.Load()),
		Waiting:       int(n.waiting.Load()),
		Acquired:      n.acquired.Load(),
		Passed:        n.passed.Load(),
		Contended:     n.contended.Load(),
		Failed:        n.failed.Load(),
		Renewed:       n.renewed.Load(),
		RenewalFailed: n.renewalFailed.Load(),
		Lost:          n.lost.Load(),
		Released:      n.released.Load(),
		ReleaseFailed: n.releaseFailed.Load(),
		WaitTime:      time.Duration(n.waitedNanosecs.Load()),
	}
}

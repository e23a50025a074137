// Package base has what every driver needs, so that a driver is only the requests to its server.
//
//	Calls       the calls under way: their time limits, Close, and goroutines of the driver
//	Call        one call: a context, made when it is needed, and the translation of its errors
//	Calls.Undo  an attempt whose outcome is unknown is undone until that is certain
//	Lease       the shell of a driver.Lease: one renewal or release at a time, and what is over
//	Again       a request that no server took is made again for a while
//	Joint       a request that callers share who need it at the same time
//	Sessions    sessions that locks share, renewed while they are used
//	Hosts       HTTP requests to one of several servers, and their clock
//	NextBase    tokens of a server with an index that rises with every write
//	EntryValue  the text of an owner in such a server, or in a queue
//	QueueState  the state of a key whose server has a queue
//	Findings    the findings of Check
//
// The example in package driver is a whole driver with it. A Backend has a Calls, begins each call
// with BeginAcquire or Begin, ends its errors with Failed, or does both with Do, and is closed by
// Close:
//
//	call, err := b.calls.BeginAcquire(ctx, b.info, b.prefix, req)
//	if err != nil {
//		return nil, err // ErrInvalid, or ErrClosed
//	}
//	defer call.End()
//	start := time.Now()                    // rule 3
//	fence, err := b.client.Take(call, ...) // the request: the call is its context
//	if inDoubt(err) {                      // it may have taken effect, and may yet
//		b.calls.Undo(start.Add(2*req.TTL), func(call *base.Call) error { return b.client.Free(call, ...) })
//	}
//	if err != nil {
//		return nil, call.Failed(err)
//	}
//	grant := driver.Grant{Fence: fence, Expires: driver.Expires(start, req.TTL)}
//	return base.NewLease(&b.calls, b.info, grant, renew, release), nil
package base

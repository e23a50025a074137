package memory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// This file causes contention, loss and outages, for tests of code that uses locks.

// Hold lets another owner take key, until release is called: Acquire returns ErrHeld, or waits.
// A lease that has the key at that instant loses it and learns so at once; requests that wait
// for the key go on waiting. The hold has no TTL. release may be called more than once.
func (b *Backend) Hold(key string) (release func()) {
	s := b.space
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	e := s.entry(b.prefix+key, now)
	s.holds++
	h := &lease{
		entry: e,
		owner: fmt.Sprintf("another/%d", s.holds),
		fence: driver.NextFence(e.counter, 0, now),
		since: now,
	}
	e.counter = h.fence
	for _, l := range e.holders {
		l.lose()
	}
	e.holders = []*lease{h}
	e.arm(now)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		e.remove(h, time.Now())
	}
}

// Expire takes key from its holders, as the end of the TTL does: the first request that waits
// gets it. The leases that had it are lost, and learn so at once: when Expire returns, the Err of a
// dlock.Lease is ErrLost, and its Done is closed a moment later.
func (b *Backend) Expire(key string) {
	b.space.mu.Lock()
	defer b.space.mu.Unlock()
	if e := b.space.entries[b.prefix+key]; e != nil {
		e.evict(time.Now(), func(*lease) bool { return true })
	}
}

// An Outage describes how a backend fails. Its locks stay held until their TTL ends, and other
// backends on the same space go on.
type Outage struct {
	// Err is the error of every call; calls that wait return it at once. An Err that is none of
	// package driver's verdicts means an unknown outcome, like a broken connection. Nil: calls
	// are served.
	Err error
	// Hang leaves calls without an answer. Such a call ends with its context; or with the
	// outage, and is served then; or after a second, with an error that means an unknown
	// outcome. To delay calls, end the outage after that time.
	Hang bool
	// RenewalsOnly applies the outage to renewals only.
	RenewalsOnly bool

	_ struct{}
}

// outage is an Outage that has begun.
type outage struct {
	Outage
	over chan struct{} // closed at its end
}

// callTimeout bounds a call that hangs.
const callTimeout = time.Second

var errNoAnswer = errors.New("memory: no answer within " + callTimeout.String())

// SetOutage begins an outage of b and its leases, and replaces an earlier one. The zero Outage
// ends it: calls are served again.
func (b *Backend) SetOutage(o Outage) {
	b.space.mu.Lock()
	defer b.space.mu.Unlock()
	if o == (Outage{}) || b.closed {
		b.setOutage(nil)
		return
	}
	b.setOutage(&outage{Outage: o, over: make(chan struct{})})
	if o.Err != nil && !o.RenewalsOnly {
		b.interrupt(o.Err)
	}
}

func (b *Backend) setOutage(o *outage) {
	if before := b.outage.Swap(o); before != nil {
		close(before.over)
	}
}

// Fail is SetOutage with Err alone; Fail(nil) ends any outage.
func (b *Backend) Fail(err error) { b.SetOutage(Outage{Err: err}) }

// applyOutage delays or fails a call if there is an outage, and returns when a call began that was
// delayed; zero: it was not.
func (b *Backend) applyOutage(ctx context.Context, renewal bool) (start time.Time, err error) {
	for {
		o := b.outage.Load()
		if o == nil || o.RenewalsOnly && !renewal {
			return start, nil
		}
		if !o.Hang {
			return start, o.Err
		}
		if start.IsZero() {
			start = time.Now()
		}
		select {
		case <-time.After(callTimeout - time.Since(start)):
			return start, errNoAnswer
		case <-o.over: // or another one has begun
		case <-ctx.Done():
			return start, ctx.Err()
		}
	}
}

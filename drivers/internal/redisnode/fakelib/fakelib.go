// Package fakelib is a client library without a server, for tests in virtual time: its round
// trips take as long as a test says.
package fakelib

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// A Library makes round trips that take some time, and may ignore deadlines. Its method is safe
// for concurrent use.
type Library struct {
	Takes         atomic.Int64  // how long a round trip takes, in nanoseconds
	Batches, Sent atomic.Int64  // how many round trips there were, and calls in them
	Most          atomic.Int64  // the greatest number of round trips under way at a time
	Heeds         bool          // returns at the deadline of its context
	Closed        chan struct{} // if closed, ends the round trips under way

	under atomic.Int64
}

// New returns a library.
func New(takes time.Duration, heeds bool) *Library {
	l := &Library{Heeds: heeds, Closed: make(chan struct{})}
	l.Takes.Store(int64(takes))
	return l
}

// Trip makes one round trip for this number of calls. It returns an error if it ends without an
// answer.
func (l *Library) Trip(ctx context.Context, calls int) error {
	l.Batches.Add(1)
	l.Sent.Add(int64(calls))
	if n := l.under.Add(1); n > l.Most.Load() {
		l.Most.Store(n)
	}
	defer l.under.Add(-1)
	var deadline <-chan time.Time
	if d, ok := ctx.Deadline(); ok && l.Heeds {
		deadline = time.After(time.Until(d))
	}
	select {
	case <-time.After(time.Duration(l.Takes.Load())): // virtual
		return nil
	case <-deadline:
	case <-l.Closed:
	}
	return errors.New("i/o timeout")
}

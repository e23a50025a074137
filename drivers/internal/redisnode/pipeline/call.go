package pipeline

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/drivers/internal/async"
)

// A Call is one script to run. After it was handed over it belongs to the pipelines.
type Call struct {
	SHA  string // EVALSHA of this…
	Text string // …or, if not empty, EVAL of this
	Keys []string
	Args []string
	// Behind, if not empty, is a key that is written just before the script, in one transaction
	// with it. So a server that takes no writes never sees the text, and does not know it
	// later. (EVAL alone makes a text callable by EVALSHA, even if it was refused.)
	Behind string
	// Replicas, if not zero, is the number of replicas for which the command WAIT waits just
	// after the script, on the same connection, for at most Patience.
	Replicas int
	Patience time.Duration
	// Repeated has a bit for each of Args, from the lowest, that is the same in most calls.
	Repeated uint8

	Reply  []any // strings, int64s, nil and lists of them…
	Number int64 // …or, if Reply is nil, a number
	Err    error
	Acked  int64 // WAIT's answer: how many replicas have the connection's writes

	Gathered   any  // the Gatherer's own data about the call
	Unanswered bool // the Gatherer has sent it without an answer: it goes again, by itself

	// Wake gets a value at the end of a call that a caller waits for. It may be kept for another
	// call, when this one has ended.
	Wake chan struct{}

	Deadline time.Time // the caller's, from ctx or its start

	ctx   context.Context // the caller's
	timed int             // its place in Pipelines.timed, from 1; zero: none
	due   time.Time       // the currently known end of a call without an answer
	then  Receiver        // callback of a call that nobody waits for…
	term  async.Term      // …and its term
	left  error           // why it ended without its answer
	self  [1]*Call        // a batch of this call alone
	state atomic.Int32
	done  chan struct{} // of an in-doubt call: closed once Reply and Err are set
}

// Term returns the term of a call that was started, which ends at the deadline at the latest.
func (c *Call) Term() context.Context { return async.Until(c.term, c.Deadline) }

// Done returns a channel that is closed when the server has answered a call that has left its
// caller in doubt, or the client library has given up: then Reply and Err are set.
func (c *Call) Done() <-chan struct{} { return c.done }

// The states of a call. Either it is sent or its caller leaves first; either its answer or its
// deadline ends it.
const (
	callQueued int32 = iota
	callSent
	callLeft
	callAnswered
	callOverdue
)

// result returns the error of a call that has ended.
func (c *Call) result() error {
	if c.left != nil {
		return c.left
	}
	return c.Err
}

// prolong moves a call's end to the current end of its term, and reports whether time is left.
// The caller holds Pipelines.mu.
func (c *Call) prolong() bool {
	c.due = c.Deadline
	if c.term != nil {
		if due := c.term.Due(); due.Before(c.Deadline) {
			c.due = due
		}
	}
	return time.Now().Before(c.due) // this may be exactly the time at which Due was asked
}

// answered is a closed channel, the done of a call that nobody waited for.
var answered = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

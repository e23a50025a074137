package postgres

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/redlock-go/redlock/driver/base"
)

// One goroutine at a time reads the answers. The caller that sends a round reads its answer, because
// waking another goroutine for it takes as long as the rest of the driver's work. A goroutine of the
// connection reads what callers leave unread, and on a connection that is not used for a
// while, so that its end is noticed.

// await waits until o is answered or the call ends, and returns the error of either. The mutex is
// held before, and not after: those that were answered together would wait for each other.
func (c *conn) await(call *base.Call, o *op) error {
	if o.by.IsZero() {
		o.by, _ = call.Deadline()
	}
	for !o.answered.Load() {
		lead := !c.reading && len(c.round) > 0
		if lead {
			c.reading, c.reader = true, o
		} else if o.l.woken == nil {
			o.l.woken = make(chan struct{}, 1)
		}
		c.mu.Unlock()
		if lead {
			c.read(call, o)
		} else {
			select {
			case <-o.l.woken:
			case <-call.Caller().Done():
			}
		}
		if o.answered.Load() { // even if the call has ended, too
			return o.err
		}
		err := o.late(call)
		c.mu.Lock()
		if err != nil && !o.answered.Load() {
			o.gone = true
			c.mu.Unlock()
			return err
		}
	}
	c.mu.Unlock()
	return o.err
}

// late returns why the call waits no longer; nil: it does.
func (o *op) late(call *base.Call) error {
	if err := call.Over(); err != nil {
		return err
	}
	if !time.Now().Before(o.by) {
		return errLate
	}
	return nil
}

// wake wakes the caller of o; the mutex is held.
func (c *conn) wake(o *op) {
	if o.l.signal(); c.reading && c.reader == o {
		c.w.interrupt()
	}
}

// readOn starts a goroutine that reads, if none does; the mutex is held.
func (c *conn) readOn() {
	if c.reading || c.end != nil || c.w == nil {
		return
	}
	c.reading, c.reader = c.b.calls.Go(func(context.Context) { c.read(nil, nil) }), nil
}

// read reads until o is answered or the call ends, or, without them, until the round is answered.
func (c *conn) read(call *base.Call, o *op) {
	if call != nil && call.Caller().Done() != nil { // Close ends the connection
		defer context.AfterFunc(call.Caller(), c.w.interrupt)()
	}
	for c.message(call, o) {
	}
}

// message reads and handles the server's next message, and reports whether to read on.
func (c *conn) message(call *base.Call, o *op) bool {
	m, err := c.w.receive()
	switch m := m.(type) {
	case *pgproto3.DataRow:
		if len(m.Values) > 0 && len(c.values) <= maxRound { // no answer has more rows
			c.values = append(c.values, value(m.Values[0]))
		}
		return true
	case *pgproto3.ErrorResponse, *pgproto3.ReadyForQuery, nil:
	default:
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	over := false
	switch m := m.(type) {
	case *pgproto3.ErrorResponse:
		c.serverError(pgconn.ErrorResponseToPgError(m))
	case *pgproto3.ReadyForQuery:
		c.ready()
		c.values = c.values[:0]
		over = len(c.round) == 0 || o != nil && o.answered.Load()
	default:
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			c.w.resume()
			over = o != nil && (o.answered.Load() || o.late(call) != nil)
		case errors.Is(err, io.ErrUnexpectedEOF):
			c.fail(errors.New("the server closed the connection"))
		default:
			c.fail(err)
		}
	}
	if c.end != nil {
		return false
	}
	if over {
		c.reading = false
		if len(c.round) > 0 {
			c.readOn()
		}
	}
	return !over
}

// serverError handles an error from the server: it ends the connection, or is the answer to a
// statement. The mutex is held.
func (c *conn) serverError(e *pgconn.PgError) {
	switch severity := cmp.Or(e.SeverityUnlocalized, e.Severity); {
	case severity == "FATAL", severity == "PANIC":
		c.fail(e)
	case len(c.round) > 0:
		c.round[0].err = e
	}
}

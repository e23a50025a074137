package postgres

import (
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
// held before and after.
func (c *conn) await(call *base.Call, o *op) error {
	lead := !c.reading && c.end == nil && len(c.round) > 0
	c.reading = c.reading || lead
	c.mu.Unlock()
	if lead {
		c.read(call, o)
	}
	err := call.Await(o.done)
	c.mu.Lock()
	if o.answered() { // even if the call has ended, too
		return o.err
	}
	o.gone = true
	return err
}

// readOn starts a goroutine that reads, if none does; the mutex is held.
func (c *conn) readOn() {
	if c.reading || c.end != nil || c.w == nil {
		return
	}
	c.reading = c.b.calls.Go(func(context.Context) { c.read(nil, nil) })
}

// read reads until o is answered or the call ends, or, without them, until the round is answered.
func (c *conn) read(call *base.Call, o *op) {
	if call != nil { // Close ends the connection
		by, _ := call.Deadline()
		defer time.AfterFunc(time.Until(by), c.w.Interrupt).Stop()
		if call.Caller().Done() != nil {
			defer context.AfterFunc(call.Caller(), c.w.Interrupt)()
		}
	}
	for c.message(call, o) {
	}
}

// message reads and handles the server's next message, and reports whether to read on.
func (c *conn) message(call *base.Call, o *op) bool {
	m, err := c.w.Receive()
	switch m.(type) {
	case *pgproto3.DataRow, *pgproto3.ErrorResponse, *pgproto3.ReadyForQuery, nil:
	default:
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	over := false
	switch m := m.(type) {
	case *pgproto3.DataRow:
		if len(c.round) > 0 && len(m.Values) > 0 {
			c.round[0].row(m.Values[0])
		}
	case *pgproto3.ErrorResponse:
		c.serverError(pgconn.ErrorResponseToPgError(m))
	case *pgproto3.ReadyForQuery:
		c.ready()
		over = len(c.round) == 0 || o != nil && o.answered()
	default:
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			c.w.Resume()
			over = o != nil && (o.answered() || call.Over() != nil)
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
	for _, severity := range []string{e.Severity, e.SeverityUnlocalized} {
		if severity == "FATAL" || severity == "PANIC" {
			c.fatal = true
			c.fail(e)
			return
		}
	}
	if len(c.round) > 0 {
		c.round[0].err = e
	}
}

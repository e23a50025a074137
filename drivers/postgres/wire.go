package postgres

import (
	"context"
	"encoding/binary"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/redlock-go/redlock/drivers/internal/pgurl"
)

// A wireConn is a connection that was taken over from pgx. pgx ends a connection whose call's context
// is cancelled, and can notice that the server hung up only while a call is under way. Here no
// caller's context ends the connection, and reading and writing are apart.
type wireConn struct {
	nc  net.Conn
	in  *pgproto3.Frontend
	pid uint32    // of the server process
	by  time.Time // the write deadline that is set
}

// takeOver makes a wireConn of an idle connection.
func takeOver(ctx context.Context, c *pgx.Conn, pid uint32) (*wireConn, error) {
	pc := c.PgConn()
	if err := pc.SyncConn(ctx); err != nil {
		return nil, err
	}
	h, err := pc.Hijack()
	if err != nil {
		return nil, err
	}
	h.Frontend.SetMaxBodyLen(pgurl.MaxBody)
	return &wireConn{nc: h.Conn, in: h.Frontend, pid: pid}, nil
}

// appendQuery appends one message of the simple protocol. It uses a single message on purpose:
// after Parse, Bind and Execute the server waits for Sync without a timeout, and a connection
// cut there would keep its locks.
func appendQuery(b []byte, sql string) []byte {
	b = binary.BigEndian.AppendUint32(append(b, 'Q'), uint32(len(sql)+5))
	return append(append(b, sql...), 0)
}

// writeTimeout bounds a write. Messages are few and small, so a full buffer means that the
// server no longer reads.
const writeTimeout = 5 * time.Second

// write writes within writeTimeout, or at most twice that: setting a deadline costs a timer, so
// one deadline serves many writes.
func (w *wireConn) write(now time.Time, b []byte) error {
	if w.by.Sub(now) < writeTimeout {
		w.by = now.Add(2 * writeTimeout)
		if err := w.nc.SetWriteDeadline(w.by); err != nil {
			return err
		}
	}
	_, err := w.nc.Write(b)
	return err
}

// close sends the Terminate message, if that does not block, and closes the connection.
func (w *wireConn) close() {
	_ = w.nc.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	_, _ = w.nc.Write([]byte{'X', 0, 0, 0, 4})
	_ = w.nc.Close()
}

// receive blocks until the server's next message, or until interrupt: the error is then
// os.ErrDeadlineExceeded, and after resume the message is received whole. Only one goroutine at a
// time may call receive.
func (w *wireConn) receive() (pgproto3.BackendMessage, error) { return w.in.Receive() }

// interrupt ends a call of receive, and those that follow, until resume.
func (w *wireConn) interrupt() { _ = w.nc.SetReadDeadline(time.Unix(1, 0)) }

// resume lets receive block again.
func (w *wireConn) resume() { _ = w.nc.SetReadDeadline(time.Time{}) }

// value reads a value in text format: a number, a boolean or null (-1).
func value(v []byte) int64 {
	switch {
	case v == nil:
		return -1
	case len(v) == 0 || v[0] == 'f':
		return 0
	case v[0] == 't':
		return 1
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

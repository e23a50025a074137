// Package wire speaks PostgreSQL's simple protocol on connections that were taken over from pgx.
package wire

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

// Conn is a connection that was taken over from pgx. pgx ends a connection whose call's context
// is cancelled, and can notice that the server hung up only while a call is under way. Here no
// caller's context ends the connection, and reading and writing are apart.
type Conn struct {
	nc  net.Conn
	in  *pgproto3.Frontend
	pid uint32    // of the server process
	by  time.Time // the write deadline that is set
}

// MaxBody is the greatest length of a message of the server that is read: a server that is not
// what it seems may announce gigabytes, and pgx makes room for a message before it reads it.
const MaxBody = 16 << 20

// TakeOver makes a Conn of an idle connection.
func TakeOver(ctx context.Context, c *pgx.Conn, pid uint32) (*Conn, error) {
	pc := c.PgConn()
	if err := pc.SyncConn(ctx); err != nil {
		return nil, err
	}
	h, err := pc.Hijack()
	if err != nil {
		return nil, err
	}
	keepAlive(h.Conn)
	h.Frontend.SetMaxBodyLen(MaxBody)
	return &Conn{nc: h.Conn, in: h.Frontend, pid: pid}, nil
}

// keepAlive makes the kernel notice a server that is gone within some ten seconds,
// since a wait may be silent for hours.
func keepAlive(nc net.Conn) {
	if t, ok := nc.(interface{ NetConn() net.Conn }); ok {
		nc = t.NetConn()
	}
	if t, ok := nc.(*net.TCPConn); ok {
		_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3})
	}
}

// AppendQuery appends one message of the simple protocol. It uses a single message on purpose:
// after Parse, Bind and Execute the server waits for Sync without a timeout, and a connection
// cut there would keep its locks.
func AppendQuery(b []byte, sql string) []byte {
	b = binary.BigEndian.AppendUint32(append(b, 'Q'), uint32(len(sql)+5))
	return append(append(b, sql...), 0)
}

// WriteTimeout bounds a write. Messages are few and small, so a full buffer means that the
// server no longer reads.
const WriteTimeout = 5 * time.Second

// Write writes within WriteTimeout, or at most twice that: setting a deadline costs a timer, so
// one deadline serves many writes.
func (w *Conn) Write(now time.Time, b []byte) error {
	if w.by.Sub(now) < WriteTimeout {
		w.by = now.Add(2 * WriteTimeout)
		if err := w.nc.SetWriteDeadline(w.by); err != nil {
			return err
		}
	}
	_, err := w.nc.Write(b)
	return err
}

// Close sends the Terminate message, if that does not block, and closes the connection.
func (w *Conn) Close() {
	_ = w.nc.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	_, _ = w.nc.Write([]byte{'X', 0, 0, 0, 4})
	_ = w.nc.Close()
}

// Drain reads until the server closes the connection, and reports whether it did within a second.
func (w *Conn) Drain() bool {
	_ = w.nc.SetReadDeadline(time.Now().Add(time.Second))
	_, err := io.Copy(io.Discard, w.nc)
	return err == nil
}

// PID returns the id of the server process.
func (w *Conn) PID() uint32 { return w.pid }

// Receive blocks until the server's next message, or until Interrupt: the error is then
// os.ErrDeadlineExceeded, and after Resume the message is received whole. Only one goroutine at a
// time may call Receive.
func (w *Conn) Receive() (pgproto3.BackendMessage, error) { return w.in.Receive() }

// Interrupt ends a call of Receive, and those that follow, until Resume.
func (w *Conn) Interrupt() { _ = w.nc.SetReadDeadline(time.Unix(1, 0)) }

// Resume lets Receive block again.
func (w *Conn) Resume() { _ = w.nc.SetReadDeadline(time.Time{}) }

// Value reads a value in text format: a number, a boolean or null (-1).
func Value(v []byte) int64 {
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

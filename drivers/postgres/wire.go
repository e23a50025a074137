package postgres

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

// wire is a connection that was taken over from pgx. pgx ends a connection whose
// call's context is cancelled, and can notice that the server hung up only while a
// call is under way. Here somebody always reads, whoever has something to say
// writes, and no caller's context comes near.
type wire struct {
	nc  net.Conn
	in  *pgproto3.Frontend
	pid uint32    // of the server process
	by  time.Time // the write deadline that is set
}

// takeOver makes a wire of an idle connection.
func takeOver(ctx context.Context, c *pgx.Conn, pid uint32) (*wire, error) {
	pc := c.PgConn()
	if err := pc.SyncConn(ctx); err != nil {
		return nil, err
	}
	h, err := pc.Hijack()
	if err != nil {
		return nil, err
	}
	keepAlive(h.Conn)
	return &wire{nc: h.Conn, in: h.Frontend, pid: pid}, nil
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

// appendQuery appends one message of the simple protocol. It is single on purpose:
// after Parse, Bind and Execute the server waits for Sync under no timeout, and a
// connection cut there would keep its locks.
func appendQuery(b []byte, sql string) []byte {
	b = binary.BigEndian.AppendUint32(append(b, 'Q'), uint32(len(sql)+5))
	return append(append(b, sql...), 0)
}

// writeTimeout bounds a write; the messages are small and few, so that a full
// buffer means that the server reads no more.
const writeTimeout = 5 * time.Second

// write writes within writeTimeout, or twice that: a deadline is a timer, and serves many
// writes.
func (w *wire) write(now time.Time, b []byte) error {
	if w.by.Sub(now) < writeTimeout {
		w.by = now.Add(2 * writeTimeout)
		if err := w.nc.SetWriteDeadline(w.by); err != nil {
			return err
		}
	}
	_, err := w.nc.Write(b)
	return err
}

// close says goodbye, if that does not block, and closes the connection.
func (w *wire) close() {
	_ = w.nc.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	_, _ = w.nc.Write([]byte{'X', 0, 0, 0, 4})
	_ = w.nc.Close()
}

// drain reads to the end that the server makes, and reports whether it came soon.
func (w *wire) drain() bool {
	_ = w.nc.SetReadDeadline(time.Now().Add(time.Second))
	_, err := io.Copy(io.Discard, w.nc)
	return err == nil
}

package mysql

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"net"
	"syscall"

	"github.com/redlock-go/redlock/driver/base"
)

// go-sql-driver/mysql 1.9.3 trusts the server: it panics on a first packet that is too short, and
// on others, and reads an answer of any length into memory. This file makes that errors.

// careful makes a panic of the client in Connect an error.
type careful struct{ sqldriver.Connector }

func (c careful) Connect(ctx context.Context) (conn sqldriver.Conn, err error) {
	dialled := new(net.Conn)
	defer func() {
		if conn == nil && *dialled != nil { // the client closes it after an error, but not after a panic
			_ = (*dialled).Close()
		}
	}()
	defer base.Contain(&err)
	return c.Connector.Connect(context.WithValue(ctx, dialledKey{}, dialled))
}

type dialledKey struct{}

// dial connects.
func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &bounded{Conn: conn}
	if dialled, ok := ctx.Value(dialledKey{}).(*net.Conn); ok {
		*dialled = c
	}
	return c, nil
}

// maxAnswer bounds the bytes of the answers to one packet of ours; List reads the most, 500 kB.
const maxAnswer = 1 << 24

// bounded is a connection whose answers are bounded.
type bounded struct {
	net.Conn
	read int // since the last Write
}

func (c *bounded) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.read += n; c.read > maxAnswer {
		return 0, errors.New("mysql: the server's answer is too long")
	}
	return n, err
}

func (c *bounded) Write(b []byte) (int, error) {
	c.read = 0
	return c.Conn.Write(b)
}

// SyscallConn lets the client look whether an idle connection was closed.
func (c *bounded) SyscallConn() (syscall.RawConn, error) {
	if s, ok := c.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

package mysql

import (
	"bytes"
	"context"
	sqldriver "database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
)

// go-sql-driver/mysql 1.9.3 trusts the server: it panics on a first packet that is too short, and
// on others, and reads an answer of any length into memory. This file makes that errors.

// careful makes a panic of the client in Connect an error.
type careful struct{ sqldriver.Connector }

func (c careful) Connect(ctx context.Context) (conn sqldriver.Conn, err error) {
	dialled := new(net.Conn)
	defer func() {
		if r := recover(); r != nil {
			if *dialled != nil {
				_ = (*dialled).Close() // the error below tells more
			}
			conn, err = nil, fmt.Errorf("the server does not answer as MySQL does: %v", r)
		}
	}()
	return c.Connector.Connect(context.WithValue(ctx, dialledKey{}, dialled))
}

type dialledKey struct{}

// dial connects, and checks what the server sends first.
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

const (
	maxGreeting = 1 << 12 // bytes of the first packet; servers send about 100
	maxAnswer   = 1 << 24 // bytes of the answers to one packet of ours; List reads the most, 500 kB
)

// bounded is a connection whose first packet is checked, and whose answers are bounded.
type bounded struct {
	net.Conn
	greeting []byte // the rest of the first packet
	greeted  bool
	read     int // since the last Write
}

func (c *bounded) Read(b []byte) (int, error) {
	if !c.greeted {
		greeting, err := readGreeting(c.Conn)
		if err != nil {
			return 0, err
		}
		c.greeting, c.greeted = greeting, true
	}
	if len(c.greeting) > 0 {
		n := copy(b, c.greeting)
		c.greeting = c.greeting[n:]
		return n, nil
	}
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

var errGreeting = errors.New("mysql: the server does not greet as MySQL does")

// readGreeting reads the first packet, which is an error or a greeting of protocol 10.
func readGreeting(r io.Reader) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	size := int(binary.LittleEndian.Uint32(head) & 0xffffff)
	if size == 0 || size > maxGreeting {
		return nil, errGreeting
	}
	packet := make([]byte, 4+size)
	copy(packet, head)
	if _, err := io.ReadFull(r, packet[4:]); err != nil {
		return nil, err
	}
	switch body := packet[4:]; {
	case body[0] == 0xff && size >= 9: // an error: its number, and a text
		return packet, nil
	case body[0] == 10:
		// The version ends with a zero byte. After it come the connection's number (4 bytes), the
		// first part of the cipher (8), zero, capabilities (2), the character set (1), the status
		// (2), more capabilities (2), a length (1), 10 bytes, and the rest of the cipher (13).
		if version := bytes.IndexByte(body, 0); version > 0 && len(body)-version-1 >= 4+8+1+2+1+2+2+1+10+13 {
			return packet, nil
		}
	}
	return nil, errGreeting
}

package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// doTimeout bounds one command of Do, askTimeout one check whether a server is ready.
const (
	doTimeout  = 20 * time.Second
	askTimeout = 5 * time.Second
)

// A ReplyError is an error reply of a Redis or Valkey server: "ERR no such key".
type ReplyError string

// Error returns the reply.
func (e ReplyError) Error() string { return string(e) }

// Do sends one command to a Redis or Valkey server on a connection of its own, with
// all rights, and returns the reply: a string, an int64, nil or a []any of these. An
// error reply is a ReplyError. It is bounded by 20 s.
func (s *Server) Do(args ...string) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), doTimeout)
	defer cancel()
	return s.do(ctx, args...)
}

func (s *Server) do(ctx context.Context, args ...string) (any, error) {
	if !s.cfg.speaksRESP() {
		return nil, fmt.Errorf("%s knows no commands", s.cfg.Kind)
	}
	c, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close() //nolint:errcheck // the reply was read
	return c.do(args...)
}

// respConn is a connection that speaks RESP2, one command at a time.
type respConn struct {
	net.Conn
	r *bufio.Reader
}

func newRespConn(nc net.Conn) *respConn { return &respConn{nc, bufio.NewReader(nc)} }

// connect makes a connection, with TLS if that is asked for and the server has it. ctx's deadline
// becomes the connection's.
func (s *Server) connect(ctx context.Context, secure bool) (net.Conn, error) {
	network, addr := "unix", s.Socket()
	if !s.cfg.UnixOnly {
		network, addr = "tcp", s.Addr()
	}
	var d net.Dialer
	nc, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := nc.SetDeadline(deadline); err != nil {
			return nil, errors.Join(err, nc.Close())
		}
	}
	if secure && s.certs != nil && network == "tcp" {
		nc = tls.Client(nc, s.certs.client)
	}
	return nc, nil
}

// ask sends a question on a connection of its own, which may be empty, and returns at most so many bytes
// of the answer. A server that only accepts connections, because its port was reserved for it, serves.
func (s *Server) ask(ctx context.Context, secure bool, question string, most int64) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	c, err := s.connect(ctx, secure)
	if err != nil {
		return "", err
	}
	defer c.Close() //nolint:errcheck // it was only queried
	if _, err := io.WriteString(c, question); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(io.LimitReader(c, most))
	return string(answer), err
}

// dial connects and logs in.
func (s *Server) dial(ctx context.Context) (*respConn, error) {
	nc, err := s.connect(ctx, true)
	if err != nil {
		return nil, err
	}
	c := newRespConn(nc)
	if auth := s.auth(); auth != nil {
		if _, err := c.do(auth...); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// auth returns the command that logs in with all rights.
func (s *Server) auth() []string {
	switch {
	case s.admin != "":
		return []string{"AUTH", adminUser, s.admin}
	case s.cfg.Password != "":
		return []string{"AUTH", s.cfg.Password}
	}
	return nil
}

func (c *respConn) do(args ...string) (any, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := io.WriteString(c, b.String()); err != nil {
		return nil, err
	}
	return c.reply()
}

func (c *respConn) reply() (any, error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return nil, errors.New("empty line where a reply should begin")
	}
	switch rest := line[1:]; line[0] {
	case '+':
		return rest, nil
	case '-':
		return nil, ReplyError(rest)
	case ':':
		return strconv.ParseInt(rest, 10, 64)
	case '$':
		return c.bulk(rest)
	case '*':
		return c.array(rest)
	}
	return nil, fmt.Errorf("unknown reply %q", line)
}

func (c *respConn) bulk(length string) (any, error) {
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 {
		return nil, err
	}
	b := make([]byte, n+2)
	if _, err := io.ReadFull(c.r, b); err != nil {
		return nil, err
	}
	return string(b[:n]), nil
}

// array reads the elements; an error among them becomes an element.
func (c *respConn) array(length string) (any, error) {
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 {
		return nil, err
	}
	all := make([]any, n)
	for i := range all {
		var bad ReplyError
		if all[i], err = c.reply(); errors.As(err, &bad) {
			all[i] = bad
		} else if err != nil {
			return nil, err
		}
	}
	return all, nil
}

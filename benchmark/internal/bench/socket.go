package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

// A socket is the floor: one TCP connection that all goroutines share, with just
// enough of RESP2 for locks. A caller who finds nobody writing writes at once; the
// others leave their bytes to whoever is.
//
// Replies are read by one of the callers who wait for one, so that a lone caller
// needs no other goroutine; or, for calls that nobody waits for alone, by a goroutine.
type socket struct {
	addr    string
	reading chan *bufio.Reader // who takes it out reads for all; nil: a goroutine reads

	mu      sync.Mutex
	conn    net.Conn // nil while there is none
	out     []byte   // to be written by whoever is writing
	spare   []byte
	writing bool
	pending []*call // sent and not answered, in order
	tried   time.Time
	closed  bool
	running sync.WaitGroup
}

// A call is one command on its way.
type call struct {
	node  int
	reply any // string, int64, nil, []any or error
	done  chan<- *call
}

const (
	maxPending = 4096 // to a server that never answers
	redialWait = 100 * time.Millisecond
)

var (
	errBroken = errors.New("socket: connection broke")
	errHung   = errors.New("socket: too much is unanswered")
)

// dialSocket returns a socket whose callers read, connected if that can be done now.
func dialSocket(addr string) *socket {
	return connect(&socket{addr: addr, reading: make(chan *bufio.Reader, 1)})
}

// dialAsync returns a socket with a goroutine that reads, for start.
func dialAsync(addr string) *socket { return connect(&socket{addr: addr}) }

func connect(s *socket) *socket {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dial()
	return s
}

// dial connects, if enough time has passed since the last try. The caller holds s.mu.
func (s *socket) dial() {
	if s.closed || time.Since(s.tried) < redialWait {
		return
	}
	s.tried = time.Now()
	conn, err := net.DialTimeout("tcp", s.addr, time.Second)
	if err != nil {
		return // tried again by a later call
	}
	s.conn = conn
	r := bufio.NewReaderSize(conn, 32<<10)
	if s.reading == nil {
		s.running.Go(func() { s.read(conn, r) })
		return
	}
	s.reading <- r // the one before ended with its connection
}

// start sends a command. c.done gets c with its reply, in any case; it must have room.
func (s *socket) start(c *call, args []string) {
	s.mu.Lock()
	if s.conn == nil {
		s.dial()
	}
	if s.conn == nil || len(s.pending) >= maxPending {
		c.reply = errHung
		if s.conn == nil {
			c.reply = errBroken
		}
		s.mu.Unlock()
		c.done <- c
		return
	}
	s.out = appendCommand(s.out, args)
	s.pending = append(s.pending, c)
	if s.writing {
		s.mu.Unlock()
		return
	}
	s.writing = true
	for len(s.out) > 0 && s.conn != nil {
		out, conn := s.out, s.conn
		s.out = s.spare[:0]
		s.mu.Unlock()
		_, err := conn.Write(out)
		s.mu.Lock()
		s.spare = out
		if err != nil {
			_ = conn.Close() // the reader tells who waits
		}
	}
	s.writing = false
	s.mu.Unlock()
}

// do sends a command and waits for its reply.
func (s *socket) do(ctx context.Context, args []string) (any, error) {
	done := make(chan *call, 1)
	s.start(&call{done: done}, args)
	select {
	case c := <-done:
		return c.result()
	case r := <-s.reading:
		return s.readFor(done, r)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *call) result() (any, error) {
	err, _ := c.reply.(error)
	return c.reply, err
}

// readFor reads for all callers until the one of done has its reply, and then leaves
// the reading to another. No context bounds it: it is for servers that answer.
func (s *socket) readFor(done <-chan *call, r *bufio.Reader) (any, error) {
	s.mu.Lock()
	conn := s.conn
	s.mu.Unlock()
	for {
		select {
		case c := <-done:
			s.reading <- r
			return c.result()
		default:
		}
		if !s.readOne(conn, r) {
			c := <-done
			return c.result()
		}
	}
}

// read delivers replies until the connection ends.
func (s *socket) read(conn net.Conn, r *bufio.Reader) {
	for s.readOne(conn, r) {
	}
}

// readOne delivers one reply, and fails what is under way if there is none.
func (s *socket) readOne(conn net.Conn, r *bufio.Reader) bool {
	reply, err := readReply(r)
	if err != nil {
		s.broken(conn)
		return false
	}
	s.mu.Lock()
	c := s.pending[0]
	s.pending[0] = nil
	s.pending = s.pending[1:]
	s.mu.Unlock()
	c.reply = reply
	c.done <- c
	return true
}

// broken fails what was under way.
func (s *socket) broken(conn net.Conn) {
	_ = conn.Close()
	s.mu.Lock()
	lost := s.pending
	s.pending, s.out, s.conn = nil, nil, nil
	s.mu.Unlock()
	for _, c := range lost {
		c.reply = errBroken
		c.done <- c
	}
}

func (s *socket) close() error {
	s.mu.Lock()
	s.closed = true
	if s.conn != nil {
		_ = s.conn.Close()
	}
	s.mu.Unlock()
	s.running.Wait()
	return nil
}

// appendCommand appends a command as RESP writes it.
func appendCommand(b []byte, args []string) []byte {
	b = append(b, '*')
	b = strconv.AppendInt(b, int64(len(args)), 10)
	b = append(b, "\r\n"...)
	for _, a := range args {
		b = append(b, '$')
		b = strconv.AppendInt(b, int64(len(a)), 10)
		b = append(b, "\r\n"...)
		b = append(b, a...)
		b = append(b, "\r\n"...)
	}
	return b
}

// replyError is an error reply.
type replyError string

func (e replyError) Error() string { return string(e) }

// readReply reads one reply of RESP2. Its error is the connection's; an error reply
// is a value.
func readReply(r *bufio.Reader) (any, error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 3 {
		return nil, fmt.Errorf("socket: reply %q", line)
	}
	kind, rest := line[0], string(line[1:len(line)-2])
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return replyError(rest), nil
	}
	n, err := strconv.ParseInt(rest, 10, 64)
	switch {
	case err != nil:
		return nil, err
	case kind == ':':
		return n, nil
	case n < 0:
		return nil, nil
	case kind == '$':
		b := make([]byte, n+2)
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		return string(b[:n]), nil
	case kind == '*':
		list := make([]any, n)
		for i := range list {
			if list[i], err = readReply(r); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	return nil, fmt.Errorf("socket: reply of type %q", kind)
}

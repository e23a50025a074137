package zookeeper

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"sync"
	"time"
)

// A link is one connection to a server that serves the session. If the server does not answer for a
// while it closes the connection, so that another server may answer.
type link struct {
	s      *session
	conn   net.Conn
	dialed time.Time
	done   chan struct{} // closed when it has ended

	mu      sync.Mutex
	over    bool
	number  int32
	pending []*call // in the order in which they are answered
}

// A call is a request under way.
type call struct {
	op     int32
	number int32
	answer answer
	err    error
	done   chan struct{}
}

// mostPacket bounds a packet of the server. The names of the children of one node are in one packet.
const mostPacket = 64 << 20

var (
	errHostile = errors.New("the server sent what is no answer of ZooKeeper")
	// errBroken says that the connection ended before the answer came: the request may have taken effect.
	errBroken = errors.New("the connection ended")
	errSlow   = errors.New("no answer")
)

// connect makes a connection to a server, and takes up the session, or makes it.
func (s *session) connect(addr string, limit time.Duration) (l *link, err error) {
	ctx, cancel := context.WithTimeout(s.ctx, limit)
	defer cancel()
	defer func() {
		if err != nil && ctx.Err() != nil && !errors.Is(err, errExpired) {
			err = fmt.Errorf("%w from %s", errSlow, addr)
		}
	}()
	dial := new(net.Dialer).DialContext
	if s.b.opt.TLS != nil {
		dial = (&tls.Dialer{Config: s.b.opt.TLS}).DialContext
	}
	conn, err := dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	l = &link{s: s, conn: conn, dialed: time.Now(), done: make(chan struct{})}
	stop := context.AfterFunc(ctx, l.hangUp)
	if err = l.greet(); err == nil && !stop() {
		err = errBroken
	}
	if err != nil {
		l.hangUp()
		if errors.Is(err, io.EOF) {
			err = errors.New(addr + " does not serve")
		}
		return nil, err
	}
	return l, nil
}

// greet asks the server for the session, which its leader confirms, and names the user.
func (l *link) greet() error {
	s := l.s
	s.mu.Lock()
	b := binary.BigEndian.AppendUint64(appendNumber(nil, 0), uint64(s.seen)) // no server may be behind that
	b = appendNumber(b, int32(sessionTimeout(s.class).Milliseconds()))
	b = append(appendText(binary.BigEndian.AppendUint64(b, uint64(s.id)), s.secret[:]), 0) // not if it is read-only
	known := s.id != 0
	s.mu.Unlock()
	if err := l.write(b); err != nil {
		return err
	}
	packet, err := l.packet()
	if err != nil {
		return err
	}
	r := reader{rest: packet}
	_, ms, id, secret := r.number(), r.number(), r.long(), r.bytes()
	switch {
	case !r.failed && id == 0 && known:
		return errExpired
	case r.failed, id == 0, ms <= 0, len(secret) != len(s.secret):
		return errHostile
	}
	s.mu.Lock()
	s.id, s.secret, s.timeout = id, [16]byte(secret), time.Duration(ms)*time.Millisecond
	s.mu.Unlock()
	if s.b.password == nil {
		return nil
	}
	b = appendNumber(appendNumber(appendNumber(nil, numberOfAuth), opAuth), 0)
	return l.write(appendText(appendText(b, "digest"), s.b.password))
}

func (l *link) write(body []byte) error {
	_, err := l.conn.Write(appendText(nil, body))
	return err
}

// packet reads a packet.
func (l *link) packet() ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(l.conn, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > mostPacket {
		return nil, errHostile
	}
	packet := make([]byte, n)
	_, err := io.ReadFull(l.conn, packet)
	return packet, err
}

// send sends a request, and holds up others until the server reads it, or its deadline breaks the
// connection. The call is done when it is answered, or the connection has ended.
func (l *link) send(q request) (*call, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return nil, errBroken
	}
	l.number = l.number%math.MaxInt32 + 1 // numbers of requests are positive
	c := &call{op: q.op, number: l.number, answer: answer{sent: time.Now()}, done: make(chan struct{})}
	l.pending = append(l.pending, c)
	patience := c.answer.sent.Add(l.s.b.silence())
	if len(l.pending) == 1 {
		_ = l.conn.SetReadDeadline(patience)
	}
	_ = l.conn.SetWriteDeadline(patience)
	if l.write(append(appendNumber(appendNumber(nil, c.number), q.op), q.body...)) != nil {
		l.hangUp() // the reader notices, and ends the calls
	}
	return c, nil
}

// run reads answers until the connection ends.
func (l *link) run() {
	var err error
	for err == nil {
		var packet []byte
		if packet, err = l.packet(); err == nil {
			err = l.receive(packet)
		}
	}
	l.hangUp()
	switch {
	case errors.Is(err, io.EOF):
		err = errBroken
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("%w from %s", errSlow, l.conn.RemoteAddr())
	}
	l.s.detach(err)
	l.mu.Lock()
	l.over = true
	pending, failure := l.pending, errBroken
	l.pending = nil
	l.mu.Unlock()
	if errors.Is(err, errAuthFailed) {
		failure = err // the server says so before it takes any request
	}
	for _, c := range pending {
		c.err = failure
		close(c.done)
	}
	close(l.done)
}

// receive takes an answer, or an event.
func (l *link) receive(packet []byte) error {
	r := reader{rest: packet}
	number, seen, code := r.number(), r.long(), serverError(r.number())
	if r.failed {
		return errHostile
	}
	l.s.saw(seen)
	switch number {
	case numberOfEvents:
		_, _ = r.number(), r.number()
		if node := r.bytes(); !r.failed {
			l.s.fire(string(node))
		}
	case numberOfAuth:
		if code != 0 {
			return code
		}
	}
	l.mu.Lock()
	var c *call
	switch {
	case number > 0 && len(l.pending) > 0 && l.pending[0].number == number:
		c = l.pending[0]
		l.pending = l.pending[1:]
	case number > 0:
		r.failed = true
	}
	patience := time.Time{} // for the next answer
	if len(l.pending) > 0 {
		patience = time.Now().Add(l.s.b.silence())
	}
	_ = l.conn.SetReadDeadline(patience)
	l.mu.Unlock()
	if c != nil {
		defer close(c.done)
		switch {
		case code == errNoSession, code == errSessionMoved:
			c.err = errBroken
			return code
		case code != 0:
			c.err = code
		default:
			c.err = r.answer(c.op, &c.answer)
		}
		if r.failed {
			c.err = errBroken
			return errHostile
		}
		l.s.touched(l, c.answer.sent)
	}
	if r.failed {
		return errHostile
	}
	return nil
}

// hangUp closes the connection at once: closing TLS in order might wait for the server.
func (l *link) hangUp() {
	if c, ok := l.conn.(*tls.Conn); ok {
		_ = c.NetConn().Close()
		return
	}
	_ = l.conn.Close()
}

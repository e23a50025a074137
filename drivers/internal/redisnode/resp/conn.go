// Package resp checks what a server sends before a client library reads it. Libraries allocate what
// a reply announces, and recurse into it: a wrong length would end the process.
package resp

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"math"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// The bounds of a reply. Ours are far smaller.
const (
	mostBytes    = 64 << 20 // of one string
	mostElements = 1 << 20  // announced and not yet sent
	mostDepth    = 16
	mostLine     = 1 << 20
)

var errProtocol = errors.New("the server does not answer in the protocol of Redis")

// Conns are the connections of a client.
type Conns struct {
	secrets [][]byte

	mu     sync.Mutex
	all    map[*conn]struct{}
	closed bool
}

// New returns no connections. Their error replies will not show these secrets, because a library may
// log them: a server that does not know a command quotes its arguments.
func New(secrets ...string) *Conns {
	cs := &Conns{all: map[*conn]struct{}{}}
	for _, secret := range secrets {
		if secret != "" {
			cs.secrets = append(cs.secrets, []byte(secret))
		}
	}
	return cs
}

// Dial makes a connection, with TLS unless t is nil, that is checked.
func (cs *Conns) Dial(ctx context.Context, d *net.Dialer, t *tls.Config, network, addr string) (net.Conn, error) {
	dial := d.DialContext
	if t != nil {
		dial = (&tls.Dialer{NetDialer: d, Config: t}).DialContext
	}
	c, err := dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return cs.Check(c), nil
}

// Check returns a connection whose Read fails before it returns a reply that a library cannot read.
func (cs *Conns) Check(c net.Conn) net.Conn {
	checked := &conn{Conn: c, of: cs, replies: scanner{secrets: cs.secrets}}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.all[checked] = struct{}{}
	if cs.closed {
		go c.Close() //nolint:errcheck // nothing was sent
	}
	if raw, ok := c.(syscall.Conn); ok { // a library looks whether the server has closed it
		return &struct {
			*conn
			syscall.Conn
		}{checked, raw}
	}
	return checked
}

// Abandon ends the connection that has waited longest for an answer to what was sent since then, as if
// its deadline had come.
func (cs *Conns) Abandon(since time.Time) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	var first *conn
	least := int64(math.MaxInt64)
	for c := range cs.all {
		if asked := c.asked.Load(); asked >= int64(since.Sub(epoch)) && asked < least {
			first, least = c, asked
		}
	}
	if first != nil {
		_ = first.SetDeadline(time.Unix(1, 0))
	}
}

// Close ends all connections, also those that are made later, and waits for none of them.
func (cs *Conns) Close() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.closed = true
	for c := range cs.all {
		go c.Conn.Close() //nolint:errcheck // its calls end with an error
	}
}

// epoch is when times begin to be counted.
var epoch = time.Now()

type conn struct {
	net.Conn
	of      *Conns
	replies scanner
	asked   atomic.Int64 // since when it has waited for an answer; zero: it does not
}

func (c *conn) Write(p []byte) (int, error) {
	if c.asked.Load() == 0 {
		c.asked.Store(int64(time.Since(epoch)))
	}
	return c.Conn.Write(p)
}

func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.all, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

func (c *conn) Read(p []byte) (n int, err error) {
	for c.replies.begun = 0; n == 0 || err == nil && n < len(p) && c.replies.inError(); { // a secret may be cut in two
		var more int
		more, err = c.Conn.Read(p[n:])
		if !c.replies.scan(p[:n+more], n) {
			_ = c.Close()
			return 0, errProtocol
		}
		if n += more; more == 0 {
			break
		}
	}
	if n > 0 {
		c.asked.Store(0)
	}
	return n, err
}

// A scanner follows replies. The zero scanner is before the first.
type scanner struct {
	line []byte  // the part of a line that has come, and matters
	long int     // bytes of that line
	skip int64   // bytes of a string, and of its end, that have not come
	open []int64 // elements that each open list still lacks
	all  int64   // their sum
	bad  bool

	secrets [][]byte
	begun   int // where the line begins in what is read
}

// inError reports whether a part of an error reply has come.
func (s *scanner) inError() bool { return s.skip == 0 && len(s.line) > 0 && s.line[0] == '-' }

// scan follows the bytes of p after the first n, hides the secrets in error replies, and reports
// whether all is fine.
func (s *scanner) scan(p []byte, n int) bool {
	for n < len(p) && !s.bad {
		if s.skip > 0 {
			some := min(s.skip, int64(len(p)-n))
			s.skip -= some
			n += int(some)
			s.begun = n
			continue
		}
		end := bytes.IndexByte(p[n:], '\n') + 1
		part := p[n : n+end]
		if end == 0 {
			part = p[n:]
		}
		n += len(part)
		s.long += len(part)
		s.line = append(s.line, part[:min(len(part), headMost-len(s.line))]...)
		if s.line[0] == '-' {
			s.hide(p[s.begun:n])
		}
		if s.long > mostLine || end > 0 && !s.head() {
			s.bad = true
		}
		if end > 0 {
			s.begun = n
		}
	}
	return !s.bad
}

// hide overwrites the secrets in an error reply, behind its code.
func (s *scanner) hide(line []byte) {
	_, text, _ := bytes.Cut(line, []byte(" "))
	for _, secret := range s.secrets {
		copy(text, bytes.ReplaceAll(text, secret, bytes.Repeat([]byte{'*'}, len(secret))))
	}
}

// headMost is how much of a line matters: a type, a length, and the end.
const headMost = 16

// head handles a whole line.
func (s *scanner) head() bool {
	line, whole := s.line, s.long <= headMost
	s.line, s.long = s.line[:0], 0
	switch line[0] {
	case '+', '-', ':', ',', '(':
		return s.element(0)
	case '_':
		return string(line) == "_\r\n" && s.element(0)
	case '#':
		return (string(line) == "#t\r\n" || string(line) == "#f\r\n") && s.element(0)
	}
	digits, ended := bytes.CutSuffix(line[1:], []byte("\r\n"))
	n, err := strconv.ParseInt(string(digits), 10, 64)
	if !whole || !ended || err != nil || digits[0] == '+' {
		return false
	}
	if n == -1 && (line[0] == '$' || line[0] == '*') {
		return s.element(0)
	}
	switch line[0] {
	case '$', '=', '!':
		s.skip = n + 2
		return n >= 0 && n <= mostBytes && s.element(0)
	case '*', '~', '>':
		return n >= 0 && s.element(n)
	case '%':
		return n >= 0 && n <= mostElements && s.element(2*n)
	}
	return false
}

// element ends an element of the innermost list, if it has no elements of its own.
func (s *scanner) element(elements int64) bool {
	if last := len(s.open) - 1; last >= 0 {
		s.open[last]--
		s.all--
	}
	if elements > 0 {
		s.open = append(s.open, elements)
		s.all += elements
	}
	for last := len(s.open) - 1; last >= 0 && s.open[last] == 0; last-- {
		s.open = s.open[:last]
	}
	return s.all <= mostElements && len(s.open) <= mostDepth
}

package zookeeper

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// A link is one connection to a server. It corrects habits of the client library (go-zookeeper 1.0.4):
//
//   - The library does not reveal the timeout that it got, and waits several timeouts for a server that
//     does not answer its handshake.
//   - It trusts the server: a negative timeout, a length or a number of elements that is larger than
//     the packet, or a packet that is too short ends the process. The link passes on only packets
//     that the library can read.
//   - When it connects again with watches, it reads a variable that its new reader writes, and may ask
//     for events since a later transaction than it saw. So a link that ends tells the library that all
//     nodes that are watched were deleted, and the library has no watches when it connects again.
type link struct {
	net.Conn
	s      *session
	dialed time.Time
	end    time.Time // of the handshake

	// Only the goroutine of the library that reads uses these.
	packet []byte // what it has not read yet
	broken error  // why there is no more
	serves bool   // the server serves the session

	mu      sync.Mutex
	greeted bool
	got     time.Duration // the session's timeout
	read    time.Time
	ops     map[int32]int32 // of the requests under way, by their numbers; nil before the first one
}

// mostPacket bounds a packet of the server. The names of the children of one node are in one packet.
const mostPacket = 64 << 20

var errHostile = errors.New("the server sent what is no answer of ZooKeeper")

// Write notes the requests that follow the one for a session. If it fails it closes the connection and
// reports no error, so that the client library notices the end where it reads: after an error of a
// write it answers the request twice, and some requests have room for one answer, so that it hung for
// ever.
func (l *link) Write(p []byte) (int, error) {
	l.mu.Lock()
	if l.ops == nil {
		l.ops = map[int32]int32{}
	} else if len(p) >= 12 {
		l.ops[int32(binary.BigEndian.Uint32(p[4:]))] = int32(binary.BigEndian.Uint32(p[8:]))
	}
	l.mu.Unlock()
	if _, err := l.Conn.Write(p); err != nil {
		_ = l.Close()
	}
	return len(p), nil
}

// Read returns the bytes of whole packets, and at the end of the connection events that end all
// watches.
func (l *link) Read(p []byte) (int, error) {
	if len(l.packet) == 0 && l.broken == nil {
		if l.packet, l.broken = l.next(); l.broken != nil {
			if errors.Is(l.broken, os.ErrDeadlineExceeded) {
				l.s.wasSlow()
			}
			_ = l.Close() // if the packet was no answer, nothing else ends the connection
			if l.serves { // otherwise the library waits for a greeting
				for _, node := range l.s.watched() {
					l.packet = append(l.packet, deleted(node)...)
				}
			}
		}
	}
	if len(l.packet) == 0 {
		return 0, l.broken
	}
	n := copy(p, l.packet)
	l.packet = l.packet[n:]
	return n, nil
}

// next reads a packet. Its time counts from the first byte.
func (l *link) next() ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(l.Conn, size[:]); err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.read = time.Now()
	l.mu.Unlock()
	n := binary.BigEndian.Uint32(size[:])
	if n > mostPacket {
		return nil, errHostile
	}
	packet := make([]byte, 4+n)
	copy(packet, size[:])
	if _, err := io.ReadFull(l.Conn, packet[4:]); err != nil {
		return nil, err
	}
	if !l.understood(packet[4:]) {
		return nil, errHostile
	}
	l.serves = l.timeout() > 0
	return packet, nil
}

// understood reports whether the library can read a packet, and takes the session's timeout from the
// first one.
func (l *link) understood(packet []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := reader{rest: packet}
	if !l.greeted {
		l.greeted = true
		_, ms, _ := r.number(), r.number(), r.skip(8)
		r.bytes()
		if r.failed {
			return false
		}
		session := binary.BigEndian.Uint64(packet[8:]) // 0: it is over
		if session != 0 {
			l.got = time.Duration(ms) * time.Millisecond
		}
		return session == 0 || ms > 0
	}
	number, _, failure := r.number(), r.skip(8), r.number()
	op, known := l.ops[number]
	delete(l.ops, number)
	switch {
	case number == numberOfEvents:
		_, _ = r.number(), r.number()
		r.text()
	case known && failure == 0:
		r.answer(op)
	}
	return !r.failed
}

// What the protocol calls them.
const (
	numberOfEvents = -1
	opCreate       = 1
	opExists       = 3
	opGetData      = 4
	opSetData      = 5
	opSync         = 9
	opChildren     = 12
	opMulti        = 14
	opContainer    = 19
	opFailed       = -1

	statSize = 68
)

// A reader takes values from an answer.
type reader struct {
	rest   []byte
	failed bool
}

func (r *reader) skip(n int) (skipped []byte) {
	if n < 0 || n > len(r.rest) {
		r.failed, r.rest = true, nil
		return nil
	}
	skipped, r.rest = r.rest[:n], r.rest[n:]
	return skipped
}

func (r *reader) number() int32 {
	b := r.skip(4)
	if b == nil {
		return 0
	}
	return int32(binary.BigEndian.Uint32(b))
}

// bytes takes a length and as many bytes; a length of -1 stands for none.
func (r *reader) bytes() {
	if n := r.number(); n != -1 {
		r.skip(int(n))
	}
}

// text is bytes for the library's type string, of which there is no -1.
func (r *reader) text() { r.skip(int(r.number())) }

// answer takes the answer to a request of this kind.
func (r *reader) answer(op int32) {
	switch op {
	case opCreate, opContainer, opSync:
		r.text()
	case opExists, opSetData:
		r.skip(statSize)
	case opGetData:
		r.bytes()
		r.skip(statSize)
	case opChildren:
		for n := r.number(); n != 0 && !r.failed; n-- {
			r.text()
		}
		r.skip(statSize)
	case opMulti:
		for !r.failed {
			kind, done := r.number(), r.skip(1)
			r.number()
			if r.failed || done[0] != 0 {
				return
			}
			switch kind {
			case opFailed:
				r.number()
			case opCreate, opSetData:
				r.answer(kind)
			}
		}
	}
}

// deleted is the event that a node was deleted, as a packet.
func deleted(node string) []byte {
	const ofDeletion, connected = 2, 3
	b := binary.BigEndian.AppendUint32(nil, uint32(28+len(node)))
	for _, n := range []int32{numberOfEvents, 0, 0, 0, ofDeletion, connected, int32(len(node))} {
		b = binary.BigEndian.AppendUint32(b, uint32(n))
	}
	return append(b, node...)
}

// timeout returns the session's timeout from the answer to the handshake.
func (l *link) timeout() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.got
}

// Close closes the connection at once: closing TLS in order might wait for the server.
func (l *link) Close() error {
	if c, ok := l.Conn.(*tls.Conn); ok {
		return c.NetConn().Close()
	}
	return l.Conn.Close()
}

// SetReadDeadline bounds the handshake.
func (l *link) SetReadDeadline(t time.Time) error {
	l.mu.Lock()
	if !l.greeted && (t.IsZero() || t.After(l.end)) {
		t = l.end
	}
	l.mu.Unlock()
	return l.Conn.SetReadDeadline(t)
}

// heard reports whether the server has sent data since an instant.
func (l *link) heard(since time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.read.After(since)
}

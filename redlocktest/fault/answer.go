package fault

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/redlock-go/redlock/driver"
)

// A Protocol tells answers from other messages that a server sends.
type Protocol struct {
	Boundary Boundary
	// Answers reports whether a message is the answer to a request that has taken effect, or the
	// beginning of one.
	Answers func(message []byte) bool

	_ struct{}
}

// The protocols of the servers in package server, except ZooKeeper's.
var (
	// ProtocolRESP leaves out pushes, messages of channels, errors, and answers to PING.
	ProtocolRESP = Protocol{Boundary: RESP, Answers: respAnswers}
	// ProtocolHTTP2 means the headers of a response: not settings, pings and window updates, nor
	// those that end a stream, which are trailers or an error.
	ProtocolHTTP2 = Protocol{Boundary: HTTP2, Answers: func(m []byte) bool { return len(m) > 4 && m[3] == 1 && m[4]&1 == 0 }}
	// ProtocolPostgres means a completed command, unless it begins a transaction or changes a
	// setting: not notices and notifications, nor answers to the preparation of a statement.
	ProtocolPostgres = Protocol{Boundary: Postgres, Answers: postgresAnswers}
	// ProtocolMySQL means the first packet of an answer to a command: its sequence number is 1. A
	// greeting has 0, and the answer to a login has 2 or more.
	ProtocolMySQL = Protocol{Boundary: MySQL, Answers: func(m []byte) bool { return len(m) > 3 && m[3] == 1 }}
)

func respAnswers(m []byte) bool {
	if m[0] == '>' || m[0] == '-' || bytes.Equal(m, []byte("+PONG\r\n")) {
		return false
	}
	_, first, _ := bytes.Cut(m, []byte("\r\n"))
	for _, kind := range []string{"$7\r\nmessage\r\n", "$8\r\npmessage\r\n", "$8\r\nsmessage\r\n", "$4\r\npong\r\n"} {
		if m[0] == '*' && bytes.HasPrefix(first, []byte(kind)) {
			return false
		}
	}
	return true
}

func postgresAnswers(m []byte) bool {
	if m[0] != 'C' || len(m) < 5 {
		return false
	}
	tag := m[5:]
	return !bytes.HasPrefix(tag, []byte("BEGIN")) && !bytes.HasPrefix(tag, []byte("SET"))
}

// mostBegun bounds what LoseAnswer keeps of a message that is not complete, in bytes.
const mostBegun = 1 << 20

// LoseAnswer returns a judge that lets other messages pass and applies the action to the first
// connection on which an answer comes, which it discards. If it is installed while a message is
// being forwarded, it may miss answers on that connection, until mostBegun bytes.
func LoseAnswer(p Protocol, then Action) Judge {
	var mu sync.Mutex
	lost := false
	begun := map[int64][]byte{} // of each connection: the incomplete message
	return func(conn int64, chunk []byte) (int, Action) {
		mu.Lock()
		defer mu.Unlock()
		if lost {
			return len(chunk), Pass
		}
		rest := append(begun[conn], chunk...)
		for {
			size := p.Boundary(rest)
			if size == 0 {
				if len(rest) > mostBegun { // not the beginning of a message
					rest = nil
				}
				begun[conn] = rest
				return len(chunk), Pass
			}
			if p.Answers(rest[:size]) {
				lost = true
				// Its beginning may have passed with an earlier chunk; all of it did not.
				return max(0, len(chunk)-len(rest)), then
			}
			rest = rest[size:]
		}
	}
}

// DropAnswer returns a Faults.DropReply for backends of a Harness, which cuts the connection at
// the next answer of this protocol. That of the Harness itself cuts it at the next bytes, which
// may be a push or a ping: then the request has no effect.
//
//	h.Faults.DropReply = fault.DropAnswer(fault.ProtocolHTTP2)
func DropAnswer(p Protocol) func(driver.Backend) error {
	return func(b driver.Backend) error {
		return eachProxy(b, func(proxy *Proxy) { proxy.Judge(ToClient, LoseAnswer(p, Cut)) })
	}
}

// eachProxy calls f with the proxies of a backend of a Harness.
func eachProxy(b driver.Backend, f func(*Proxy)) error {
	l := linkedOf(b)
	if l == nil {
		return fmt.Errorf("%T is not a backend that this harness has opened", b)
	}
	for _, p := range l.all {
		f(p)
	}
	return nil
}

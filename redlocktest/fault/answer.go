package fault

import (
	"bytes"

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
	// ProtocolRESP leaves out errors, pushes, messages of channels, and answers to PING. The answers
	// to a client's greeting (HELLO, AUTH) look like others and count.
	ProtocolRESP = Protocol{Boundary: RESP, Answers: respAnswers}
	// ProtocolHTTP2 means the headers that begin a response: not its trailers or headers that also
	// end it, as those of an error of gRPC do, nor settings, pings and window updates.
	ProtocolHTTP2 = Protocol{Boundary: HTTP2, Answers: http2Answers}
	// ProtocolPostgres means a completed command, unless it begins a transaction or changes a
	// setting: not notices and notifications, nor answers to the preparation of a statement.
	ProtocolPostgres = Protocol{Boundary: Postgres, Answers: postgresAnswers}
	// ProtocolMySQL means the first message of the answer to a command, which has number 1: not a
	// connection's greeting (0) and login (2 or more), errors, nor answers to the preparation of a
	// statement. The answers to BEGIN and SET look like others and count.
	ProtocolMySQL = Protocol{Boundary: MySQL, Answers: mysqlAnswers}
)

func respAnswers(m []byte) bool {
	if bytes.IndexByte([]byte(">-!"), m[0]) >= 0 || bytes.Equal(m, []byte("+PONG\r\n")) {
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

func http2Answers(m []byte) bool {
	const headers, endStream = 1, 1
	return len(m) > 4 && m[3] == headers && m[4]&endStream == 0
}

func mysqlAnswers(m []byte) bool {
	if len(m) < 5 || m[3] != 1 {
		return false
	}
	// The answer to a preparation is the only usual one that has 12 bytes and begins with a zero.
	return m[4] != 0xff && (m[4] != 0 || len(m) != 4+12)
}

func postgresAnswers(m []byte) bool {
	if m[0] != 'C' || len(m) < 5 {
		return false
	}
	tag := m[5:]
	return !bytes.HasPrefix(tag, []byte("BEGIN")) && !bytes.HasPrefix(tag, []byte("SET"))
}

// longestAnswer is the size of the longest message that LoseAnswer recognizes, in bytes.
const longestAnswer = 32 << 10

// LoseAnswer returns a judge that lets other messages pass and applies the action to the first
// connection on which an answer comes, which it discards. A message of more than 32 KiB passes.
//
// If a message is being forwarded when it is installed, it takes the rest of that message for the
// beginning of one. On such a connection it may then discard bytes that are no answer, or let
// answers pass, for about 32 KiB: it begins anew with the chunk that follows.
func LoseAnswer(p Protocol, then Action) Judge {
	end := func(b []byte) int {
		if size := p.Boundary(b); size > 0 || len(b) <= longestAnswer {
			return size
		}
		return len(b)
	}
	return atMessage(end, then, func(message []byte) (int, bool) {
		return 0, len(message) <= longestAnswer && p.Answers(message)
	})
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

package fault

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"sync"
)

// Action is applied to a connection.
type Action int

const (
	// Pass: nothing.
	Pass Action = iota
	// Mute: later bytes in this direction are discarded; the other direction works, and the
	// connection stays open.
	Mute
	// Freeze: later bytes in both directions are discarded; the connection stays open.
	Freeze
	// Cut: both sides are reset.
	Cut
	// End: both sides get the end of the stream (FIN), and later bytes from them are discarded.
	End
)

// A Judge returns how many bytes of a chunk pass, and what then happens to its connection,
// which is identified by a number. It is called in order for each connection, and concurrently
// for several; it must not call the proxy.
type Judge func(conn int64, chunk []byte) (pass int, then Action)

// Lose returns a judge that discards the next n chunks, each on another connection, and applies
// the action to these connections; n below 0: all chunks. To the client, that loses replies: the
// requests take effect. A connection that lost bytes must not deliver later ones, because they would
// be taken for the lost bytes.
func Lose(n int, then Action) Judge {
	var mu sync.Mutex
	return func(_ int64, chunk []byte) (int, Action) {
		mu.Lock()
		defer mu.Unlock()
		if n == 0 {
			return len(chunk), Pass
		}
		n = max(n-1, -1)
		return 0, then
	}
}

// AfterBytes returns a judge that lets n bytes pass, counted over all connections, then applies
// the action to the connection of the last byte, and lets everything pass afterwards.
func AfterBytes(n int64, then Action) Judge {
	var mu sync.Mutex
	done := false
	return func(_ int64, chunk []byte) (int, Action) {
		mu.Lock()
		defer mu.Unlock()
		if done || n > int64(len(chunk)) {
			n -= int64(len(chunk))
			return len(chunk), Pass
		}
		done = true
		return int(n), then
	}
}

// atMessage returns a judge that lets everything pass until stop returns true for a message, and how
// many bytes of that message pass; then it applies the action to the connection, and lets everything
// pass afterwards.
func atMessage(end Boundary, then Action, stop func(message []byte) (pass int, stop bool)) Judge {
	var mu sync.Mutex
	done := false
	begun := map[int64][]byte{} // of each connection: the incomplete message
	return func(conn int64, chunk []byte) (int, Action) {
		mu.Lock()
		defer mu.Unlock()
		if done {
			return len(chunk), Pass
		}
		rest := append(begun[conn], chunk...)
		for size := end(rest); size > 0; size = end(rest) {
			var pass int
			if pass, done = stop(rest[:size]); done {
				// The message's beginning may have passed with an earlier chunk; all of it did not.
				return max(0, len(chunk)-len(rest)+pass), then
			}
			rest = rest[size:]
		}
		begun[conn] = rest
		return len(chunk), Pass
	}
}

// A Boundary returns the length of the first message in b, 0 if it is incomplete.
type Boundary func(b []byte) int

// Postgres is the boundary of PostgreSQL's protocol, version 3, in both directions:
// a type and a length, but for a client's first messages, which have no type. (The
// server's one-byte answer to a request for TLS is no message in this sense.)
func Postgres(b []byte) int {
	head := 1
	if len(b) > 0 && b[0] == 0 {
		head = 0 // the length of a first message begins with a zero, no type is one
	}
	if len(b) < head+4 {
		return 0
	}
	if n := head + int(binary.BigEndian.Uint32(b[head:])); n <= len(b) {
		return n
	}
	return 0
}

// MySQL is the boundary of the protocol of MySQL and MariaDB, in both directions: a length of
// three bytes, the least significant first, and a number. (Compressed or encrypted connections
// have other boundaries.)
func MySQL(b []byte) int {
	if len(b) < 4 {
		return 0
	}
	if n := 4 + int(b[0]) + int(b[1])<<8 + int(b[2])<<16; n <= len(b) {
		return n
	}
	return 0
}

// http2Preface is the text that a client sends before its first frame (RFC 9113, section 3.4).
const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// HTTP2 is the boundary of frames of HTTP/2 without TLS, in both directions, as gRPC sends
// them. A client's preface counts as a message.
func HTTP2(b []byte) int {
	n := 0
	switch {
	case bytes.HasPrefix([]byte(http2Preface), b[:min(len(b), len(http2Preface))]):
		n = len(http2Preface)
	case len(b) < 9:
		return 0
	default:
		n = 9 + int(b[0])<<16 + int(b[1])<<8 + int(b[2])
	}
	if n <= len(b) {
		return n
	}
	return 0
}

// RESP is the boundary of the protocol of Redis and Valkey, versions 2 and 3, in both
// directions.
func RESP(b []byte) int {
	line := bytes.IndexByte(b, '\n') + 1
	if line < 3 {
		return 0
	}
	count := 0
	switch b[0] {
	case '$', '=', '!', '*', '~', '>', '%', '|':
		n, err := strconv.Atoi(string(b[1 : line-2]))
		if err != nil || n < 0 {
			return line // a null
		}
		count = n
	default:
		return line
	}
	switch b[0] {
	case '$', '=', '!':
		if line+count+2 <= len(b) {
			return line + count + 2
		}
		return 0
	case '%':
		count *= 2
	case '|':
		count = 2*count + 1 // attributes precede the reply that they belong to
	}
	at := line
	for range count {
		n := RESP(b[at:])
		if n == 0 {
			return 0
		}
		at += n
	}
	return at
}

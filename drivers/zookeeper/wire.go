package zookeeper

import (
	"encoding/binary"
	"strconv"
	"time"
)

// This file is the part of ZooKeeper's protocol that the driver uses, as zookeeper.jute in its sources
// describes it. Nothing that a server sends can make a reader fail otherwise than by its field failed.

// Kinds of requests, and numbers that answers have instead of that of a request.
const (
	opError     = -1
	opCreate    = 1
	opDelete    = 2
	opGet       = 4
	opSet       = 5
	opChildren  = 12
	opCheck     = 13
	opMulti     = 14
	opContainer = 19
	opAuth      = 100
	opClose     = -11

	numberOfEvents = -1
	numberOfAuth   = -4
)

// Flags of a new node, and the event of a node that was deleted.
const (
	ephemeral  = 1
	sequential = 2
	container  = 4
)

// A serverError is a server's answer that says that a request had no effect, or that its session is not
// served.
type serverError int32

const (
	errBadArguments   serverError = -8
	firstVerdict      serverError = -100 // most of those above it are failures of the server itself
	errNoNode         serverError = -101
	errNoAuth         serverError = -102
	errBadVersion     serverError = -103
	errNodeExists     serverError = -110
	errNotEmpty       serverError = -111
	errNoSession      serverError = -112
	errInvalidACL     serverError = -114
	errAuthFailed     serverError = -115
	errSessionMoved   serverError = -118
	errRequestTimeout serverError = -122
	errThrottled      serverError = -127
)

func (e serverError) Error() string { return "the server answers with error " + strconv.Itoa(int(e)) }

// An acl says who may do all with a new node.
type acl struct{ scheme, id string }

// A request is its kind, and what follows that.
type request struct {
	op   int32
	body []byte
}

func appendText[T string | []byte](b []byte, text T) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(text))), text...)
}

func appendNumber(b []byte, n int32) []byte { return binary.BigEndian.AppendUint32(b, uint32(n)) }

func get(node string, watch byte) request {
	return request{opGet, append(appendText(nil, node), watch)}
}

func set(node string, data []byte, version int32) request {
	return request{opSet, appendNumber(appendText(appendText(nil, node), data), version)}
}

func create(op int32, node string, data []byte, who acl, flags int32) request {
	const one, all = 1, 31
	b := appendNumber(appendNumber(appendText(appendText(nil, node), data), one), all)
	return request{op, appendNumber(appendText(appendText(b, who.scheme), who.id), flags)}
}

func remove(node string, version int32) request {
	return request{opDelete, appendNumber(appendText(nil, node), version)}
}

func children(node string) request { return request{opChildren, append(appendText(nil, node), 0)} }

// check is a write that changes nothing, and needs the node.
func check(node string) request {
	return multi(request{opCheck, appendNumber(appendText(nil, node), -1)})
}

// multi is a transaction.
func multi(all ...request) request {
	q := request{op: opMulti}
	for _, x := range append(all, request{op: opError}) {
		q.body = appendNumber(q.body, x.op)
		last := byte(0)
		if x.op == opError {
			last = 1
		}
		q.body = append(appendNumber(append(q.body, last), -1), x.body...)
	}
	return q
}

// A stat describes a node.
type stat struct {
	made    int64 // the transaction that made it
	changed int64 // in milliseconds since 1970
	version int32 // of its data
	// births is twice the number of children that it ever had: the number of creations and deletions,
	// and of the children now. If it is the same in the transaction that makes an entry as in an
	// earlier look, no entry was made in between, so that look saw all that are before the new one.
	// (The version of the container's data does not tell, because entries of other libraries do not
	// change it.)
	births int32
	living int32 // how many children it has
}

// An answer has what the answers to requests of several kinds have.
type answer struct {
	sent     time.Time // before the request was sent
	node     string
	data     []byte
	children []string
	stat     stat
}

// A reader takes values from an answer.
type reader struct {
	rest   []byte
	failed bool
}

func (r *reader) take(n int) []byte {
	if n > len(r.rest) {
		r.failed, r.rest = true, nil
		return make([]byte, min(n, 8))
	}
	taken := r.rest[:n]
	r.rest = r.rest[n:]
	return taken
}

func (r *reader) number() int32 { return int32(binary.BigEndian.Uint32(r.take(4))) }
func (r *reader) long() int64   { return int64(binary.BigEndian.Uint64(r.take(8))) }

// bytes takes a length and as many bytes; a length of -1 stands for none.
func (r *reader) bytes() []byte { return r.take(int(max(r.number(), 0))) }

func (r *reader) stat() (s stat) {
	s.made = r.long()
	r.take(16) // the transaction that changed it, and when it was made
	s.changed = r.long()
	s.version = r.number()
	s.births = r.number() // creations and deletions
	r.take(16)            // the version of its permissions, its session, and the length of its data
	s.living = r.number()
	s.births += s.living
	_ = r.long()
	return s
}

// answer takes the answer to a request of this kind. What the parts of a transaction answer comes
// together; the error is that of the part that failed.
func (r *reader) answer(op int32, a *answer) (err error) {
	switch op {
	case opCreate:
		a.node = string(r.bytes())
	case opSet:
		a.stat = r.stat()
	case opGet:
		a.data = r.bytes()
		a.stat = r.stat()
	case opChildren:
		for n := r.number(); n > 0 && !r.failed; n-- {
			a.children = append(a.children, string(r.bytes()))
		}
		a.stat = r.stat()
	case opMulti:
		for !r.failed {
			kind, last := r.number(), r.take(1)
			_ = r.number()
			if r.failed || last[0] != 0 {
				return err
			}
			switch kind { // no part is a transaction: a server might nest them without end
			case opCreate:
				a.node = string(r.bytes())
			case opSet:
				a.stat = r.stat()
			case opError: // of the parts before the one that failed: 0
				if failed := serverError(r.number()); err == nil && failed != 0 {
					err = failed
				}
			}
		}
	}
	return err
}

package zookeeper

import (
	"time"

	"github.com/redlock-go/redlock/driver"
)

// ParseQueue returns the names of a queue's entries in order, and which of them are shared.
func ParseQueue(children []string) (names []string, shared []bool) {
	for _, e := range parseQueue(children) {
		names, shared = append(names, e.name), append(shared, e.mode == driver.Shared)
	}
	return names, shared
}

// LeaseEnd returns the end of a lease whose write was sent at this instant. A connection took
// up its session at taken, and servers answered the requests that were sent at touches.
func LeaseEnd(taken time.Time, touches []time.Time, sent time.Time, timeout, ttl time.Duration) time.Time {
	return (&session{proven: taken, touches: touches, timeout: timeout}).end(sent, ttl)
}

// SetEntries sets after how many entries a container is made anew, or refused.
func (b *Backend) SetEntries(last int64) { b.lastEntries = last }

// Escape and Unescape are for tests.
var (
	Escape   = escape
	Unescape = unescape
)

// Understood reports whether the body of an answer to a request of this kind is whole.
func Understood(op int32, body []byte) bool {
	r := reader{rest: body}
	_, _ = r.answer(op)
	return !r.failed
}

// Definite reports whether this error of a server settles what a request did.
func Definite(code int32) bool { return definite(serverError(code)) }

// SetRequest sets the number of the last request on the connection for leases of a minute.
func (b *Backend) SetRequest(number int32) {
	s := b.session(time.Minute)
	defer s.leave()
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.number = number
}

package zookeeper

import (
	"time"

	"github.com/redlock-go/redlock/driver"
)

// ParseLine is for a test: the names of a line in order, and which are shared.
func ParseLine(children []string) (names []string, shared []bool) {
	for _, e := range parseLine(children) {
		names, shared = append(names, e.name), append(shared, e.mode == driver.Shared)
	}
	return names, shared
}

// LeaseEnd is when a lease ends of a session that a connection took up at an instant, and whose
// requests of those instants were answered.
func LeaseEnd(taken time.Time, touches []time.Time, sent time.Time, timeout, ttl time.Duration) time.Time {
	return (&session{proven: taken, touches: touches, timeout: timeout}).end(sent, ttl)
}

// Escape, Unescape and TooOld are for tests.
var (
	Escape   = escape
	Unescape = unescape
	TooOld   = tooOld
)

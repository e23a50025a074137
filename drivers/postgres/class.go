package postgres

import (
	"slices"
	"strconv"
	"time"
)

// The bounds of a lease's TTL.
const (
	minTTL = 100 * time.Millisecond
	maxTTL = time.Hour
)

// classes are the TTLs of connections. A lease's TTL is rounded up to one of them, so that many
// leases share few connections. A dead holder's locks stay for its connection's class, which is
// at most two and a half times the lease's TTL.
var classes = [...]time.Duration{
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second, 3 * time.Second, 5 * time.Second,
	10 * time.Second, 15 * time.Second, 20 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour,
}

// classOf rounds a TTL up.
func classOf(ttl time.Duration) time.Duration {
	i, _ := slices.BinarySearch(classes[:], ttl)
	return classes[min(i, len(classes)-1)]
}

// grace is how much longer than its class the server keeps a silent session: a tenth, at least
// 50 ms and at most 2 s. After half of the grace the driver itself unlocks a lease that was not
// renewed, so that the lease ends and not the session.
func grace(class time.Duration) time.Duration {
	return min(max(class/10, 50*time.Millisecond), 2*time.Second)
}

// milliseconds returns how long the server keeps a silent session of this class.
func milliseconds(class time.Duration) string {
	return strconv.FormatInt((class + grace(class)).Milliseconds(), 10)
}

// patience is how long an attempt waits for one answer of the server.
func patience(ttl time.Duration) time.Duration {
	return min(max(ttl/2, time.Second), callTimeout)
}

const (
	callTimeout = 5 * time.Second
	forever     = 100 * 365 * 24 * time.Hour
	// idleKeep is how long a connection without leases is kept for the next lease.
	idleKeep = time.Minute
	// idleClass is such a connection's class: the driver closes the connection earlier.
	idleClass = 2 * time.Minute
)

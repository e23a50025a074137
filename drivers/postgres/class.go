package postgres

import "time"

// The bounds of a lease's TTL.
const (
	minTTL = 100 * time.Millisecond
	maxTTL = time.Hour
)

// classes are the TTLs of sessions: a lease's TTL is rounded up to one of them, so
// that many leases share few sessions. A dead holder's locks stay until its
// session's class is over, which is at most two and a half times the lease's TTL.
var classes = [...]time.Duration{
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second, 3 * time.Second, 5 * time.Second,
	10 * time.Second, 15 * time.Second, 20 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour,
}

// classOf rounds a TTL up.
func classOf(ttl time.Duration) time.Duration {
	for _, c := range classes {
		if ttl <= c {
			return c
		}
	}
	return maxTTL
}

// grace is how much longer than its class the server keeps a silent session: a
// tenth, at least 50 ms and at most 2 s. The driver itself unlocks a lease that is
// over after half of it, so that what ends is the lease, and not the session.
func grace(class time.Duration) time.Duration {
	return min(max(class/10, 50*time.Millisecond), 2*time.Second)
}

// attempt bounds one answer of the server.
func attempt(ttl time.Duration) time.Duration {
	return min(max(ttl/2, time.Second), 5*time.Second)
}

// fresh is the greatest age of a session's last answer that still counts as a renewal of a
// lease, if no earlier renewal of that lease used it. So leases that are renewed one by one
// cost one statement every twentieth of the TTL, for all of them.
func fresh(ttl time.Duration) time.Duration { return ttl / 20 }

const (
	// idleKeep is how long a session without leases is kept for the next.
	idleKeep = time.Minute
	// idleClass is the session's class meanwhile: the driver closes the session before it is over.
	idleClass = 2 * time.Minute
	// unconfirmed, with its grace a second, is the class of a connection that waits for a
	// lock: if the grant is not confirmed by then, the server takes it back.
	unconfirmed = 900 * time.Millisecond
)

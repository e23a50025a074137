package session

import "time"

// The bounds of a lease's TTL.
const (
	MinTTL = 100 * time.Millisecond
	MaxTTL = time.Hour
)

// classes are the TTLs of sessions. A lease's TTL is rounded up to one of them, so that many
// leases share few sessions. A dead holder's locks stay for its session's class, which is at
// most two and a half times the lease's TTL.
var classes = [...]time.Duration{
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second, 3 * time.Second, 5 * time.Second,
	10 * time.Second, 15 * time.Second, 20 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour,
}

// ClassOf rounds a TTL up.
func ClassOf(ttl time.Duration) time.Duration {
	for _, c := range classes {
		if ttl <= c {
			return c
		}
	}
	return MaxTTL
}

// grace is how much longer than its class the server keeps a silent session: a tenth, at least
// 50 ms and at most 2 s. After half of the grace the driver itself unlocks a lease that was not
// renewed, so that the lease ends and not the session.
func grace(class time.Duration) time.Duration {
	return min(max(class/10, 50*time.Millisecond), 2*time.Second)
}

// attempt is how long to wait for one answer of the server.
func attempt(ttl time.Duration) time.Duration {
	return min(max(ttl/2, time.Second), 5*time.Second)
}

// fresh is the greatest age of a session's last answer that still counts as a renewal of a
// lease, if no earlier renewal of that lease used it. So many leases that are renewed one by
// one cost together one statement every twentieth of the TTL.
func fresh(ttl time.Duration) time.Duration { return ttl / 20 }

const (
	// idleKeep is how long a session without leases is kept for the next lease.
	idleKeep = time.Minute
	// idleClass is such a session's class: the driver closes the session earlier.
	idleClass = 2 * time.Minute
	// unconfirmed, which is one second with its grace, is the class of a connection that waits
	// for a lock: if the client does not confirm a grant in this time, the server takes the
	// lock back.
	unconfirmed = 900 * time.Millisecond
)

// Kept returns how long, after the last answer, the server keeps the locks of a session with a
// lease of this TTL.
func Kept(ttl time.Duration) time.Duration { return ClassOf(ttl) + grace(ClassOf(ttl)) }

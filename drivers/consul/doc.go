// Package consul locks in Consul, version 1.14 or newer.
//
//	consul://user:token@localhost:8500/path?dc=dc1&ttl=30s
//	consuls://user:token@a:8501,b:8501,c:8501/path?ca=/etc/consul/ca.pem
//
// It is registered as "consul", and as "consuls" for TLS, with package dlock; New takes the
// application's own client. The package is a module of its own.
//
// The host is an agent, best the one of this machine. With several hosts the driver goes on to the
// next one after an error. The user of the URL has no meaning; without a token in the URL it is that of
// the environment, CONSUL_HTTP_TOKEN or CONSUL_HTTP_TOKEN_FILE.
//
// # What is stored
//
//	path/KEY                  the lock, with the session of its holder, its owner and the base as its value
//	path/.dlock/base          the version of this layout, and the base of the tokens
//	path/.dlock/q/KEY/        there are waiters
//	path/.dlock/q/KEY/S/N     the waiter N of the session S
//	path/.dlock/m/S/N         the waiter N of the session S has got its lock
//
// The path is "dlock" unless the URL has another one. KEY is the prefix and the key, percent-encoded.
// All but the base are held by sessions and deleted with them. A lock is taken, given to the next one
// and freed by one transaction each.
//
// # With Consul's own locks
//
// A Lock of the api's client, or the command "consul lock", of the key that Backend.Path returns
// excludes this backend's lock, and is excluded by it. A lock that such a program frees is taken within
// two seconds. While waiters of this driver are in the queue, they get the lock before such programs. A
// key with other data is refused, and left alone.
//
// # Leases
//
// All locks of a process with about the same TTL share one session: TTLs are rounded up to whole
// seconds of three binary digits, by a quarter at most. The least TTL is 10 s, as Consul's; give the
// parameter session_ttl_min if the servers' setting of this name is another one. A shorter TTL is
// refused, since the server would keep a dead process's lock for longer.
//
// The TTL of a session is a lower bound. Consul keeps it for twice as long, and a new leader counts
// anew: a dead process's lock is free up to two TTLs after its last renewal, or after an election, and
// two seconds later if only waiters look. The lease itself ends after one TTL, counted from before the
// request that renewed the session, and the driver frees a lock at its lease's end. So no lock-delay is
// needed, and the sessions have the least, a millisecond: Consul's own default, 15 s, holds for other
// programs' sessions only, and such a lock is then "held" until it has passed.
//
// The sessions are tied to no health check. They belong to the node of the agent that made them: if the
// node leaves the datacenter, its locks are free at once. A client agent leaves when it is stopped in
// order, unless leave_on_terminate is false.
//
// A renewal counts only if the leader has renewed the session, and a leader that a majority has just
// confirmed says that the lock is this lease's. A leader that was replaced cannot extend a lease beyond
// the session: its successor gives each session two TTLs from its election. Reads on which a verdict
// rests are "consistent", also the one by which a session has ended: a leader that was just elected may
// not know it yet. An operator, or the end of the session, takes a lock from its holder, which learns of
// it at its next renewal.
//
// # Waiting
//
// Waiters of all clients are served in the order in which they came. Who frees a lock gives it to the
// first waiter in the same transaction, so no other client can come in between. A process with any
// number of waiters has one query open for each session, and looks every two seconds whether locks were
// freed by the end of a session, with one request for 64 locks. If the first waiter's process dies, the
// lock that it was given is free when its session ends.
//
// # Tokens
//
// A token is a base plus the index of the transaction that took the lock. Indexes rise with every write
// of the datacenter, and each such transaction does nothing if the base is not the expected one, so
// tokens rise over all keys. The base is raised when tokens lag behind the clock by more than 200 ms. The
// clock is that of the agent, by the Date of its answers; a backend made by New uses its own. Restoring a
// snapshot sets indexes back: delete path/.dlock/base afterwards, while no lock is held.
//
// # Requests
//
// A lock that is free and its release are one request each, and a lock that is held takes two. A handoff
// takes one of each client, and two more of one that did not know of waiters. A session is renewed
// every twelfth of its TTL; it ends when it has carried no lock for a minute. An attempt whose outcome
// is unknown is undone in the background: the undoing changes the base, so that the attempt's request
// does nothing should it arrive later.
//
// There is no shared mode. WithMinHold of package dlock keeps a lock while the process lives; if it is
// killed, the lock ends with its session.
//
// # Parameters
//
//	ttl, prefix      as everywhere
//	call_timeout     for an attempt, a renewal or a release (1s)
//	session_ttl_min  the servers' session_ttl_min (10s)
//	dc               the datacenter; the agent's own by default
//	ca               TLS: a file of PEM certificates to trust instead of the system's
//	cert, key        TLS: files of the client's certificate
//	server_name      TLS: the name to expect in the agents' certificates
//	insecure         TLS: true does not verify the agents' certificates
//
// A token needs these permissions:
//
//	key_prefix "dlock/" { policy = "write" }
//	session_prefix "" { policy = "write" }
package consul

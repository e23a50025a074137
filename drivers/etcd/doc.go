// Package etcd locks in etcd, version 3.4 or newer.
//
//	etcd://user:password@a:2379,b:2379,c:2379/path?ttl=10s
//	etcds://a:2379,b:2379,c:2379/path?ca=/etc/etcd/ca.pem&cert=app.pem&key=app-key.pem
//
// It is registered as "etcd", and as "etcds" for TLS, with package dlock; New takes the
// application's own client. The package is a module of its own.
//
// A cluster of three or five members keeps what it has acknowledged as long as a majority of them
// runs. The driver compares no clocks; it only assumes that they run at about the same rate.
//
// # What is stored
//
//	/path/KEY/write/LEASE.N   an exclusive owner, or a waiter
//	/path/KEY/read/LEASE.N    a shared one
//	/path/.dlock              the version of this layout, and the base of the tokens
//
// KEY is the prefix and the key, in which '%' and '/' are written as %25 and %2F. N tells the entries
// of a key and a lease apart, and is used again. The path is
// /dlock unless the URL has another one. A path must not lie within another one, so the path / is
// refused. Backend.Path returns the name of a key.
//
// Every owner has an entry, which is attached to an etcd lease. The entry with the smallest create
// revision has the lock. If it is shared, the shared entries that follow it have the lock too. A
// waiter watches the entry before its own, so that a release wakes one waiter. Waiters are served
// in the order in which they came, over all clients and both modes.
//
// # With etcd's own locks
//
// concurrency.NewMutex(session, backend.Path(key)) of etcd's client makes a mutex that excludes
// this backend's lock of key, and is excluded by it; so does NewRWMutex of its recipes. To share an
// existing mutex, use its name up to the last slash as the URL's path. A mutex directly under /, such
// as "/nightly", cannot be shared: name it "/jobs/nightly" first.
//
// # Leases
//
// All locks of a process with the same TTL share one etcd lease. Its TTL is counted in whole
// seconds, never shorter than asked for. The least is 2 s, since etcd grants no less with its usual
// election timeout. One goroutine keeps the lease alive, twelve times per TTL, and for a minute
// after its last lock. A renewal with a longer TTL extends a lock by the TTL of its grant. While the
// process runs, the driver deletes the entry of a lock that is not renewed in time at its end. The server frees the locks of a dead process up to a second after the
// TTL, and up to one TTL later if the leader changes meanwhile, because a new leader gives every
// lease its whole TTL again. This is also true of a waiter: if the first waiter's process dies, a
// lock that is free stays so until that waiter's entry ends, at most for its TTL and a second.
//
// A renewal counts only if a majority confirms it: a leader that was stopped and replaced may still
// extend leases after it runs again, which does not count. It finds the lock's entry by a write,
// since members of some versions answer reads from old data (3.4.20 to 3.4.41, 3.5 before 3.5.28,
// 3.6 before 3.6.9). In etcd before 3.4.31 and 3.5.13 such a leader may also end leases that its
// successor has extended, and with them held locks. The holder learns of it at its next renewal,
// and the token protects the store. Check reports such versions.
//
// # Requests
//
// A caller that is alone sends its requests itself. While two transactions are under way, the
// requests of other callers wait, and go together in the next one: up to 100, or as many as the
// server's max-txn-ops permits. A lock that is free and its release are two writes of the cluster,
// also after a pause. An attempt that finds the key held is one request, which changes nothing; it is
// in the cluster's log all the same. A waiter checks its place every two seconds, or every third of its
// TTL if that is less. Its lock counts from the last check if that is less than a quarter of the TTL
// ago, and a handoff is then one write of the cluster, the release.
//
// If no member answers for a third of the call timeout, the request goes to another one as well. If
// answers take longer than that the driver waits longer, so that slow servers get no more to do. An
// attempt whose outcome is unknown is undone in the background, and a release is repeated, until a
// server has done it or the backend is closed. The undoing is one request, which raises the base of the
// tokens unless that has happened since: so the attempt's request is refused should it arrive later.
//
// # Tokens
//
// A token is a base plus the revision at which the owner's entry was made. Revisions rise with
// every write of the cluster, and the base never falls, so that tokens rise over all keys. The base
// makes them the time in microseconds: it is raised, in the transaction that takes a lock, when
// tokens lag by more than 50 ms. It goes ahead of the time by eight times what a transaction took,
// at most by 1 s, so that transactions under way seldom meet a base that was raised. The time is
// that of the servers, by the Date of their HTTP answers; a backend made by New uses its own clock.
// Restoring a snapshot sets revisions back: delete /path/.dlock afterwards, while no lock is held.
//
// # Writes under the lock
//
// Work that writes to the same etcd needs no token: Backend.IsOwner is a condition of its own
// transactions, which is true as long as this holder has the lock.
//
// # Failures
//
// One attempt, renewal or release takes at most call_timeout. While no majority can be reached,
// outcomes are unknown, and leases go on until their end. During an outage the driver's client
// tries to connect about every half second; a client that is passed to New does so as it was
// configured.
//
// # Speed
//
// A lock and its release are two requests, as with the mutex of etcd's client; ours also finds the
// token, and a deadline is on each request. The performance page has both beside each other. Beside
// mutexes that were made beforehand, on one member, a lock and its release took 1.25 times as long
// (1.15 to 1.34) for one goroutine, 1.7 times (1.2 to 2.0) for 16 goroutines with keys of their own,
// and 1.3 times (1.1 to 1.4) for 64; the client's processor time was 1.18, 0.97 and 0.77 times that of
// the mutex. The cluster wrote 2, 0.25 and 0.06 proposals a lock, beside 2 for the mutex. These are
// medians of four runs of 12 rounds on 26 November 2026, in which both did the same work.
//
// # Parameters
//
// The parameters are:
//
//	ttl, prefix      as everywhere
//	call_timeout     for an attempt, a renewal or a release (1s)
//	ca               TLS: a file of PEM certificates to trust instead of the system's
//	cert, key        TLS: files of the client's certificate
//	server_name      TLS: the name to expect in the servers' certificates
//	insecure         TLS: true does not verify the servers' certificates
//
// A user needs the permission to read and write all keys that begin with the path:
//
//	etcdctl role grant-permission app --prefix=true readwrite /dlock/
//
// Versions of etcd before March 2026 check no permission for nested requests (GHSA-rfx7-8w68-q57q): a
// user without it may get locks there, if several callers of its process meet.
package etcd

// Package etcd locks in etcd, version 3.4 or newer.
//
//	etcd://user:password@a:2379,b:2379,c:2379/path?ttl=10s
//	etcds://a:2379,b:2379,c:2379/path?ca=/etc/etcd/ca.pem&cert=app.pem&key=app-key.pem
//
// It is registered as "etcd", and as "etcds" for TLS, with package dlock; New takes a client
// that the application has. It is a module of its own.
//
// A cluster of three or five members keeps what it has acknowledged as long as a majority of them
// runs. No clock is compared with another one, so that no assumption on clocks is needed, but
// that they run at about the same rate.
//
// # What is stored
//
//	/path/KEY/write/LEASE   an exclusive owner, or a waiter
//	/path/KEY/read/LEASE    a shared one
//	/path/.dlock            the version of this layout, and the base of the tokens
//
// KEY is the prefix and the key, in which '%' and '/' are written as %25 and %2F. The path is
// /dlock unless the URL has another one. A path must not lie within another one.
// Backend.Path returns the name of a key.
//
// Every owner has an entry, which hangs on an etcd lease. The entry with the smallest create
// revision has the lock, and with it those that follow, if all of them are shared. A waiter
// watches the entry before its own, so that a release wakes one waiter. Waiters
// are served in the order in which they came, over all clients and both modes.
//
// # With etcd's own locks
//
// concurrency.NewMutex(session, backend.Path(key)) of etcd's client makes a mutex that excludes
// this backend's lock of key, and is excluded by it; so does NewRWMutex of its recipes. (Its
// waiters lose sight of a lock of ours that is renewed with another TTL than before.) To join a
// mutex that exists, let the URL's path be what its name has up to its last slash.
//
// # Leases
//
// Each lock has an etcd lease of its own, whose TTL is counted in whole seconds, never
// shorter than asked for. The least is 2 s, since etcd grants no less with its usual
// election timeout. The server frees the lock of a holder that is gone up to a second after
// the TTL, and later by up to a TTL if its leader changes meanwhile: a new leader gives every
// lease its whole time anew.
//
// A renewal is answered by a majority: a leader that was stopped, and replaced before it
// runs again, may still extend leases that are its successor's, and that does not count here. But
// in etcd before 3.4.31 and 3.5.13 such a leader may also end leases that its successor has
// extended, and with them locks that are held; the holder learns it at its next renewal, and
// the token protects the store. Check finds such a version.
//
// A lease that carries no lock any more is kept for the next one for as long as it lives, at most
// 16 of them and those of up to a minute: a lock and its release are then two writes of the
// cluster, else four. An attempt at a key that is held writes nothing, but for one now and then.
//
// # Tokens
//
// A token is a base plus the revision at which the owner's entry was made. Revisions rise with
// every write of the cluster, and the base never falls, so that tokens rise over all keys. The
// base makes them the time in microseconds: it is raised, in the transaction that takes a lock,
// when tokens lag by more than 50 ms. The time is the servers', by the Date of
// their answers over HTTP; a backend made by New goes by its own clock. A restore of a snapshot
// brings revisions back: delete /path/.dlock after it, while no lock is held.
//
// # Writes under the lock
//
// Work that writes to the same etcd needs no token: Backend.IsOwner is a condition of its own
// transactions, which holds as long as this very holder has the lock.
//
// # Failures
//
// One attempt, renewal or release takes at most call_timeout. A request that one member does not
// answer goes to another one, within that time. While no majority can be reached, outcomes
// are unknown, and leases go on until their end.
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
package etcd

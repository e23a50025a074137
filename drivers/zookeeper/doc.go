// Package zookeeper locks in ZooKeeper, version 3.5.5 or newer.
//
//	zk://user:password@a:2181,b:2181,c:2181/path?ttl=10s
//	zks://a:2281,b:2281,c:2281/path?ca=/etc/zookeeper/ca.pem&cert=app.pem&key=app-key.pem
//
// It is registered as "zk", and as "zks" for TLS, with package dlock; New takes the members'
// addresses. The package is a module of its own.
//
// An ensemble of three or five members keeps what it has acknowledged as long as a majority of them
// runs. The driver compares no clocks; it only assumes that they run at about the same rate.
//
// # What is stored
//
//	/path/KEY/_c_GUID-lock-SEQUENCE          an exclusive owner, or a waiter
//	/path/KEY/_c_GUID-shared-lock-SEQUENCE   a shared one
//	/path/KEY                                a container; its data is the largest token
//	/path/.dlock                             the version of this layout
//
// KEY is the prefix and the key, in which '%', '/', a leading '.' and all bytes that are not
// printable ASCII are written as %XX. The path is /dlock unless the URL has another one. A path
// must not lie within another one. Backend.Path returns the node of a key.
//
// Every owner has an entry, an ephemeral sequential node. The entry with the smallest sequence
// number has the lock. If it is shared, the shared entries that follow it have the lock too. A
// waiter watches the last earlier entry that excludes it, so that a release wakes one waiter, or
// the readers behind a writer. Waiters are served in the order in which they came, over all clients
// and both modes. The GUID identifies an entry whose creation got no answer. Servers delete a
// container within minutes of its last entry.
//
// Servers number the entries of a container from 0 to 2^31-1, and give all later ones the same
// number. The driver makes a container anew that has had 2^31-2^16 entries. A key that has a holder or a
// waiter then is refused until it has none.
//
// # With other libraries
//
// The entries follow the lock recipe on ZooKeeper's own pages. Curator's InterProcessMutex and NewLock
// of go-zookeeper, made with Backend.Path(key), and this backend's lock of key exclude each other; so
// does kazoo's Lock with extra_lock_patterns=["-lock-"], without which it does not see the locks of
// others. These libraries treat shared entries as exclusive ones. To share an existing lock, use its
// node up to the last slash as the URL's path. Curator's InterProcessReadWriteLock counts entries with
// names of its own alone, and is not excluded.
//
// # Leases
//
// An entry ends with its session, and a session has one timeout, so the backend has one session,
// with its own connection, for each TTL (nearly equal TTLs share one). While the process runs, the
// driver deletes a lease that is not renewed in time at its end. If the process is dead or cut off,
// the servers delete it with its session.
//
// The session's timeout is 1.5 times the TTL. The reason: the leader ends sessions, but a member
// reports to the leader only twice per tick from which clients it has heard, and its last report
// may be lost. A lease lasts for its TTL from the sending of a write that found the entry (a member
// that was cut off might answer a read). It also lasts at most for the timeout from the sending of
// an answered request that was a quarter of the timeout old when the write was sent. By then the
// leader has heard of that request, because no timeout is shorter than two ticks. When a connection
// takes up a session the leader itself answers. The driver sends a request every second, or ten per
// TTL if that is more. A new leader gives every session its whole timeout again. Two things are
// assumed: minSessionTimeout is at least two ticks, and a leader that was stopped asks its members
// again before it ends sessions. If it does not, the holder learns of the loss as soon as its
// server does, and the token protects the store.
//
// Servers grant timeouts from 2 to 20 ticks, by default 4 to 40 s. A TTL may be up to three
// quarters of the longest timeout: a longer TTL is refused, with the setting to raise
// (maxSessionTimeout). If the shortest timeout is longer than a TTL needs, the lock of a dead
// process stays for that timeout. A session's timeout does not change, so a renewal with a longer
// TTL extends a lease by the TTL of its grant.
//
// # Tokens
//
// A token is one more than the last token of the key, or the time in microseconds if that is more,
// as with all backends. It is stored with the entry, in one transaction that fails if another came
// first. The time is that of the leader, from the answers to writes. (The number of a transaction
// would rise too, but leaps by 2^32 with every leader, an hour of microseconds.) After a container
// was deleted, the key's tokens go on from the time. If a leader's clock is behind that of the
// previous leader, by D, the clients store D in /path/.dlock, and add it to the time from then on.
// While locks are taken they look every 30 s, and add as much again, so that what they gave
// meanwhile is covered. They do not see a clock that falls by less than the time since the last
// look: a key whose container is deleted between the two may then get a smaller token.
//
// # Failures
//
// One attempt, renewal or release takes at most call_timeout. If a server does not answer a request
// for half of that time, the connection goes to another server, which takes up the session. While
// no majority can be reached, outcomes are unknown, and leases go on until their end. A release
// whose outcome is unknown goes on in the background until it is known, or the session is over.
// Servers in read-only mode serve no session, and are skipped. If the process of the first waiter
// dies, a lock that is free stays so until the session of that waiter ends: after 1.5 times its TTL
// at most, 15 s at a TTL of 10 s.
//
// The driver speaks ZooKeeper's protocol itself. A server that sends what is no answer, such as a
// negative timeout or a length that is larger than its packet, loses the connection. Watches end
// with their connection, and the waiters look again.
//
// # Speed
//
// A lock that is free and its release take three round trips, two of them writes, as with NewLock
// of go-zookeeper; ours also writes the token. An attempt that finds the lock held writes too: a
// leader that was cut off answers reads. On one member they took 1.04 times as long (0.83 to
// 1.21) as with NewLock for one goroutine, 1.07 times (1.01 to 1.12) for 16 goroutines with keys of
// their own, and 1.14 times (1.01 to 1.21) for two clients that pass one key to each other. These
// are medians, with 95 % intervals, of 30 rounds in which both did the same work, in one run on a
// machine that other programs used too.
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
// User and password are sent by the scheme "digest", in clear text unless there is TLS. Only this
// user can then access the nodes that the backend makes; without a user, all users can. An existing
// path needs the permissions to create, read, write and delete.
package zookeeper

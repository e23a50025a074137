// Package zookeeper locks in ZooKeeper, version 3.5.5 or newer.
//
//	zk://user:password@a:2181,b:2181,c:2181/path?ttl=10s
//	zks://a:2281,b:2281,c:2281/path?ca=/etc/zookeeper/ca.pem&cert=app.pem&key=app-key.pem
//
// It is registered as "zk", and as "zks" for TLS, with package dlock; New takes the members'
// addresses. It is a module of its own.
//
// An ensemble of three or five members keeps what it has acknowledged as long as a majority of
// them runs. No clock is compared with another one, so that no assumption on clocks is needed,
// but that they run at about the same rate.
//
// # What is stored
//
//	/path/KEY/_c_GUID-lock-SEQUENCE          an exclusive owner, or one who waits
//	/path/KEY/_c_GUID-shared-lock-SEQUENCE   a shared one
//	/path/KEY                                a container; its data is the largest token
//	/path/.dlock                             the version of this layout
//
// KEY is the prefix and the key, in which '%', '/', a leading '.' and all bytes that are not
// printable ASCII are written as %XX. The path is /dlock unless the URL has another one. A path
// must not lie within another one. Backend.Path returns the node of a key.
//
// Every owner has an entry, an ephemeral sequential node. The one with the smallest sequence
// number has the lock, and with it those that follow, if all of them are shared. Who waits
// watches the last entry before its own that keeps it out, so that a release wakes one waiter, or
// the readers behind a writer. Waiters are served in the order in which they came, over all
// clients and both modes. The GUID finds an entry whose creation was not answered. Servers
// delete a container within minutes of its last entry.
//
// # With other libraries
//
// Entries are those of the lock recipe on ZooKeeper's own pages. Curator's InterProcessMutex,
// NewLock of go-zookeeper, and Lock of kazoo, made with Backend.Path(key), exclude this backend's
// lock of key, and are excluded by it; they take our shared entries for exclusive ones. To join a
// lock that exists, let the URL's path be what its node has up to its last slash.
//
// Curator's InterProcessReadWriteLock, which does not count the entries of its InterProcessMutex,
// needs recipe=readwrite: entries are then named _c_GUID-__WRIT__SEQUENCE and
// _c_GUID-__READ__SEQUENCE. Backends with either recipe exclude each other.
//
// # Leases
//
// An entry goes with its session, and a session has one timeout, so that the backend has one
// session for each TTL (nearly equal ones share it), with a connection of its own. While the
// process runs, a lease that is not renewed in time is deleted at its end by this driver; one
// whose process is gone or cut off is deleted by the servers, with its session.
//
// The session's timeout is half as long again as the TTL, because a member tells the leader only
// when it is asked, twice per tick, which of its clients it has heard of, and the leader, who ends
// sessions, may not hear any more what it heard last. A lease lasts for its TTL from the sending
// of a write that found the entry (a read might be answered by a member that was cut off), and at
// most for the timeout from the sending of a request that was answered and that was, when the
// write was sent, a quarter of the timeout old: by then the leader has heard of it, since no
// timeout is shorter than two ticks. The leader itself answers when a connection takes a session
// up. There are a request a second, or ten per TTL if that is more. A new leader gives every
// session its whole time anew. What is assumed: that minSessionTimeout is not set below two ticks, and that a
// leader that stood still asks its members again before it ends sessions; where it does not, the
// holder is told as soon as its server is, and the token protects the store.
//
// Servers grant timeouts from 2 to 20 ticks, which are 4 to 40 s as they come. A TTL may be up to
// three quarters of their longest: a longer one is refused, with the setting to raise
// (maxSessionTimeout). Where the shortest is more than a TTL asks for, the lock of a process that
// is gone is kept for that long. A renewal with a longer TTL takes the session up with a longer
// timeout, for all leases that share it; until it is next taken up, a change of the leader brings
// the former timeout back.
//
// # Tokens
//
// A token is one more than the last of the key, or the time in microseconds if that is more, as
// package driver has it for all backends. It is stored with the entry, in one transaction that
// fails if another came first. The time is the leader's, by the answers to writes. (The number of
// a transaction would rise too, but leaps by 2^32 with every leader, an hour of microseconds.)
// Where a container was deleted, the key's tokens go on from the time, and above what was
// stored in /path/.dlock when a leader's clock was found behind the one before.
//
// # Failures
//
// One attempt, renewal or release takes at most call_timeout. A server that leaves a request
// without an answer for half of that is left for another one, which takes the session up. While no
// majority can be reached, outcomes are unknown, and leases go on until their end. A release
// whose outcome is unknown goes on in the background until it is known, or the session is over.
// Servers in read-only mode serve no session, and are passed over.
//
// The parameters are:
//
//	ttl, prefix      as everywhere
//	call_timeout     for an attempt, a renewal or a release (1s)
//	recipe           mutex (the default) or readwrite, see above
//	ca               TLS: a file of PEM certificates to trust instead of the system's
//	cert, key        TLS: files of the client's certificate
//	server_name      TLS: the name to expect in the servers' certificates
//	insecure         TLS: true does not verify the servers' certificates
//
// User and password go by the scheme "digest", in clear text unless there is TLS. What the
// backend makes is then this user's alone. Without a user it is everybody's. A path that
// exists needs the permissions to create, read, write and delete.
package zookeeper

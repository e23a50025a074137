// Package valkeygo keeps locks in a single instance of Redis or Valkey, through
// github.com/valkey-io/valkey-go. "Single" is what it looks like: one server, a primary that Sentinel
// watches, or a Cluster. A majority vote over several independent servers is
// drivers/redlock, whose nodes are backends of this package.
//
//	import _ "github.com/redlock-go/redlock/drivers/valkeygo"
//
//	c, err := dlock.OpenURL("valkey://localhost:6379/0")
//
// or on the client that the application already has, which stays the application's:
//
//	b, err := valkeygo.New(client, nil)   // a valkey.Client
//	c, err := dlock.New(b)
//
// Such a client should have a ConnWriteTimeout below the call timeout, and Options.ConnWriteTimeout
// should say so: without it a lone caller's lock costs twice the time (see Transport).
//
// # URLs
//
//	valkey://user:password@host:6379/0?…     one server; valkeys:// with TLS
//	valkey+unix:///run/server.sock?db=0      a unix socket
//	valkey://h1:26379,h2:26379/0?topology=sentinel&master=NAME
//	valkey://h1:6379,h2:6379?topology=cluster
//
// The scheme names the client library and not the server: both work on both. Hosts are
// separated by commas (%2C inside a redlock: URL). User and password are
// percent-encoded where they contain one of % / ? # @ and, in a user, ':'. The
// parameters, beside ttl and prefix, which every URL takes:
//
//	topology           single (default), sentinel or cluster
//	master             sentinel: the name of the primary
//	sentinel_user      sentinel: the user of the sentinels themselves
//	sentinel_password  sentinel: and their password
//	db                 unix sockets: the database
//	ca                 TLS: a file of PEM certificates to trust instead of the system's
//	cert, key          TLS: files of the client's certificate
//	server_name        TLS: the name to expect in the server's certificate
//	insecure           TLS: true does not verify the server's certificate
//	dial_timeout       for making a connection (1s)
//	call_timeout       for one call to the server (1s); half of the TTL bounds it too
//	grace              how much longer than its TTL a lock stays unless it is released
//	                   (10 ms and a hundredth of the TTL)
//	pool_size          connections at most (10)
//	restart_guard      a lone server: for how long it grants nothing after a restart (off)
//	bootstrap          a lone server with a guard is new, unless it has a memory (false)
//	strict_guard       none is taken for new otherwise, however long it has been up (false):
//	                   for where a machine may take the address of a server that died
//	wait_replicas      how many replicas must have a lock before it counts as granted (0)
//	foreign_gap        for how long in each second other libraries may get a lock that many
//	                   wait for (0: they get it when nobody waits here)
//	durable            it forgets nothing that it acknowledged: appendfsync always (false)
//
// A parameter that is not known is an error that names it. No error shows a password.
//
// # What is stored
//
// A lock is a plain string at exactly the user's key (the prefix before it; none by
// default): "owner|token", with an end. So SET key value NX PX of redsync, of redislock
// or written by hand excludes these locks and is excluded by them, and services can
// migrate one at a time. Beside it stands the fencing counter
//
//	<prefix>redlock1:fence:{<prefix><key>}
//
// which ends two minutes and the TTL after the lock was last taken or renewed; behind a
// restart guard, two guards and a minute and the TTL. A few hundred bytes per server, or per
// slot of a Cluster that was used,
//
//	<prefix>redlock1:mark
//
// keep the order of the tokens beyond that, also where the clock was set back. So keys that are
// used once cost about 150 bytes each for that time: with TTL 10 s, a thousand new keys a
// second need 1,000 × 130 s × 150 B = 20 MB, and never more. A clock that falls by two minutes
// without any lock taken in between may repeat a token of a lock that nobody used meanwhile.
// A counter per key was chosen over stripes of one hash because one SET … GET reads and raises
// it, because traffic on other keys leaves it alone, and because nothing stays for ever.
// A release is announced where somebody may hear it: to the first in line, on a channel of
// that process' own, or on <prefix>redlock1:free:{…} to all who watch. In a Cluster that is
// ordinary pub/sub, and a waiter listens on the server that serves its key: no message that
// it needs passes from one node to another. Where nobody waits nothing is published. The line
// is a sorted set
//
//	<prefix>redlock1:line:{<prefix><key>}
//
// which is gone with the last who waits, or two and a half minutes after the last of them
// asked.
// The 1 is the version of this layout, which is frozen. Keys that begin with "redlock1:"
// are refused.
//
// All of it is one string and one script per operation, so a lock costs one round trip; what
// many callers ask at once goes as one script for all of them.
// Redis 6.2 or Valkey 7.2 is the oldest server that works. An ACL user with these rights is
// denied nothing, so that ACL LOG stays empty:
//
//	~prefix* &prefix*
//	+eval +evalsha +time +info +get +mget +exists +set +del +pexpire +pttl +zadd +zpopmin +zrem
//	+zrange +zcount +getrange +publish +subscribe +unsubscribe +ping +select
//
//	behind Sentinel   +role
//	a Cluster         +cluster|slots +cluster|shards +command +role
//	a restart guard   +multi +exec +script|load
//	wait_replicas     +wait
//	List and Check    +scan +config|get +client|list +slowlog|get +acl|whoami
//
// Some of them may be missing: without INFO the server's restarts are not told apart, and
// there is no restart guard, which also needs Redis 7, since Redis 6 keeps scripts over a
// restart. Without pub/sub waiters poll, and an event says so once. Without the line
// (+zadd +zpopmin +zrem +zrange) a release wakes all who wait at once. Without MGET and EXISTS
// what many callers ask at once goes as one script each. SELECT is for a
// database other than 0. The sentinels' own user needs +sentinel +subscribe.
//
// # Waiting
//
// Processes that wait for a lock through dlock are served in the order in which they
// came, as long as each of them answers, and a release wakes one of them, however many
// there are. It keeps the lock for that one for a moment, 30 ms or some round trips,
// in which everybody else finds it held: SET NX of other libraries too, and a
// *driver.HeldError says ReservedForWaiter. A process that has died is passed over, and one that
// hangs costs that moment. While its subscription is known to live (it is asked every two
// seconds) a waiter does not poll: it asks again when the holder's TTL ends, and once a
// minute at the latest. A holder of another library announces nothing, so its lock is asked
// for again after 10 to 200 ms. A release by another library, and the end of a TTL, go by no
// order: whoever asks first has it. A lock for which somebody always waits here is never
// free, and so another library never gets it: while services migrate one at a time, set
// foreign_gap=250ms in all of them. Each second of the server's clock then begins with a
// quarter in which a release frees the lock and those who wait here hold back, which costs
// them up to that quarter of their locks. In one process dlock keeps the order.
//
// # Time
//
// Every request that takes or keeps a lock carries its deadline in the server's own
// time, as learnt from its replies, and is refused after it: a packet that was held up
// cannot leave a lock behind that nobody knows of. An attempt whose outcome is unknown is
// released at once, and once more after that deadline has passed for certain. An
// unclean loss, a holder that was killed, costs the next one the TTL and the grace.
//
// # What can be lost
//
// The tokens order what the lock cannot: send them along, and let what is protected
// refuse a smaller one than it has seen.
//
//   - One server that restarts without its memory (no appendonly, or appendfsync
//     everysec and a crash of the machine) forgets who holds what, and grants the lock
//     again at once. The token is larger all the same, while its clock is not set back.
//   - A failover of Sentinel promotes a replica that may lack the last writes: replication
//     is asynchronous. A lock that was granted within the last moments before
//     can be granted again while its holder believes in it, for one TTL at most. While the
//     old primary still serves its side of a partition, both sides grant locks; set
//     min-replicas-to-write 1 and min-replicas-max-lag so that it stops. The new token is
//     larger if the clocks of the two servers differ by less than what has passed.
//   - With wait_replicas=1 a lock is granted, and a renewal counts, only when one replica has
//     confirmed that it has it (the command WAIT, one round trip between the servers more);
//     otherwise it is given back. That makes such a loss rare, and not impossible: the
//     failover may promote another replica, and one that restarts may forget what it had.
//   - A Cluster loses in the same way, shard by shard; moving a slot loses nothing.
//   - An eviction policy other than noeviction may evict a held lock or its counter.
//
// Check (dlock.Client.Inspect) looks for all of these. Where they matter use several
// independent servers and drivers/redlock.
//
// # Transport
//
// At most four calls are under way to one server. A caller that comes alone goes
// alone, on its own goroutine; those that come while four are under way gather, and go
// together as one pipeline. A client made from a URL gives each of the four a connection
// of its own (DisableAutoPipelining): the library's shared connections would be closed
// under everybody by the first deadline that expires. On an application's client
// deadlines are not told to the library, for the same reason; the caller returns in
// time, and what is under way ends by the client's ConnWriteTimeout. So a call goes on
// another goroutine there, which costs a lone caller 40 to 50 µs an acquire instead of 28. To
// spare it give the client a ConnWriteTimeout below the call timeout, 900 ms say, and tell
// Options.ConnWriteTimeout: a call on its caller's goroutine then ends by that, and not by the
// caller's deadline or cancellation. Nor is a deadline
// that is near: the library would close the connection and make all wait for the next,
// so the call has the call timeout, on another goroutine, and the caller leaves. While a
// server does not answer one call at a time is under way to it.
// An idle backend has no goroutine. Waiting costs one connection per backend, however
// many wait, or in a Cluster one per server whose keys are waited for, and one subscription
// per key; all go when nobody waits any more.
package valkeygo

// Package goredis keeps locks in a single instance of Redis or Valkey, through
// github.com/redis/go-redis. A single instance is one server, a primary that Sentinel watches,
// or a Cluster. Package drivers/redlock takes a majority vote over several independent servers,
// with backends of this package as nodes.
//
//	import _ "github.com/redlock-go/redlock/drivers/goredis"
//
//	c, err := dlock.OpenURL("redis://localhost:6379/0")
//
// or with the application's own client, which the backend never closes:
//
//	b, err := goredis.New(client, nil)   // a redis.UniversalClient; no Ring
//	c, err := dlock.New(b)
//
// # URLs
//
//	redis://user:password@host:6379/0?…     one server; rediss:// with TLS
//	redis+unix:///run/server.sock?db=0      a unix socket
//	redis://h1:26379,h2:26379/0?topology=sentinel&master=NAME
//	redis://h1:6379,h2:6379?topology=cluster
//
// The scheme names the client library, not the server: both libraries work with both servers.
// Hosts are separated by commas (%2C inside a redlock: URL). In a user or password,
// percent-encode % / ? # @, and in a user also ':'. Every URL takes ttl and prefix; the other
// parameters are:
//
//	topology           single (default), sentinel or cluster
//	master             sentinel: the name of the primary
//	sentinel_user      sentinel: the user of the sentinels themselves
//	sentinel_password  sentinel: the password of the sentinels
//	db                 unix sockets: the database
//	ca                 TLS: a file of PEM certificates to trust instead of the system's
//	cert, key          TLS: files of the client's certificate
//	server_name        TLS: the name to expect in the server's certificate
//	insecure           TLS: true does not verify the server's certificate
//	dial_timeout       for making a connection (1s)
//	call_timeout       for one call to the server (1s); half of the TTL bounds it too
//	pool_size          connections at most (10)
//	restart_guard      a lone server: for how long it grants nothing after a restart (off)
//	bootstrap          a lone server with a guard is new, unless it has a memory (false: then it
//	                   counts as restarted)
//	wait_replicas      how many replicas must have a lock before it counts as granted (0)
//	durable            it forgets nothing that it acknowledged: appendfsync always (false)
//
// An unknown parameter is an error that names it. No error shows a password.
//
// # What is stored
//
// A lock is a plain string at exactly the user's key (the prefix before it; none by default):
// "owner|token", or "owner+n|token" for a range of n tokens, with an end. So these locks and locks
// that redsync, redislock or a plain SET key value NX PX take exclude each other, and services can
// migrate one at a time. The fencing counter is stored at
//
//	<prefix>redlock1:fence:{<prefix><key>}
//
// It expires 130 seconds plus the TTL after the lock was last taken or renewed; on a node of a
// quorum with a restart guard over 35 seconds, two guards plus a minute plus the TTL. A few hundred
// bytes per server, or per used slot of a Cluster,
//
//	<prefix>redlock1:mark
//
// keep the order of the tokens longer than that, even if the clock was set back. A key that is
// used once costs about 150 bytes for this time: with TTL 10 s, a thousand new keys a second
// need 1,000 × 140 s × 150 B = 21 MB. If the clock falls by two minutes and no lock is taken
// meanwhile, a token of an unused lock may repeat. There is a counter per key, and not one hash
// for all, because one SET … GET reads and raises it, traffic on other keys does not keep it
// alive, and it ends by itself. A release is published to the first waiter, on a channel of
// that waiter's process, <prefix>redlock1:free:…. In a Cluster it is ordinary pub/sub, and a
// waiter listens on the server that serves its key, so that no message depends on the
// connections between nodes. If nobody waits nothing is published. The wait queue is a sorted
// set
//
//	<prefix>redlock1:queue:{<prefix><key>}
//
// It is removed with its last waiter, or two and a half minutes after the last request of a
// waiter. While readers share a lock the string at the key is "redlock1:shared", with the latest of
// their ends, and a sorted set has each of them by its end (while it is only kept for readers who
// wait, the string is "redlock1:next|0|" and the place of one):
//
//	<prefix>redlock1:readers:{<prefix><key>}
//
// The 1 is the version of this layout, which is frozen. Keys that begin with
// "redlock1:" are refused.
//
// Each operation is one script, so a lock costs one round trip; requests of many callers at
// once go as one script. A script names all keys that it touches. The oldest servers that work are
// Redis 6.2 and Valkey 7.2, with Lua. An ACL user needs these rights; with all of them ACL LOG
// stays empty:
//
//	~prefix* &prefix*
//	+eval +evalsha +time +info +get +mget +exists +set +del +pexpire +pttl +zadd +zpopmin +zrem
//	+zrange +zcount +getrange +publish +subscribe +unsubscribe +ping +select
//
//	behind Sentinel   +role
//	a Cluster         +cluster|slots +cluster|shards +command +role
//	a restart guard   +multi +exec +script|load
//	wait_replicas     +wait
//	List and Check    +scan +config|get +acl|whoami
//
// Some rights may be missing. Without INFO a restart of the server goes unnoticed, and there is
// no restart guard (which also needs Redis 7, because Redis 6 keeps scripts over a restart).
// Without SUBSCRIBE, or without the wait queue (+zadd +zpopmin +zrem +zrange), waiters poll, and one
// notice says so. Without PUBLISH alone they learn of no release, and ask when the TTL ends or a
// minute has passed: dlock doctor tells. Without the wait queue shared mode is refused. Without MGET
// and EXISTS each request is a script of its own. SELECT is only for databases other than 0. The
// sentinels' own user needs +sentinel +subscribe.
//
// # Waiting
//
// Processes that wait for a lock through dlock are served in the order of their arrival, as
// long as each of them answers, and a release wakes only the first. The server keeps the lock
// for that process for a moment (30 ms or some round trips), in which all others find it held:
// SET NX of other libraries too, and a *driver.HeldError has ReservedForWaiter. A dead process
// is passed over, and a hanging one costs that moment. While its subscription is known to work
// (a ping every two seconds checks it) a waiter does not poll: it asks again only when the
// holder's TTL ends, and at least once a minute. Other libraries do not announce their
// releases, so a waiter asks for their locks again every 10 to 200 ms. After a release by
// another library, or the end of a TTL, the first to ask gets the lock. A lock that always has
// waiters here is never free, so another library never gets it: let the services that contend for
// a lock migrate together. Within one process dlock keeps the order.
//
// # Readers
//
// A shared lock is right where several may read what one changes, and reading takes long enough to
// meet a change: a file or a directory that is replaced, a report over many rows, a cache that is
// rebuilt. A read of one row or one key needs none, since the store reads it in one piece; and where
// reading is short an exclusive lock costs less, since a reader's scripts run more commands.
//
// Readers have the lock together, each with its own TTL, token and renewal, and one that died ends
// by itself. A token of a writer is above those of all readers and writers before it, a reader's
// above those of all writers before it. Readers and writers wait in one queue: a release lets in
// all readers up to the first writer, and a reader that comes while a writer waits stands behind
// it. So neither side starves, as long as waiters need not poll. A writer that hangs in the queue
// holds up new readers as long as other readers have the lock, and until the server ends its
// connection; one that died holds up nobody. While a reader has the lock, SET NX PX of other
// libraries fails; these are in no queue, so readers that overlap all the time leave them no gap.
// WithMinHold keeps a reader's share as it keeps a lock. There is neither an upgrade nor a
// downgrade. Where a client of the application repeats commands (MaxRetries), each reader's request
// looks at all readers.
//
// # Time
//
// Every request that takes or keeps a lock carries its deadline in the server's time, which the
// client learns from replies. The server refuses it after the deadline, so a delayed packet
// cannot leave a lock behind. An attempt whose outcome is unknown is released at once, and
// again after its deadline has certainly passed. After a holder was killed the next owner waits
// for the TTL plus the grace.
//
// # What can be lost
//
// Where the lock fails, tokens still protect: send the token along with each write, and let the
// store refuse a token smaller than one it has seen.
//
//   - One server that restarts without its memory (no appendonly, or appendfsync everysec and a
//     crash of the machine) forgets its locks, and grants them again at once. The tokens are
//     still larger, unless its clock is set back.
//   - A failover of Sentinel promotes a replica that may lack the last writes, because replication
//     is asynchronous, and the old primary goes on for a moment: a new lock, and one that was held
//     and renewed for long, can be granted again while its holder's lease is valid. A planned
//     failover too: of 12 locks that had been renewed for 4 s, beside two replicas, it gave away
//     up to 12 at TTLs of 500 ms to 2 s, for up to 1.9 s, and none at 3 s and 5 s. So let the TTL
//     be 5 s at least, and set wait_replicas to the number of replicas. While the old primary still
//     serves its side of a partition, both sides grant locks; set min-replicas-to-write 1 and
//     min-replicas-max-lag so that it stops. The new token is larger if the clocks of the two
//     servers differ by less than the time since the old grant.
//   - With wait_replicas a grant or a renewal counts only after so many replicas have confirmed it
//     (the command WAIT, which adds a round trip between the servers); otherwise the lock is
//     released. That makes such a loss rare, but not impossible: with wait_replicas=2 planned
//     failovers gave away two locks of 36 at TTLs of 500 ms to 2 s; with 1 up to 12 of 12, because
//     the other replica may be promoted. A replica that restarts may forget the lock.
//   - A Cluster loses in the same way, shard by shard; moving a slot loses nothing.
//   - An eviction policy other than noeviction may evict a held lock or its counter.
//
// Check reports all of these. If they matter, use drivers/redlock with
// several independent servers.
//
// # Transport
//
// At most two round trips are under way to one server. With a client made from a URL a lone call
// runs on its caller's goroutine; it notices a cancellation within 100 ms, as other calls do at
// once. Calls that come while others are under way are gathered, and go together as one script. On
// loopback this costs a lone caller 4 % over the bare scripts, and gives 64 goroutines 1.7 times
// the throughput of bare commands on go-redis (the performance page's table). With an
// application's client every call runs on another goroutine, because its connections cannot be
// ended, which costs a lone caller half as much time again. These options matter:
//
//   - ContextTimeoutEnabled: true, with MaxRetries: -1, ends calls to a hanging server in time.
//     Without it ReadTimeout does; their callers return in time anyway.
//   - PoolSize: with one connection, one round trip is under way at a time.
//
// The library gets the call timeout for each call, because it would close the connection at an
// earlier deadline; the caller returns at its own. While a server does not answer, only one call at
// a time is under way to it. An idle backend has no goroutine. Waiting costs one connection per
// backend (in a Cluster, one per server whose keys have waiters) and one subscription per key;
// both end with the last waiter. go-redis' own log (redis.SetLogger) gets a line for each new
// client of a Sentinel.
package goredis

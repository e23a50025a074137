// Package redlock keeps a lock on a majority of independent nodes: the Redlock
// algorithm, with fencing tokens.
//
// A lock on one server is lost with the server. With a replica, two clients can get it: the
// primary grants it and dies before it has replicated the grant, and the replica grants it
// again. Redlock asks several independent servers, and a client has the lock when more than
// half of them granted it. Two clients cannot both have more than half.
//
//	nodes   a      b      c      d      e
//	web-1   yes    yes    yes                 has it: 3 of 5
//	web-2                        yes    yes   has not, and gives back what it got
//
// Open it by URL, or make it from existing backends:
//
//	client, err := dlock.OpenURL("redlock:redis://a:6379,redis://b:6379,valkey://c:6379")
//
//	quorum, err := redlock.New([]driver.Backend{a, b, c}, nil)
//	client, err := dlock.New(quorum)
//
// Nodes are backends with the driver.FeatureQuorumNode feature, over any mix of clients and
// servers. They must be independent of each other: no replicas, no shared machine, no server
// listed twice. Three nodes survive the loss of one, five the loss of two.
//
// # The algorithm
//
// The steps are those of the page "Distributed Locks with Redis" (Redlock).
//
//  1. The client reads its clock: T1.
//  2. It asks all N nodes for the key, at once, with the same value, which no other attempt
//     ever has. A node's time is short against the TTL (Options.NodeTimeout), so that one that
//     hangs costs little; one that keeps hanging is skipped, except for a probe at times.
//  3. It has the lock if N/2+1 nodes granted it, and if the time since T1 is less than the TTL;
//     this is checked once more as the last step before Acquire returns. It does not wait for
//     the other answers.
//  4. The lease ends at T1 + TTL − drift; the drift is 1 % of the TTL (see
//     Options.DriftPercent) and 2 ms. It ends earlier, or Acquire waits a little before it
//     returns, where the answers' clocks are further apart than is excused; and the nodes
//     keep the key for a grace longer: see "Terms".
//  5. If it has no majority, it releases all nodes: in the background, on a context of its own,
//     each after its own request, so that no release overtakes the request that it undoes. It
//     tries again after a random pause. When several clients split the vote among them, the
//     next round asks a single node first, which the key determines, and whoever gets it goes
//     on to the others; so one of them wins.
//
// Every renewal asks nodes that answered late, or came back without the key, to join. So a
// lease survives the loss of any minority, and later of another one, also while other clients
// wait for it: a bid that fails gives its votes back, so a node that it got meanwhile takes the
// lease again at the next renewal. If a client cannot tell what became of its vote, for example
// because its connection broke, that node takes the lease again only after the guard and about
// three seconds; losses that come faster, each with such a vote, still end the lease. With
// restart_guard=off the node does not take it again. A lease is lost when fewer than
// a majority can still confirm it; no renewal ever takes a lock again.
//
// # Fencing tokens
//
// A client that pauses, for example in a garbage collection or a stopped virtual machine, can
// wake up after its lease ended, and write. No lock can prevent that; only the store can. Every
// lease has a token, which is larger than the token of every earlier lease. Send it with each
// write, and let the store refuse a token smaller than one it has seen: see the example, and in
// SQL
//
//	UPDATE account SET balance = $1, fence = $2 WHERE id = $3 AND fence <= $2
//
// The majority gives tokens without consensus, usually in the one round trip of step 2. Each
// node keeps a counter for each key, in microseconds since 1970, and answers max(counter+1, p),
// where p is the client's proposal: the median of the nodes' clocks, from their earlier
// answers. All nodes get the same proposal, so they answer the same token. If the answers
// differ the token is the largest, and it is written back to the nodes with a smaller one
// before Acquire returns. Four rules keep that sound, and a test breaks each of them: only the
// owner of a node's lock can raise its token; only nodes whose answer was in the maximum
// confirm; a raise applies to this acquisition, not to a later one of the same owner; and a
// renewal counts only nodes that carried the lease before.
//
// Why it holds: when a lease is returned there is a majority of nodes that it owned while their
// counters were at its token or above. Every later majority has one of these nodes, and so gets
// a larger token. Two concurrent bids have a node in both majorities, which one of them owned
// after the other; the token of the second is larger. No clock appears in this argument.
//
// # The restart guard
//
// A node that comes back without its memory would grant held locks again. So it is in
// quarantine until every lease that it may have forgotten has ended: for Options.Guard, 30 s by
// default, and half a second for clocks. No TTL may be longer than the guard. The guard works
// by itself and costs no round trip. The scripts that grant and renew locks are bound to one
// server process, which forgets them when it ends, so the first call after a restart fails. The
// call that then loads them compares the process with the one that wrote the server's data
// (redlock1:meta, after the prefix). This also detects a restart with an old snapshot, a
// partial log, FLUSHALL and a promoted replica. The quarantine is counted by the other nodes'
// clocks if they are ahead, so that a clock that is set after the boot does not end it too
// early. A node whose own clock is set back by more than Options.ClockAllowance is in
// quarantine too, because while it was ahead it may have ended locks.
//
// Meanwhile the node refuses, and says for how long: a *driver.RefusedError in its vote, a
// notice, and, through package dlock, one line in the log. A lease that the other nodes carry
// goes on, and the node joins it after its quarantine. Lock waits out a quarantine of a
// majority.
//
// New servers have no memory either. They vote after one guard, like a node that replaces another,
// unless an operator says that they are new: best by "dlock bootstrap", or by bootstrap=true in
// the URL, which may stay there: it disables the guard only if all nodes lose their memory
// together. For that all nodes must answer at the first contact, and none may have a memory.
//
// A node without a memory takes its terms (see Terms) from so many others that they are a
// majority with it, never from a client. If so many do not answer, or if none remembers terms
// and not all answer, it does not vote: another client may hold a lock for longer than this
// client knows.
//
// All clients of the same nodes and prefix need the same N:
//
//   - More or fewer nodes: run "dlock bootstrap --changed" with the URL of the new list, whose
//     nodes must all answer. From then on clients with the old list are refused; all other
//     clients are refused for one guard. Give the new list to all clients in that time. A list
//     without a majority of the old nodes would leave the old clients theirs: it is refused, as
//     far as the nodes remember (seven nodes become five, and then three). Only
//     the number of nodes tells the lists apart: to replace a node by one at another address,
//     first add the new one, then remove the old one. A new machine at the same address needs
//     nothing.
//   - Durable nodes: one with appendonly yes and appendfsync always forgets nothing that
//     it acknowledged; with durable=true in its URL it is in quarantine only if its data
//     was lost.
//   - restart_guard=off, for all clients, is for tests, for nodes where INFO, which identifies
//     the process, is not allowed, and for Clusters.
//
// A lone server has the guard if its URL has restart_guard.
//
// An eviction policy other than noeviction is refused, and so are replicas, and Redis before 7,
// which keeps scripts over a restart. The guard does not cover: a failover behind one address
// while the old primary still serves; a restored snapshot of a virtual machine with the running
// process; a process that becomes a replica and a primary again between two calls; and, with bootstrap=true,
// FLUSHALL together with SCRIPT FLUSH on all nodes before the first contact of a client, and
// FLUSHALL while a client that found all nodes new is declaring them new and other clients have
// locks already.
//
// # Terms
//
// All clients of the nodes must agree on how wrong a clock may be, because the grace after one
// lease must cover the difference that the next bidder excuses. So the nodes remember the terms
// of the first client, and apply them to all others, in place of these clients' options:
//
//   - restart_guard, the longest TTL;
//   - clock_allowance, a: how far apart the clocks of sound nodes may be. A bid excuses 3a,
//     and a node keeps a key for 8.5a + 10 ms longer than the TTL: 860 ms by default. A
//     clean release frees at once;
//   - drift_percent, at least.
//
// TTL, node timeout, and network are each client's own. A client with other options uses the
// terms of the nodes, and reports that in a notice; a TTL over their guard is refused with an
// error that names both. Nodes may have different terms, for example after an incomplete
// change; each node's terms apply to the leases that it counts for.
//
// "dlock bootstrap --dry-run" shows the terms of each node, and "dlock bootstrap --changed"
// changes them to those of its URL. Every node must answer. No lock is granted for one guard, the
// longer of the two, in which every earlier lease ends; a lease over the new guard is not renewed.
// If a node fails during the change, or forgets it soon after, run the command again; until then it
// grants no TTL of a longer guard, but its quarantine is as long as that of the others' terms. A shorter
// quarantine applies only if it is run again after that guard. With restart_guard=off nodes
// remember nothing, and all clients must have the same options.
//
// The file terms.go has the rules, the inequality behind them and its proof.
//
// # What is promised
//
// G1 exclusion: while Lease.Deadline has not passed, no other lease of that key is valid,
// provided that at any time fewer than a majority of the nodes have a wrong clock, in whatever
// way, and the clocks of the others are within the allowance of each other; that every client's
// boot-time clock is right within the drift (chrony may slew by 8 %: then set it); that no
// node's clock goes ahead and comes back unseen between two bids or renewals under one prefix;
// and that restarted nodes are quarantined or durable. With package dlock, Done is closed
// before another grant, while the process runs. After a stop, Err and Context know at the first
// look at the clock; only the token protects against work before that look, and against packets
// already sent.
//
// G2 order: any two leases ever granted on a key carry different tokens, and if one was
// returned before another's acquire began, its token is smaller. No pause, delay, clock
// step or early expiry of a lock can break this. It assumes fixed membership, nodes that keep
// acknowledged writes, and that no node's clock goes ahead by two minutes and a TTL and comes back
// unseen, which ends the counter; on volatile nodes with the guard it holds while the nodes' clocks
// agree within a quarter of the guard. (If a clock is set back by more than ten seconds, which that
// allows with a guard of over 40 s, its node gives tokens up to ten seconds ahead of the clocks, and
// a node that forgets relies on the clocks: each such time takes ten seconds of the guard.) A client
// that slept proposes no token from before its sleep, and no node gives one that is more than 2 s
// behind its own clock, or from before the end of its quarantine.
//
// G3 freshness: a successful renewal proves that no lease with a larger token had been granted
// before it began, under G2's assumptions; and, if a node came back with older data, if no key
// had ended early: a lock in the older data can be renewed.
//
// G4 cleanup: an abandoned attempt blocks others for at most the node timeout and one release round trip if the node can be reached, and never
// longer than TTL plus grace.
//
// The package's tests check these in thousands of schedules of a simulation with
// delays, losses, copies, pauses, clocks that step and keys that vanish, and check that
// they would notice: every part of the algorithm is taken out once, and missed.
//
// # Readers
//
// If all nodes have the shared mode, so has the quorum: a reader holds with a majority of shared
// grants, a writer with a majority of exclusive ones, and two majorities have a node in common, where
// both cannot be. Readers have their own tokens, renewals and ends, as writers have. A reader lives
// through the loss of a minority, and takes a node that it lost again beside the readers that came
// later. A writer that is refused is told that readers have the lock, and not which. There is neither
// an upgrade nor a downgrade. Over nodes of drivers/goredis or drivers/valkeygo readers and writers wait in
// the order of their arrival; over those of drivers/memory readers that overlap all the time keep
// a writer waiting.
//
// # What is not promised
//
// Only the token protects against a pause of the program past the deadline, and against packets
// that have been sent. With restart_guard=off a node that comes back without its keys votes at
// once, and so can help a second client to a majority for a held lock.
//
// Order: the nodes serve waiting processes in the order of their arrival, and a release wakes
// the next one, which a majority names (on nodes of drivers/goredis or drivers/valkeygo). This
// is no guarantee: after an outage, a split vote or a lost message any process may be first.
// Two clients with different lists of nodes do not exclude each other.
// And a lock makes nothing exactly-once: a holder can die before it has finished.
//
// # Kleppmann's critique, point by point
//
// "How to do distributed locking" (Martin Kleppmann, 2016) says that Redlock has no token, and
// that it trusts clocks, networks and processes to be timely. Here order needs no timing (G2),
// and exclusion needs only the assumptions of G1. For each way in which the text breaks Redlock
// there is a test on real servers, which shows the failure without the protection, and none
// with it.
//
//   - The paused client writes late: it looked at the clock, was stopped until its lease had
//     ended and another had written, and writes. Protects: the token, at the store. Remains: a
//     store that cannot compare tokens; no lock helps there, and no clock.
//     (TestKleppmannThePausedClientWritesLate)
//   - The clock of node C jumps forward, so that the lock ends there, and C makes a second
//     majority with D and E. Protects: a majority counts only if its clocks agree within
//     Options.ClockAllowance; the vote names a node that is left out, and how far its clock is
//     off. Remains: clocks of a majority that jump together. A clock that jumps there and back
//     agrees again: the restart guard keeps out a node that saw its own clock ahead; a node
//     that was not asked in between is not kept out. (TestKleppmannTheClockOfCJumps,
//     TestAClockThatJumpsThereAndBack)
//   - C crashes before it persisted, and comes back at once. Protects: the restart guard,
//     without an operator. Remains: restart_guard=off, and what the section on the guard names.
//     (TestKleppmannCCrashesBeforeItPersisted)
//   - The client pauses while the replies are in flight, and reads them when the lock has
//     ended. Protects: the look at the clock as the last act, and the deadline of each request
//     before. Remains: a pause behind that, which is the first point.
//     (TestKleppmannThePauseWhileRepliesAreInFlight)
//   - A packet is delayed beyond the TTL. Protects: a request that takes or keeps a lock
//     carries an end in the server's time, and is refused after it, so that no dead bid gets
//     the lock. Remains: a server's clock that is set back makes a late packet timely; and a
//     late write to the store, which is again the first point.
//     (TestKleppmannThePacketIsDelayedBeyondTheTTL)
//
// His advice holds: a lock that only saves work needs no majority, and one that must never fail
// needs the token at the store. If the store cannot check tokens, and timing cannot be trusted
// as far as G1 does, use a consensus system.
//
// # Managed services
//
// A node of a quorum must be one server that is independent of the others: not a Cluster (the
// guard is refused there), and not five names of one service. The table shows restrictions from
// the providers' public documentation, which changes ("no": refused; "yes": listed as working;
// "-": not listed as refused; "?": not documented, or not found). Nothing was tried on the
// services themselves:
//
//	                        EVALSHA  pub/sub  INFO        CONFIG   eviction unless set
//	ElastiCache             -        -        -           no       volatile-lru     a
//	ElastiCache Serverless  a Cluster                                               e
//	MemoryDB                -        -        -           no       ?
//	Memorystore for Redis   -        -        -           no       volatile-lru     a
//	Memorystore for Valkey  yes      ?        ?           no       volatile-lru     a
//	Azure Cache for Redis   -        -        -           no       volatile-lru     d
//	Azure Managed Redis     what Redis Cloud has, by reference      ?                b
//	Redis Cloud             yes      yes      no script   in part  volatile-lru     a b
//	Redis Software          yes      yes      no script   in part  ?                b
//	Upstash                 yes      yes      unlisted    unlisted none             b d
//	Aiven for Valkey        -        -        -           no       ?
//	Aiven for Caching       setting  -        -           no       ?                c
//	DigitalOcean            ?        ?        ?           ?        ?
//	Heroku Key-Value Store  ?        ?        ?           ?        noeviction
//
// What follows:
//
//   - CONFIG refused: nothing breaks. Check cannot see how the server persists, and says so;
//     durable=true is believed.
//   - a: while the restart guard is on, the node refuses until its policy is noeviction. The
//     error names the policy.
//   - b: without INFO in scripts a restart cannot be detected, and the guard refuses the node
//     with an error that names INFO. With restart_guard=off it votes, also at once after it
//     comes back without its memory.
//   - c: scripts can be switched off, and nothing works without them.
//   - d: the tiers Basic to Premium are documented with Redis 6.0, which is too old for any of
//     this (6.2 is the least); Upstash speaks the protocol of 6.2, which is too old for the guard
//     (7 is the least).
//   - e: a Cluster serves as a lone instance (topology=cluster), with tokens; as a node only
//     with restart_guard=off.
//   - pub/sub refused: waiters poll, and a notice says so once.
//   - Nodes opened by URL use none of the other refused commands (such as CLIENT on Memorystore
//     for Redis) for locks: they need no right to them (TestDriver/RightsThatAreDocumentedSuffice).
//   - A service that replaces a failed primary behind one address: the guard notices the new
//     process and keeps it out, unless the old one still serves.
//
// # Errors
//
// Without a majority Acquire returns a *quorum.Error with each node's vote. It is
// driver.ErrHeld only if one other owner has so many nodes that no majority is left, and
// driver.ErrRefused only if refusals leave none. The answers of a minority are in the votes and
// in the message, and never match errors.Is.
package redlock

// Package redlock keeps a lock on a majority of independent nodes: the Redlock
// algorithm, with fencing tokens.
//
// A lock on one server is lost with the server, and with a replica it can be had
// twice: the primary grants it, dies before it told the replica, and the replica grants
// it again. Redlock asks several servers that know nothing of each other, and a
// client has the lock when more than half of them granted it. Two clients cannot both
// have more than half.
//
//	nodes   a      b      c      d      e
//	web-1   yes    yes    yes                 has it: 3 of 5
//	web-2                        yes    yes   has not, and gives back what it got
//
// Open it by URL, or compose it of backends that are there already:
//
//	client, err := dlock.OpenURL("redlock:redis://a:6379,redis://b:6379,valkey://c:6379")
//
//	quorum, err := redlock.New([]driver.Backend{a, b, c}, nil)
//	client, err := dlock.New(quorum)
//
// Nodes are backends with the driver.FeatureQuorumNode feature, over any mix of clients and servers.
// They have to be independent of each other: no replicas, no shared machine, no
// server listed twice. Three nodes outlive the loss of one, five that of two.
//
// # The algorithm
//
// The steps are those of the page "Distributed Locks with Redis" (Redlock).
//
//  1. The client reads its clock: T1.
//  2. It asks all N nodes for the key, at once, with the same value, which no other
//     attempt ever has. A node's time is short against the TTL (Options.NodeTimeout),
//     so that one that hangs costs little; one that keeps hanging is skipped, but for
//     a probe now and then.
//  3. It has the lock if N/2+1 nodes granted it, and if the time since T1 is less
//     than the TTL; this is looked at once more as the last act before Acquire
//     returns. It does not wait for the other answers.
//  4. The lease ends at T1 + TTL − drift; the drift is 1 % of the TTL (see
//     Options.DriftPercent) and 2 ms. It ends earlier, or Acquire waits a little before it
//     returns, where the answers' clocks are further apart than is excused; and the nodes
//     keep the key for a grace longer: see "Terms".
//  5. If it has no majority, it releases all nodes: in the background, on a context of
//     its own, each behind its own request, so that no release overtakes what it is to
//     undo. It tries again after a random while. When several clients split the vote
//     among them, the next round asks a single node first, which the key
//     determines, and whoever gets it goes on to the others; so one of them wins.
//
// A node that answers late, or was down and comes back without the key, is asked to
// join: every renewal does that. So a lease outlives the loss of any minority, and then
// of another. It is lost when fewer than a majority can still confirm that they
// carry it; no renewal ever takes a lock again.
//
// # Fencing tokens
//
// A client that pauses, in a garbage collection or a swapped-out virtual machine, can
// wake up after its lease ended, and write. No lock can prevent that; what is written
// to can. Every lease carries a token, which is larger than that of every lease before
// it. Send it along, and let the store refuse what is smaller than what it has seen: see
// the example, and in SQL
//
//	UPDATE account SET balance = $1, fence = $2 WHERE id = $3 AND fence <= $2
//
// On a majority, without consensus, and as a rule in the one round trip of step 2:
// each node keeps a counter for each key, in microseconds since 1970, and answers
// max(counter+1, p), where p is the client's proposal: the median of the nodes'
// clocks, as their earlier answers showed them. All nodes get the same proposal, and so
// answer the same, and that is the token. Where the answers differ, the largest is, and
// it is written back to the nodes with a smaller one before Acquire returns. Four
// rules keep that sound; each was found by breaking it, and the tests break each again:
// only who still owns a node can raise it; only nodes whose answer was in the
// maximum confirm; what is raised is this very acquisition, and not a later one of the
// same owner; and a renewal counts only nodes that carried the lease before.
//
// Why it holds: when a lease is returned there is a majority of nodes that it owned
// while their counters were at its token or above it. Every later majority meets that
// one in a node, and so gets a larger token. Of two bids at the same time, there is a
// node that is in the majorities of both, and that one had after the other; the
// token of the second is larger. No clock appears in this.
//
// # The restart guard
//
// A node that comes back without its memory would grant again what is held. So it is
// kept out until every lease that it may have forgotten has ended: for Options.Guard, 30 s
// by default, and half a second for clocks. No TTL may be longer than the guard. Nobody has to do
// anything for that, and it costs no round trip: the scripts that give and renew locks
// are bound to one process of a server, which forgets them when it ends, so that the
// first call after a restart fails, whoever makes it; and what loads them anew compares
// the process with the one that the server's data (in redlock1:meta, after the prefix)
// was written by. A restart with an old snapshot, a partial log, FLUSHALL and a replica
// that was promoted are noticed alike. The quarantine is counted in the time of the other
// nodes where that is ahead, so that a clock that is set after the boot ends
// none too early; and a node whose own clock is set back by more than
// Options.ClockAllowance is in quarantine too, since while it was ahead it may have ended
// locks.
//
// Meanwhile the node refuses, and says for how long: a *driver.RefusedError in its vote, an
// event, and, through package dlock, one line in the log. A lease that others carry lives
// on, and the node joins it when its quarantine is over. Lock waits out a quarantine of a
// majority.
//
// New servers have no memory either. At first contact, if all nodes answer and none has
// one, they vote at once where that is known to be right: if all have been up for longer
// than the guard and were never used (Options.StrictGuard takes that away); or because it is
// said, by "dlock bootstrap", which is best, or by bootstrap=true in the URL, which may stay
// there: it voids the guard only if all nodes lose their memory together. Else they vote
// after one guard, as a node does that replaces another.
//
// A node without a memory takes its terms (see there) from the others, as many as make a
// majority with it, and never from a client. Where so many do not answer, or not all answer
// and none remembers, it does not vote: somebody may hold a lock for longer than this client
// knows of.
//
// All clients of the same nodes and prefix need the same N:
//
//   - Other nodes, more or fewer: run "dlock bootstrap --nodes" with the URL of the new
//     list, all of which has to answer. From then on clients with the old list are refused,
//     and for one guard all others are. Give the new list to all clients in that time, and
//     leave none with the old one. Clients are told apart by the number of nodes alone: to
//     replace a node by one at another address, add that one first, and then leave the old
//     one out. To replace a machine by another at the same address nothing is needed.
//   - Durable nodes: one with appendonly yes and appendfsync always forgets nothing that
//     it acknowledged; with durable=true in its URL it is in quarantine only if its data
//     was lost.
//   - restart_guard=off, for all clients, is for tests, for nodes behind which INFO, which
//     tells the process, is not allowed, and for those that are Clusters.
//
// A lone server has the guard where its URL has restart_guard. It has no others to ask: one
// that was never used, and has been up for longer than the guard, is taken for new and votes
// at once. So a machine that takes the address of a dead one, and has been up for long, votes
// at once too. Set strict_guard=true where that can happen.
//
// An eviction policy other than noeviction is refused, and so are replicas, and Redis before
// 7, which keeps scripts over a restart. Not covered are a failover behind one address while
// the old primary still serves, the snapshot of a virtual machine that is restored with the
// process in it, a process that becomes a replica and a primary again between two calls,
// FLUSHALL together with SCRIPT FLUSH on all nodes before the first contact of a client
// without StrictGuard, and FLUSHALL in the moment when a client that has found all nodes
// unused is telling them so, and others have locks already.
//
// # Terms
//
// What a clock may do wrong is for all clients of the nodes to agree on: the grace that one
// lease leaves has to cover what the next bidder excuses. So the nodes remember the terms of
// the first client, and hold all others to them, whatever their options say:
//
//   - restart_guard, the longest TTL;
//   - clock_allowance, a: how far apart the clocks of sound nodes may be. A bid excuses 3a,
//     and a node keeps a key for 8.5a + 10 ms longer than the TTL: 860 ms by default. A
//     clean release frees at once;
//   - drift_percent, at least.
//
// TTL, node timeout, and the way to the nodes are each client's own. A client with other
// options goes by the terms of the nodes, and says so in an event; a TTL over their guard is
// refused with an error that names both. Nodes may have different terms, after a change that
// was broken off, say: each protects what it counts for.
//
// "dlock bootstrap --dry-run" shows the terms of each node, and "dlock bootstrap --terms" makes
// them those of its URL. Every node has to answer. What protects (the quarantine, the grace, the
// drift) grows and what permits (the longest TTL, the excused difference) shrinks at once; the
// rest holds when the leases have ended that were granted before, for which the nodes wait by
// themselves. Clients bid throughout. A shorter guard than that of a lease which is held is
// refused. If a node fails in between, run the command again. With restart_guard=off nodes
// remember nothing, and all clients have to have the same options.
//
// The file terms.go has the rules, the inequality behind them and its proof.
//
// # What is promised
//
// G1 exclusion: while Lease.Deadline has not passed, no other lease of that key is valid,
// provided that at any time fewer than a majority of the nodes have a wrong clock, in
// whatever way, and the clocks of the others are within the allowance of each other; that
// every client's boot-time clock is right within the drift (chrony may slew by 8 %: then set
// it); that no node's clock goes ahead and comes back unseen between two bids or renewals
// under one prefix; and that restarted nodes are quarantined or durable. Through package
// dlock, Done comes before another's grant while the process runs. After it was stopped, Err
// and Context know at the first look; for what it does before that, and for packets already
// sent, there is the token alone.
//
// G2 order: any two leases ever granted on a key carry different tokens, and if one was
// returned before another's acquire began, its token is smaller. No pause, delay, clock
// step or early expiry can break this. It assumes fixed membership and nodes that keep
// acknowledged writes; on volatile nodes with the guard it holds while the nodes' clocks
// agree within a quarter of the guard. A client that slept proposes no token from before its
// sleep, and no node gives one that is more than 2 s behind its own clock, or from before the
// end of its quarantine.
//
// G3 freshness: a successful renewal proves that no lease with a larger token had been
// granted before it began, under G2's assumptions; and, where a node came back with an
// older state of its data, if no key had ended early: what it brings back can be renewed.
//
// G4 cleanup: an abandoned attempt blocks others for at most the node timeout (five of them,
// where this process is starved) and one release round trip where the node can be reached, and
// never longer than TTL plus grace.
//
// The package's tests check these in thousands of schedules of a simulation with
// delays, losses, copies, pauses, clocks that step and keys that vanish, and check that
// they would notice: every part of the algorithm is taken out once, and missed.
//
// # What is not promised
//
// A pause of the program past the deadline, and packets that have been sent, are covered
// by the token alone. With restart_guard=off a node that comes back without its keys votes
// at once, and can so give a second majority to a lock that is held.
//
// Order: the nodes serve processes that wait in the order in which they came, and a release
// wakes the one that is next when a majority names it (on nodes that are of
// drivers/goredis or drivers/valkeygo). But that is no guarantee: an outage, a split vote,
// a message that is lost, and who asks at the right moment wins. There is no shared mode. Changing the nodes of
// a running system is not covered: two clients with different lists are two systems.
// And a lock makes nothing exactly-once: a holder can die half-way.
//
// # Kleppmann's critique, point by point
//
// "How to do distributed locking" (Martin Kleppmann, 2016) says of Redlock that it has no
// token, and that it trusts clocks, networks and processes to be timely. Here order needs
// no timing (G2), and exclusion needs what G1 says and no more. Of the ways in which the
// text breaks Redlock, each is a test on real servers, which shows the failure with what
// protects taken out, and none with it.
//
//   - The paused client writes late: it looked at the clock, was stopped until its lease had
//     ended and another had written, and writes. Protects: the token, at the store. Remains: a
//     store that cannot compare tokens; no lock helps there, and no clock.
//     (TestKleppmannThePausedClientWritesLate)
//   - The clock of node C jumps forward, so that the lock ends there, and C makes a second
//     majority with D and E. Protects: a majority counts only if its clocks agree within
//     Options.ClockAllowance, and who is left out for that is named in the vote with how far
//     it is off. Remains: clocks of a majority that jump together. A clock that jumps
//     there and back agrees again: the restart guard keeps the node out that saw its own
//     clock ahead, and nothing does if nobody asked it in between.
//     (TestKleppmannTheClockOfCJumps, TestAClockThatStepsMakesNoSecondHolder,
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
// His advice stands: a lock that only saves work needs no majority, and one that
// must never fail needs the token at the store. Where that cannot be, and timing
// cannot be trusted as far as G1 does, use a consensus system.
//
// # Managed services
//
// A node of a quorum has to be one server that is independent of the others: not a
// Cluster (the guard is refused there), and not five names of one service. What providers
// restrict, by their public documentation, which changes ("no": refused; "yes": among what is
// listed as working; "-": not among what is listed as refused; "?": not documented, or not
// found). Nothing of this was tried on the services themselves:
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
//   - b: where INFO is not to be had in scripts a restart cannot be told, and the guard
//     refuses the node with an error that names INFO. With restart_guard=off it votes, and
//     votes at once when it comes back without its memory.
//   - c: scripts can be switched off, and nothing works without them.
//   - d: the tiers Basic to Premium are documented with Redis 6.0, which is too old for any of
//     this (6.2 is the least); Upstash speaks the protocol of 6.2, which is too old for the guard
//     (7 is the least).
//   - e: a Cluster serves as a lone instance (topology=cluster), with tokens; as a node only
//     with restart_guard=off.
//   - pub/sub refused: waiters poll, and an event says so once.
//   - Whatever else one of them refuses, CLIENT on Memorystore for Redis say, nodes that are
//     opened by URL do not use for locks (TestLocksUseNoCommandThatServicesRefuse).
//   - A service that replaces a failed primary behind one address: the guard notices the other
//     process, and keeps it out; it cannot while the old one still serves.
//
// # Errors
//
// Without a majority Acquire returns a *driver.QuorumError with each node's vote. It is
// driver.ErrHeld only if one other owner has so many nodes that no majority is left, and
// driver.ErrRefused only if refusals leave none. What a minority said shows in the
// votes and in the message, and not in errors.Is.
package redlock

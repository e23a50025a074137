/*
Package dlock takes distributed locks: one small package for applications, with
backends that plug in underneath, as in database/sql.

	application ──> dlock ──> driver ──> drivers/memory      this process
	                                     drivers/file        this machine
	                                     drivers/goredis     one Redis or Valkey, over go-redis
	                                     drivers/valkeygo    the same, over valkey-go
	                                     drivers/redlock     a majority of independent servers
	                                     drivers/postgres    PostgreSQL's advisory locks

# The shortest lock

	locks, err := dlock.OpenURL("file:")       // import _ ".../drivers/file", or drivers/all
	...
	lease, err := locks.Lock(ctx, "reports/2026-11")
	if err != nil {
		return err
	}
	defer lease.Unlock()

A [Client] is made once and shared. [Open], [OpenURL] and [New] do no network I/O;
[Client.Ping] does. The text before the first colon of a URL names the driver, whose
package must be imported; prefix= and ttl= mean the same in every URL. A driver whose
locks have no TTL refuses ttl=.

# What a lease is

Locks here are leases: they end by themselves, so that a holder that died blocks nobody
for long. A [Lease] renews itself, before a third of its TTL is over, for as long as the program
holds it ([WithMaxHold] sets a bound). If that fails it ends: [Lease.Done] is closed before the
backend can grant the lock to another, however a renewal hangs, and the work must stop. A
process or machine that was stopped closes Done when it runs again, which may be late. Locks of
files have no TTL and end with their process; those of PostgreSQL also end when their session
breaks. [Do] runs a function under a context that ends with the lease.

	err := dlock.Do(ctx, locks, "account/42", func(ctx context.Context) error {
		...
	})

A lease that ended is never revived. [Lease.Err] says why it ended. It looks at the clock,
which counts the time in which the machine slept. In a function that Do runs, [LeaseFor] finds
the lease of a key.

# Tokens

After a process has looked at the clock and before it writes, it can be stopped for any length
of time. No lock can prevent that; only the receiver of the write can. Every lease has a fencing
token, [Lease.Fence], larger than the token of every earlier lease of the key. A store that
refuses a token smaller than the largest it has seen refuses the late write. Tokens
of all backends can be compared, so a change of backend keeps them rising. [WithRequire]
makes sure that the backend has tokens. Package dlock/fence has such guards for SQL databases,
Redis and Valkey, and any other store.

# Leaders, slots, several keys

[Elect] runs a function while it leads, and campaigns again after a loss; [Client.Lookup]
tells who leads. [WithSlots] lets n holders have a key. [DoAll] takes several keys, all
or nothing. Package dlock/both takes a lock on two backends, to change from one to the other while programs
run. What a backend has for operators, such as listing keys and breaking locks, is in
[Client.Backend]: see driver.Inspector and driver.Admin.

# Errors

Four things can go wrong, and errors.Is tells them apart: [ErrHeld], contention;
[ErrUnavailable], an outage; [ErrLost], a lease that is gone; [ErrInvalid], a call that
cannot work. If ctx ends a wait, the error matches ctx.Err(); it also matches ErrHeld if the last
answer was "held". Of nested
functions under Do, errors.As finds the *[Error] of the lease that was lost, with its key.

A [driver.HeldError] names the holder and says how long it has held the lock, if the backend knows:
PostgreSQL names holders of other processes only to Client.Lookup. RetryAfter is the time until
the holder's lease ends unless it is renewed. Most leases are renewed, so it does not forecast
when the lock becomes free.

# Waiting

[Client.Lock] waits until its context ends. The calls of one client for one key stand in a
queue, and only the first talks to the server. It waits in the backend's own queue where there
is one ([driver.FeatureQueueing]), for a signal where the backend can tell of a release
([driver.Watcher]: Redis, Valkey, a quorum, files on Linux), and by jittered pauses of 5 to 100 ms
elsewhere. Backends with [driver.FeatureOrdered] also serve processes in the order of their
arrival, as long as nothing fails.

Where the backend has [driver.FeatureTokens], or no tokens, Unlock passes the lock on to the next
waiter of the same client, without the server, until 10 ms after the grant: see [WithPassOn].

# Logs and hooks

[WithLogger] and [WithHooks] report events. Neither is on the path that keeps leases
alive: a log handler or a hook that blocks costs no lease. An outage has a line
at its beginning, and one every ten seconds that counts what failed since.

# What is not guaranteed

Until a lease's Deadline no other lease of its key is valid, as long as the servers keep what
they acknowledged and clocks run at about the same rate. Each backend's package says what the
backend needs for this, and what it survives. Code that goes on after the lease's end, and
requests that are already on their way, are not excluded: only tokens protect against these.
There is no reentrancy: a goroutine that locks a key twice is two owners, and waits for
itself.

# Testing

memory.New returns a backend for tests, which can have the features, modes and TTLs of another
backend. Its methods Hold, Expire, Fail and SetOutage cause contention, loss and outages in one
line each, also in virtual time under testing/synctest.
*/
package dlock

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
package has to be imported; prefix= and ttl= mean the same in every URL, and where locks
have no TTL a ttl= is refused.

# What a lease is

Locks here are leases: they end by themselves, so that a holder that died blocks nobody
for long. A [Lease] renews itself at a third of its TTL. If that fails, or this process or
machine stops for a while, it ends: [Lease.Done] is closed before the backend can grant
the lock to another, however a renewal hangs, and the work is to stop. [Do] does it the
other way round: it runs a function under a context that ends with the lease.

	err := dlock.Do(ctx, locks, "account/42", func(ctx context.Context) error {
		...
	})

A lease that ended is never revived. [Lease.Err] says why it ended, and looks at the
clock to know, the time included in which the machine slept.

# Tokens

Between the look at a clock and the write that it was for, a process can be stopped for
any length of time. No lock can prevent that. What helps is the receiver: every lease has
a fencing token, [Lease.Fence], larger than that of every lease of the key before; a store
that refuses a token smaller than the largest it has seen refuses the late write. Tokens
of all backends can be compared, so a change of backend keeps them rising. [WithRequire]
makes sure that there are any.

# Errors

Four things can go wrong, and errors.Is tells them apart: [ErrHeld], contention;
[ErrUnavailable], an outage; [ErrLost], a lease that is gone; [ErrInvalid], a call that
cannot be. A wait that its context ended is context.DeadlineExceeded or context.Canceled
as well, and ErrHeld only if "held" was the last that was heard.

# Waiting

[Client.Lock] waits until its context ends. The calls of one client for one key stand in
line, and only the first talks to the server: natively in line where the backend queues
([driver.FeatureQueueing]), at a signal where it can tell of a release ([driver.Watcher]), by
jittered pauses elsewhere ([WithBackoff]). Between processes PostgreSQL, Redis and Valkey
serve first who came first, as long as nothing fails.

# What is not guaranteed

While a lease's Deadline has not passed, no other lease of its key is valid: that holds as
long as the servers keep what they acknowledged and clocks run at about the same rate.
What each backend needs for it, and what it survives, its package says. It does not hold
for code that goes on after the lease's end, and for requests that are already on their
way: only tokens cover those. There is no reentrancy: the same goroutine asking twice is
two owners, and waits for itself.

# Testing

memory.New returns a backend for tests; its Hold, Expire and Fail bring about contention,
loss and outage in one line each, also in virtual time under testing/synctest.
*/
package dlock

// Package postgres locks with the advisory locks of PostgreSQL 14 or newer.
//
//	postgres://user:password@host:5432/database?ttl=10s&max_sessions=4
//
// It is registered as "postgres" and "postgresql" with package dlock; New takes a
// function that makes connections, and FromPool makes that of a pool.
//
// # The strongest form
//
// If the work is done in one transaction of the same database, take the lock in that
// transaction: LockTx. Lock and work then have one fate. Nothing can be lost, late or
// paused, and no token is needed. Everything below is for work that is done elsewhere.
//
//	tx, err := pool.Begin(ctx)
//	…
//	err = backend.LockTx(ctx, tx, "account/7")
//
// # How it works
//
//	callers ──► session 1 ──► server process, holds many locks
//	        ──► session 2 ──► server process
//	waiting ──► waiter    ──► server process, blocked in pg_advisory_lock
//
// A key is one advisory lock: the first eight bytes of the SHA-256 of prefix and key. Two
// keys of one hash wait for each other, and an event says so where one process sees it.
//
// Many locks live on few sessions. What all goroutines ask of a session while a
// statement is under way is the next statement. A caller that waits for a held lock blocks
// in pg_advisory_lock on a connection of its own, one per key and process, so that
// nothing polls and the server's line is first come, first served. The line is the
// server's: of one process only the first in its own line stands there.
//
// # The connection budget
//
// A process uses at most max_sessions + max_waiters connections (4 + 16 unless set),
// plus one while an operator looks at it. All processes together need
//
//	processes × (max_sessions + max_waiters)
//
// of the server's max_connections, if so many of their keys are waited for at once. A
// process without locks keeps its connections for a minute. If all waiters are
// taken, further waits poll, and an event says so. A wait holds back VACUUM, as any
// long statement does.
//
// # Leases
//
// The server enforces them. A session's idle_session_timeout is its TTL plus a grace of
// a tenth (50 ms to 2 s), so a holder that is paused, cut off or dead loses the
// session, and with it the locks, with nobody's help. Any statement of the session renews
// all its leases. TTLs are rounded up to a few classes (100, 200, 500 ms; 1, 2, 3, 5, 10, 15,
// 20, 30 s; 1, 2, 5, 10, 30, 60 min), and leases of one class share sessions; where
// max_sessions is less than the number of classes in use a lease may share one of a longer
// class, and is then freed later if its holder dies. A lease that is not
// renewed is unlocked by its own process, half of its grace after its end.
//
// Expires counts from before the last statement that was answered was sent, so it
// is never later than the instant at which the server lets go. A process that is
// killed is noticed at once, in the middle of a statement within twice
// check_interval (2 s), and behind a dead network within the class and its grace; a
// waiter there that is granted its lock loses it after a second.
//
// # Tokens
//
// A token is the next number of the sequence public.dlock_fence, drawn by the statement that
// takes the lock, once it is taken. It rises for every key, with gaps. The schema is fixed, so
// that roles with different search paths draw from one sequence; fencing=my_schema.dlock_fence
// names another, for every program of the database, and a second sequence is refused. The
// sequence is made at the first use if the role may; else the error has the one statement
// that an administrator runs (Backend.SetupSQL). An unlogged one is refused.
//
// When a session begins the sequence is raised to the time in microseconds if it lags by more
// than ten seconds, so that a store that saw tokens of another backend accepts these; and
// whatever the lag on a server that was started or promoted since, because a standby that
// replicates asynchronously may lack the last tokens. Tokens rise over a promotion if the new
// primary's clock is behind the old one's by less than the time that the promotion took, or
// by less than ten seconds minus the replication lag.
//
// # What is guaranteed
//
// While a lease's deadline has not passed no other lease of the key is valid,
// provided that the server does not forget: one that was restarted, or a standby that was
// promoted, knows nothing of a holder that is cut off from it. restart_guard=30s
// keeps a server from granting for so long after its start, and makes this the longest
// TTL; a crash of one server process, which makes all sessions start anew, counts
// where the role may see the checkpointer's age (GRANT pg_monitor). A promotion
// does not show, and is covered by the token alone. Tokens rise on a server with fsync that
// keeps what it has committed, and over a promotion: see Tokens.
//
// Lost is closed when the connection breaks. That cannot always come first: the next
// holder may be there before the message, and it is the token that orders them.
//
// # Who has it
//
// An ErrHeld names the holder, with its time, where that is of this backend. The server
// refuses without saying for whom, and pg_locks, which would tell, is read under all the
// locks of the lock table: each refusal would slow down everybody, most of all where many
// want one key. Lookup asks, on a connection of its own (see Client.Inspect of package
// dlock): the holder is then its session's application_name, with the owner's label,
// its process and its address.
//
// # The deadlock that nobody finds
//
// A transaction that waits in LockTx, and has locked rows that the holder's work waits
// for, waits for ever: the server sees no circle, since the lease's session is not what
// waits for the rows, and the renewals keep the lease alive. Take LockTx first
// in the transaction, set lock_timeout, or bound the lease (dlock.WithMaxHold).
//
// # Poolers, standbys, settings
//
// A pooler that shares server processes among clients would give our locks to
// somebody else. One is recognised and refused, unless pooler=session says that it pools whole
// sessions. Transactions with LockTx may come through any pooler.
//
// A standby is refused for a moment, since it may be promoted. Of several hosts the primary
// is looked for (target_session_attrs=primary), and a wait survives a promotion.
//
// A lock table that is full gives an error that names max_locks_per_transaction: the
// table has room for that times max_connections, 6,400 by default, of all kinds of locks.
//
// The parameters are, besides pgx's (user, password, host, port, dbname, sslmode, sslcert,
// sslkey, sslrootcert, sslpassword, sslsni, connect_timeout, target_session_attrs, passfile,
// service, servicefile, krbspn, krbsrvname, search_path, options, application_name):
//
//	ttl, prefix      as everywhere
//	fencing          on, off, or my_schema.dlock_fence
//	max_sessions     4
//	max_waiters      16
//	pooler           session
//	restart_guard    off; a duration
//	check_interval   2s: how often the server looks for the client of a running statement
package postgres

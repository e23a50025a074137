// Package postgres locks with the advisory locks of PostgreSQL 14 or newer.
//
//	postgres://user:password@host:5432/database?ttl=10s&max_conns=20
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
// In a transaction of database/sql that is the statement SELECT pg_advisory_xact_lock(n), with the
// number of LockID.
//
// # How it works
//
//	callers ──► connection ──► server process, holds many locks of one class of TTLs
//	        ──► connection ──► server process, holds those of another class
//	waiting ──► connection ──► server process, waits in the server's queue for one lock
//
// A key is one advisory lock, whose number is the first eight bytes of the SHA-256 of prefix
// and key (LockID). Two keys with the same number wait for each other. In SQL the number is
//
//	SELECT ('x' || left(encode(sha256(convert_to(prefix || key, 'UTF8')), 'hex'), 16))::bit(64)::int8
//
// A key of Int64Key, "pg_advisory_lock(42)", is the lock of this very number, so that a program can
// join locks that others take already.
//
// Many locks live on few connections. Requests that come while a connection's statement is under
// way go together as its next statement.
//
// # Waiting
//
// A caller that waits for a held lock waits on a connection of its own, one per key and
// process, so that nothing polls. The wait is a row of statements of less than a
// second each, because a statement has a snapshot: CREATE INDEX CONCURRENTLY waits for it,
// and VACUUM keeps dead rows. A program may so migrate under a lease while others wait for it.
//
// The callers of one process are served in the order in which they came. Processes are
// served in the order of the server's queue as long as a wait takes less than 0.85 s, and
// in about that order beyond: a waiter whose statement ends goes to the end of the queue.
// A writer that waits holds off new readers, of its own process and of others; only a process that
// shares the lock already may share it again during the writer's first statement.
// A try that does not wait may come before those who wait for a moment between statements.
//
// Where more keys are waited for than there are connections for waiting the waits take turns,
// and are tried every 25 ms meanwhile; a notice says so once. The same happens if the server has no
// connection left. If a caller gives up its wait, the connection is used again.
//
// A lock that is handed over costs two messages, the waiter's and the unlock.
//
// The statements are blocks of plpgsql, which every database has unless it was dropped. A server
// that logs statements that take longer than 0.9 s does not log them.
//
// # The connection budget
//
// A process uses at most max_conns connections, 20 unless set: one for each class of TTLs in use,
// and one for each key that is waited for at the same time, or was waited for and is held. At most
// four fifths of them wait. One more serves an operator who looks, and up to max_conns more
// replace those that are silent for two seconds. All processes together need
//
//	processes × max_conns
//
// of the server's max_connections, if so many of their keys are waited for at once. A
// process without locks keeps its connections for a minute.
//
// The server's lock table is made for max_locks_per_transaction times max_connections locks of
// all kinds, 6,400 by default, and all programs share it. When it is full the server refuses locks
// to everybody, and the error names the number to raise. Raise it before a database's programs
// hold thousands of keys at once.
//
// # Leases
//
// The server enforces them. A session's idle_session_timeout is its TTL plus a grace of
// a tenth (50 ms to 2 s), so a holder that is paused, cut off or dead loses the
// session, and with it the locks, with nobody's help. Any statement of the session renews
// all its leases. TTLs are rounded up to a few classes (100, 200, 500 ms; 1, 2, 3, 5, 10, 15,
// 20, 30 s; 1, 2, 5, 10, 30, 60 min), and leases of one class share connections. If there may be
// no more connections, leases of two classes may share one, which has the longer class: they are then
// freed later if their holder dies. A lease that is not renewed is unlocked by its own process, half of its grace after
// its end.
//
// Expires counts from just before the last answered statement was sent, so it is never later
// than the instant at which the server frees the lock. A process that is killed is noticed at
// once, in the middle of a statement within four seconds, and behind a dead network within the
// class and its grace, or as soon as TCP gives up (about ten seconds). That goes for a waiter, too,
// that is granted its lock there: to one, if the TTL is a second or more, because a statement that
// waits ends within a second, and a dead process begins no other.
//
// # Tokens
//
// A token is the next number of the sequence public.dlock_fence, drawn by the statement that
// takes the lock, once it is taken. It rises for every key, with gaps. A range has at most 256
// tokens, each drawn from the sequence. The schema is fixed, so that roles with different search
// paths draw from one sequence; fence_schema=my_schema names another, for every program of the
// database, and a second sequence is refused, and so is one that has passed 9007199254740991,
// the largest token. The sequence is made at the first use if the role may, and begins at the clock;
// else the error has the one statement that an administrator runs (Backend.SetupSQL). An unlogged one
// is refused.
//
// When a session begins the sequence is raised to the time in microseconds if it lags by more
// than ten seconds, so that a store that saw tokens of another backend accepts these; and
// whatever the lag on a server that was started or promoted since, because a standby that
// replicates asynchronously may lack the last tokens. Tokens rise over a promotion if the new
// primary's clock is behind the old one's by less than the time that the promotion took, or
// by less than ten seconds minus the replication lag. A sequence that is ahead of the clock is
// raised by processes that were given tokens of it before.
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
// An ErrHeld names the holder, with its time, where that is on the same connection. The server
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
// A pooler that shares server processes among clients would give our locks to somebody else.
// One is recognised, by the process id in its cancel key, and refused, unless pooler=session
// says that it gives every client a process of its own. So do the proxies of some hosted
// databases (Neon, Supabase, RDS Proxy), which make cancel keys of their own: use their direct
// or session address, and pooler=session, under which each heartbeat looks whether the process
// is still the same. No request to cancel is ever sent to a session, and so a proxy need not
// route any. A transaction with LockTx may use any pooler. CockroachDB is refused: its advisory
// locks exclude nobody.
//
// Without sslmode, and with sslmode=prefer or allow, a connection whose TLS handshake fails is tried
// without TLS, and the password then goes in clear to whoever asks for it. Set
// sslmode=verify-full, or at least require. A URL with a password, without sslmode, and with a host
// that is not this machine causes a notice, and Check warns of every such configuration.
//
// A standby is refused for a moment, since it may be promoted. Of several hosts the primary
// is looked for (target_session_attrs=primary), and a wait survives a promotion.
//
// The parameters are, besides pgx's (user, password, host, port, dbname, sslmode, sslcert,
// sslkey, sslrootcert, sslpassword, sslsni, connect_timeout, target_session_attrs, passfile,
// service, servicefile, krbspn, krbsrvname, options, application_name, channel_binding,
// sslnegotiation):
//
//	ttl, prefix      as everywhere
//	fence_schema     public; the schema of the sequence dlock_fence
//	max_conns        20
//	pooler           session
//	restart_guard    off; a duration
//
// What pools and providers add to a URL is ignored where it changes nothing here: the
// parameters of pgxpool and of statements (pool_max_conns, default_query_exec_mode, …),
// settings that a session makes itself (timezone, statement_timeout, lock_timeout, search_path,
// keepalives, …). Any other name is an error.
package postgres

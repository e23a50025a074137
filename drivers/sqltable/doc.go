/*
Package sqltable keeps locks in a table of a SQL database: MySQL or MariaDB, PostgreSQL, also
behind a pooler of transactions, and SQLite for the processes of one machine.

	import _ "github.com/redlock-go/redlock/drivers/sqltable/mysql" // or …/pgtable, …/sqlite

	locks, err := dlock.OpenURL("mysql://user:password@host:3306/database")

The package itself imports no client of any database. A program that has a *sql.DB makes the
backend of it:

	backend, err := sqltable.New(db, sqltable.MySQL, nil)
	locks, err := dlock.New(backend)

	scheme              package            database
	mysql://            sqltable/mysql     MySQL 5.7 or newer, MariaDB 10.2 or newer
	mariadb://          sqltable/mysql     the same
	pgtable://          sqltable/pgtable   PostgreSQL 14 or newer, also behind PgBouncer
	sqlite:             sqltable/sqlite    SQLite 3.35 or newer

The tests run on MariaDB, and not on MySQL.

# The table

One row is one key: its name in bytes, its owner, its fencing token, since when and until when it
is held, by the server's clock in microseconds since 1970, and its readers. The owner of a range of
tokens has their number behind it, a power of two: "owner+8".

	dlock bootstrap --sql --url mysql://…

prints the statement that makes the table, and [Backend.SetupSQL] returns it. The parameter
setup=true makes it at the first call. Nothing else needs a right but SELECT,
INSERT, UPDATE and DELETE on it. Rows of keys that have not been used for two minutes are deleted,
by one client a minute; before that the row without a name is raised to the largest of their tokens,
above which every new row begins, so that tokens rise whatever the server's clock does. Its owner is
the version of the layout: another release's table is refused.

# What is guaranteed

Each operation is one statement that commits by itself and decides by what the row holds: no
transaction is open while a lock is held, no session is needed, and a connection may break at any
time. A lease ends by its TTL, judged by the server's clock alone; clients' clocks do not matter. A
statement to take or to renew carries the end of its call in the server's time, and does nothing if
it arrives later. What is sent in vain is undone in the background.

The lock is as good as the server's memory of what it has committed:

  - A primary that fails over to a replica which lacks the last commits can grant again what was
    granted in the moments before, unless replication is synchronous. innodb_flush_log_at_trx_commit
    other than 1, and synchronous_commit or fsync that is off, forget as much by a crash. Check
    tells.
  - The server's clock must not jump ahead by more than it takes to notice: locks end that much
    earlier. Where it falls back, locks last longer and tokens rise all the same.
  - All clients reach the same server. A cluster in which every node takes writes (Galera, group
    replication) is refused, since its nodes' clocks differ; single_writer=true says that all clients
    are led to one of its nodes.
  - On MySQL the clock is read when a statement begins. One that waits for a row, since somebody
    else's transaction has locked it, can take the lock later than its call's end; its time counts
    from the beginning, and it is undone as soon as the row can be had.
  - Whatever locks the table keeps renewals out: LOCK TABLES, as mysqldump and mariadb-dump do
    without --single-transaction, or an ALTER TABLE. If it lasts longer than a third of the TTL or so
    every lease is lost. Leave the table out of such a dump (--ignore-table), or use
    --single-transaction.
  - A row that another transaction has locked cannot be taken, renewed or released meanwhile. The
    server ends such a wait within a second; the error names the cause. With a *sql.DB of your own on
    MySQL set innodb_lock_wait_timeout=1 and lock_wait_timeout=1 in its DSN, as URLs do: until the
    server has ended its wait, a statement whose caller gave up counts against the limit.
  - go-sql-driver/mysql 1.9.3 panics if a server sends certain nonsense. Calls make that an error,
    and so do connections of mysql: URLs, which also refuse answers of more than 16 MB; a panic
    while a connection of a *sql.DB of your own is made ends the process.
  - SQLite's clock is the machine's. The file must be on a disk of this machine.

Against a holder that goes on beyond its lease's end, nothing helps but the token: see package
dlock/fence, whose guards work on the same databases.

# Speed

A lock that is free and its release are two statements. On MariaDB they took 1.45 times as long
(1.13 to 1.82) as two bare UPDATE statements without a TTL and a token for one goroutine, 1.21
times (0.99 to 1.47) for 16 goroutines with keys of their own, and 1.30 times (1.18 to 1.60) for
two clients that ask for one key each millisecond. These are medians, with 95 % intervals, of 40
rounds in which both did the same work by the same client library, in one run on a machine that
other programs used too.

# Waiting

These databases have no signal of a release in common, so waiting clients poll, with growing pauses
and jitter, as package dlock does for any such backend; a poll is one SELECT that locks nothing, two
for a writer beside readers. In
one run, 30 clients that waited for one key of MariaDB sent 280 of them a second in all.
There is no order among the waiters of several processes. Where handing over has to be fast or fair,
take drivers/postgres, whose locks need a session of the server each few thousand, or Redis.

# Readers

Shared locks are in the row of their key: its owner says that readers have it, its end is that of
the last of them, and the column of readers has each with its token and end. A shared lock, a
renewal and a release are two statements each, which rewrite that column: it is for tens of readers
of a key at a time rather than for thousands. An exclusive lock costs what it costs without readers.

A writer that finds readers twice within two seconds, as one that waits does, keeps further readers
out for a second, and again each time it asks. The last reader then leaves the key to writers for the
rest of that second. So readers that share a key without a gap starve no writer; after a writer,
readers and writers poll with equal chances. A writer that asks twice and then gives up delays readers
by up to a second.
*/
package sqltable

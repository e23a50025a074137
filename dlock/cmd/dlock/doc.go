// Command dlock runs a command under a distributed lock, so that only one copy runs at a
// time, on one machine or across machines.
//
//	dlock run [flags] KEY -- COMMAND [ARG...]
//	dlock elect [flags] KEY -- COMMAND [ARG...]
//	dlock status [--json] [--watch] [KEY...]
//	dlock unlock KEY --token N
//	dlock doctor [--json] [--ignore CODE]
//	dlock bootstrap [--url URL] [--nodes | --terms | --sql]
//	dlock drivers
//	dlock version
//
// Without any server, between the processes of one user of one machine:
//
//	dlock run nightly -- /usr/local/bin/nightly-report
//
// # dlock run
//
// It waits for the lock KEY, runs COMMAND while it holds the lock, and exits with COMMAND's
// exit code. It writes nothing if all is well, as cron wants it, and otherwise lines on
// stderr that say what is wrong and what to do.
//
//	--url URL        the backend (below)
//	--ttl D          how long the lease lasts unless it is renewed: 4s at least, 10s by
//	                 default; a URL's ttl= does the same. None on file
//	--wait D         how long to wait for the lock: a duration, 0 (ask once), or forever, the
//	                 default
//	--at-least D     keep the lock until D after the grant, even if COMMAND ends sooner: a job
//	                 of 50 ms on hosts whose clocks differ by a second must not run twice
//	--max-hold D     stop COMMAND when it has held the lock for D: SIGTERM a second before
//	                 (or a quarter of D, if that is less), then SIGKILL. No limit by default
//	--skip           if the lock is held, exit 0 and say nothing; dlock asks once, unless
//	                 --wait says otherwise
//	-E, --conflict-exit-code CODE
//	                 exit with CODE, and not with 75, if the lock is held
//	--slots N        let N commands (1 to 1024) run at a time, each with a slot of its own
//	--shared         share the lock with every other run with --shared, as flock -s
//	                 does; file and postgres only
//	--no-wait-children
//	                 free the lock when COMMAND ends, even if processes that it started are
//	                 still running, as flock -o does
//	--label NAME     the first part of the name that others see as the holder: host/pid by
//	                 default
//	--verbose        say what happens: where dlock locks, waiting, token, renewals, release
//
// The backend's URL is that of --url, else $DLOCK_URL, else the content of the file that
// $DLOCK_URL_FILE names, else "file:". A variable that is set and empty is an error, and so
// is "memory:", which locks nothing between processes. A URL with a password is refused as a flag, since
// every user of the machine can read command lines: put it into the environment, or
// better into a file that only its user may read. "dlock drivers" lists the forms.
//
// # What the command gets
//
// COMMAND is started without a shell, with dlock's environment, streams and open
// descriptors, and in a process group of its own. In its environment are
//
//	DLOCK_KEY       the key
//	DLOCK_KEYS      the keys of this dlock run and of those that it runs inside of, each
//	                as in the query of a URL, separated by spaces
//	DLOCK_FENCE     the fencing token: larger than that of every grant of the key before.
//	                Send it along to what the lock protects, and have that refuse a
//	                smaller one than the largest it has seen
//	DLOCK_DEADLINE  when the lease ends unless it is renewed (RFC 3339, UTC), as of the
//	                start; not set where the lock has no TTL
//	DLOCK_SLOT      with --slots: the number of the slot, 0 to N-1
//
// and never the URL: DLOCK_URL and DLOCK_URL_FILE are taken out. A COMMAND that runs
// dlock run itself needs a URL of its own, and another key: without a URL, or with a key
// of DLOCK_KEYS, which would wait for itself, the exit code is 64.
//
// Signals INT, TERM, HUP, QUIT, USR1, USR2, WINCH, TSTP and CONT to dlock are passed on to
// COMMAND's process group, and dlock ends when COMMAND does. After INT, TERM or QUIT also
// the processes that left the group (setsid) get the signal, when COMMAND has ended. (INT, TERM, HUP and QUIT end
// dlock while it still waits for the lock, and while it keeps it for --at-least on "file".
// HUP and INT are neither passed on nor obeyed where dlock's parent told it to ignore
// them, as nohup does.)
//
// A terminal is lent to COMMAND when it reads from it or sets it up; until then it stays
// with dlock's own group, so that a pager in the same pipeline, and a script's ctrl-C,
// work as they do without dlock. Ctrl-Z stops COMMAND and dlock; a lease with a TTL then
// ends by it, and the command with the lease.
//
// On Linux dlock keeps the lock until every process that COMMAND has started has
// ended, those in the background and those that left its process group (setsid) among
// them; elsewhere, until its process group has. A COMMAND that starts a daemon and
// returns holds the lock for the daemon's life. After two seconds a line on stderr names
// the processes. Start daemons through the service manager instead (systemctl start), or
// use --no-wait-children. Stopped jobs of a shell that has ended get HUP and CONT, as
// they do without dlock.
//
// # When the lease is in danger
//
// A lease with a TTL is renewed before a third of it is over. If that fails, for an outage say, it is
// tried again and again; and
//
//   - at max(TTL/4, 1s) before the lease's end SIGTERM is sent to COMMAND's process group,
//     so that it can end in order;
//   - at max(TTL/20, 100ms) before it SIGKILL is sent to every process that COMMAND has
//     started (elsewhere than on Linux: to its process group);
//   - when the backend says that the lease is lost, SIGKILL is sent at once.
//
// The exit code is 76 in each case, also if COMMAND ended by itself after SIGTERM, or the
// lease could be renewed after it. A TTL under 4s leaves no time for this, and is refused.
//
// What stops the command in time is a small process of its own, dlock-guard, COMMAND's
// parent. So COMMAND is stopped even if dlock itself is killed, stopped (SIGSTOP, a
// debugger, ctrl-Z) or hangs; the lock of a killed dlock ends with its TTL, or at once on
// "file". If the guard is killed, dlock kills the rest; if both are killed
// at one stroke, on Linux COMMAND dies with the guard, and what COMMAND has
// started may live on. On "file" it then keeps the lock: COMMAND and its children inherit
// the lock's descriptor (100 or above), and the lock is free when the last process
// that has it has ended, as with flock(1); with --no-wait-children they do not inherit it.
// A command that closes all descriptors when it
// starts its children (many daemons, Python's subprocess) takes that from them.
//
// A killed dlock keeps the lock for --at-least too: on Redis, Valkey and a quorum the server
// does, on "file" the guard, which stays until then. On postgres the lock ends with dlock.
//
// A process that runs as another user, through sudo say, may not be dlock's to
// kill. It then says which one survived, and does not release the lock.
//
// On Windows there are no process groups and no guard: COMMAND alone is killed, with no
// signal before, and it goes on if dlock is killed.
//
// # Exit codes
//
//	   64  wrong usage: a flag, a key, a URL or an option that the backend cannot honour
//	   69  the backend is out of reach, or refuses
//	   74  the output cannot be written
//	   75  the lock was not obtained in time (with --skip: 0; -E sets another code)
//	   76  the lease was lost, and the command was stopped
//	  126  the command cannot be executed
//	  127  the command was not found
//	128+n  dlock or the command was ended by signal n
//
// Any other is COMMAND's own. COMMAND can return these too; the line on stderr, which
// begins with "dlock: ", tells that it was dlock.
//
// With --wait forever an outage is waited out, with one line on stderr. A limited wait that
// ends in an outage is 69 and not 75: contention and outage are told apart.
//
// # dlock bootstrap
//
// It states that the servers of the locks are new, so that their restart guard does not
// keep them out, or, with --nodes, that their number changes: package redlock says what
// that is about. It does so only where all servers answer, and, without --nodes, none
// remembers a lock; otherwise the exit code is 69, and the line on stderr says which does
// not.
//
// With --sql it asks no server, and prints the statement that an administrator of a PostgreSQL
// database runs for the role in the URL.
//
// # dlock elect
//
// It is dlock run for a service of which one instance works: after a loss it kills COMMAND as dlock
// run does, and waits to lead again. COMMAND's end resigns, and its exit code is passed on; a
// signal is passed on to COMMAND, whose end then ends dlock elect. Candidates are served in order
// where the backend keeps a queue. --observe KEY prints who leads, and every change.
//
// # dlock status
//
// It shows who holds each KEY, with which token, since when and for how much longer, who waits and
// in which place, and, of a quorum, what each node says; without KEYs, every key under the prefix
// that somebody holds. A server is asked in small steps, none of which takes longer than a
// millisecond or so. PostgreSQL stores no names of keys: name them. --watch looks every second,
// and --json is for programs.
//
// # dlock unlock
//
// It takes the lock away from the holder whose token is N, and from no other: exit code 75, and
// the line on stderr says who has it. The holder learns of it at its next renewal, within a
// third of its TTL (a second on "file"), or when it runs again, and dlock run kills its command.
// On postgres it is the holder's session that is ended, with all locks on it (--session).
//
// # dlock doctor
//
// It checks whether the deployment keeps what its driver assumes: versions, eviction,
// persistence, memory, replicas, clocks, rights, a quorum's size, hosts, terms and quarantines;
// of PostgreSQL poolers, standbys, settings, replication, and the sequence of the tokens; of
// "file" the folder and its file system. Each finding has a code, what was measured, and, where
// a command can mend it, that command. The exit code is 0, 1 if there are warnings, 2 if
// a guarantee does not hold; --ignore CODE leaves out what you know.
//
// # From cron
//
// On many hosts, with clocks that differ by seconds, one of them runs the job:
//
//	DLOCK_URL_FILE=/etc/dlock.url
//	0 3 * * *  dlock run --skip --at-least 1m nightly -- /usr/local/bin/nightly-report
//
// On one machine, so that a job that takes long never runs twice, and nobody is mailed
// about it:
//
//	*/5 * * * *  dlock run --skip sync -- rsync -a /data backup:/data
//
// # From systemd
//
//	[Service]
//	Type=oneshot
//	Environment=DLOCK_URL_FILE=%d/dlock.url
//	LoadCredential=dlock.url:/etc/dlock.url
//	ExecStart=/usr/bin/dlock run --wait 10m migrate -- /usr/bin/app migrate
//	SuccessExitStatus=75
//
// A service of which one instance is active, and the others stand by:
//
//	[Service]
//	ExecStart=/usr/bin/dlock elect leader -- /usr/bin/app serve
//	Restart=always
//
// systemd's own SIGTERM reaches every process of the service, and dlock passes it on
// besides: COMMAND may get it twice (KillMode=mixed avoids that).
package main

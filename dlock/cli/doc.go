// Package cli is the command dlock: it runs a command under a distributed lock, so that only one
// copy runs at a time, on one machine or across machines. A main of one line makes a program with
// the drivers that it imports:
//
//	func main() { os.Exit(cli.Main(os.Args, os.Stdin, os.Stdout, os.Stderr)) }
//
// What follows is the command's manual, which "dlock help" prints as well, part by part.
//
// # dlock
//
// dlock runs a command under a lock, so that only one copy runs at a time, across machines. It
// shows who holds the locks, takes them away, and checks the servers. Without any server it locks
// between the processes of one user of one machine:
//
//	dlock run nightly -- echo "one at a time"
//
// The commands:
//
//	dlock run [flags] KEY -- COMMAND [ARG...]    run COMMAND while holding the lock KEY
//	dlock elect [flags] KEY -- COMMAND [ARG...]  run COMMAND while leading, again after a loss
//	dlock status [flags] [KEY...]                show who holds the locks, and who waits
//	dlock unlock [flags] KEY                     take a lock away from its holder
//	dlock doctor [flags]                         check the servers
//	dlock bootstrap [flags]                      declare servers new, or change their terms
//	dlock drivers                                list the drivers and the forms of their URLs
//	dlock completion SHELL                       print the completion for bash, zsh or fish
//	dlock version                                print the version
//	dlock help [COMMAND or TOPIC]                explain a command, or a topic
//
// The topics are url, environment, danger, exit, cron and systemd.
//
// # dlock run
//
// It waits for the lock KEY, runs COMMAND while it holds the lock, and exits with COMMAND's exit
// code. It writes nothing if all is well, as cron wants it, and otherwise lines on stderr that
// say what is wrong and what to do.
//
//	--url URL         the backend (dlock help url)
//	--ttl D           how long the lease lasts unless it is renewed: at least 4s, by default 10s
//	                  or what the URL says with ttl=; none on file
//	--wait D          how long to wait for the lock: a duration, 0 (ask once), or forever, the
//	                  default
//	--at-least D      keep the lock until D after the grant, even if COMMAND ends sooner: a job of
//	                  50 ms on hosts whose clocks differ by a second must not run twice
//	--max-hold D      stop COMMAND when it has held the lock for D: SIGTERM a second before (or a
//	                  quarter of D, if that is less), then SIGKILL
//	--skip            if the lock is held, exit 0 and say nothing; ask once, unless --wait says
//	                  otherwise
//	--conflict-exit-code CODE, -E CODE
//	                  exit with CODE, and not with 75, if the lock is held
//	--slots N         let N commands (1 to 1024) run at a time, each with a slot of its own
//	--shared          share the lock with every other run with --shared, as flock -s does, on a
//	                  backend with the feature shared (dlock drivers)
//	--no-wait-children
//	                  free the lock when COMMAND ends, even if it leaves processes behind, as
//	                  flock -o does
//	--label NAME      the first part of the name that others see as the holder; by default
//	                  host/pid
//	--verbose         say where dlock locks, and what happens: waiting, token, renewals, release
//
// With --wait forever an outage of the backend is waited out too, with a line on stderr when it
// begins and once a minute. A limited wait that ends in an outage is 69 and not 75: contention
// and outage are told apart.
//
// On Linux dlock keeps the lock until every process that COMMAND has started has ended, those in
// the background and those that left its process group (setsid) among them; elsewhere, until its
// process group has. A COMMAND that starts a daemon and returns holds the lock for the daemon's
// life. After two seconds a line on stderr names the processes. Start daemons through the service
// manager instead (systemctl start), or use --no-wait-children.
//
// A killed dlock keeps the lock for --at-least, too: the server does on a backend with the feature
// keep (dlock drivers), and on file the guard (dlock help danger). On the others the lock ends with
// dlock or with its TTL.
//
//	dlock run nightly -- /usr/local/bin/nightly-report
//	dlock run --skip --at-least 1m nightly -- backup --all     # from cron, on many hosts
//	dlock run --slots 3 thumbnails -- make-thumbnails          # three at a time, on all hosts
//	DLOCK_URL_FILE=/etc/dlock.url dlock run --wait 30s deploy -- sh -c 'echo $DLOCK_FENCE; make deploy'
//
// # dlock elect
//
// It is dlock run for a service of which one instance works at a time. The leader is the holder of
// the lock KEY: dlock elect waits for it, runs COMMAND, and, if the lock is lost, stops COMMAND and
// all that it started in time. Then it waits to lead again. Candidates are served in order where
// the backend keeps a queue. When COMMAND ends, dlock elect ends with its exit code. A signal is
// passed on to COMMAND.
//
//	--url URL         the backend (dlock help url)
//	--ttl D           how long the lease lasts unless it is renewed: at least 4s, by default 10s
//	                  or what the URL says with ttl=; none on file
//	--max-hold D      stop leading after D, and wait to lead again: leaders take turns
//	--no-wait-children
//	                  resign when COMMAND ends, even if it leaves processes behind
//	--label NAME      the first part of the name that others see as the leader; by default
//	                  host/pid
//	--verbose         say where dlock locks, and what happens
//
//	dlock elect scheduler -- /usr/local/bin/scheduler
//	watch dlock status scheduler        # who leads
//
// # dlock status
//
// It shows the holder of each KEY, its token, since when and for how much longer it holds the
// lock, the waiters in their order and, of a quorum, the answer of each node. Without KEYs it shows
// every key under the prefix that is held; a server is asked in many steps, each of a millisecond
// or so. PostgreSQL stores no names of keys: name them. Locks of other libraries are shown if you
// name them. The verdicts:
//
//	free               nobody has the key
//	held               one client has it, on a majority where there are several nodes
//	expiring           the holder has less than a second left, or no majority any more
//	kept for the next  it was released a moment ago, for the first in the queue
//	split              several clients have it on some nodes, none on a majority; they try again
//
// The flags:
//
//	--url URL         the backend (dlock help url)
//	--json            print the states in JSON, as an array of package driver's State; times are
//	                  RFC 3339, durations nanoseconds
//
//	dlock status nightly
//	dlock status --json | jq -r '.[] | select(.waiting > 0) | .key'
//
// # dlock unlock
//
// It takes the lock KEY away from the holder that status shows, and from no other: if another
// client holds the lock by now, nothing changes, and the exit code is 75.
//
// The holder notices at its next renewal, within a third of its TTL (a second on file), and dlock
// run then kills its command. A process that is stopped or hangs notices when it runs again. Until
// then two may work, and only a store that compares tokens refuses the old one. So try first to end
// the holder itself. On PostgreSQL the holder's session ends, with all locks on it.
//
//	--url URL         the backend (dlock help url)
//	--token N         the token of a lease: the holder's, or another of its range
//	--session ID      the holder's session, on PostgreSQL, which knows sessions and no tokens
//
//	dlock status nightly
//	dlock unlock nightly --token 1795363201000000
//
// # dlock doctor
//
// It checks whether the deployment is as its driver assumes: versions, eviction, persistence,
// memory, replicas, clocks, rights, a quorum's size, hosts, terms and quarantines; of PostgreSQL
// poolers, standbys, settings, replication, and the sequence of the tokens; of file the folder and
// its file system. It asks every server, takes no lock of yours, and changes nothing; only with
// setup=true in the URL of a SQL database it makes a table that is missing.
//
// Each finding has a code, which stays the same in later releases, what was measured, what to do,
// and, where a command can do it, which one. The commands hold no password: redis-cli takes it
// from REDISCLI_AUTH, psql from PGPASSFILE. The exit code is 0, 1 if there are warnings (a
// guarantee may not hold under load or after a failure), 2 if a guarantee does not hold (unsafe),
// or 64 or 69.
//
//	--url URL         the backend (dlock help url): the one that your programs use
//	--json            print the findings in JSON, as package driver's Diagnostic
//	--ignore CODE     leave out findings with this code; may be repeated
//
//	dlock doctor --ignore same-host --ignore appendonly
//	dlock doctor --json | jq -r '.[] | select(.severity == "unsafe") | .summary'
//
// # dlock bootstrap
//
// It states that the servers are new. A server without a memory of locks may have lost it, so its
// restart guard keeps it from voting until every lock that it may have forgotten has ended; a new
// server has none to forget. All servers must answer, and none may remember locks; otherwise the
// exit code is 69, and the error names the server. The documentation of package redlock explains
// the restart guard.
//
//	--url URL         the backend (dlock help url); with --changed the new URL
//	--changed         state that the quorum has changed: its nodes, more or fewer than they were
//	                  (no majority of the old ones may leave at once), and its terms,
//	                  restart_guard (the longest TTL), clock_allowance and drift_percent, are those
//	                  of the URL from now on. No lock is granted for one restart guard, the longer
//	                  of the two, in which all earlier leases end. Then give all clients the URL.
//	                  If a node fails meanwhile, nothing is unsafe: run it again. After a guard was
//	                  shortened, a node that forgets locks still waits for the longer one, until
//	                  this is run again
//	--dry-run         change nothing, and show what each server remembers, and its terms; with
//	                  --changed also whether it could be done
//	--sql             change nothing, and print the SQL that an administrator of the database runs
//	                  once for the role in the URL
//
//	dlock bootstrap --dry-run --url redlock:redis://a:6379,redis://b:6379,redis://c:6379
//	dlock bootstrap --changed --url redlock:redis://a:6379,redis://b:6379,redis://c:6379,restart_guard=2m
//
// # dlock drivers
//
// It lists the drivers that it has, their features and the forms of their URLs. Every URL takes the
// parameters ttl and prefix as well: redis://localhost:6379/0?ttl=30s&prefix=app:
//
//	memory       memory:NAME                                         one process: for trying things out
//	file         file:///FOLDER                                      one machine; file: is a folder of this user
//	redis        redis://USER:PASSWORD@HOST:6379/0
//	rediss       rediss://USER:PASSWORD@HOST:6379/0                  TLS
//	redis+unix   redis+unix:///SOCKET
//	valkey       valkey://USER:PASSWORD@HOST:6379/0
//	valkeys      valkeys://USER:PASSWORD@HOST:6379/0                 TLS
//	valkey+unix  valkey+unix:///SOCKET
//	redlock      redlock:redis://A,redis://B,valkey://C              a majority of servers; options follow as ,NAME=VALUE
//	both         both:memory:OLD memory:NEW                          two backends, to change from one to the other
//	postgres     postgres://USER:PASSWORD@HOST:5432/DB
//	postgresql   postgresql://USER:PASSWORD@HOST:5432/DB             the same
//	etcd         etcd://USER:PASSWORD@HOST:2379,HOST:2379/PATH
//	etcds        etcds://USER:PASSWORD@HOST:2379,HOST:2379/PATH      TLS
//	zk           zk://USER:PASSWORD@HOST:2181,HOST:2181/PATH
//	zks          zks://USER:PASSWORD@HOST:2181,HOST:2181/PATH        TLS
//	nats         nats://USER:PASSWORD@HOST:4222,HOST:4222/BUCKET
//	tls          tls://USER:PASSWORD@HOST:4222,HOST:4222/BUCKET      NATS over TLS
//	consul       consul://USER:TOKEN@HOST:8500/PATH
//	consuls      consuls://USER:TOKEN@HOST:8500,HOST:8500/PATH       TLS
//	mysql        mysql://USER:PASSWORD@HOST:3306/DB                  a table
//	mariadb      mariadb://USER:PASSWORD@HOST:3306/DB                the same
//	pgtable      pgtable://USER:PASSWORD@HOST:5432/DB                a table, behind poolers too
//	sqlite       sqlite:///FILE                                      a table, one machine
//
// The features: fencing, tokens that rise with every grant; session, the lock ends with its
// process or connection and needs no TTL; queueing, the server keeps a queue of waiters; ordered,
// the waiters of all clients are served in the order in which they came; shared, a mode for
// readers; node, can be a node of a quorum; keep, the server keeps a lock for --at-least even if
// dlock is killed; tokens, a grant may have several, so that a program can pass a lock on within
// itself.
//
// # dlock completion
//
// It prints what a shell needs to complete commands and flags. In ~/.bashrc, in ~/.zshrc after
// compinit, and in ~/.config/fish/config.fish:
//
//	source <(dlock completion bash)
//	source <(dlock completion zsh)
//	dlock completion fish | source
//
// # dlock version
//
// It prints the version of the module and of Go.
//
// # dlock help
//
// It prints a part of this manual, and with "man" all of it, for man(1):
//
//	dlock help man >/usr/local/share/man/man1/dlock.1
//
// # url
//
// The backend's URL is that of --url, else $DLOCK_URL, else the line in the file that
// $DLOCK_URL_FILE names, else "file:", locks of this user on this machine. A variable that is set
// and empty is an error, and so is "memory:", which locks nothing between processes. A URL with a
// password is refused as a flag, because every user of the machine can read command lines: put it
// into the environment, or better into a file. If every user can write that file, it is refused,
// and if every user can read it, a password in it is. "dlock drivers" lists the forms. Of both: give
// status, unlock and doctor each of the two URLs in turn.
//
// # environment
//
// COMMAND is started without a shell, with dlock's environment, streams and open descriptors, and
// in a process group of its own. In its environment are
//
//	DLOCK_KEY       the key
//	DLOCK_KEYS      the keys of this dlock run and of those that it runs inside of, each as in the
//	                query of a URL, separated by spaces
//	DLOCK_FENCE     the fencing token: larger than that of every grant of the key before. Send it
//	                along to what the lock protects, and have that refuse a smaller one than the
//	                largest it has seen
//	DLOCK_DEADLINE  when the lease ends unless it is renewed (RFC 3339, UTC), as of the start; not
//	                set where the lock has no TTL
//	DLOCK_SLOT      with --slots: the number of the slot, 0 to N-1
//
// and never the URL: DLOCK_URL and DLOCK_URL_FILE are taken out. A COMMAND that runs dlock run
// itself needs a URL of its own, and another key: without a URL, or with a key of DLOCK_KEYS, which
// would wait for itself, the exit code is 64.
//
// Signals INT, TERM, HUP, QUIT, USR1, USR2, WINCH, TSTP and CONT to dlock are passed on to
// COMMAND's process group, and dlock ends when COMMAND does. After INT, TERM or QUIT also the
// processes that left the group (setsid) get the signal, when COMMAND has ended. (INT, TERM, HUP
// and QUIT end dlock while it still waits for the lock, and while it keeps it for --at-least on
// file. HUP and INT are neither passed on nor obeyed where dlock's parent told it to ignore them,
// as nohup does.)
//
// A terminal is lent to COMMAND when it reads from it or sets it up; until then it stays with
// dlock's own group, so that a pager in the same pipeline, and a script's ctrl-C, work as they do
// without dlock. Ctrl-Z stops COMMAND and dlock; a lease with a TTL then ends by it, and the
// command with the lease. A stopped job that a shell leaves behind keeps the lock: end it.
//
// # danger
//
// A lease with a TTL is renewed before a third of it is over. If that fails, for an outage say, it
// is tried again and again; and
//
//   - at max(TTL/4, 1s) before the lease's end SIGTERM is sent to COMMAND's process group, so that
//     it can end in order;
//   - at max(TTL/20, 100ms) before it SIGKILL is sent to every process that COMMAND has started
//     (elsewhere than on Linux: to its process group);
//   - when the backend says that the lease is lost, SIGKILL is sent at once.
//
// The exit code is 76 in each case, also if COMMAND ended by itself after SIGTERM, or the lease
// could be renewed after it. A TTL under 4s leaves no time for this, and is refused.
//
// What stops the command in time is a small process of its own, dlock-guard, COMMAND's parent. So
// COMMAND is stopped even if dlock itself is killed, stopped (SIGSTOP, a debugger, ctrl-Z) or
// hangs; the lock of a killed dlock ends with its TTL, or at once on file. If the guard is killed,
// dlock kills the rest. If both are stopped, nothing stops COMMAND before they go on. If both are
// killed at one stroke, on Linux COMMAND dies with the guard, unless its program has the
// set-user-ID or set-group-ID bit or file capabilities, or it changed its user; what COMMAND has
// started may live on. On file it then keeps the lock: COMMAND and its children inherit the lock's
// descriptor (100 or above), and the lock is free when the last process that has it has ended, as
// with flock(1); with --no-wait-children they do not inherit it. A command that closes all
// descriptors when it starts its children (many daemons, Python's subprocess) takes that from them.
//
// A process that runs as another user, through sudo say, may not be dlock's to kill. dlock then
// says which one survived, and does not release the lock.
//
// On Windows there are no process groups and no guard: COMMAND alone is killed, with no signal
// before, and it goes on if dlock is killed.
//
// # exit
//
// The exit codes:
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
// Any other is COMMAND's own. COMMAND can return these too; the line on stderr, which begins with
// "dlock: ", tells that it was dlock.
//
// # cron
//
// On many hosts, with clocks that differ by seconds, one of them runs the job:
//
//	DLOCK_URL_FILE=/etc/dlock.url
//	0 3 * * *  dlock run --skip --at-least 1m nightly -- /usr/local/bin/nightly-report
//
// On one machine, so that a job that takes long never runs twice, and nobody is mailed about it:
//
//	*/5 * * * *  dlock run --skip sync -- rsync -a /data backup:/data
//
// # systemd
//
// A job:
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
// systemd's own SIGTERM reaches every process of the service, and dlock passes it on besides:
// COMMAND may get it twice (KillMode=mixed avoids that).
package cli

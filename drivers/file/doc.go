// Package file locks between the processes of one machine, with files and flock(2),
// and needs no server. The kernel frees a lock when its holder dies, however it dies.
//
//	file:                  the user's own state folder
//	file:///var/lock/app   a folder; on Windows file:///C:/locks
//
// # Sessions
//
// A lock lives with the process that holds it and has no TTL; a request with a TTL is refused.
// If a lock must end with a command instead, let the command inherit [Lease.File]: the key is
// then held until the last process that has the descriptor exits, as with flock(1).
//
// # Waiting
//
// Acquire makes one attempt. A blocking flock(2) would be the fastest and fairest way to wait,
// but it cannot be interrupted: a cancelled wait would leave its thread behind, which would
// later take the lock without an owner. So a waiter tries again: on Linux when Watch signals
// that a holder has released the lock or died (by inotify(7), with one instance per backend
// from its first wait on; it takes about 0.15 ms between processes), elsewhere by polling.
// Processes are served in no particular order.
//
// # Files
//
// Each key has one file, named for the key and its hash: the lock is on it, and its text names the
// last holder, for people. Sixteen more files, .gate-0 to .gate-f, are each locked while a lock of
// one of their keys is taken, looked at or broken, and have the counter of the tokens. A folder does
// not grow for ever: with each new key a backend also removes the files of some keys that are free
// and have not been used for ten seconds. (Not on Windows, nor where others own the files of a
// folder with the sticky bit.) The file .gates is locked while one of the sixteen is made.
//
// Do not remove the files yourself while a program may use them: if you remove the file of a
// held lock, the holder learns of it only within a second, and until then a second holder can
// run beside it. A folder that no program uses may be removed; tokens then go on from the clock.
//
// A lease has one descriptor open. If the process can open no more, the refusal names the limit,
// and Lock tries again. A process that is stopped in the microseconds in which it has a gate stops
// others that use a key of that gate: after five seconds their error names the file, and so does
// that of List, after the keys of the other gates.
//
// Tokens are those of [driver.NextFence]. They rise whatever the clock does, also if a process
// dies in the middle of writing, and also over a power failure: a limit for the next ten
// seconds of tokens is synced to the disk before the first of them is returned (0.1 ms on a
// fast disk, about 10 ms on a slow one). If both records of a counter are damaged or missing its
// keys are refused, and the error says what to do.
//
// # Folders
//
// The default folder is $XDG_STATE_HOME/dlock, else $HOME/.local/state/dlock; on macOS
// ~/Library/Application Support/dlock; on Windows %LocalAppData%\dlock. A process without HOME,
// such as a service, looks up the home of its user. The default folder is made with mode 0700. It
// is refused if it belongs to another user, is writable by others, or is a symbolic link.
//
// A folder that you name is used as it is. If it does not exist it is made for this user alone.
// Users who may write in the folder share its locks: files get mode 0600, 0660 or 0666, depending
// on who may write in the folder, and whatever the umask is. To share locks make the folder first,
// with the sticky bit, so that no user removes another user's files: mkdir -m 3770 for a group, or
// mkdir -m 1777 for all. Any user who shares a lock can hold it for ever, so share only with users
// you trust.
//
// A file is refused if it is a symbolic link, has a second name, or belongs to another user in
// a folder that is not shared.
//
// # Network file systems
//
// Locks are made for local disks. On NFS, Linux turns them into locks of the server, which are
// lost without notice when the NFS lease runs out or the server restarts. Older clients and SMB
// mounts may lock only within one machine; some file systems have no locks at all, which is an
// error. [Backend.Check] reports such a folder as unsafe. Use a driver with a server between
// machines.
//
// # Inspection
//
// The backend is a [driver.Inspector], and on Unix a [driver.Admin]: Break replaces the lock
// file. On other systems end the holder instead; Lookup returns its process id.
package file

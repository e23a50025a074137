// Package file locks between the processes of one machine, with files and flock(2),
// and needs no server. The kernel frees a lock when its holder dies, however it dies.
//
//	file:                          the user's own state folder
//	file:///var/lock/app           a folder
//	file:///var/lock/app?mode=0660 a folder that is shared with its group
//
// # Sessions
//
// A lock lives with the process that holds it and has no TTL, so that an explicit one is
// refused. Where a lock must end with a command instead, let the command inherit
// [Lease.File]: the key is then held until the last process that has the descriptor
// exits, as with flock(1).
//
// # Waiting
//
// Acquire makes one attempt. A blocking flock(2) would be the fastest way to wait and
// the fairest, but no thread can be called back from it: a wait that is cancelled would leave its
// thread behind, and take the lock later for nobody. So a waiter asks again: on
// Linux when Watch says that a holder has gone (inotify(7), one instance per backend while
// anybody waits, across processes, some 0.15 ms), elsewhere by polling. No order is kept
// among processes.
//
// # Files
//
// Each key has two files, named for the key and its hash: an empty one for the lock, and
// one for its state, a line of text with the counter of the tokens and the last holder,
// for people. A folder does not grow for ever: backends that make new keys remove the files of
// keys that are free and were not used for ten seconds, some with each new key, and all of them
// every quarter of a minute or less often. (Not on Windows, nor where others own the files of a
// folder with the sticky bit.) What the counters of removed keys had reached is kept in one more
// file, .high-water, above which new counters begin.
//
// Do not remove the files yourself while a program may use them: a removal has to hold the
// key's lock, and an attempt that finds its file replaced begins anew, but a holder is told
// only within a second, and the next one runs beside it until then. (Tell systemd-tmpfiles of a folder in /var/tmp:
// "x /var/tmp/dlock-*".) A folder that no program uses may be removed; tokens then go on
// from the clock.
//
// A lease has two descriptors open. A process that can open no more is told so: the refusal
// names the limit, and Lock tries again.
//
// Tokens are those of [driver.NextFence]. They rise whatever the clock does, also if a
// process dies in the middle of writing, and also over a power failure: what
// has to be on the disk is synced before the token is returned, once in ten seconds of
// tokens (0.1 ms here, some ten on a slow disk). Where both records of a state file
// are damaged the key is refused, and the error says what to do.
//
// # Folders
//
// The default folder is $XDG_STATE_HOME/dlock, else $HOME/.local/state/dlock; on macOS
// ~/Library/Application Support/dlock; on Windows %LocalAppData%\dlock. A process
// without HOME, a service of systemd say, gets /var/tmp/dlock-UID. That is another
// folder, and so another lock: name the folder where jobs with and without a home are
// to exclude each other. The default folder is made with mode 0700, and refused where
// it belongs to another user, can be written by others, or is a symbolic link.
//
// A folder that you name is used as it is, and made for this user alone if it is not there, unless
// mode says otherwise. Who may write in it may share its locks: files are made with mode
// 0600, 0660 or 0666 as the folder is writable for its group and for all, or as the parameter mode says.
// Give a shared folder the sticky bit (chmod 1777, or 3770 for a group), so that nobody
// removes another's files; everybody who shares a lock can hold it for ever, so share with those you trust.
//
// A file that is a symbolic link, has a second name, or, in a folder that is not
// shared, belongs to a stranger, is refused.
//
// # Network file systems
//
// Locks are made for local disks. On NFS Linux turns them into locks of the server,
// which are lost without notice when the lease runs out or the server restarts; older
// clients and SMB mounts may lock on one machine only; some have no locks at all, which
// is an error. [Backend.Check] reports such a folder as unsafe. Use a driver with a
// server between machines.
//
// # Inspection
//
// The backend is a [driver.Inspector], and on Unix a [driver.Admin]: Break replaces the lock
// file. Elsewhere end the holder instead, whose process id Lookup gives.
package file

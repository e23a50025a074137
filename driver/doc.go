// Package driver is the contract between package dlock, which applications import, and the
// backends that keep locks.
//
//	application
//	     |   Lock, TryLock, Do, Unlock
//	     v
//	   dlock            waiting, renewal, deadlines, hooks: written once
//	     |   Acquire, Renew, Release
//	     v
//	   driver           the contract: this package
//	     |   implemented by
//	     v
//	  drivers/memory   drivers/file   drivers/goredis   drivers/postgres   …
//	                                        ^
//	  drivers/redlock ----------------------+   a majority of other backends
//
// A driver answers one question, whether this owner has this key, and never guesses. Package
// dlock builds everything else on the answer, once for all drivers: retries and their pauses,
// the wait queue of a process, renewal in time, the end of a lease before another owner can get
// the lock, hooks and statistics.
//
// # How to write a driver
//
// The file example_test.go is a whole driver of two hundred lines. It stands on package driver/base,
// which has what every driver needs: calls and Close, the undoing of what is in doubt, the lease's
// shell, the findings of Check. The steps:
//
//  1. Write Open. Take the DSN apart with an allowlist of your own, refuse every parameter that
//     you do not know by its name, and connect to nothing. Never put the DSN, or the error of
//     another package's URL parser, into an error: they contain passwords. Package driver/dsn
//     reads URLs and their parameters by these rules.
//  2. Write Info. Claim a feature only if the server does it; dlock has a fallback for
//     each that is missing.
//  3. Write Acquire: first [Info.Check], then the instant from which the lease counts,
//     then one request to the server that decides and takes in one step, and compares
//     the server's clock with nobody's. Store the owner and the token beside the lock:
//     they tell this acquisition from every other.
//  4. Give the token of [NextFence], on the server, in that same step. The counter of
//     a key outlives its lock.
//  5. Write Renew and Release so that they match the exact acquisition, owner and
//     token: a lease that ended is never extended, and never frees its successor.
//  6. Find the three outcomes that are definite among the answers of the server:
//     [HeldError], [ErrLost], [RefusedError]. Leave everything else as it is: it is
//     unknown, and callers act on that.
//  7. Undo the attempt on every path that returns an error, with context.WithoutCancel
//     and a timeout of your own, until it is certain that nothing is left: base.Calls.Undo.
//  8. Add the optional parts: a [Watcher] if the server can tell of a release,
//     FeatureQueueing if the server keeps a wait queue itself, an [Inspector] and an [Admin]
//     for people.
//  9. Register it: dlock.Register("name", d) in an init of the driver's package. The
//     name is the scheme of its URLs.
//  10. Run package redlocktest on it. It checks all of this, with races,
//     cancellations and faults, and quotes the rule that was broken.
//
// # Easily overlooked
//
//   - The error of a timeout of your own must not be context.DeadlineExceeded to errors.Is.
//     That is for the caller's context alone, and some client libraries mix the two up.
//   - Clean-up may be under way when Close is called. Let it go on for a moment, under a
//     context that does not end with the backend, and close the client after it. Count the
//     calls: a call that Close has just ended begins its clean-up then.
//   - Client libraries repeat requests. A request without an answer may arrive after later
//     requests, even after its own release: the server must tell them apart.
//   - ErrLost and nil from Release are certain. With several servers, ask so that a majority
//     answers: a member that was cut off, or a leader that was replaced, has old data.
//
// # What is often asked
//
//   - Where is the example? "go doc" shows none: read example_test.go of this package, a whole
//     driver, and package drivers/memory.
//   - How long does a counter of tokens live? Longer than its lock, and as long as anything may
//     still compare its tokens: for ever, or until the server's clock has certainly passed the
//     last token. The first token of a new counter is at least the time when that counter
//     begins (rule 8).
//   - Must a backend that cannot be a node of a quorum honour FenceFloor? No. Only a quorum
//     sets it, for its nodes: a backend without FeatureQuorumNode may ignore it. NextFence
//     honours it in any case.
//   - May a server round TTLs up? Yes: the lock then stays a little longer, and Expires follows
//     the TTL that was asked for. redlocktest.Harness.Grace says how much longer. It must never
//     round down.
//   - May Renew shorten a lease? Yes: Expires and the end on the server both follow the
//     renewal's own TTL, even if they become earlier. If the outcome of such a renewal is
//     unknown, the lock may end by either TTL, so count on the earlier end.
//   - What do Release and Lost do after Close? Release may still free the lock, or fail with
//     ErrClosed; in that case the lock stays until its TTL ends. Leases of a session end with
//     Close, and their Lost is closed.
//   - Is a loop of compare-and-swap allowed? Yes: it is one attempt if it ends with one verdict
//     in bounded time, and if each iteration decides and takes the lock in one step on the
//     server. Return a *HeldError only if an owner was seen, not after a mere conflict.
//   - What does rule 10 require? A version number in the stored data, checked before the first
//     grant. Refuse data of a later release with a *RefusedError, and read the old layout for
//     as long as two releases may run side by side.
//
// # The rules
//
//  1. Four outcomes. *HeldError, which is [ErrHeld]: another owner has the lock.
//     [ErrLost]: this owner no longer has it, for certain. *RefusedError, which is
//     [ErrRefused]: the server refused the request, for now (RetryAfter over zero: loading,
//     quarantine) or as it is configured (zero: password, read-only). Everything else is
//     unknown: it may have happened. A renewal that ends in unknown is tried again until
//     the lease's deadline. (Misuse, [ErrInvalid], comes before any of them.)
//  2. A failed call cleans up. On any error Acquire undoes its attempt, on a context of its
//     own, never on the caller's, which may have ended. Release works after cancellation
//     too.
//  3. A lease counts from before its request. [Expires] takes an instant before the
//     first byte was sent, and after a native wait the start of one confirming round
//     trip. TTLs are at least [MinTTL]. The deadline of ctx bounds the effect as well as
//     the wait: if it can, a driver makes the server refuse a request that arrives later.
//  4. Nothing is ignored. An unknown parameter, an unknown mode, a TTL out of bounds, or a
//     TTL for locks that have none, is an error that names it, before any I/O.
//  5. A quorum says that a lock is held only if one other owner was seen on enough
//     nodes to rule a majority out. Any other split it settles itself in a bounded number
//     of rounds, without Wait too: of a hundred attempts on a free key exactly one wins.
//     The answers of a minority never match errors.Is: see [quorum.Error].
//  6. No reentrancy. The same process asking twice is two owners.
//  7. Nothing leaks. No goroutine, connection or key remains after Close, after an
//     Acquire that was cancelled, or behind a server that never answers. The requests
//     that are under way to one server are bounded.
//  8. Tokens are comparable across backends: at least the time in microseconds when
//     the key's counter began, at most [MaxFence], and strictly rising per key: an exclusive
//     lease's token is larger than that of every lease before it, and a shared lease's larger
//     than that of every exclusive lease before it and of every shared lease that was granted
//     before its call of Acquire. Two shared leases whose calls overlapped may have the same
//     token. So a store that refuses old tokens accepts those of another backend after a change
//     of configuration.
//  9. No secret is in any error, log line, event, vote or list of processes.
//  10. Stored data has a layout version. Two releases that run side by side, while one
//     replaces the other, exclude each other.
//
// The doc comments of the methods repeat the rules that concern them.
package driver

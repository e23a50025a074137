// Package memory locks within one process. It is the reference implementation of
// the driver contract, the node of a simulated quorum, and a double for the tests of
// code that uses locks.
//
// # As a test double
//
// New returns a backend with a lock space of its own. One line each brings about contention,
// loss and outages:
//
//	release := b.Hold("nightly") // another owner has it: ErrHeld
//	b.Expire("nightly")          // its holder loses it, and is told at once: ErrLost
//	b.Fail(err)                  // every call answers err
//	b.SetOutage(memory.Outage{Hang: true})                   // no call is answered
//	b.SetOutage(memory.Outage{Delay: time.Second})           // every call takes a second
//	b.SetOutage(memory.Outage{RenewalsOnly: true, Err: err}) // locks are granted, and not renewed
//	b.Fail(nil)                  // all is well
//
// A double should not be more able than the backend for which it stands. Options.Info gives it
// the features, the modes and the bounds of TTLs of that one:
//
//	deployed, err := dlock.OpenBackend("redis://host:6379/0") // connects to nothing
//	...
//	b := memory.New(&memory.Options{Info: deployed.Info()})
//
// Redis learns of a loss at the next renewal, which a double reports at once: a test need not
// wait for it.
//
// Time is read with time.Now and waited for with timers, so that everything works under
// testing/synctest: a TTL of ten seconds passes at once. Make the backend inside of the
// bubble, or share none across bubbles.
//
// # As a backend
//
// The URL "memory:name" opens the lock space of that name, which all backends of
// this process that were opened by this name share; "memory:" is the one with the
// empty name. Each backend stands for a process of its own: closing one ends its
// waiting calls and frees no lock, since locks end by release or by their TTL, and it
// leaves the others as they are. Peer gives another backend on the space of one that
// New made.
//
// # What it does
//
// Waiting is native and first come, first served: a request that may wait stands
// in line, a shared request never overtakes an exclusive one that waits, and shared
// requests next to each other in the line are granted together. An expired lock
// passes to the first in line at that instant. Nothing runs in the background: a
// lock has no timer unless somebody waits for it or watches it, and no goroutine ever.
// To take and release a free key is about 200 ns and one allocation.
//
// Tokens are those of [driver.NextFence]. The counter of a key that nobody has
// used for a minute may be dropped: all later counters start above the largest that
// was dropped, so that tokens keep rising even if the clock goes back, and keys that
// are used once and never again do not fill the memory.
//
// As a node of a quorum it honours [driver.Request.FenceFloor], ExactFence, MinFence, the
// guard (a longer TTL is refused) and the grace (which is added to the TTL), and
// refuses what comes after its context's deadline. It needs no quarantine, because a
// space never comes back without its memory.
package memory

// Package memory locks within one process. It is the reference implementation of
// the driver contract, the node of a simulated quorum, and a double for the tests of
// code that uses locks.
//
// # As a test double
//
// New returns a backend with a lock space of its own. Contention, loss and outages take one
// line each:
//
//	release := b.Hold("nightly") // another owner has it: ErrHeld
//	b.Expire("nightly")          // its holder loses it, and is told at once: ErrLost
//	b.Fail(err)                  // every call answers err
//	b.SetOutage(memory.Outage{Hang: true})                   // no call is answered
//	b.SetOutage(memory.Outage{RenewalsOnly: true, Err: err}) // locks are granted, and not renewed
//	b.Fail(nil)                  // all is well
//
// A double should not do more than the backend that it replaces. Options.Info gives it that
// backend's features, modes and bounds of TTLs:
//
//	deployed, err := dlock.OpenBackend("redis://host:6379/0") // connects to nothing
//	...
//	b := memory.New(&memory.Options{Info: deployed.Info()})
//
// Redis notices a loss at the next renewal. A double reports the loss at once, so that a test
// need not wait.
//
// The backend uses time.Now and timers, so that everything works under testing/synctest: a TTL
// of ten seconds passes at once. Make the backend inside the bubble, and share no backend
// between bubbles.
//
// # As a backend
//
// The URL "memory:name" opens the lock space of that name, which all backends of this process
// that were opened by this name share; "memory:" is the one with the empty name. Each backend
// stands for a process: closing it ends its waiting calls and frees no lock, because locks end
// by release or by their TTL. The other backends go on. Peer returns another backend on the
// space of a backend that New made.
//
// # What it does
//
// Waiting is native and first come, first served: a request that may wait stands in a queue, a
// shared request never overtakes an exclusive one that waits, and adjacent shared requests are
// granted together. An expired lock passes to the first waiter at that instant. Nothing runs in
// the background: a lock has no timer unless somebody waits for it or watches it, and no
// goroutine ever. Taking and releasing a free key costs about 200 ns and one allocation.
//
// Tokens are those of [driver.NextFence]. The counter of a key that nobody has used for a
// minute is dropped within a minute of the space's use: all later counters start above the largest
// dropped one. So tokens rise even if the clock goes back, and keys that are used only once do not fill
// the memory.
//
// As a node of a quorum it honours [driver.Request.FenceFloor], ExactFence, MinFence, the guard
// (a longer TTL is refused) and the grace (which is added to the TTL), and refuses a request
// that comes after its context's deadline. It needs no quarantine, because a space never comes
// back without its memory.
package memory

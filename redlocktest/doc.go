// Package redlocktest checks that a driver keeps the contract of package driver.
//
// A driver's author writes one test:
//
//	func TestConformance(t *testing.T) {
//		address := startServer(t)
//		redlocktest.Run(t, redlocktest.Harness{
//			Open: func() (driver.Backend, error) { return mydriver.New(address) },
//			TTL:  time.Second, // the shortest at which expiry can be relied upon
//		})
//	}
//
// Run makes one subtest a case: "exclusion/race", "cancel/during". The basic ones come first,
// and if they fail nothing else is run. A case uses only features that [driver.Info.Features]
// promises and optional interfaces that the backend has. Cases that do not apply are no
// subtests; a line of the log counts them. Each failure says what happened, where in the suite
// it was found, and quotes the broken rule of the contract. [Examine] is the same without a
// testing.T, and so is the command redlocktest/cmd/redlocktest, which takes a URL.
//
// # While you write a driver
//
// Set Harness.Timeout to 20 s: a call that never returns, or a signal that never comes, is then told
// after 15 s. Run prints the first failure at once, to standard error, and ends in time before go
// test's own -timeout. Set Harness.Only to repeat one case, such as "watch/wakes".
//
// # Test your driver in twenty lines
//
// With a server, a proxy for each backend, helper processes and all faults:
//
//	func TestMain(m *testing.M) {
//		redlocktest.ServeClient(func(addr string) (driver.Backend, error) { return mydriver.New(addr) })
//		os.Exit(m.Run())
//	}
//
//	func harness(t *testing.T) redlocktest.Harness {
//		s := server.Command(t, []string{"redis-server", "--port", "{port}", "--dir", "{data}", "--appendonly", "yes", "--appendfsync", "always"}, nil)
//		h := fault.Harness(s.Addr(), func(addr string) (driver.Backend, error) { return mydriver.New(addr) })
//		h.Grace = 20 * time.Millisecond // the server keeps a lock so much longer than its TTL
//		h.Process = func() (*redlocktest.Client, error) { return redlocktest.StartClient(s.Addr()) }
//		h.Faults.Kill, h.Faults.Restart = s.Kill, s.StartAgain
//		h.Faults.Pause, h.Faults.Resume = s.Pause, s.Resume
//		return h
//	}
//
//	func TestConformance(t *testing.T) { redlocktest.Run(t, harness(t)) }
//	func TestStress(t *testing.T)      { redlocktest.Stress(t, harness(t), redlocktest.StressOptions{}) }
//
// # What the cases mean
//
//   - basic: a grant, a refusal and a release. If one fails, nothing else is run.
//   - open: the URL is read with an allowlist, without I/O, and no error quotes a secret.
//   - request: any key of 1 to 512 bytes is a lock of its own; misuse is named before any I/O.
//   - exclusion: of a hundred attempts one wins; the same process asking twice is two owners.
//   - verdict: each error is one of the four outcomes, and its data on the holder are true.
//   - expiry: leases end neither early nor late; a lease that ended is not extended and frees nothing.
//     A lease whose first call after its end is Release frees nothing, too.
//   - cancel, leak, close: nothing is left behind, however a call ends.
//   - wait, watch: no wake-up is lost. fence: tokens rise. node: the requirements of a quorum
//     on its nodes.
//   - shared, operator: for backends that have the mode, or driver.Inspector and driver.Admin.
//   - fault: a fault that the harness causes is an unknown outcome, not contention or loss.
//   - link: one client's link hangs or breaks: calls and Close return, nothing arrives late, and
//     waiters behind it go on. process: clients that are killed or stopped.
//   - history: some order of all calls explains their answers.
//
// [Stress] is a longer search for errors that show only once in many thousand calls.
//
// # Levels
//
// A backend needs few features to be useful. Without tokens (FeatureFencing) it protects work
// that is merely wasteful if done twice. Without TTLs (FeatureSession, and MaxTTL zero) a lock
// ends with its session, and no case waits for an expiry. Without Watch callers poll. A Watch
// that resumes after its connection broke need not report the break, if it delivers the signals
// that it missed.
//
// # What the suite cannot find
//
// It cannot find a bug that needs more load, more time or another fault than a run has; servers
// that lose acknowledged data, unless the harness has Kill and Restart; clocks that run at
// different rates; errors of a quorum with other servers than the tested ones; a wrong hint
// that no case checks (such as HeldError.PollAfter); a user who goes on working after the
// lease's end.
//
// # Time
//
// A case fails because of time only if a lease's own deadline is violated, or if the whole
// case's time ([Harness.Timeout]) is over. If a lease ended because the machine stood still,
// the case begins anew with a longer TTL. The contract allows unknown outcomes (such as a
// node's timeout on a busy machine), and the case tries again.
//
// # Faults
//
// [Faults] are hooks with which a harness injects faults: kill, pause and restart servers, cut,
// reset and slow connections, lose a reply, let servers forget. Each hook makes further cases run, or
// is a fault of histories and of the stress.
//
// # Names
//
// [Harness.Skip] leaves out a case that a driver cannot pass, and needs the reason. Skip only
// behaviour that the contract leaves open, such as listing keys that are stored as hashes. An update
// may bring new cases; Skip gives time to pass them.
package redlocktest

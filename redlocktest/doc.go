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
// Run makes one subtest a case: "exclusion/race", "cancel/during". The basic ones come
// first, and if they fail nothing else is run. A case asks only for what
// [driver.Info.Features] promises and for the optional interfaces that are there; one that
// does not apply is no subtest, and a line of the log counts them.
// Each failure says what happened, where in the suite it was found, and which rule
// of the contract it breaks, in words. [Examine] is the same without a testing.T, and so is
// the command redlocktest/cmd/redlocktest, which takes a URL.
//
// # Test your driver in twenty lines
//
// With a server, a proxy for each backend, helper processes and all faults:
//
//	func TestMain(m *testing.M) {
//		redlocktest.ServeClient(func(url string) (driver.Backend, error) { return mydriver.New(url) })
//		os.Exit(m.Run())
//	}
//
//	func harness(t *testing.T) redlocktest.Harness {
//		s := server.Command(t, []string{"myserver", "--port={port}", "--data={data}"}, nil)
//		h := fault.Harness(s.Addr(), func(addr string) (driver.Backend, error) { return mydriver.New(addr) })
//		h.Process = func() (*redlocktest.Client, error) { return redlocktest.StartClient(s.Addr()) }
//		h.Faults.Kill, h.Faults.Restart = s.Kill, func(bool) error { return s.Start() }
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
//   - verdict: each error says one of the four outcomes, and what it tells of the holder is so.
//   - expiry: leases end neither early nor late; a lease that ended is not extended and frees nothing.
//   - cancel, leak, close: nothing is left behind, however a call ends.
//   - wait, watch: no wake-up is lost. fence: tokens rise. node: what a quorum asks of its nodes.
//   - shared, operator: for backends that have the mode, or driver.Inspector and driver.Admin.
//   - fault: what the harness breaks is an unknown outcome, and not contention or loss.
//   - history: some order of all calls explains their answers.
//
// [Stress] is the long search beside the cases: for what shows once in many thousand calls.
//
// # Levels
//
// A backend needs few features to be useful. Without tokens (FeatureFencing) it protects work that
// is merely wasteful if done twice. Without TTLs (FeatureSession, and MaxTTL zero) a lock ends with
// its session, and no case waits for an expiry. Without Watch callers poll; a Watch that resumes
// where its connection broke need not tell of the break, as long as it delivers what it missed.
//
// # What the suite cannot find
//
// A bug that needs more load, more time or another fault than a run has. Servers that lose what
// they acknowledged, unless the harness makes them: Kill and Restart. Clocks that run at other
// rates, and whether a quorum of other servers than those at hand is right. A wrong hint (how long
// a lock is held, say) that no case asks for. A user who goes on working after the lease's end.
// New cases are advisory for one minor version: skip one with its name as the reason, and the next
// minor version is the time to pass it.
//
// # Time
//
// No case fails because something took long, but against a lease's own deadline, and
// when the whole case's time ([Harness.Timeout]) is over. Where a lease ended because the
// machine stood still, the case begins anew with a longer TTL. Unknown outcomes (a
// node's timeout on a busy machine) are allowed by the contract, and are tried again.
//
// # Faults
//
// [Faults] are hooks by which a harness offers what it can break: kill, pause and
// restart servers, cut and slow connections, lose a reply. Each makes further cases run.
//
// # Names
//
// A case that a driver cannot pass for a reason is left out by [Harness.Skip], which
// asks for the reason. Skipping is for what the contract leaves open, a listing of keys
// that are stored as hashes say.
package redlocktest

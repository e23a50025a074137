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

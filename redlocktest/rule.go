package redlocktest

import "fmt"

// A rule is what a failure breaks, in the words in which the failure quotes it: a rule of the driver
// contract with its number, or a sentence of a doc comment of package driver.
type rule string

const (
	exclusion    rule = "exclusion: while a lease has not expired, no other owner gets the lock"
	fourOutcomes rule = "rule 1: four outcomes. *HeldError (is ErrHeld): another owner has it. ErrLost: this owner no longer has it, for certain. " +
		"*RefusedError: the server refused the request, temporarily or permanently. Everything else is unknown, and none of these"
	undoes rule = "rule 2: on any error Acquire undoes what it did, on a context of its own and never on the caller's cancelled one; " +
		"Release likewise works after cancellation"
	expires rule = "rule 3: Expires counts from an instant before the first byte was sent: start + TTL - drift, drift = TTL/100 + 2 ms, after a native wait " +
		"from the start of one confirming round trip; ctx's deadline bounds the effect too"
	refuses rule = "rule 4: a driver refuses what it cannot honour (an unknown mode, a TTL out of bounds, an explicit TTL where there is none) " +
		"with an error that names the thing, before any I/O; nothing is silently ignored"
	oneWins      rule = "rule 5: of a hundred attempts on a free key exactly one wins; held is said only if one other owner has it"
	noReentrancy rule = "rule 6: no reentrancy. The same process asking twice is two owners"
	noLeaks      rule = "rule 7: no goroutine, connection or key remains after Close, after a cancelled Acquire, or behind a server that never answers"
	tokens       rule = "rule 8: tokens are comparable across backends: at least the Unix time in microseconds of the counter's creation, below 2^53, " +
		"strictly increasing per key, from every lease to a later writer's and from a writer's to every later lease"
	noPassword rule = "rule 9: no password in any error"
	layout     rule = "rule 10: what is stored has a layout version, and two releases running at the same time exclude each other"

	acquiring  rule = "driver.Backend.Acquire: a nil error is a grant, with a lease; if ctx ends, the error wraps ctx.Err()"
	requesting rule = "driver.Request: keys are 1 to 512 bytes of any value, each a lock of its own; the caller may reuse the request"
	renewing   rule = "driver.Lease.Renew: extends the lease to TTL from now if this very acquisition still has the lock, and never takes it again; " +
		"ErrLost where it has not"
	releasing rule = "driver.Lease.Release: frees this very acquisition's lock and never another's; nil: the lock is free of this lease; " +
		"a call after a nil or ErrLost returns nil"
	closing rule = "driver.Backend.Close: calls under way return, later ones fail with ErrClosed, a second Close returns nil; leases are not released, " +
		"but for session backends, whose locks end with the session"
	describing rule = "driver.Info: constant over the backend's life; MinTTL is at least 10 ms; both bounds are zero only where there is no TTL (Session)"
	holderSeen rule = "driver.HeldError: Holder is the owner that was seen, RetryAfter for how long it keeps the lock, Since when it got it, or they are zero"
	floors     rule = "driver.Request.FenceFloor: the token is at least this, unless that is more than FenceSlack ahead of the server's clock, and at least FenceLag behind that clock"
	ranges     rule = "driver.Request.Tokens: a grant has at most that many tokens, the last of which is Grant.Fence; all are above the counter, " +
		"which rises to the last"
	joins rule = "driver.Request.ExactFence: take the key at exactly this token, if it is free and its counter is not above it, else *RefusedError; " +
		"an attempt that has the key already is answered with its token"
	nodes rule = "driver.FeatureQuorumNode: reports Clock and Server on grants and on *HeldError, accepts Quorum, keeps a key for the grace, and tells attempts of " +
		"one owner apart"
	raising  rule = "driver.Renewal.MinFence: raises the key's counter to at least this, together with the renewal; the lease's own token stays"
	sharing  rule = "driver.Shared: any number of owners who all ask for Shared, and nobody else beside them"
	sessions rule = "driver.FeatureSession: the lock lives with a connection or a process and ends with it"
	waiting  rule = "driver.Request.Wait: permits Acquire to block until the lock is granted or ctx ends; the error wraps ctx.Err(), and a *HeldError " +
		"if waiting was for a holder that was seen"
	queueing   rule = "driver.FeatureQueueing: Wait blocks natively, first come, first served; driver.FeatureOrdered: so are the waiters of all clients, of both modes"
	watching   rule = "driver.Watcher: the channel, of capacity one and never closed, gets a value whenever key may have become free after Watch returned"
	inspecting rule = "driver.Inspector: Lookup returns who holds a key, List every held key that begins with prefix until yield returns false, " +
		"Check the gravest finding first, and all fail while no server can answer"
	breaking rule = "driver.Admin.Break: takes the lock from whoever holds it with this token or session; without such a holder it changes nothing and returns ErrLost"
	losing   rule = "driver.Grant.Lost: closed when the backend learns that the lease is gone, and not before"
	keeping  rule = "driver.Renewal.Keep: the server keeps the lock for at least this long though its lease ends; without a TTL for exactly that, and Expires " +
		"means nothing"
	opening      rule = "driver.Driver.Open: parses and checks, refuses with an *InvalidError what it cannot honour, quotes no secret, and does no network I/O"
	history      rule = "linearizability: some order of all calls, each between its start and its end, explains every answer"
	nothingShown rule = "a run that proves nothing is no success"
)

// A Failure is one failed assertion.
type Failure struct {
	Case string `json:"case"`     // "expiry/free"
	Rule string `json:"rule"`     // the rule that was broken, by number and text
	Pos  string `json:"position"` // file:line of the assertion
	Text string `json:"text"`     // what happened
	_    struct{}
}

// Error returns the case and the failure, then its position in the suite, then the rule.
func (f *Failure) Error() string {
	return fmt.Sprintf("%s: %s\n\tfound at %s\n\tbreaks %s", f.Case, f.Text, f.Pos, f.Rule)
}

// Package quorum has what only a quorum of backends and its nodes say to each other and to
// operators: the terms that all clients share, a node's votes, and the statements about its
// memory. A driver that is neither a quorum nor one of its nodes does not need it.
package quorum

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/redlock-go/redlock/driver/printable"
)

// Info describes the quorum to one of its nodes.
type Info struct {
	// Terms are the terms in the client's options. A node that remembers other terms keeps
	// them, and reports them in its grants. A node without a restart guard uses these.
	Terms
	// Remembered are the terms that the other nodes remember. A node that remembers no terms
	// takes them. Nil: it takes Terms.
	Remembered *Terms
	// OtherClocks returns an upper bound of the other nodes' clocks now. A node that may have
	// forgotten leases counts its quarantine from that time if its own clock is behind. Zero:
	// the clocks or terms of too few nodes are known, and the quarantine does not begin yet.
	// OtherClocks may be nil.
	OtherClocks func() time.Time
	// WaitingSince is when this client began to wait for the key, by the nodes' clocks, in
	// microseconds since 1970. Nodes order their wait queues by this time, so that all nodes
	// have the same order. Zero: the client does not wait.
	WaitingSince uint64

	_ struct{}
}

// Proposal returns the terms that a node takes if it remembers none.
func (q *Info) Proposal() *Terms {
	if q.Remembered != nil {
		return q.Remembered
	}
	return &q.Terms
}

// Terms are the same for all clients of a quorum's nodes. A node with a restart guard remembers
// them and refuses clients that use others, so that no two leases are judged by terms that are
// unsafe together. A quorum computes them; a node only follows them.
//
// Guard, Excuse and Allowance are permissions: a larger one lets clients do more. Quarantine,
// Grace and Drift are protections. Given two terms, the terms that combine the smaller
// permissions and the larger protections are safe together with both.
type Terms struct {
	N int // nodes in all
	// Guard is the restart guard: the longest TTL that is granted; zero: off.
	Guard time.Duration
	// Excuse is the allowed difference between the clocks of the nodes of one bid.
	Excuse time.Duration
	// Allowance is how far a node's clock may fall behind its highest reading. A node whose
	// clock falls further treats the clock as set back, and is in quarantine.
	Allowance time.Duration
	// Quarantine is the time in which a node that may have forgotten leases grants none.
	Quarantine time.Duration
	// Grace is how much longer than the TTL a node keeps a key (lock-delay).
	Grace time.Duration
	// Drift bounds the difference between the rates of clocks, in percent.
	Drift int

	_ struct{}
}

// Merge returns terms that are safe together with t and with u: the smaller permissions and the
// larger protections, for t's number of nodes.
func (t Terms) Merge(u Terms) Terms {
	return Terms{
		N:          t.N,
		Guard:      min(t.Guard, u.Guard),
		Excuse:     min(t.Excuse, u.Excuse),
		Allowance:  min(t.Allowance, u.Allowance),
		Quarantine: max(t.Quarantine, u.Quarantine),
		Grace:      max(t.Grace, u.Grace),
		Drift:      max(t.Drift, u.Drift),
	}
}

// A Vote is one node's answer to a quorum. It holds no secret.
type Vote struct {
	Node    string // the node's address
	Granted bool   // in calls that grant nothing: it answered
	Latency time.Duration
	Err     error // why not; nil if Granted, or if the verdict came before the answer
	_       struct{}
}

// Error is the error of a quorum backend when no majority granted the lock, or answered. It
// unwraps to the verdict alone. The answers of a minority are in Votes, and never match
// errors.Is or errors.As (rule 5 of package driver).
type Error struct {
	Need  int    // grants needed: N/2 + 1
	Votes []Vote // every node's answer, in the order of the nodes
	// Verdict is a *driver.HeldError if another owner has so many nodes that no majority is left, a
	// *driver.RefusedError if so many nodes refused, driver.ErrLost if a majority is known to have lost the
	// lease; nil means unknown.
	Verdict error
	// Action is what a node with Granted in its vote did, for Error: "answered" in calls that
	// grant nothing, "confirmed" in a renewal that failed; empty: "granted".
	Action string
	// Detail is the per-node text that Error appends; the quorum backend formats it.
	Detail string
	_      struct{}
}

// Error says how many votes there were, how many were needed, and the verdict.
func (e *Error) Error() string {
	granted := 0
	for i := range e.Votes {
		if e.Votes[i].Granted {
			granted++
		}
	}
	s := fmt.Sprintf("%d of %d nodes %s, %d needed", granted, len(e.Votes), cmp.Or(e.Action, "granted"), e.Need)
	if e.Verdict != nil {
		s = e.Verdict.Error() + " (" + s + ")"
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return printable.Text(s)
}

// Unwrap returns the verdict of the quorum, never a single node's error.
func (e *Error) Unwrap() error { return e.Verdict }

// A Admin tells servers with a restart guard that they are new, because they cannot know
// that themselves, and that their number or their terms have changed.
type Admin interface {
	// Bootstrap reports the server's memory of locks and its terms, and makes the statement
	// b.Statement, unless b.DryRun is set. It is bounded by ctx and by timeouts of the driver's
	// own. A quorum looks at all nodes first, and makes no statement unless all of them answer.
	// The report describes the time before the statement; it may come together with an error.
	//
	// *driver.RefusedError: the statement is false, or cannot be made now. *driver.InvalidError: the terms
	// contradict each other; nothing was sent.
	Bootstrap(ctx context.Context, b *Bootstrap) (*MemoryReport, error)
}

// Bootstrap is the statement of an operator.
type Bootstrap struct {
	// Statement is the statement. Zero: the server is new.
	Statement Statement
	// DryRun changes nothing.
	DryRun bool
	// Quorum is set by a quorum for its nodes.
	Quorum *Info
	// Observed is set by a quorum for its nodes: this node's answer to the preceding dry run.
	// The node does not count as new if another server process answers now, or if much time has
	// passed.
	Observed *MemoryReport

	_ struct{}
}

// Statement names the statement of a Bootstrap.
type Statement uint8

const (
	// StateNew: the server is new. It then votes at once; otherwise the restart guard would
	// keep it out. On a server that remembers locks it changes nothing.
	StateNew Statement = iota
	// StateChanged: the quorum has another number of nodes, or other terms, than it had: those of
	// the backend's options. No node votes for one quarantine, in which all earlier leases end.
	// Protections stay as large as they were; they shrink to those of the options if this is
	// stated again after the quarantine.
	StateChanged
)

// A MemoryReport describes what a server remembered before the statement.
type MemoryReport struct {
	Memory Memory    // of a quorum: the greatest of its nodes
	Clock  time.Time // as in driver.Grant; zero for a quorum
	Server string    // as in driver.Grant; empty for a quorum
	Terms  *Terms    // that it remembers; nil: none. Of a quorum: those of its options
	// Nodes are the reports of a quorum's nodes, in the order of the votes.
	Nodes []NodeReport
	_     struct{}
}

// A NodeReport is the report of one node of a quorum, and the outcome of the statement there.
type NodeReport struct {
	Node   string        // its address
	Report *MemoryReport // before the statement; nil: it did not answer
	Done   bool          // the statement was made there
	Err    error         // why not
	_      struct{}
}

// Memory says what a server remembers of its locks.
type Memory uint8

const (
	// MemoryUnguarded: there is no restart guard.
	MemoryUnguarded Memory = iota
	// MemoryNew: the server has no memory. It is new, or it forgot.
	MemoryNew
	// MemoryFlushed: the server has kept locks since it was started, and has no memory. It was
	// flushed.
	MemoryFlushed
	// MemoryKept: the server remembers its locks, though perhaps not all of them.
	MemoryKept
)

// String returns "unguarded", "new", "flushed" or "kept".
func (m Memory) String() string {
	names := [...]string{"unguarded", "new", "flushed", "kept"}
	if int(m) < len(names) {
		return names[m]
	}
	return "unknown"
}

// The kinds of a driver.Notice that a quorum and its nodes report.
const (
	NoticeNodeSkipped  = "node skipped"  // a node kept timing out and is skipped
	NoticeNodeRestored = "node restored" // a probe succeeded: it is asked again
	NoticeQuarantined  = "quarantined"   // a node does not vote for a while
	NoticeBootstrapped = "bootstrapped"  // new servers vote at once
	NoticeClockSkew    = "clock skew"    // a server's clock disagrees with its peers
	NoticeEviction     = "eviction"      // a server may evict locks that are held
	NoticeTerms        = "other terms"   // a node holds its clients to other terms than this one's options
)

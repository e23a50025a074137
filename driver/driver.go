package driver

import (
	"context"
	"time"
)

// A Driver opens backends by DSN. It is registered under a name with
// dlock.Register, most often in an init function of its package.
type Driver interface {
	// Open parses and checks cfg and returns a backend. It does no network I/O, so
	// that a program starts while its servers are away.
	//
	// Refuse what cannot be honoured, an unknown parameter of the DSN above all,
	// with an *InvalidError that names it and quotes nothing that may hold a
	// password (rules 4 and 9). Open may be called concurrently.
	Open(cfg *Config) (Backend, error)
}

// Config is what a Driver opens a backend from.
type Config struct {
	// DSN is the whole URL as the user wrote it, the scheme included, without the
	// parameters ttl and prefix, which belong to dlock.
	DSN string
	// Prefix goes before every key, and is the namespace of whatever else the
	// driver stores. That carries a version of its layout, and one that is unknown is
	// refused: two releases that run side by side exclude each other (rule 10).
	Prefix string
	// Resolve opens another registered backend with the same Prefix and Notify: the
	// nodes of a quorum. The caller owns the backend and closes it.
	Resolve func(url string) (Backend, error)
	// Notify is told what happens in the background. It may be nil; it may be called
	// concurrently; it returns quickly. It is told no secret (rule 9).
	Notify func(Notice)

	_ struct{}
}

// A Backend grants leases on keys. All its methods are safe for concurrent use.
type Backend interface {
	// Acquire asks for the lock named by req and returns a lease of it.
	//
	// Refuse what cannot be honoured before any I/O (rule 4): Info.Check does it for
	// everything that this package knows of.
	//
	// Make one attempt, that is one verdict of the server; or, where req.Wait
	// allows it, block until the lock is granted or ctx ends. Waiting is a
	// permission and no duty. One attempt is bounded even under a background
	// context: use a timeout of your own, small against req.TTL.
	//
	// The outcomes are four (rule 1). A nil error is a grant. *HeldError: another
	// owner has it. *RefusedError: the server will not. *InvalidError: the request
	// cannot be honoured, and nothing was sent. Everything else is unknown. If ctx
	// ends, return an error that wraps ctx.Err(), and a *HeldError beside it
	// (errors.Join, or two %w) if waiting was for a holder that was seen. An owner
	// that asks again is another owner: there is no reentrancy (rule 6). A quorum says
	// *HeldError only if one other owner rules a majority out, and settles a split
	// vote itself, so that one of many wins a free key (rule 5, see QuorumError).
	//
	// On any error undo what may have been done (rule 2): release the attempt on a
	// context of your own, context.WithoutCancel with a timeout, never on the
	// caller's, which may be cancelled already. A cancelled or failed Acquire
	// leaves neither a key nor a goroutine behind once that clean-up has run.
	//
	// The lease counts from before the request was sent (rule 3, see Expires). ctx's
	// deadline bounds the effect too, where the server can be told: a request that
	// arrives after it is refused. The token is that of NextFence (rule 8).
	//
	// Do not keep req: the caller may reuse it.
	Acquire(ctx context.Context, req *Request) (Lease, error)

	// Info describes the backend. It is constant over the backend's life, does no
	// I/O, and is cheap. A backend with an address is also a fmt.Stringer that
	// returns it without any secret: it names the node in a quorum's votes.
	Info() Info

	// Close ends the backend: calls under way return, later ones fail with
	// ErrClosed, nothing that the backend started goes on (rule 7). Leases that are
	// still held are not released, but for session backends, whose locks end with
	// the session. Never close a client that was handed in. A second call returns nil.
	Close() error
}

// Info describes a backend.
type Info struct {
	// Name is for people: "redis", "redlock/5". It holds no address and no secret.
	Name     string
	Features Features
	// MinTTL and MaxTTL bound Request.TTL; MinTTL is at least 10 ms. dlock checks
	// them before any I/O. Both are zero where there is no TTL (see Session).
	MinTTL, MaxTTL time.Duration

	_ struct{}
}

// Features are capabilities, checked by dlock before a call. A driver that lacks
// one needs no code for it.
type Features uint32

const (
	// FeatureShared: Request.Mode may be Shared.
	FeatureShared Features = 1 << iota
	// FeatureFencing: grants carry tokens that rise strictly per key (rule 8).
	FeatureFencing
	// FeatureSession: the lock lives with a connection or a process and ends with it. If
	// MaxTTL is zero there is no TTL at all: Request.TTL is zero, Grant.Expires too.
	FeatureSession
	// FeatureQueueing: Request.Wait blocks natively, first come, first served.
	FeatureQueueing
	// FeatureQuorumNode: the backend may be one node of a quorum. It honours FenceFloor, ExactFence,
	// MinFence and Quorum, reports Clock and Server on grants and on *HeldError, makes
	// the server refuse what arrives after ctx's deadline, and tells attempts of one
	// owner apart.
	FeatureQuorumNode
	// FeatureKeep: Renewal.Keep may be set, so that a lock outlives its lease.
	FeatureKeep
	// FeatureOrdered: waiters of all clients are served first come, first served, as long as
	// nothing fails; by FeatureQueueing, or by the places that Watch gives them.
	FeatureOrdered
)

// Has reports whether f has all of want.
func (f Features) Has(want Features) bool { return f&want == want }

// String lists the features by name, separated by commas.
func (f Features) String() string {
	s := ""
	for i, name := range [...]string{"shared", "fencing", "session", "queueing", "node", "keep", "ordered"} {
		if f&(1<<i) != 0 {
			if s != "" {
				s += ","
			}
			s += name
		}
	}
	return s
}

// Mode says with whom a lock can be shared.
type Mode uint8

const (
	// Exclusive: one owner, alone.
	Exclusive Mode = iota
	// Shared: any number of owners who all ask for Shared.
	Shared
)

// String returns "exclusive" or "shared".
func (m Mode) String() string {
	switch m {
	case Exclusive:
		return "exclusive"
	case Shared:
		return "shared"
	}
	return "unknown"
}

// MaxKey is the greatest length of a key in bytes, the prefix included.
const MaxKey = 512

// A Request asks for a lock.
type Request struct {
	// Key is 1 to MaxKey bytes, of any value.
	Key string
	// Owner is unique per call: "label/random", made by dlock, of printable ASCII
	// without '|'. Two requests are two owners, even of one process (rule 6): there
	// is no reentrancy. A driver that tries more than once under one request appends
	// "/attempt", so that a late release of one attempt cannot undo another.
	Owner string
	// TTL is how long the grant lasts unless it is renewed; zero only where the
	// backend has none.
	TTL  time.Duration
	Mode Mode
	// Wait permits Acquire to block until the lock is granted or ctx ends.
	Wait bool
	// FenceFloor is a proposal for the token: it must be at least this, unless
	// that is more than FenceSlack ahead of the server's clock, and never more than FenceLag
	// behind that clock. Zero: none. See NextFence.
	FenceFloor uint64
	// ExactFence, if not zero, heals a node of a quorum after the grant (quorum nodes
	// only): take the key at exactly this token, if it is free and its counter is not
	// above it; if this attempt has the key already, answer with the token that it
	// has. Where the counter is above it, answer *RefusedError.
	// FenceFloor then says when, by the nodes' clocks in microseconds since 1970, the lease was
	// last confirmed; zero: at its token.
	ExactFence uint64
	// Quorum is set by a quorum for its nodes.
	Quorum *Quorum

	_ struct{}
}

// Quorum tells a node of what it is a part.
type Quorum struct {
	// Terms are those of the client's options. A node that remembers others keeps those,
	// and reports them in its grants; a node without a restart guard goes by these.
	Terms
	// Remembered are the terms that the other nodes remember. A node that remembers none takes
	// them. Nil: it takes Terms.
	Remembered *Terms
	// OtherClocks returns what the clocks of the other nodes say now, at most: an instant
	// that a majority of the nodes has not passed for certain is never taken for passed.
	// Zero while too few of them are known, or while it is not known which terms they
	// remember. A node that may have forgotten leases counts its quarantine from there if
	// its own clock is behind, and begins none before. It may be nil.
	OtherClocks func() time.Time
	// WaitingSince is when this client began to wait for the key, by the nodes' clocks, in
	// microseconds since 1970: nodes that keep a line go by it, so that they all have the
	// same order. Zero: it does not wait.
	WaitingSince uint64

	_ struct{}
}

// Proposal returns the terms that a node takes if it remembers none.
func (q *Quorum) Proposal() *Terms {
	if q.Remembered != nil {
		return q.Remembered
	}
	return &q.Terms
}

// Terms are what a node of a quorum holds all its clients to. A node with a restart guard
// remembers them, and refuses clients that go by others, so that no two leases are ever
// judged by terms that are unsafe together. A quorum derives them; a node obeys, and needs
// no formula of its own.
//
// Guard, Excuse and Allowance are permissions, and grow with what a client may do; Quarantine,
// Grace and Drift are protections. Of two terms those with the smaller permissions and the
// larger protections are safe beside either.
type Terms struct {
	N int // nodes in all
	// Guard is the restart guard: the longest TTL that is granted; zero: off.
	Guard time.Duration
	// Excuse is by how much the clocks of the nodes that count in one bid may differ.
	Excuse time.Duration
	// Allowance is how far a node's clock may fall behind the latest that it was seen at
	// before the node takes it for set back, and is in quarantine.
	Allowance time.Duration
	// Quarantine is for how long a node that may have forgotten leases grants none.
	Quarantine time.Duration
	// Grace is how much longer than the TTL a node keeps a key (lock-delay).
	Grace time.Duration
	// Drift is by how much the rates of clocks differ at most, in percent.
	Drift int

	_ struct{}
}

// Merge returns terms that are safe beside t and beside u: the smaller permissions and the
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

// A Lease is one grant of one lock. Its methods are safe for concurrent use.
type Lease interface {
	// Grant returns the grant as of the last success of Acquire or Renew. No I/O.
	Grant() Grant

	// Renew extends the lease to r.TTL from now, if this very acquisition still has
	// the lock: it never takes it again. The new end counts from before the request was
	// sent (rule 3). ErrLost: it has not, for certain. Any other error is unknown, and
	// the caller tries again until the lease's deadline (rule 1). Bounded by ctx and by
	// a timeout of the driver's own.
	Renew(ctx context.Context, r *Renewal) (Grant, error)

	// Release gives the lock up. It frees this very acquisition's lock and never
	// another's. It works even if ctx has ended (rule 2): take ctx's values, and bound
	// the work yourself, in seconds. nil: the lock is free of this lease; ErrLost, which
	// is optional: it was so before. Any other error: unknown, the lock may stay
	// until its TTL ends. A call after a nil or ErrLost returns nil.
	Release(ctx context.Context) error
}

// A Renewal asks for more time.
type Renewal struct {
	// TTL is as in Request; zero where the backend has none.
	TTL time.Duration
	// Keep makes the server keep the lock for at least this long from now on, even if it is
	// not renewed again (FeatureKeep only). It changes no Expires. With a TTL of zero the
	// holder is done: the server keeps the lock for Keep, without any grace, unless it is
	// released before; Grant.Expires then means nothing.
	Keep time.Duration
	// MinFence raises the key's counter to at least this, together with the renewal
	// (quorum nodes only). The lease's own token stays as it was granted.
	MinFence uint64

	_ struct{}
}

// A Grant is what a lease was given.
type Grant struct {
	// Expires is the end of the lease in local monotonic time: see Expires for how
	// it is computed. Zero: the lease is bound to a session, and not to a clock.
	Expires time.Time
	// Fence is the fencing token: strictly rising per key; zero: none.
	Fence uint64
	// Clock is the server's own clock at the grant. Zero: unknown, and then the vote
	// never counts in a quorum.
	Clock time.Time
	// Server identifies the server process, so that one that is listed twice, or was
	// restarted, can be told.
	Server string
	// Lost is closed when the backend learns that the lease is gone. It may be nil.
	// Leases that end together (those of one session) share one channel: a watcher
	// needs one goroutine per channel.
	Lost <-chan struct{}
	// Terms are what the node holds its clients to, if it remembers terms: as a node of a
	// quorum with a restart guard. They are not changed.
	Terms *Terms
	// Votes is what each node said; quorum backends only.
	Votes []Vote

	_ struct{}
}

// A Vote is one node's answer to a quorum. It holds no secret.
type Vote struct {
	Node    string // the node's address
	Granted bool
	Latency time.Duration
	Err     error // why not; nil where Granted, and where the verdict came before the answer
	_       struct{}
}

// The interfaces below are optional, each with its fallback. There are no others.

// A Watcher tells when a lock may have become free. Without it dlock polls, with
// jitter.
type Watcher interface {
	// Watch returns a channel of capacity one that gets a value whenever key may
	// have become free after Watch returned: subscribe, then return. Values coalesce;
	// a value too many is harmless, a value too few is a lost wake-up. A break of the
	// connection counts as a value. A backend that keeps a line for those who were refused
	// with ErrHeld while they watched may keep the value of each until it is
	// its turn; who has never asked is given values as if nobody stood in line, or is
	// left to poll while somebody does. The channel is never closed; what stands behind
	// it ends with ctx. Watch blocks for one round trip at the most. If it fails the caller
	// polls, and tries again unless the error is permanent. HeldError.PollAfter says when a
	// caller that watches asks again although no value came.
	Watch(ctx context.Context, key string) (<-chan struct{}, error)
}

// A LossReporter is a Lease that reports its loss by a call: of a backend in this process,
// whose leases end one by one. Without it dlock hears of a loss by Grant.Lost, by the next
// renewal, and by the clock.
type LossReporter interface {
	// OnLost sets f, which is called once with arg when the backend takes the lock from this
	// lease, or at once if it has done so already. It is called under no mutex of the driver,
	// and does not block.
	OnLost(f func(arg any), arg any)
}

// An Inspector answers operators: who holds what, and is this deployment sound?
// It is never part of taking a lock.
type Inspector interface {
	// Lookup returns the state of key; a key that nobody holds has no Holders.
	Lookup(ctx context.Context, key string) (*State, error)
	// List calls yield for every held key that begins with prefix, in no order, until
	// yield returns false. It may take many round trips, and sees no snapshot. A quorum also
	// yields keys whose Verdict is VerdictSplit.
	List(ctx context.Context, prefix string, yield func(*State) bool) error
	// Check examines the deployment and returns what it found, the gravest first. An
	// error says that it could not examine it.
	Check(ctx context.Context) ([]Diagnostic, error)
}

// State is what is known of a key.
type State struct {
	Key     string // without the backend's prefix
	Mode    Mode
	Holders []Holder // none: the key is free
	Fence   uint64   // the counter: the largest token ever given, where it is kept
	Waiters int      // who queue on the server, where it can tell
	// Queue has the first of the Waiters, in the order in which they are served, as far as the
	// server knows them; at most 100.
	Queue []Waiter
	// ReservedFor: nobody holds the key, but for so long it is kept for the first waiter.
	ReservedFor time.Duration
	Nodes       []NodeState // per node, in the order of the votes; quorum backends only

	_ struct{}
}

// A NodeState is what one node of a quorum said of a key.
type NodeState struct {
	Node    string        // its address
	State   *State        // nil: it did not answer
	Latency time.Duration // of its answer
	Err     error         // why there is none
	_       struct{}
}

// expiring is the remaining time below which a lease is called expiring: leases are renewed
// at a third of their TTL, so only one that is not renewed, or is very short, comes so low.
const expiring = time.Second

// Verdict says in one word what s means for whoever wants the key.
func (s *State) Verdict() Verdict {
	for i := range s.Holders {
		if ttl := s.Holders[i].TTL; ttl <= 0 || ttl >= expiring { // zero: unknown, or no end
			return VerdictHeld
		}
	}
	owners := map[string]bool{}
	for i := range s.Nodes {
		if n := s.Nodes[i].State; n != nil {
			for j := range n.Holders {
				owners[n.Holders[j].Owner] = true
			}
		}
	}
	switch {
	case len(s.Holders) > 0:
		return VerdictExpiring
	case s.ReservedFor > 0:
		return VerdictReserved
	case len(owners) > 1:
		return VerdictSplit
	case len(owners) == 1:
		return VerdictExpiring
	}
	return VerdictFree
}

// Verdict is what the state of a key comes to.
type Verdict uint8

const (
	// VerdictFree: nobody has the key.
	VerdictFree Verdict = iota
	// VerdictHeld: the key is held, on a majority where there are several nodes.
	VerdictHeld
	// VerdictExpiring: the holder has less than a second left, or has the key on a minority of
	// the nodes, where it ends with its TTL.
	VerdictExpiring
	// VerdictReserved: the key is kept for the first waiter for a moment.
	VerdictReserved
	// VerdictSplit: several have the key on some nodes, and none has a majority. They give up
	// and try again.
	VerdictSplit
)

// String returns "free", "held", "expiring", "kept for the next" or "split".
func (v Verdict) String() string {
	names := [...]string{"free", "held", "expiring", "kept for the next", "split"}
	if int(v) < len(names) {
		return names[v]
	}
	return "unknown"
}

// A Holder is one owner of a held key. Unknown fields are zero.
type Holder struct {
	Owner   string        // as stored
	Fence   uint64        // its token
	Since   time.Time     // by the server's clock
	TTL     time.Duration // until it ends unless renewed
	Address string        // of the client
	// Session names the session of the server that has the key, where the server knows
	// sessions and no tokens: see SessionAdmin.
	Session string
	_       struct{}
}

// A Waiter is one that waits for a key. Unknown fields are zero.
type Waiter struct {
	Owner   string    // as the server knows it: a name, or a place in a queue
	Since   time.Time // by the server's clock
	Address string    // of the client
	_       struct{}
}

// A Diagnostic is a property of the deployment that an operator should know.
type Diagnostic struct {
	// Code names the kind of finding: lower-case words with hyphens, "maxmemory-policy". It
	// stays the same in later releases, for scripts.
	Code     string
	Severity Severity
	Node     string // where, for backends of several servers
	Summary  string // one line
	Measured string // the value that was found, with its unit; empty where there is none
	Remedy   string // what to do; empty where there is nothing to do
	// Command is a command line for a shell that does what Remedy says; empty where no
	// command can. It holds no secret: the user adds what the server asks for.
	Command string
	_       struct{}
}

// Severity orders findings.
type Severity uint8

// The severities: for information; may cost performance or a guarantee
// under load; a guarantee does not hold.
const (
	SeverityNote Severity = iota
	SeverityWarning
	SeverityUnsafe
)

// String returns "note", "warning" or "unsafe".
func (s Severity) String() string {
	switch s {
	case SeverityNote:
		return "note"
	case SeverityWarning:
		return "warning"
	case SeverityUnsafe:
		return "unsafe"
	}
	return "unknown"
}

// An Admin breaks locks.
type Admin interface {
	// Break takes the lock named key away from whoever holds it with token fence.
	// Without such a holder it changes nothing and returns ErrLost. The holder
	// learns of it as of any loss; what it still does is refused only by what
	// checks tokens.
	Break(ctx context.Context, key string, fence uint64) error
}

// A SessionAdmin ends sessions that hold locks: of a server that knows the sessions of holders
// and not their tokens.
type SessionAdmin interface {
	// BreakSession ends the session of the server that has this name, as a Holder has it, if it
	// holds key. Everything else that the session holds is freed with it. Without such a
	// session it changes nothing and returns ErrLost.
	BreakSession(ctx context.Context, key, session string) error
}

// A GuardAdmin states what servers with a restart guard cannot know, and changes what they
// hold their clients to.
type GuardAdmin interface {
	// Bootstrap reports what the server remembers of locks and its terms, and makes the
	// statement that b names, unless b is a dry run. It is bounded by ctx and by timeouts of
	// the driver's own. A quorum looks at all nodes first, and states nothing unless all of
	// them answer. The report is of before the statement; it may come with an error.
	//
	// *RefusedError: what is stated is not so, or cannot be done now. *InvalidError: the
	// terms contradict each other; nothing was sent.
	Bootstrap(ctx context.Context, b *Bootstrap) (*MemoryReport, error)
}

// Bootstrap is what an operator states.
type Bootstrap struct {
	// Statement is what is stated. Zero: the server is new.
	Statement Statement
	// DryRun changes nothing.
	DryRun bool
	// Quorum is set by a quorum for its nodes.
	Quorum *Quorum
	// Observed is set by a quorum for its nodes: what this one said when it was to look. It
	// is not taken for new if it is another process by now, or much later.
	Observed *MemoryReport

	_ struct{}
}

// Statement is what a Bootstrap states.
type Statement uint8

const (
	// StateNew: the server is new. It then votes at once, where a restart guard would keep
	// it out. It changes nothing on a server that remembers.
	StateNew Statement = iota
	// StateNodes: the quorum has another number of nodes than it had. None of them votes for
	// one quarantine, in which the leases of clients with the old list end.
	StateNodes
	// StateTerms: the terms become those of the backend's options. What protects grows and
	// what permits shrinks at once. The rest follows where StateTermsSettled says that all
	// nodes know, and when no lease is left that was granted before.
	StateTerms
	// StateTermsSettled is for the nodes of a quorum, which makes it of StateTerms: all nodes
	// know of the change.
	StateTermsSettled
)

// A MemoryReport is what a server said of its memory, before anything was stated.
type MemoryReport struct {
	Memory Memory    // a quorum's is its nodes' greatest
	Clock  time.Time // as in Grant; zero for a quorum
	Server string    // as in Grant; empty for a quorum
	Terms  *Terms    // that it remembers; nil: none. A quorum's are those of its options
	// Next are the terms that it is changing to, and From the instant of its clock from
	// which they hold; zero: not settled yet. Nil: it is changing to none.
	Next *Terms
	From time.Time
	// Nodes are the reports of a quorum's nodes, in the order of the votes.
	Nodes []NodeReport
	_     struct{}
}

// A NodeReport is what one node of a quorum said, and what was done there.
type NodeReport struct {
	Node   string        // its address
	Report *MemoryReport // before the statement; nil: it did not answer
	Done   bool          // the statement was made there
	Err    error         // why not
	_      struct{}
}

// Memory is what a server remembers of the locks that it kept.
type Memory uint8

const (
	// MemoryUnguarded: there is no restart guard, and so nobody looks.
	MemoryUnguarded Memory = iota
	// MemoryUnused: it has never kept locks under the guard, and has been up for longer than
	// the guard.
	MemoryUnused
	// MemoryNew: it knows of no lock, and was started not long ago: it is new, or forgot.
	MemoryNew
	// MemoryFlushed: it kept locks since it was started, and knows of none: it was flushed.
	MemoryFlushed
	// MemoryKept: it has kept locks, and knows of them, though perhaps not of all.
	MemoryKept
)

// String returns "unguarded", "unused", "new", "flushed" or "kept".
func (m Memory) String() string {
	names := [...]string{"unguarded", "unused", "new", "flushed", "kept"}
	if int(m) < len(names) {
		return names[m]
	}
	return "unknown"
}

// A Notice is something that happened in the background, outside any call. It
// holds no secret.
type Notice struct {
	Kind   NoticeKind
	Node   string // which server, where there are several
	Key    string // which key, if it concerns one
	Err    error  // the cause, if there is one
	Detail string // one line for people
	_      struct{}
}

// NoticeKind names what happened. Drivers may have kinds of their own.
type NoticeKind string

// The kinds that drivers here report.
const (
	NoticeNodeSkipped  NoticeKind = "breaker opened" // a node kept timing out and is skipped
	NoticeNodeRestored NoticeKind = "breaker closed" // a probe succeeded: it is asked again
	NoticeQuarantined  NoticeKind = "quarantined"    // a node does not vote for a while
	NoticeBootstrapped NoticeKind = "bootstrapped"   // new servers vote at once
	NoticeCollision    NoticeKind = "collision"      // two keys share one lock on the server
	NoticeDegraded     NoticeKind = "degraded"       // works, but by a slower way: polling, say
	NoticeDisconnected NoticeKind = "disconnected"   // a session or a subscription broke
	NoticeClockSkew    NoticeKind = "clock skew"     // a server's clock disagrees with its peers
	NoticeTerms        NoticeKind = "other terms"    // a node holds its clients to other terms than this one's options
	NoticeEviction     NoticeKind = "eviction"       // a server may evict locks that are held
)

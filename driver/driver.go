package driver

import (
	"context"
	"time"

	"github.com/redlock-go/redlock/driver/quorum"
)

// A Driver opens backends by DSN. It is registered under a name with
// dlock.Register, most often in an init function of its package.
type Driver interface {
	// Open parses and checks cfg and returns a backend. It does no network I/O, so
	// that a program starts while its servers are away.
	//
	// Refuse a cfg that the backend cannot honour, especially an unknown parameter of the DSN.
	// Return an *InvalidError that names the bad part and quotes no text that may hold a
	// password (rules 4 and 9). Open may be called concurrently.
	Open(cfg *Config) (Backend, error)
}

// Config tells a Driver which backend to open.
type Config struct {
	// DSN is the whole URL as the user wrote it, the scheme included, without the
	// parameters ttl and prefix, which belong to dlock.
	DSN string
	// Prefix goes before every key, and before the names of all other stored data. Stored data
	// has a layout version, and a driver refuses an unknown one: two releases that run side by
	// side exclude each other (rule 10).
	Prefix string
	// Resolve opens another registered backend with the same Prefix and Notify: the
	// nodes of a quorum. The caller owns the backend and closes it.
	Resolve func(url string) (Backend, error)
	// Notify receives background notices. It may be nil; it may be called
	// concurrently; it returns quickly. No notice holds a secret (rule 9).
	Notify func(Notice)

	_ struct{}
}

// A Backend grants leases on keys. All its methods are safe for concurrent use.
type Backend interface {
	// Acquire asks for the lock named by req and returns a lease of it.
	//
	// Refuse a request that the backend cannot honour before any I/O (rule 4). Info.Check makes
	// the checks that are the same for all drivers.
	//
	// Make one attempt: get one verdict of the server. If req.Wait is set, Acquire may block
	// until the lock is granted or ctx ends. Blocking is optional. Bound one attempt even under
	// a background context: use a timeout of your own, small against req.TTL.
	//
	// The outcomes are four (rule 1). A nil error is a grant. *HeldError: another owner has it.
	// *RefusedError: the server refused the request. *InvalidError: the request cannot be
	// honoured, and nothing was sent. Everything else is unknown. If ctx ends, return an error
	// that wraps ctx.Err(), and also a *HeldError (errors.Join, or two %w) if Acquire waited
	// for a holder that it saw. Every request has an owner of its own: there is no reentrancy
	// (rule 6). A quorum says *HeldError only if one other owner rules a majority out, and
	// resolves a split vote itself, so that one of many wins a free key (rule 5, see
	// quorum.Error).
	//
	// On any error undo the attempt (rule 2): release it on a context of your own,
	// context.WithoutCancel with a timeout, never on the caller's, which may be
	// cancelled already. A cancelled or failed Acquire leaves neither a key nor a
	// goroutine behind once that clean-up has run.
	//
	// The lease counts from before the request was sent (rule 3, see Expires). If the
	// server can be told, ctx's deadline bounds the effect too: the server refuses a
	// request that arrives later. NextFence computes the token (rule 8).
	//
	// Do not keep req: the caller may reuse it.
	Acquire(ctx context.Context, req *Request) (Lease, error)

	// Info describes the backend. It is constant over the backend's life, does no
	// I/O, and is cheap. A backend with an address is also a fmt.Stringer that
	// returns it without any secret: it names the node in a quorum's votes.
	Info() Info

	// Close ends the backend. Calls under way return, later calls fail with ErrClosed, and
	// nothing that the backend started goes on (rule 7). Close does not release leases; only
	// the locks of a session backend end, with the session. Never close a client that the
	// caller passed in. A second call returns nil.
	Close() error
}

// Info describes a backend.
type Info struct {
	// Name tells people the kind of backend: "redis", "redlock/5". It holds no address and no
	// secret.
	Name     string
	Features Features
	// MinTTL and MaxTTL bound Request.TTL; MinTTL is at least 10 ms. dlock checks
	// them before any I/O. Both are zero where there is no TTL (see FeatureSession).
	MinTTL, MaxTTL time.Duration
	// TokenLag is how far the token of a grant may be behind the servers' clock, so that a token of
	// another backend that was given earlier may be larger. Less than zero: without a bound.
	TokenLag time.Duration

	_ struct{}
}

// Features are capabilities. dlock checks them before a call, so a driver needs no code for a
// feature that it lacks.
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
	// MinFence and Quorum, and reports Clock and Server on grants and on *HeldError. Its
	// server refuses requests that arrive after ctx's deadline, and tells attempts of one
	// owner apart.
	FeatureQuorumNode
	// FeatureKeep: Renewal.Keep may be set, so that a lock outlives its lease.
	FeatureKeep
	// FeatureOrdered: waiters of all clients are served first come, first served, as long as
	// nothing fails: by FeatureQueueing, or because Watch wakes them in that order.
	FeatureOrdered
	// FeatureTokens: Request.Tokens may be more than one, so that dlock can pass the lock on
	// within a process.
	FeatureTokens
)

// Has reports whether f has all of want.
func (f Features) Has(want Features) bool { return f&want == want }

// String lists the features by name, separated by commas.
func (f Features) String() string {
	s := ""
	for i, name := range [...]string{"shared", "fencing", "session", "queueing", "node", "keep", "ordered", "tokens"} {
		if f&(1<<i) != 0 {
			if s != "" {
				s += ","
			}
			s += name
		}
	}
	return s
}

// Mode says whether a lock can be shared.
type Mode uint8

const (
	// Exclusive: one owner, alone.
	Exclusive Mode = iota
	// Shared: any number of owners that all ask for Shared.
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

// MaxTokens is the greatest Request.Tokens.
const MaxTokens = 1 << 14

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
	// FenceFloor is a proposal for the token. The token is at least FenceFloor, but the
	// server first brings the proposal within FenceSlack ahead of its clock and FenceLag
	// behind it. Zero: no proposal. See NextFence.
	FenceFloor uint64
	// ExactFence, if not zero, heals a node of a quorum after the grant (quorum nodes only).
	// Take the key at exactly this token if it is free and its counter is not above the token.
	// A key that is only reserved for a waiter is free for it. If this attempt has the key
	// already, answer with the token that it has. Leave the counter at the token, not higher, so
	// that the lease can join again. If the counter is above the token, answer *RefusedError.
	// FenceFloor then has another meaning: it is the time at which the lease was last confirmed,
	// by the nodes' clocks, in microseconds since 1970; zero stands for the time of the token.
	// If that is more than FenceLag and the Quarantine of the terms later than the counter, the
	// node may take the key though the counter is above the token, and leaves the counter as it
	// is: the bid that raised it has ended without a lease.
	ExactFence uint64
	// Tokens is how many tokens the grant has, at most MaxTokens (FeatureTokens only): a range that
	// ends with Grant.Fence, and is above the counter as a whole. The counter rises to its end, so
	// NextFence gets counter + Tokens − 1. Zero and one: one token. A backend may grant fewer, never
	// more; a node of a quorum gives a writer all of them. dlock asks for twice as many as it used the
	// last time, so that counters do not overtake the clock.
	Tokens uint32
	// Quorum is set by a quorum for its nodes. It does not change, so a node may keep it.
	Quorum *quorum.Info

	_ struct{}
}

// A Lease is one grant of one lock. Its methods are safe for concurrent use.
type Lease interface {
	// Grant returns the grant as of the last success of Acquire or Renew. No I/O.
	Grant() Grant

	// Renew extends the lease to r.TTL from now, if this very acquisition still has
	// the lock. It never takes the lock again. The new end counts from before the request
	// was sent (rule 3). ErrLost: this acquisition no longer has the lock, for certain.
	// Any other error is unknown, and the caller tries again until the lease's deadline
	// (rule 1). ctx bounds Renew, and so does a timeout of the driver's own.
	Renew(ctx context.Context, r *Renewal) (Grant, error)

	// Release gives the lock up. It frees this very acquisition's lock and never another's. It
	// works even if ctx has ended (rule 2): use only ctx's values, and bound the work to some
	// seconds by a timeout of your own. nil: this lease no longer has the lock. ErrLost: it had
	// lost the lock before; returning nil instead is allowed. Any other error: unknown, the
	// lock may stay until its TTL ends. A call after nil or ErrLost returns nil.
	Release(ctx context.Context) error
}

// A Renewal asks for more time.
type Renewal struct {
	// TTL is as in Request; zero where the backend has none. If it is longer than the request's, a
	// backend whose server cannot change a TTL may extend the lease by the request's TTL only.
	TTL time.Duration
	// Keep makes the server keep the lock for at least this long from now on, even if it is not
	// renewed again (FeatureKeep only). It does not change Expires. A TTL of zero says that the
	// holder has finished: the server keeps the lock for Keep, without any grace, unless it is
	// released earlier. Grant.Expires then has no meaning.
	Keep time.Duration
	// MinFence raises the key's counter to at least this token, together with the renewal
	// (quorum nodes only). The lease's own token stays as it was granted.
	MinFence uint64

	_ struct{}
}

// A Grant is the state of a lease after Acquire, or after its last renewal.
type Grant struct {
	// Expires is the end of the lease in local monotonic time, computed by the function
	// Expires. Zero: the lease ends only with its session.
	Expires time.Time
	// Fence is the fencing token: strictly rising per key; zero: none. Of a range it is the last
	// token: the holder has Fence−Tokens+1 to Fence.
	Fence uint64
	// Tokens is the length of the range; zero: one token, or none.
	Tokens uint32
	// Clock is the server's own clock at the grant. Zero: unknown; a vote without a clock never
	// counts in a quorum.
	Clock time.Time
	// Server identifies the server process, so that a quorum notices that a server is listed
	// twice or was restarted.
	Server string
	// Lost is closed when the backend learns that the lease is gone. Nil: the backend tells no
	// loss; dlock learns of it at the next renewal, or by the clock.
	//
	// dlock needs one goroutine for each channel, so leases share one: those of a session, which
	// end together, or many that end one by one. Of these, a loss closes the channel, and from
	// then on Lease.Grant has another, open channel for each lease that is not lost.
	Lost <-chan struct{}
	// Terms are the terms that the node remembers, if it is a node of a quorum and has a
	// restart guard. Do not change them.
	Terms *quorum.Terms
	// Votes has the answer of each node; quorum backends only.
	Votes []quorum.Vote

	_ struct{}
}

// The interfaces below are optional, each with its fallback. Restart guards have one more, in
// package quorum: quorum.Admin.

// A Watcher tells when a lock may have become free. Without it dlock polls, with
// jitter.
type Watcher interface {
	// Watch returns a channel of capacity one that gets a value whenever key may have become
	// free after Watch returned: subscribe, then return. Values coalesce; an extra value is
	// harmless, a missing value is a lost wake-up. Send a value when the connection breaks,
	// too.
	//
	// A backend may keep a wait queue of the callers that watch and got ErrHeld, and send each
	// of them a value when it is the first. A caller that watches and has not called Acquire
	// gets values as without a queue, or polls while there is a queue.
	//
	// The channel is never closed; its subscription ends with ctx. Watch blocks for one round
	// trip at most. If it fails the caller polls, and tries again unless the error is
	// permanent. HeldError.PollAfter says when a caller that watches asks again if no value
	// comes.
	Watch(ctx context.Context, key string) (<-chan struct{}, error)
}

// An Inspector answers operators: who holds which lock, and is this deployment sound?
// Taking a lock never needs it. Each call asks the servers: while none can answer, it returns an
// error.
type Inspector interface {
	// Lookup returns the state of key; a key that nobody holds has no Holders.
	Lookup(ctx context.Context, key string) (*State, error)
	// List calls yield for every held key that begins with prefix, in no order, until yield
	// returns false. It may take many round trips, and sees no snapshot. A quorum also yields
	// keys whose Verdict is "split", as far as it meets them.
	List(ctx context.Context, prefix string, yield func(*State) bool) error
	// Check examines the deployment and returns its findings, the gravest first. An error means
	// that it could not examine the deployment.
	Check(ctx context.Context) ([]Diagnostic, error)
}

// State is the state of a key. Unknown fields are zero. In JSON it has its Verdict, and durations
// are in nanoseconds.
type State struct {
	Key     string   `json:"key"` // without the backend's prefix
	Mode    Mode     `json:"mode,omitzero"`
	Holders []Holder `json:"holders,omitempty"` // none: the key is free; or unknown, where a node of a quorum did not answer
	Fence   uint64   `json:"token,omitempty"`   // the counter: the largest token ever given, where it is kept
	Waiters int      `json:"waiting"`           // in the server's queue, if the server can tell
	// Queue has the first of the Waiters, in the order in which they are served, as far as the
	// server knows them, each with its Owner, Since and Address; at most 100.
	Queue []Holder `json:"queue,omitempty"`
	// ReservedFor: nobody holds the key, and the server keeps it for the first waiter for this
	// long.
	ReservedFor time.Duration `json:"reserved_for_ns,omitempty"`
	Nodes       []NodeState   `json:"nodes,omitempty"` // per node, in the order of the votes; quorum backends only

	_ struct{}
}

// A NodeState is the answer of one node of a quorum.
type NodeState struct {
	Node    string        `json:"node"`                 // its address
	State   *State        `json:"state,omitempty"`      // nil: it did not answer
	Latency time.Duration `json:"latency_ns,omitempty"` // of its answer
	Err     string        `json:"error,omitempty"`      // why there is none
	_       struct{}
}

// expiring is the remaining time below which a lease is called expiring. Leases are renewed
// after a third of their TTL, so only a lease that is not renewed, or is very short, has so
// little time left.
const expiring = time.Second

// Verdict sums up the state of a key: "free"; "held", on a majority where there are several nodes;
// "expiring", where the holder has less than a second left, or has the key on a minority of the
// nodes, where it ends with its TTL; "kept for the next", the first waiter, for a moment; or "split",
// where several owners have the key on some nodes and none has a majority: they give up and try
// again.
func (s *State) Verdict() string {
	for i := range s.Holders {
		if ttl := s.Holders[i].TTL; ttl <= 0 || ttl >= expiring { // zero: unknown, or no end
			return "held"
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
		return "expiring"
	case s.ReservedFor > 0:
		return "kept for the next"
	case len(owners) > 1:
		return "split"
	case len(owners) == 1:
		return "expiring"
	}
	return "free"
}

// A Holder is one owner of a held key, or a waiter in its queue. Unknown fields are zero.
type Holder struct {
	Owner   string        `json:"owner,omitempty"`   // as stored
	Fence   uint64        `json:"token,omitempty"`   // its token; of a range the last one
	Tokens  uint32        `json:"tokens,omitempty"`  // the length of the range; zero: one token
	Since   time.Time     `json:"since,omitzero"`    // by the server's clock
	TTL     time.Duration `json:"ttl_ns,omitempty"`  // until it ends unless renewed
	Address string        `json:"address,omitempty"` // of the client
	// Session names the session of the server that has the key, where the server knows
	// sessions and no tokens: see Admin.
	Session string `json:"session,omitempty"`
	_       struct{}
}

// A Diagnostic is a property of the deployment that an operator should know.
type Diagnostic struct {
	// Code names the kind of finding: lower-case words with hyphens, "maxmemory-policy". It
	// stays the same in later releases, for scripts.
	Code     string   `json:"code"`
	Severity Severity `json:"severity"`
	Node     string   `json:"node,omitempty"`     // where, for backends of several servers
	Summary  string   `json:"summary"`            // one line
	Measured string   `json:"measured,omitempty"` // the value that was found, with its unit; empty where there is none
	Remedy   string   `json:"remedy,omitempty"`   // what to do; empty if there is nothing to do
	// Command is a command line for a shell that carries out Remedy; empty if no command
	// can. It holds no secret: the user adds the password that the server asks for. Make it with
	// CommandLine, which quotes names that a server chose.
	Command string `json:"command,omitempty"`
	_       struct{}
}

// Severity says how serious a Diagnostic is; a larger one is more serious.
type Severity uint8

// The severities. Note: for information. Warning: it may cost performance, or a guarantee under
// load. Unsafe: a guarantee does not hold.
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
	// Break takes the lock named key away from the holder h, as Lookup returned it, and changes
	// nothing for any other holder. h is told by its Session if that is set, and otherwise by its
	// Fence; Break looks at no other field. Ending a session frees all of its locks.
	//
	// ErrLost: there is no such holder. *InvalidError: the server knows sessions and no tokens,
	// and h has no Session. The holder learns of the loss as it learns of any; until then only a
	// store that checks tokens refuses its writes.
	Break(ctx context.Context, key string, h Holder) error
}

// A Notice is something that happened in the background, outside any call. It
// holds no secret.
type Notice struct {
	Kind   string // what happened; drivers may have kinds of their own
	Node   string // the server's address, if there are several
	Key    string // the key, if the notice concerns one
	Err    error  // the cause, if there is one
	Detail string // one line for people
	_      struct{}
}

// The kinds that most drivers report.
const (
	NoticeDegraded     = "degraded"     // works, but by a slower way: polling, say
	NoticeDisconnected = "disconnected" // a session or a subscription broke
)

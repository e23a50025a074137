package bench

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/redlocktest/server"
)

// A Kind says what a contestant is for.
type Kind string

// The kinds of contestants.
const (
	Ours  Kind = "ours"  // what this module gives its users
	Part  Kind = "part"  // a part of ours, alone, to see what the rest costs
	Limit Kind = "limit" // does less than a lock has to, as fast as it can be done
	Peer  Kind = "peer"  // another library
)

// A Contestant is one way to take locks.
type Contestant struct {
	// Name is unique in a report: "dlock, go-redis".
	Name string
	Kind Kind
	// Client names the client library. Contestants of one client are compared.
	Client string
	// How says how it is set up, in one sentence, for the report.
	How string
	// Serves reports whether it can take locks from that many servers of that kind.
	Serves func(kind server.Kind, nodes int) bool
	// Waits says that Lock can wait for a holder, OnlyWaits that it can do nothing else.
	Waits, OnlyWaits bool
	// Renews says that what it gave can be renewed by hand.
	Renews bool
	// Local says that its locks exclude nobody in another process.
	Local bool
	// Brings starts a server that it is opened on instead of those of a case; nil: it
	// takes what it Serves. Its error is ErrMissing where there is no such program.
	Brings func(ctx context.Context) (*Guest, error)
	// Open returns a client of its own, as another process would have one.
	Open func(ctx context.Context, s *Setup) (Locker, error)
}

// A Guest is a server that a contestant brings along.
type Guest struct {
	Node    Node
	Version string
	// Left counts the locks under keys that contain this.
	Left  func(ctx context.Context, keys string) (int, error)
	Close func() error
}

// ErrMissing says that a server's program is not installed.
var ErrMissing = errors.New("the server is not installed")

// A Setup is what a contestant is opened on. It can be written as JSON, for a process
// that waits for a lock.
type Setup struct {
	Nodes  []Node // one server, or those of a quorum; empty for what needs none
	TTL    time.Duration
	Folder string        // for what keeps its locks in files; it goes after the case
	Guard  time.Duration // the restart guard; 0: the default, below: none
}

// A Node is one server and the way to it.
type Node struct {
	Kind   server.Kind
	Addr   string // what to connect to: a proxy, where the scenario has one
	Direct string // the server itself
}

// A Locker takes locks. It is safe for concurrent use.
type Locker interface {
	// Lock makes one attempt or, if wait is set, waits until ctx ends.
	Lock(ctx context.Context, key string, wait bool) (Held, error)
	Close() error
}

// Held is a lock that is held.
type Held interface {
	Renew(ctx context.Context) error
	Unlock() error
}

// nodeTimeout is how long the limits wait for one node: what this module's quorum
// waits by default.
func (s *Setup) nodeTimeout() time.Duration { return max(s.TTL/50, 50*time.Millisecond) }

// library is what a contestant's colour goes by: the part of its name before the client.
func (c *Contestant) library() string {
	name, _, _ := strings.Cut(c.Name, ",")
	return strings.TrimSuffix(strings.TrimSuffix(name, " fail-fast"), " (BLPOP)")
}

// errHeld is what limits return for a lock that somebody has.
var errHeld = errors.New("held")

// newOwner returns a value that nobody else uses.
func newOwner() string { return "benchmark/" + strconv.FormatUint(rand.Uint64(), 36) }

// AnyKeyStore serves Redis and Valkey, one or many.
func AnyKeyStore(kind server.Kind, nodes int) bool {
	return (kind == server.KindRedis || kind == server.KindValkey) && nodes >= 1
}

// OneKeyStore serves one Redis or Valkey.
func OneKeyStore(kind server.Kind, nodes int) bool { return AnyKeyStore(kind, nodes) && nodes == 1 }

// ManyKeyStores serves several.
func ManyKeyStores(kind server.Kind, nodes int) bool { return AnyKeyStore(kind, nodes) && nodes > 1 }

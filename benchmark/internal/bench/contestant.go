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

// A Kind says why a contestant takes part.
type Kind string

// The kinds of contestants.
const (
	Ours  Kind = "ours"  // this module, as its users have it
	Part  Kind = "part"  // a part of this module alone, which shows the cost of the rest
	Limit Kind = "limit" // the fastest commands, which do less than a lock must do
	Peer  Kind = "peer"  // another library
)

// A Contestant is one way to take locks.
type Contestant struct {
	// Name is unique in a report, for example "dlock, go-redis".
	Name string
	Kind Kind
	// Client names the client library. Contestants over the same library are compared.
	Client string
	// How describes the setup in one sentence, for the report.
	How string
	// Serves reports whether the contestant can take locks on this number of servers of this kind.
	Serves func(kind server.Kind, nodes int) bool
	// Waits says that Lock can wait for a holder; OnlyWaits says that it cannot make a single
	// attempt.
	Waits, OnlyWaits bool
	// Open returns a new client that shares nothing with others, like the client of another
	// process.
	Open func(ctx context.Context, s *Setup) (Locker, error)
}

// A Setup describes the servers on which a contestant is opened.
type Setup struct {
	Nodes []Node // one server, or those of a quorum
	TTL   time.Duration
}

// A Node is one server and the address to reach it.
type Node struct {
	Kind   server.Kind
	Addr   string // the address to connect to: a proxy, if the scenario has one
	Direct string // the server's own address
}

// A Locker takes locks. It is safe for concurrent use.
type Locker interface {
	// Lock makes one attempt or, if wait is set, waits until ctx ends.
	Lock(ctx context.Context, key string, wait bool) (Held, error)
	Close() error
}

// Held is a lock that a client holds.
type Held interface {
	Unlock() error
}

// nodeTimeout is how long the limits wait for one node: as long as this module's quorum waits
// by default.
func (s *Setup) nodeTimeout() time.Duration { return max(s.TTL/50, 50*time.Millisecond) }

// library returns the part of the name before the client. It decides the contestant's colour.
func (c *Contestant) library() string {
	name, _, _ := strings.Cut(c.Name, ",")
	return strings.TrimSuffix(strings.TrimSuffix(name, " fail-fast"), " (BLPOP)")
}

// errHeld is the error of a limit for a lock that another client holds.
var errHeld = errors.New("held")

// newOwner returns a unique owner.
func newOwner() string { return "benchmark/" + strconv.FormatUint(rand.Uint64(), 36) }

// AnyKeyStore is a Contestant's Serves for Redis and Valkey, one server or several.
func AnyKeyStore(kind server.Kind, nodes int) bool {
	return (kind == server.KindRedis || kind == server.KindValkey) && nodes >= 1
}

// OneKeyStore is a Contestant's Serves for one Redis or Valkey server.
func OneKeyStore(kind server.Kind, nodes int) bool { return AnyKeyStore(kind, nodes) && nodes == 1 }

// One returns a Contestant's Serves for one server of this kind.
func One(of server.Kind) func(server.Kind, int) bool {
	return func(kind server.Kind, nodes int) bool { return kind == of && nodes == 1 }
}

// ManyKeyStores is a Contestant's Serves for several Redis or Valkey servers.
func ManyKeyStores(kind server.Kind, nodes int) bool { return AnyKeyStore(kind, nodes) && nodes > 1 }

// Package bench measures locks beside each other, on servers that it starts.
//
//	Cases ──> Run ──> rounds, in each a turn for every contestant ──> Report
package bench

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/redlocktest/server"
)

// A Kind says why a contestant takes part.
type Kind string

// The kinds of contestants.
const (
	Ours  Kind = "ours"  // this module, as its users have it
	Part  Kind = "part"  // this module, set up in another way
	Limit Kind = "limit" // the fastest commands, which do less than a lock must do
	Peer  Kind = "peer"  // another library
)

// A Contestant is one way to take locks.
type Contestant struct {
	// Name and Client, the client library, are unique together.
	Name, Client string
	Kind         Kind
	// How describes the setup in one sentence, for the report.
	How string
	// Serves reports whether the contestant can take locks on this number of servers of this kind.
	Serves func(kind server.Kind, nodes int) bool
	// Waits says that Lock can wait for a holder; OnlyWaits says that it cannot make a single
	// attempt.
	Waits, OnlyWaits bool
	// Hot says that it takes part in the scenario hot only.
	Hot bool
	// Open returns a new client that shares nothing with others, like the client of another
	// process.
	Open func(ctx context.Context, s *Setup) (*Client, error)
}

// String returns the name and the client library.
func (c *Contestant) String() string { return c.Name + " over " + c.Client }

// A Setup describes the servers on which a contestant is opened.
type Setup struct {
	Addrs []string // one server, or the nodes of a quorum
	TTL   time.Duration
}

// A Client takes locks. Its functions are safe for concurrent use.
type Client struct {
	// Lock makes one attempt or, if wait is set, waits until ctx ends.
	Lock  func(ctx context.Context, key string, wait bool) (unlock func() error, err error)
	Close func() error
	// Requests counts the client's requests; nil: nobody does.
	Requests *atomic.Int64
}

// nodeTimeout is how long the limits wait for one node: as long as this module's quorum waits
// by default.
func (s *Setup) nodeTimeout() time.Duration { return max(s.TTL/50, 50*time.Millisecond) }

// errHeld is the error of a limit for a lock that another client holds.
var errHeld = errors.New("held")

// newOwner returns a unique owner.
func newOwner() string { return "benchmark/" + strconv.FormatUint(rand.Uint64(), 36) }

// AnyKeyStore is a Contestant's Serves for Redis and Valkey, one server or several.
func AnyKeyStore(kind server.Kind, _ int) bool {
	return kind == server.KindRedis || kind == server.KindValkey
}

// OneKeyStore is a Contestant's Serves for one Redis or Valkey server.
func OneKeyStore(kind server.Kind, nodes int) bool { return AnyKeyStore(kind, nodes) && nodes == 1 }

// One returns a Contestant's Serves for one server of this kind.
func One(of server.Kind) func(server.Kind, int) bool {
	return func(kind server.Kind, nodes int) bool { return kind == of && nodes == 1 }
}

// manyKeyStores is a Contestant's Serves for several Redis or Valkey servers.
func manyKeyStores(kind server.Kind, nodes int) bool { return AnyKeyStore(kind, nodes) && nodes > 1 }

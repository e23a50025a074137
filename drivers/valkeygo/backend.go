package valkeygo

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/redisnode"
)

// Options are the settings of a backend on a client of the application's. The zero
// Options, and nil, are the defaults.
type Options struct {
	// Prefix goes before every key, and before the name of whatever else is stored.
	Prefix string
	// CallTimeout bounds one call to the server; zero means a second. Half of the TTL
	// bounds it too.
	CallTimeout time.Duration
	// Grace is how much longer than its TTL a lock stays on the server, unless it is
	// released; zero means 10 ms and a hundredth of the TTL. It is for a lone instance: nodes of a
	// quorum keep what their terms say.
	Grace time.Duration
	// RestartGuard keeps a server that was restarted, and may have forgotten locks, from
	// granting any for so long; and no TTL may be longer. Zero: off. As a node of a quorum
	// it has the quorum's instead. It is not for a Cluster. A server without a memory that
	// was started less than the guard ago may be new or restarted: see Bootstrap.
	RestartGuard time.Duration
	// Bootstrap, of a lone instance with a guard, states that a server without a memory
	// is new, and StrictGuard that no other is.
	Bootstrap, StrictGuard bool
	// Durable states that the server forgets nothing that it has acknowledged
	// (appendonly yes and appendfsync always, which is checked where CONFIG is allowed):
	// the guard is then for a server alone whose data was lost.
	Durable bool
	// DB is the number of the database that the client selects, which it does not tell.
	// Only the restart guard asks.
	DB int
	// ConnWriteTimeout is that of the client, which it does not tell. If it is less than
	// CallTimeout a lone call goes on its caller's goroutine, and comes back by then, and not by
	// a deadline or a cancellation before. Zero: unknown.
	ConnWriteTimeout time.Duration
	// WaitReplicas is how many replicas must have a lock, or a renewal, before it counts: the
	// command WAIT asks for it after the script. Zero: none. See the package's documentation.
	WaitReplicas int
	// ForeignGap is for how long in each second a lock is not handed from one waiter to the
	// next, so that another library that asks for it now and then may get it; at most half a
	// second. Zero: never. See the package's documentation.
	ForeignGap time.Duration
	// Event is told what happens in the background; it may be nil.
	Event func(driver.Notice)

	_ struct{}
}

// A Backend keeps locks in Valkey or Redis through valkey-go. It is safe for
// concurrent use.
type Backend struct{ *redisnode.Node }

var (
	_ driver.Backend    = (*Backend)(nil)
	_ driver.Watcher    = (*Backend)(nil)
	_ driver.Inspector  = (*Backend)(nil)
	_ driver.Admin      = (*Backend)(nil)
	_ driver.GuardAdmin = (*Backend)(nil)
)

// New returns a backend on the application's own client, which it never closes. Its
// retries are harmless: every script may be run twice by one attempt. Deadlines are
// not told to such a client, because it would close a connection that others
// share; its ConnWriteTimeout ends what a server that hangs never answers. Name that in
// Options.ConnWriteTimeout: it makes a lone caller's lock twice as fast.
func New(c valkey.Client, o *Options) (*Backend, error) {
	if c == nil {
		return nil, driver.Invalid("client", "is nil")
	}
	if o == nil {
		o = &Options{}
	}
	cluster := isCluster(c)
	node, err := redisnode.New(redisnode.Config{
		Client: &client{valkey: c}, Name: "valkey", Addr: "valkey://" + strings.Join(addresses(c), ","), Prefix: o.Prefix,
		CallTimeout: o.CallTimeout, Grace: o.Grace, Event: o.Event,
		Guard: o.RestartGuard, Bootstrap: o.Bootstrap, StrictGuard: o.StrictGuard, Durable: o.Durable, WaitReplicas: o.WaitReplicas, ForeignGap: o.ForeignGap, DB: o.DB,
		Direct:  redisnode.Direct{Longest: o.ConnWriteTimeout},
		Cluster: cluster, Failover: cluster || strings.Contains(fmt.Sprintf("%T", c), "sentinel"),
	})
	if err != nil {
		return nil, err
	}
	return &Backend{node}, nil
}

func addresses(c valkey.Client) []string { return slices.Sorted(maps.Keys(c.Nodes())) }

// isCluster reports whether c is the client of a Cluster: the library says so by its
// type's name alone.
func isCluster(c valkey.Client) bool { return strings.Contains(fmt.Sprintf("%T", c), "cluster") }

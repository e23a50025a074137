package valkeygo

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/redisnode"
)

// Options are the settings of a backend that uses the application's client. The zero Options,
// and nil, are the defaults.
type Options struct {
	// Prefix goes before every key, and before the names of all other stored data.
	Prefix string
	// CallTimeout bounds one call to the server; zero means a second. Half of the TTL
	// bounds it too.
	CallTimeout time.Duration
	// RestartGuard is how long a server that was restarted, and may have forgotten locks,
	// grants none. No TTL may be longer. Zero: off. A node of a quorum uses the quorum's guard
	// instead. A Cluster cannot have one.
	RestartGuard time.Duration
	// Bootstrap, for a lone instance with a guard, states that a server without a memory is
	// new. Otherwise it counts as restarted.
	Bootstrap bool
	// Durable states that the server forgets nothing that it has acknowledged (appendonly yes
	// and appendfsync always, which is checked where CONFIG is allowed): the guard then applies
	// only to a server whose data was lost.
	Durable bool
	// DB is the number of the client's database, which the client does not reveal. Only the
	// restart guard needs it.
	DB int
	// WaitReplicas is how many replicas must confirm a grant or a renewal before it counts, by
	// the command WAIT after the script. Zero: none. See the package's documentation.
	WaitReplicas int
	// Notify is called with background notices; it may be nil. It must not block: it may run on
	// a goroutine that reads the server's answers.
	Notify func(driver.Notice)

	_ struct{}
}

// A Backend keeps locks in Valkey or Redis through valkey-go. It is safe for
// concurrent use.
type Backend struct{ *redisnode.Node }

// Starts reports whether other is this backend itself, and not a type that embeds it. A quorum
// asks so: it calls the methods Acquire, Renew and Release of such a type for every request.
func (b *Backend) Starts(other driver.Backend) bool { return other == driver.Backend(b) }

var _ driver.Backend = (*Backend)(nil)

// New returns a backend on the application's own client, which it never closes. The client's
// retries are harmless: one attempt may run a script twice. The client gets no deadlines,
// because it would close a connection that others share; its ConnWriteTimeout ends calls to a
// hanging server. A reply with a wrong length ends the process within the library; a client that
// the driver makes is protected from that.
func New(c valkey.Client, o *Options) (*Backend, error) {
	if c == nil {
		return nil, driver.Invalid("client", "is nil")
	}
	if o == nil {
		o = &Options{}
	}
	cluster, failover := kind(c)
	node, err := redisnode.New(redisnode.Config{
		Client: &client{valkey: c, life: context.Background()}, Name: "valkey", Addr: "valkey://" + strings.Join(addresses(c), ","), Prefix: o.Prefix,
		CallTimeout: o.CallTimeout, Notify: o.Notify,
		Guard: o.RestartGuard, Bootstrap: o.Bootstrap, Durable: o.Durable, WaitReplicas: o.WaitReplicas, DB: o.DB,
		Cluster: cluster, Failover: failover,
	})
	if err != nil {
		return nil, err
	}
	return &Backend{node}, nil
}

func addresses(c valkey.Client) []string { return slices.Sorted(maps.Keys(c.Nodes())) }

// kind asks a client, which may be a wrapper, whether its commands find their server by their key's
// slot, as in a Cluster, and whether another server may take its server's place.
func kind(c valkey.Client) (cluster, failover bool) {
	const noSlot = 1 << 15 // of clients that send all commands to one server
	cmd := c.B().Get().Key("k").Build()
	cluster = cmd.Slot()&noSlot == 0
	mode := ""
	if says := reflect.ValueOf(c).MethodByName("Mode"); says.IsValid() && says.Type().NumIn() == 0 && says.Type().NumOut() == 1 {
		mode = says.Call(nil)[0].String()
	} else { // older releases show it only by the name of the type
		mode = fmt.Sprintf("%T", c)
	}
	return cluster, cluster || strings.Contains(mode, "sentinel")
}

package goredis

import (
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

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
	// WaitReplicas is how many replicas must confirm a grant or a renewal before it counts, by
	// the command WAIT after the script. Zero: none. See the package's documentation.
	WaitReplicas int
	// Notify is called with background notices; it may be nil. It must not block: it may run on
	// a goroutine that reads the server's answers.
	Notify func(driver.Notice)

	_ struct{}
}

// A Backend keeps locks in Redis or Valkey through go-redis. It is safe for
// concurrent use.
type Backend struct{ *redisnode.Node }

// Starts reports whether other is this backend itself, and not a type that embeds it. A quorum
// asks so: it calls the methods Acquire, Renew and Release of such a type for every request.
func (b *Backend) Starts(other driver.Backend) bool { return other == driver.Backend(b) }

var _ driver.Backend = (*Backend)(nil)

// New returns a backend on the application's own client, which it never closes. The client's
// retries are harmless: one attempt may run a script twice. The client's timeouts apply as well
// as the backend's; set ContextTimeoutEnabled so that calls to a hanging server end in time.
//
// New refuses anything but a *redis.Client and a *redis.ClusterClient: the keys of a *redis.Ring move
// to other shards when a shard leaves, and a wrapper may hide a Ring. Pass the client that it holds.
func New(c redis.UniversalClient, o *Options) (*Backend, error) {
	if o == nil {
		o = &Options{}
	}
	lib := &client{redis: c}
	cfg := redisnode.Config{
		Client: lib, Name: "redis", Addr: "redis", Prefix: o.Prefix,
		CallTimeout: o.CallTimeout, Notify: o.Notify,
		Guard: o.RestartGuard, Bootstrap: o.Bootstrap, Durable: o.Durable, WaitReplicas: o.WaitReplicas,
	}
	if c == nil || reflect.ValueOf(c).IsZero() {
		return nil, driver.Invalid("client", "is nil")
	}
	switch c := c.(type) {
	case *redis.Client:
		opt := c.Options()
		cfg.Addr, cfg.DB = address(opt), opt.DB
		cfg.Failover = opt.Addr == "FailoverClient"
		lib.secrets = []string{opt.Password}
		lib.once = opt.MaxRetries <= 0
	case *redis.ClusterClient:
		opt := c.Options()
		cfg.Addr = scheme(opt.TLSConfig != nil) + strings.Join(opt.Addrs, ",")
		cfg.Cluster, cfg.Failover = true, true
		lib.secrets = []string{opt.Password}
		lib.once = opt.MaxRetries <= 0 && opt.MaxRedirects < 0
	case *redis.Ring:
		return nil, driver.Invalid("client", "a redis.Ring moves keys when a shard leaves, and with them the locks: use a Client or a ClusterClient")
	default:
		return nil, driver.Invalid("client", "is a %T: pass the *redis.Client or *redis.ClusterClient that it holds", c)
	}
	cfg.Repeats = !lib.once
	node, err := redisnode.New(cfg)
	if err != nil {
		return nil, err
	}
	return &Backend{node}, nil
}

func scheme(tls bool) string {
	if tls {
		return "rediss://"
	}
	return "redis://"
}

// address returns the address of a client's server, without a password.
func address(opt *redis.Options) string {
	if opt.Network == "unix" {
		s := "redis+unix://" + opt.Addr
		if opt.DB != 0 {
			s += "?db=" + strconv.Itoa(opt.DB)
		}
		return s
	}
	addr := opt.Addr
	if addr == "FailoverClient" {
		addr = "sentinel"
	}
	return scheme(opt.TLSConfig != nil) + addr + "/" + strconv.Itoa(opt.DB)
}

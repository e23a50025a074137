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
	// ForeignGap is how long in each second a lock is not handed to the next waiter, so that
	// another library that asks for it at times may get it; at most half a second. Zero: never.
	// See the package's documentation.
	ForeignGap time.Duration
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
// New refuses a *redis.Ring, because its keys move to other shards when a shard leaves. It also
// refuses a wrapper without a go-redis client in its fields, because it may hide a Ring.
func New(c redis.UniversalClient, o *Options) (*Backend, error) {
	if o == nil {
		o = &Options{}
	}
	lib := &client{redis: c}
	cfg := redisnode.Config{
		Client: lib, Name: "redis", Addr: "redis", Prefix: o.Prefix,
		CallTimeout: o.CallTimeout, Notify: o.Notify,
		Guard: o.RestartGuard, Bootstrap: o.Bootstrap, Durable: o.Durable, WaitReplicas: o.WaitReplicas, ForeignGap: o.ForeignGap,
	}
	if c == nil {
		return nil, driver.Invalid("client", "is nil")
	}
	lib.inner = inside(reflect.ValueOf(c), 4)
	switch c := lib.inner.(type) {
	case nil:
		return nil, driver.Invalid("client", "%T has no client of go-redis in its fields: pass the *redis.Client or *redis.ClusterClient, or a struct that holds it", lib.redis)
	case *redis.Ring:
		return nil, driver.Invalid("client", "a redis.Ring moves keys when a shard leaves, and with them the locks: use a Client or a ClusterClient")
	case *redis.Client:
		if c == nil {
			return nil, driver.Invalid("client", "is nil")
		}
		opt := c.Options()
		cfg.Addr, cfg.DB = address(opt), opt.DB
		cfg.Failover = opt.Addr == "FailoverClient"
		lib.secrets = []string{opt.Password}
		lib.once = opt.MaxRetries <= 0
	case *redis.ClusterClient:
		if c == nil {
			return nil, driver.Invalid("client", "is nil")
		}
		opt := c.Options()
		cfg.Addr = scheme(opt.TLSConfig != nil) + strings.Join(opt.Addrs, ",")
		cfg.Cluster, cfg.Failover = true, true
		lib.secrets = []string{opt.Password}
		lib.once = opt.MaxRetries <= 0 && opt.MaxRedirects < 0
	}
	cfg.Repeats = !lib.once
	node, err := redisnode.New(cfg)
	if err != nil {
		return nil, err
	}
	return &Backend{node}, nil
}

// inside returns v if it is a client of go-redis, or a client in the fields of the wrapper v,
// down to this many levels; nil if there is none.
func inside(v reflect.Value, depth int) any {
	if !v.IsValid() || depth < 0 {
		return nil
	}
	switch v.Type() {
	case reflect.TypeFor[*redis.Client]():
		return (*redis.Client)(v.UnsafePointer())
	case reflect.TypeFor[*redis.ClusterClient]():
		return (*redis.ClusterClient)(v.UnsafePointer())
	case reflect.TypeFor[*redis.Ring]():
		return (*redis.Ring)(v.UnsafePointer())
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return inside(v.Elem(), depth-1)
	case reflect.Struct:
		for i := range v.NumField() {
			if found := inside(v.Field(i), depth-1); found != nil {
				return found
			}
		}
	}
	return nil
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

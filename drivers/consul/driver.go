package consul

import (
	"cmp"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
	"github.com/redlock-go/redlock/driver/dsn"
)

const (
	// defaultMin is session_ttl_min of a server that says nothing about it.
	defaultMin = 10 * time.Second
	// maxTTL is the longest TTL of a session.
	maxTTL = 24 * time.Hour
	// mostConnections is how many connections a backend has to an agent: an agent refuses more than 200
	// of one address (http_max_conns_per_client). Other requests wait for one.
	mostConnections = 64
)

// Driver opens backends by URL. The zero Driver is ready.
type Driver struct{}

var _ driver.Driver = Driver{}

// Open reads cfg.DSN (see the package's documentation). Its only I/O is reading certificates and the
// file of the token that the environment names.
func (Driver) Open(cfg *driver.Config) (driver.Backend, error) {
	u, err := dsn.Parse(cfg.DSN, "8500", "consul", "consuls")
	if err != nil {
		return nil, err
	}
	opt := Options{Prefix: cfg.Prefix, Path: u.Path}
	opt.CallTimeout = u.Params.Duration("call_timeout", time.Second, 10*time.Millisecond)
	opt.SessionTTLMin = u.Params.Duration("session_ttl_min", defaultMin, time.Second)
	c := api.DefaultConfig()
	c.Datacenter = u.Params.String("dc", "")
	secure := u.Params.TLS(u.Scheme == "consuls")
	if err := u.Params.Err(); err != nil {
		return nil, err
	}
	if u.User != "" && u.Password == "" {
		return nil, driver.Invalid("URL", "has a user and no token: write any user and the token, user:token@")
	}
	hosts := &base.Hosts{Names: u.Hosts, Now: time.Now, Transport: &http.Transport{
		TLSClientConfig: secure, ForceAttemptHTTP2: true, MaxConnsPerHost: mostConnections, MaxIdleConnsPerHost: mostConnections, IdleConnTimeout: time.Minute,
	}}
	c.Address, c.Scheme, c.HttpClient, c.PathPrefix = u.Hosts[0], strings.Replace(u.Scheme, "consul", "http", 1), &http.Client{Transport: hosts}, ""
	if u.Password != "" {
		c.Token, c.TokenFile = u.Password, ""
	}
	client, err := api.NewClient(c)
	if err != nil {
		return nil, driver.Invalid("environment", "has a CONSUL_ variable that the client cannot use")
	}
	b, err := New(client, &opt)
	if err != nil {
		return nil, err
	}
	b.address, b.hosts, b.now = u.String(), hosts, hosts.Clock
	if c.Datacenter != "" {
		b.address += "?dc=" + url.QueryEscape(c.Datacenter)
	}
	return b, nil
}

// Options are the settings of a backend. The zero value of each field is its default, and so is a
// nil *Options.
type Options struct {
	// Prefix goes before every key.
	Prefix string
	// Path goes before the prefix, with a slash between them; "dlock" by default.
	Path string
	// CallTimeout bounds one attempt, renewal or release; 1 s by default.
	CallTimeout time.Duration
	// SessionTTLMin is the servers' session_ttl_min, if they have another one than 10 s. It is the
	// least TTL of a lock.
	SessionTTLMin time.Duration

	_ struct{}
}

// Backend grants locks of one Consul datacenter.
type Backend struct {
	opt     Options
	about   driver.Info
	address string
	client  *api.Client
	hosts   *base.Hosts      // nil: the caller's own client
	now     func() time.Time // the agent's time, or this machine's
	seen    atomic.Uint64    // the highest index seen

	calls base.Calls

	sessions base.Sessions[*session]   // by their TTL in seconds
	base     atomic.Pointer[tokenBase] // as it most likely is

	mu sync.Mutex // of the sessions' fields
}

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
	_ driver.Admin     = (*Backend)(nil)
)

// New returns a backend that uses the application's client, which it never closes. Its tokens follow
// the clock of this machine; those of a backend that was opened by its URL, the clock of the agent.
func New(client *api.Client, o *Options) (*Backend, error) {
	if client == nil {
		return nil, driver.Invalid("client", "is nil")
	}
	opt := base.Given(o)
	opt.Path = cmp.Or(strings.Trim(opt.Path, "/"), "dlock")
	opt.SessionTTLMin = cmp.Or(opt.SessionTTLMin, defaultMin)
	if opt.SessionTTLMin < time.Second || opt.SessionTTLMin > maxTTL {
		return nil, driver.Invalid("session_ttl_min", "must be 1s to 24h")
	}
	for part := range strings.SplitSeq(opt.Path, "/") {
		if part == "" || part == "." || part == ".." || part == dotDlock {
			return nil, driver.Invalid("path", "must not have empty, '.', '..' or '.dlock' parts")
		}
	}
	b := &Backend{opt: opt, client: client, address: "consul:" + opt.Path, now: time.Now,
		about: driver.Info{
			Name:     "consul",
			Features: driver.FeatureFencing | driver.FeatureQueueing | driver.FeatureOrdered,
			MinTTL:   opt.SessionTTLMin, MaxTTL: maxTTL, TokenLag: lag,
		}}
	if err := b.calls.Setup("consul", opt.Prefix, &b.opt.CallTimeout); err != nil {
		return nil, err
	}
	b.base.Store(&tokenBase{}) // another one shows at the first conflict
	return b, nil
}

// Info describes the backend.
func (b *Backend) Info() driver.Info { return b.about }

// String returns the address, the path, and the datacenter if it was chosen, without any secret.
func (b *Backend) String() string { return b.address }

// Close ends the backend. It does not release held leases. It waits for the clean-up under way, for
// about the call timeout at most.
func (b *Backend) Close() error {
	if b.calls.Close() && b.hosts != nil {
		b.hosts.Transport.CloseIdleConnections()
	}
	return nil
}

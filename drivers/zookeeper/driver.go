package zookeeper

import (
	"cmp"
	"context"
	"crypto/tls"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
	"github.com/redlock-go/redlock/driver/dsn"
)

// minTTL is slightly more than the least session timeout with usual settings allows. maxTTL is
// a bound of this driver, which finds typing errors.
const (
	minTTL = time.Second
	maxTTL = 24 * time.Hour
)

// defaultPath is where locks are stored unless the URL says otherwise.
const defaultPath = "dlock"

const defaultCallTimeout = time.Second

// Driver opens backends by URL. The zero Driver is ready.
type Driver struct{}

var _ driver.Driver = Driver{}

// Open reads cfg.DSN (see the package's documentation). Its only I/O is reading certificates.
func (Driver) Open(cfg *driver.Config) (driver.Backend, error) {
	u, err := dsn.Parse(cfg.DSN, "2181", "zk", "zks")
	if err != nil {
		return nil, err
	}
	opt := Options{Prefix: cfg.Prefix, User: u.User, Password: u.Password, Path: u.Path}
	opt.CallTimeout = u.Params.Duration("call_timeout", defaultCallTimeout, 10*time.Millisecond)
	opt.TLS = u.Params.TLS(u.Scheme == "zks")
	if err := u.Params.Err(); err != nil {
		return nil, err
	}
	b, err := New(u.Hosts, &opt)
	if err != nil {
		return nil, err
	}
	b.address = u.String()
	return b, nil
}

// Options are the settings of a backend. The zero value of each field is its default, and so
// is a nil *Options.
type Options struct {
	// Prefix goes before every key.
	Prefix string
	// Path is the node under which locks are stored; "/dlock" by default. One path must not lie
	// within another one.
	Path string
	// User and Password are sent by the scheme "digest". Without a user all users can access
	// the nodes.
	User, Password string
	// TLS is the configuration of TLS; nil: no TLS.
	TLS *tls.Config
	// CallTimeout bounds one attempt, renewal or release; 1 s by default.
	CallTimeout time.Duration

	_ struct{}
}

// Backend grants locks of one ZooKeeper ensemble.
type Backend struct {
	opt         Options
	info        driver.Info
	address     string
	hosts       []string
	password    []byte // user:password; nil: none
	acl         acl    // of what it makes
	clock       clock
	looking     base.Joint              // at the marker
	sessions    base.Sessions[*session] // by class
	lastEntries int64                   // tests change it

	calls base.Calls
}

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
	_ driver.Admin     = (*Backend)(nil)
)

// New returns a backend for an ensemble whose members have these addresses. It connects to
// nothing.
func New(members []string, o *Options) (*Backend, error) {
	opt := base.Given(o)
	opt.Path = "/" + cmp.Or(strings.Trim(opt.Path, "/"), defaultPath) + "/"
	switch {
	case len(members) == 0:
		return nil, driver.Invalid("members", "are none")
	case !validPath(opt.Path):
		return nil, driver.Invalid("path", "must be of printable ASCII, without empty, '.' and '..' parts")
	case opt.Password != "" && opt.User == "":
		return nil, driver.Invalid("URL", "has a password and no user")
	}
	b := &Backend{
		opt: opt, hosts: members, address: "zk://" + strings.Join(members, ",") + strings.TrimSuffix(opt.Path, "/"),
		info: driver.Info{
			Name:     "zookeeper",
			Features: driver.FeatureShared | driver.FeatureFencing | driver.FeatureQueueing | driver.FeatureOrdered | driver.FeatureTokens,
			MinTTL:   minTTL, MaxTTL: maxTTL,
		},
		acl: acl{"world", "anyone"}, lastEntries: lastEntries,
	}
	if opt.User != "" {
		b.password, b.acl = []byte(opt.User+":"+opt.Password), acl{scheme: "auth"}
	}
	if err := b.calls.Setup("zookeeper", opt.Prefix, &b.opt.CallTimeout); err != nil {
		return nil, err
	}
	return b, nil
}

func validPath(path string) bool {
	for part := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if part == "" || part == "." || part == ".." || strings.ContainsFunc(part, func(r rune) bool { return r < ' ' || r >= 0x7f }) {
			return false
		}
	}
	return true
}

// Info describes the backend.
func (b *Backend) Info() driver.Info { return b.info }

// String returns the servers' addresses and the path, without any secret.
func (b *Backend) String() string { return b.address }

// silence is how long a server may not answer a request before the driver asks another one.
func (b *Backend) silence() time.Duration { return b.opt.CallTimeout / 2 }

// Close ends the backend. It does not release held leases: their entries end when the servers
// end the sessions. It waits for clean-up, for about the call timeout after the servers' last answer.
func (b *Backend) Close() error {
	b.calls.Close()
	return nil
}

// session joins a session for leases of this TTL. The caller calls leave.
func (b *Backend) session(ttl time.Duration) *session {
	class := classOf(ttl)
	return b.sessions.Join(int(class), func() *session { return b.newSession(class) })
}

// bound returns a context for one attempt of a call.
func (b *Backend) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, b.opt.CallTimeout)
}

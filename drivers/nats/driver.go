package nats

import (
	"cmp"
	"crypto/tls"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
	"github.com/redlock-go/redlock/driver/dsn"
)

// The server counts TTLs in whole seconds. maxTTL is a bound of this driver, which finds typing
// errors.
const (
	minTTL = time.Second
	maxTTL = 24 * time.Hour
)

// Driver opens backends by URL. The zero Driver is ready.
type Driver struct{}

var _ driver.Driver = Driver{}

// Open reads cfg.DSN (see the package's documentation). Its only I/O is reading certificates.
func (Driver) Open(cfg *driver.Config) (driver.Backend, error) {
	u, err := dsn.Parse(cfg.DSN, "4222", "nats", "tls")
	if err != nil {
		return nil, err
	}
	opt := Options{Prefix: cfg.Prefix, Bucket: strings.TrimPrefix(u.Path, "/")}
	opt.CallTimeout = u.Params.Duration("call_timeout", time.Second, 10*time.Millisecond)
	creds := u.Params.String("creds", "")
	secure := u.Params.TLS(u.Scheme == "tls")
	if err := u.Params.Err(); err != nil {
		return nil, err
	}
	if u.Password != "" && u.User == "" {
		return nil, driver.Invalid("URL", "has a password and no user")
	}
	b, err := newBackend(&opt)
	if err != nil {
		return nil, err
	}
	b.address = u.String()
	b.dial = func() (*nats.Conn, error) { return dial(u, creds, secure, b) }
	return b, nil
}

// dial makes a connection with settings for locks: it goes on connecting for ever, and keeps no
// request for a server that it does not reach, since nobody could tell when such a request arrives.
func dial(u *dsn.URL, creds string, secure *tls.Config, b *Backend) (*nats.Conn, error) {
	return nats.Connect(strings.Join(u.Hosts, ","), func(o *nats.Options) error {
		o.Name, o.Timeout = "dlock", b.opt.CallTimeout*3/4
		o.MaxReconnect, o.ReconnectWait, o.ReconnectJitter, o.ReconnectBufSize = -1, 50*time.Millisecond, 100*time.Millisecond, -1
		o.PingInterval, o.MaxPingsOut, o.IgnoreAuthErrorAbort = 5*time.Second, 2, true
		o.AsyncErrorCB = func(_ *nats.Conn, _ *nats.Subscription, err error) { b.complaint.Store(&err) }
		o.Secure, o.TLSConfig = secure != nil, secure
		switch {
		case creds != "":
			return nats.UserCredentials(creds)(o)
		case u.Password == "":
			o.Token = u.User
		default:
			o.User, o.Password = u.User, u.Password
		}
		return nil
	})
}

// Options are the settings of a backend. The zero value of each field is its default, and so is a
// nil *Options.
type Options struct {
	// Prefix goes before every key.
	Prefix string
	// Bucket is the bucket of JetStream that has the locks; "dlock" by default.
	Bucket string
	// CallTimeout bounds one attempt, renewal or release; 1 s by default.
	CallTimeout time.Duration

	_ struct{}
}

// Backend grants locks of one bucket.
type Backend struct {
	opt       Options
	about     driver.Info
	address   string
	dial      func() (*nats.Conn, error) // nil: the caller's own connection
	id        string                     // of this backend, in the names of its waiters
	complaint atomic.Pointer[error]      // what the server said last beside its answers

	calls base.Calls

	mu      sync.Mutex
	conn    *nats.Conn
	bound   *bucket           // nil: it must be looked for
	opening base.Joint        // that looks for it
	freed   map[string]uint64 // the numbers of the messages by which this backend freed locks, by their subjects
}

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
	_ driver.Admin     = (*Backend)(nil)
)

// New returns a backend that uses the application's connection, which it never closes. While that
// is disconnected the backend sends nothing to store.
func New(nc *nats.Conn, o *Options) (*Backend, error) {
	if nc == nil {
		return nil, driver.Invalid("connection", "is nil")
	}
	b, err := newBackend(o)
	if err != nil {
		return nil, err
	}
	b.conn = nc
	b.address = "nats:" + b.opt.Bucket
	return b, nil
}

var validBucket = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

func newBackend(o *Options) (*Backend, error) {
	opt := base.Given(o)
	opt.Bucket = cmp.Or(opt.Bucket, "dlock")
	if !validBucket.MatchString(opt.Bucket) {
		return nil, driver.Invalid("bucket", "must have 1 to 64 letters, digits, '-' and '_'")
	}
	b := &Backend{opt: opt, id: nuid.Next(), freed: map[string]uint64{},
		about: driver.Info{
			Name:     "nats",
			Features: driver.FeatureFencing | driver.FeatureQueueing | driver.FeatureOrdered,
			MinTTL:   minTTL, MaxTTL: maxTTL, TokenLag: -1, // they need no clock
		}}
	if err := b.calls.Setup("nats", opt.Prefix, &b.opt.CallTimeout); err != nil {
		return nil, err
	}
	return b, nil
}

// Info describes the backend.
func (b *Backend) Info() driver.Info { return b.about }

// String returns the servers' addresses and the bucket, without any secret.
func (b *Backend) String() string { return b.address }

// Close ends the backend. It does not release held leases. It waits for the clean-up under way, for
// about the call timeout at most, or for as long for each server to which it is just connecting.
func (b *Backend) Close() error {
	if !b.calls.Close() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil && b.dial != nil { // nobody makes one any more
		b.conn.Close()
	}
	return nil
}

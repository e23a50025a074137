package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
	"github.com/redlock-go/redlock/driver/dsn"
)

// minTTL is the shortest TTL that an etcd with its default election timeout grants. maxTTL is a
// bound of this driver, which finds typing errors.
const (
	minTTL = 2 * time.Second
	maxTTL = 24 * time.Hour
)

// defaultPath is where locks are stored unless the URL or the options say otherwise.
const defaultPath = "/dlock/"

const defaultCallTimeout = time.Second

// Driver opens backends by URL. The zero Driver is ready.
type Driver struct{}

var _ driver.Driver = Driver{}

// Open reads cfg.DSN (see the package's documentation). Its only I/O is reading certificates.
func (Driver) Open(cfg *driver.Config) (driver.Backend, error) {
	u, err := dsn.Parse(cfg.DSN, "2379", "etcd", "etcds")
	if err != nil {
		return nil, err
	}
	opt := Options{Prefix: cfg.Prefix, Path: u.Path}
	opt.CallTimeout = u.Params.Duration("call_timeout", defaultCallTimeout, 10*time.Millisecond)
	secure := u.Params.TLS(u.Scheme == "etcds")
	if err := u.Params.Err(); err != nil {
		return nil, err
	}
	if u.Password != "" && u.User == "" {
		return nil, driver.Invalid("URL", "has a password and no user")
	}
	b, err := newBackend(&opt, len(u.Hosts))
	if err != nil {
		return nil, err
	}
	b.address = u.String()
	b.hosts = &base.Hosts{
		Names: u.Hosts, Now: func() time.Time { return b.now() },
		Transport: &http.Transport{TLSClientConfig: secure, DisableKeepAlives: true},
	}
	b.versionURL = httpURL(u, u.Hosts[0]) + "/version"
	b.dial = func() (*clientv3.Client, error) { return dial(u, secure, opt.CallTimeout) }
	return b, nil
}

func httpURL(u *dsn.URL, host string) string {
	return strings.Replace(u.Scheme, "etcd", "http", 1) + "://" + host
}

// dial makes a client with settings for locks. With a user and a password it asks a server for
// a token.
func dial(u *dsn.URL, secure *tls.Config, timeout time.Duration) (*clientv3.Client, error) {
	endpoints := make([]string, len(u.Hosts))
	for i, host := range u.Hosts {
		endpoints[i] = httpURL(u, host)
	}
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, TLS: secure, Username: u.User, Password: u.Password,
		DialTimeout: timeout * 3 / 4, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
		MaxUnaryRetries: 2, // a second try with a new token if the first has expired; call makes other retries
		Logger:          zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(reason), grpc.WithConnectParams(grpc.ConnectParams{
			// By default a client may come back two minutes after its servers.
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: max(timeout, time.Second),
		})},
	})
}

// Options are the settings of a backend. The zero value of each field is its default, and so
// is a nil *Options.
type Options struct {
	// Prefix goes before every key.
	Prefix string
	// Path goes before the prefix, with a slash between them; "/dlock/" by default. One path must
	// not lie within another one, so it cannot be "/".
	Path string
	// CallTimeout bounds one attempt, renewal or release; 1 s by default.
	CallTimeout time.Duration

	_ struct{}
}

// Backend grants locks of one etcd cluster.
type Backend struct {
	opt        Options
	info       driver.Info
	address    string
	tries      int                              // how often a request that fails at once is sent
	now        func() time.Time                 // time.Now; tests replace it
	dial       func() (*clientv3.Client, error) // nil: the caller's own client
	base       atomic.Pointer[tokenBase]
	seen       atomic.Int64              // the highest revision seen
	took       atomic.Int64              // how long the last transaction took, in nanoseconds
	versionURL string                    // whose answers have the servers' time
	hosts      *base.Hosts               // that tell the time; nil: this machine does
	asked      atomic.Pointer[time.Time] // when they were asked last
	asking     base.Joint
	pipe       pipe

	calls base.Calls

	client  atomic.Pointer[clientv3.Client] // nil: it is not made yet
	dialing base.Joint                      // that makes it

	sessions base.Sessions[*session] // by their TTL in seconds
}

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
	_ driver.Admin     = (*Backend)(nil)
)

// New returns a backend that uses the application's client, which it never closes. After an outage
// such a client comes back when the back-off of gRPC is over, which grpc.WithConnectParams among its
// DialOptions bounds.
func New(client *clientv3.Client, o *Options) (*Backend, error) {
	if client == nil {
		return nil, driver.Invalid("client", "is nil")
	}
	b, err := newBackend(o, len(client.Endpoints()))
	if err != nil {
		return nil, err
	}
	b.client.Store(client)
	b.address = "etcd://" + strings.Join(client.Endpoints(), ",")
	return b, nil
}

func newBackend(o *Options, members int) (*Backend, error) {
	opt := base.Given(o)
	if opt.Path == "" {
		opt.Path = defaultPath
	}
	if !strings.HasSuffix(opt.Path, "/") {
		opt.Path += "/"
	}
	switch {
	case !validPath(opt.Path):
		return nil, driver.Invalid("path", "must not have empty, '.' or '..' parts")
	case opt.Path == "/":
		return nil, driver.Invalid("path", "must not be \"/\", which contains every other path: leave the slash out to use %s, or name a path", strings.TrimSuffix(defaultPath, "/"))
	}
	b := &Backend{opt: opt, now: time.Now, tries: min(max(members, 2), 3), info: driver.Info{
		Name:     "etcd",
		Features: driver.FeatureShared | driver.FeatureFencing | driver.FeatureQueueing | driver.FeatureOrdered | driver.FeatureTokens,
		MinTTL:   minTTL, MaxTTL: maxTTL, TokenLag: lag,
	}}
	if err := b.calls.Setup("etcd", opt.Prefix, &b.opt.CallTimeout); err != nil {
		return nil, err
	}
	return b, nil
}

// validPath reports whether no other spelling means the same path. It ends with a slash.
func validPath(path string) bool {
	for part := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if part == "." || part == ".." {
			return false
		}
	}
	return !strings.Contains(path, "//")
}

// Info describes the backend.
func (b *Backend) Info() driver.Info { return b.info }

// String returns the servers' addresses and the path, without any secret.
func (b *Backend) String() string { return b.address }

// Close ends the backend. It does not release held leases. It waits for the clean-up under way,
// for about the call timeout at most.
func (b *Backend) Close() error {
	if !b.calls.Close() {
		return nil
	}
	client := b.client.Load()
	if b.dial == nil || client == nil {
		return nil
	}
	if err := client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("etcd: close: %w", err)
	}
	return nil
}

// connect returns the client, and makes it at the first call.
func (b *Backend) connect(ctx context.Context) (*clientv3.Client, error) {
	if client := b.client.Load(); client != nil {
		return client, nil
	}
	err := b.dialing.Do(ctx, &b.calls, func(context.Context) error {
		if b.client.Load() != nil {
			return nil
		}
		client, err := b.dial()
		if err == nil {
			b.client.Store(client)
		}
		return err
	})
	return b.client.Load(), err
}

// call makes a request. If no member answers for a while it sends the request to another one as
// well, so it may take effect more than once, and late: sure is false if it was sent twice, or had
// no answer.
func call[T any](ctx context.Context, b *Backend, f func(context.Context, *clientv3.Client) (T, error)) (result T, sure bool, err error) {
	c, err := b.connect(ctx)
	if err != nil {
		return result, true, err
	}
	for try := 1; ; try++ {
		one, cancel := ctx, context.CancelFunc(func() {})
		patience := b.patience()
		if try == 1 {
			one, cancel = context.WithTimeout(ctx, patience)
		}
		result, err = f(one, c)
		if one.Err() != nil && ctx.Err() == nil {
			b.took.Store(int64(patience)) // at least: the next request has more time
		}
		cancel()
		if answered(err) {
			return result, try == 1, err
		}
		if try >= b.tries || ctx.Err() != nil {
			return result, false, err
		}
	}
}

// patience is how long a member may take to answer before another one is asked. It follows the time
// that transactions take: servers that are slow, because they have much to do, get no more to do.
func (b *Backend) patience() time.Duration {
	return min(max(b.opt.CallTimeout/3, 4*time.Duration(b.took.Load())), b.opt.CallTimeout*3/4)
}

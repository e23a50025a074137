package postgres

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// Options are the settings of a backend. The zero value of each field is its default,
// and so is a nil *Options.
type Options struct {
	// Prefix goes before every key.
	Prefix string
	// Notify receives background notices; see driver.Config.Notify.
	Notify func(driver.Notice)
	// FenceSchema has the sequence of the tokens, dlock_fence: the schema "public" by default, the same
	// for all programs that use the database.
	FenceSchema string
	// MaxConns bounds the connections, 20 by default, at least 2. Four fifths of them may wait for
	// a lock.
	MaxConns int
	// Pooler is "session" if there is a pooler before the server that gives every client its
	// own server process for as long as the client is connected. Any other pooling would give
	// locks to other clients, and is refused.
	Pooler string
	// RestartGuard, if not zero, keeps a server that was started less than this ago from
	// granting: the server may have forgotten the locks of a holder that does not know of the
	// restart. It is then also the longest TTL.
	RestartGuard time.Duration
	// Address is the text that String returns: the server's address without any secret.
	Address string

	_ struct{}
}

// Backend grants advisory locks of one PostgreSQL database.
type Backend struct {
	opt     Options
	highest atomic.Uint64 // the highest token that was given to this process
	info    driver.Info
	factory func(context.Context) (*pgx.Conn, error)
	sql     queries
	role    string // of the URL
	warning string // of the URL; the first connection reports it
	warned  sync.Once
	label   atomic.Pointer[string]
	calls   base.Calls

	mu      sync.Mutex
	closed  bool
	conns   []*conn
	refused time.Time // when a connection could not be opened last
	lacked  time.Time // when a wait found no connection last
	hot     map[number]*hotKey
}

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
)

// New returns a backend that gets its connections from factory. It calls factory whenever it
// needs a connection, so that credentials may change, and concurrently at most as often as
// there may be connections. Only the backend ends the connections. All of them must be to the
// primary of one database.
func New(factory func(context.Context) (*pgx.Conn, error), o *Options) (*Backend, error) {
	if factory == nil {
		return nil, driver.Invalid("factory", "is nil")
	}
	opt := base.Given(o)
	if err := opt.complete(); err != nil {
		return nil, err
	}
	b := &Backend{
		opt: opt, factory: factory, hot: map[number]*hotKey{},
		calls: base.Calls{Name: "postgres", Timeout: callTimeout},
		info: driver.Info{
			Name: "postgres", Features: driver.FeatureShared | driver.FeatureSession | driver.FeatureQueueing | driver.FeatureOrdered | driver.FeatureFencing | driver.FeatureTokens,
			MinTTL: minTTL, MaxTTL: maxTTL,
			TokenLag: -1, // the sequence follows the clock only when sessions begin
		},
	}
	b.sql = queries{"nextval(" + literal(b.sequence()) + "::regclass)"}
	if opt.RestartGuard > 0 {
		b.info.MaxTTL = min(maxTTL, opt.RestartGuard)
	}
	return b, nil
}

// complete fills in the defaults and checks the options.
func (o *Options) complete() error {
	o.MaxConns, o.FenceSchema = cmp.Or(o.MaxConns, 20), cmp.Or(o.FenceSchema, publicSchema)
	switch {
	case o.MaxConns < 2:
		return driver.Invalid("max_conns", "must be at least 2")
	case o.Pooler != "" && o.Pooler != "session":
		return driver.Invalid("pooler", "must be session, or empty if there is no pooler")
	case o.RestartGuard < 0 || o.RestartGuard > 0 && o.RestartGuard < time.Second:
		return driver.Invalid("restart_guard", "must be at least 1s")
	case !plainName.MatchString(o.FenceSchema):
		return driver.Invalid("fence_schema", "must have letters, digits and underscores only, at most 63")
	}
	return base.CheckPrefix(o.Prefix)
}

// FromPool returns a factory for New that takes connections with p's settings out of p and
// never returns them to it: they do not count against p's MaxConns.
func FromPool(p *pgxpool.Pool) func(context.Context) (*pgx.Conn, error) {
	return func(ctx context.Context) (*pgx.Conn, error) {
		c, err := p.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		return c.Hijack(), nil
	}
}

// Connect opens a connection in the same way as the backend opens its own, for measurements and
// maintenance. The caller closes it.
func (b *Backend) Connect(ctx context.Context) (*pgx.Conn, error) { return b.factory(ctx) }

// Info describes the backend.
func (b *Backend) Info() driver.Info { return b.info }

// String returns the server's address, without any secret.
func (b *Backend) String() string {
	if b.opt.Address == "" {
		return "postgres"
	}
	return b.opt.Address
}

// Acquire makes one attempt on a connection for requests. If that finds the lock held and req.Wait is
// set, it waits in the server's queue.
func (b *Backend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	if err := b.info.Check(b.opt.Prefix, req); err != nil {
		return nil, err
	}
	b.learnLabel(req.Owner)
	w := &want{number: numberOf(b.opt.Prefix, req.Key), key: req.Key, owner: req.Owner, mode: req.Mode, ttl: req.TTL}
	if req.Tokens > 1 && req.Mode == driver.Exclusive {
		w.tokens = min(req.Tokens, mostTokens)
	}
	l, err := b.acquire(ctx, w, req.Wait)
	if err != nil {
		return nil, err
	}
	return base.NewLease(&b.calls, b.info, l.grant(), l.renew, l.release), nil
}

func (b *Backend) acquire(ctx context.Context, w *want, wait bool) (*lease, error) {
	seen, writer := b.expected(w.number)
	if !wait && writer && w.mode == driver.Shared { // it was there before
		return nil, &driver.HeldError{}
	}
	if !wait || seen == nil {
		l, err := b.try(ctx, w)
		var held *driver.HeldError // on the heap, unlike seen
		if !errors.As(err, &held) {
			return l, err
		}
		seen = held
		b.heat(w, seen, 0)
	}
	if !wait {
		return nil, seen
	}
	call, err := b.calls.Begin(ctx, forever)
	if err != nil {
		return nil, err
	}
	defer call.End()
	return b.wait(call, w, seen)
}

// try makes one attempt, and another if its connection ends before.
func (b *Backend) try(ctx context.Context, w *want) (*lease, error) {
	call, err := b.calls.Begin(ctx, patience(w.ttl))
	if err != nil {
		return nil, err
	}
	defer call.End()
	for n := 0; ; n++ {
		l := &lease{want: *w}
		c, err := b.conn(call, classOf(w.ttl))
		if err == nil {
			err = c.lock(call, l)
		}
		if n == 2 || !errors.Is(err, errEnded) {
			return l, call.Failed(err)
		}
	}
}

// sawToken updates the highest token.
func (b *Backend) sawToken(token uint64) {
	for seen := b.highest.Load(); token > seen && !b.highest.CompareAndSwap(seen, token); {
		seen = b.highest.Load()
	}
}

// Close ends all sessions, which frees their locks, and returns when all goroutines of the
// backend have ended.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	for _, c := range b.all() {
		c.mu.Lock()
		c.fail(driver.ErrClosed)
		c.mu.Unlock()
	}
	b.calls.Close()
	return nil
}

// noticeInClear is the kind of a notice that a password may be sent without encryption.
const noticeInClear string = "password in clear"

func (b *Backend) report(e driver.Notice) {
	if b.opt.Notify != nil {
		b.opt.Notify(e)
	}
}

// learnLabel keeps the label of the first owner: the part before its last '/'.
func (b *Backend) learnLabel(owner string) {
	if i := strings.LastIndexByte(owner, '/'); i > 0 && b.label.Load() == nil {
		label := owner[:i]
		b.label.CompareAndSwap(nil, &label)
	}
}

// applicationName is the name that the server shows for a session, made of that of the connection and
// the owners' label, in printable ASCII: the server would refuse what is no UTF-8. It shows 63 bytes.
func (b *Backend) applicationName(name string) string {
	if name == "" {
		name = "dlock"
	}
	if label := b.label.Load(); label != nil {
		name += " " + *label
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, name)
}

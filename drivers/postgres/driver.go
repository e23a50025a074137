package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/postgres/internal/advisory"
	"github.com/redlock-go/redlock/drivers/postgres/internal/claims"
	"github.com/redlock-go/redlock/drivers/postgres/internal/session"
	"github.com/redlock-go/redlock/drivers/postgres/internal/verdict"
)

// Options are the settings of a backend. The zero value of each field is its default,
// and so is a nil *Options.
type Options struct {
	// Prefix goes before every key.
	Prefix string
	// Notify receives background notices; see driver.Config.Notify.
	Notify func(driver.Notice)
	// Fencing is "on" (the default: tokens from the sequence public.dlock_fence), "off", or
	// the sequence in another schema, "my_schema.dlock_fence", the same for all programs
	// that use the database.
	Fencing string
	// MaxSessions bounds the connections that hold leases; 4 by default.
	MaxSessions int
	// MaxWaiters bounds the connections that wait for a lock, or hold a lock after such a wait;
	// 16 by default.
	MaxWaiters int
	// Pooler is "session" if there is a pooler before the server that gives every client its
	// own server process for as long as the client is connected. Any other pooling would give
	// locks to other clients, and is refused.
	Pooler string
	// RestartGuard, if not zero, keeps a server that was started less than this ago from
	// granting: the server may have forgotten the locks of a holder that does not know of the
	// restart. It is then also the longest TTL.
	RestartGuard time.Duration
	// CheckInterval is how often the server checks, while a statement runs, that the client is
	// still connected; 2 s by default.
	CheckInterval time.Duration
	// ApplicationName goes before the owner's label in the server's view of the
	// sessions, pg_stat_activity; "dlock" by default.
	ApplicationName string
	// Address is the text that String returns: the server's address without any secret.
	Address string

	_ struct{}
}

// Backend grants advisory locks of one PostgreSQL database.
type Backend struct {
	opt     Options
	schema  string        // of the sequence of tokens; empty: no tokens
	highest atomic.Uint64 // the highest token that was given to this process
	info    driver.Info
	factory func(context.Context) (*pgx.Conn, error)
	table   *claims.Table
	hot     *claims.Hot
	host    *session.Host
	number  func(prefix, key string) advisory.Number // NumberOf; tests of collisions replace it
	sql     advisory.Queries
	ignored []string // parameters of the URL
	role    string   // of the URL
	warning string   // of the URL; the first connection reports it
	warned  sync.Once
	locks   atomic.Int64 // locks that this process holds on the server
	room    atomic.Int64 // the size of the server's lock table, estimated

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	sessions []*session.Session
	opening  map[time.Duration]*opening
	waiters  []*session.Session
	coming   int            // waiters that are being opened
	noWaiter time.Time      // no waiter is opened before this
	wanting  []*connRequest // callers that want a connection for waiting, in order
	label    string
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
	var opt Options
	if o != nil {
		opt = *o
	}
	schema, err := opt.complete()
	if err != nil {
		return nil, err
	}
	b := &Backend{
		opt: opt, schema: schema, factory: factory, number: advisory.NumberOf,
		table: claims.NewTable(), hot: claims.NewHot(),
		opening: map[time.Duration]*opening{},
		info: driver.Info{
			Name: "postgres", Features: driver.FeatureShared | driver.FeatureSession | driver.FeatureQueueing | driver.FeatureOrdered,
			MinTTL: session.MinTTL, MaxTTL: session.MaxTTL,
		},
	}
	b.sql = advisory.NewQueries("")
	if schema != "" {
		b.info.Features |= driver.FeatureFencing
		b.sql = advisory.NewQueries(b.sequence())
	}
	if opt.RestartGuard > 0 {
		b.info.MaxTTL = min(session.MaxTTL, opt.RestartGuard)
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.host = &session.Host{
		Context: b.ctx, Running: &b.wg, Info: &b.info, SQL: b.sql, Fencing: schema != "", Pooled: opt.Pooler != "",
		Table: b.table, Hot: b.hot, Locks: &b.locks,
		NoToken: b.noToken(), SawToken: b.sawToken, Report: b.report, Ended: b.forget, Gone: b.processGone,
	}
	return b, nil
}

// complete fills in the defaults and checks the options.
func (o *Options) complete() (schema string, err error) {
	defaults := func(n *int, def int) {
		if *n == 0 {
			*n = def
		}
	}
	defaults(&o.MaxSessions, 4)
	defaults(&o.MaxWaiters, 16)
	if o.CheckInterval == 0 {
		o.CheckInterval = 2 * time.Second
	}
	if o.ApplicationName == "" {
		o.ApplicationName = "dlock"
	}
	switch {
	case len(o.Prefix) >= driver.MaxKey:
		return "", driver.Invalid("prefix", "has %d bytes, and leaves none of the %d for keys", len(o.Prefix), driver.MaxKey)
	case o.MaxSessions < 1 || o.MaxWaiters < 1:
		return "", driver.Invalid("max_sessions and max_waiters", "must be at least 1")
	case o.Pooler != "" && o.Pooler != "session":
		return "", driver.Invalid("pooler", "must be session, or empty if there is no pooler")
	case o.RestartGuard < 0 || o.RestartGuard > 0 && o.RestartGuard < time.Second:
		return "", driver.Invalid("restart_guard", "must be at least 1s")
	case o.CheckInterval < time.Millisecond:
		return "", driver.Invalid("check_interval", "must be at least 1ms")
	}
	return parseFence(o.Fencing)
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

// Acquire makes one attempt on a shared session. If that finds the lock held and req.Wait is
// set, it waits in the server's queue.
func (b *Backend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	if err := b.info.Check(b.opt.Prefix, req); err != nil {
		return nil, err
	}
	if b.closing() {
		return nil, driver.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	b.learnLabel(req.Owner)
	c := &claims.Claim{Number: b.number(b.opt.Prefix, req.Key), Key: req.Key, Owner: req.Owner, Mode: req.Mode}
	l, err := b.acquire(ctx, c, req)
	if err != nil {
		return nil, err
	}
	return l, nil
}

func (b *Backend) acquire(ctx context.Context, c *claims.Claim, req *driver.Request) (*session.Lease, error) {
	if req.Wait && (b.hot.Is(c.Number) || b.table.Queued(c.Number) > 0) {
		return b.wait(ctx, c, req.TTL, nil)
	}
	l, err := b.try(ctx, c, req.TTL)
	if err != nil && req.Wait {
		var seen *driver.HeldError
		if errors.As(err, &seen) {
			return b.wait(ctx, c, req.TTL, seen)
		}
	}
	return l, err
}

// try makes one attempt.
func (b *Backend) try(ctx context.Context, c *claims.Claim, ttl time.Duration) (*session.Lease, error) {
	if err := b.full(); err != nil {
		return nil, err
	}
	for end := time.Now().Add(connectTimeout); ; {
		holder, change := b.table.Ask(c)
		if holder != nil {
			return nil, b.heldHere(c, holder)
		}
		if change == nil {
			break
		}
		select {
		case <-change: // comes at the latest when a silent session is given up
		case <-ctx.Done():
			return nil, verdict.Ended(ctx)
		case <-b.ctx.Done():
			return nil, driver.ErrClosed
		}
		if time.Now().After(end) {
			return nil, verdict.ErrTimeout
		}
	}
	err := session.ErrEnded
	for n := 0; n < 3 && errors.Is(err, session.ErrEnded); n++ {
		var s *session.Session
		if s, err = b.session(ctx, session.ClassOf(ttl)); err != nil {
			break
		}
		var l *session.Lease
		if l, err = s.Lock(ctx, c, ttl); !errors.Is(err, session.ErrEnded) {
			return l, err
		}
	}
	b.table.Drop(c)
	return nil, err
}

// full refuses a lock that could fill the server's lock table: one process takes at most half
// of it. The server itself refuses only when the table is full for all clients.
func (b *Backend) full() error {
	if most := b.room.Load() / 2; most > 0 && b.locks.Load() >= most {
		return &driver.RefusedError{RetryAfter: time.Second, Reason: fmt.Sprintf("postgres: this process has %d locks, half of the server's lock table: raise max_locks_per_transaction", most)}
	}
	return nil
}

// sawToken updates the highest token.
func (b *Backend) sawToken(token uint64) {
	for seen := b.highest.Load(); token > seen && !b.highest.CompareAndSwap(seen, token); {
		seen = b.highest.Load()
	}
}

// heldHere returns the verdict that this backend itself has the lock.
func (b *Backend) heldHere(c, holder *claims.Claim) error {
	if holder.Key != c.Key {
		b.report(driver.Notice{Kind: driver.NoticeCollision, Key: c.Key, Detail: "two keys have one advisory lock, and wait for each other: " + fmt.Sprintf("%q and %q", c.Key, holder.Key)})
	}
	return &driver.HeldError{Holder: holder.Owner, Since: holder.Since, Clock: time.Now()}
}

// Close ends all sessions, which frees their locks, and returns when all goroutines of the
// backend have ended.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.cancel()
	all := append(append([]*session.Session{}, b.sessions...), b.waiters...)
	b.mu.Unlock()
	for _, s := range all {
		s.Close()
	}
	b.wg.Wait()
	return nil
}

func (b *Backend) closing() bool { return b.ctx.Err() != nil }

// noticeInClear is the kind of a notice that a password may be sent without encryption.
const noticeInClear driver.NoticeKind = "password in clear"

func (b *Backend) report(e driver.Notice) {
	if b.opt.Notify != nil {
		b.opt.Notify(e)
	}
}

// learnLabel keeps the label of the first owner: the part before its last '/'.
func (b *Backend) learnLabel(owner string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.label != "" {
		return
	}
	if i := strings.LastIndexByte(owner, '/'); i > 0 {
		b.label = owner[:i]
	}
}

// applicationName is the name that the server shows for a session: 63 bytes of printable ASCII.
// The server would replace other characters, and refuse a character that is cut in half.
func (b *Backend) applicationName() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	name := b.opt.ApplicationName
	if b.label != "" {
		name += " " + b.label
	}
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, name)
	return name[:min(len(name), 63)]
}

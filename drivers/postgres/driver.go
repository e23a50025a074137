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
)

// Options are the settings of a backend. The zero value of each field is its default,
// and so is a nil *Options.
type Options struct {
	// Prefix goes before every key.
	Prefix string
	// Event receives events of the background; see driver.Config.Notify.
	Event func(driver.Notice)
	// Fencing is "on" (the default: tokens from the sequence public.dlock_fence), "off", or
	// the sequence in another schema, "my_schema.dlock_fence", the same for all programs
	// that use the database.
	Fencing string
	// MaxSessions bounds the connections that leases live on; 4 by default.
	MaxSessions int
	// MaxWaiters bounds the connections that wait for a lock, or carry one that they
	// waited for; 16 by default.
	MaxWaiters int
	// Pooler is "session" if a pooler stands before the server and gives every client
	// a server process of its own for as long as the client is connected. Any other
	// pooling would give our locks away, and is refused.
	Pooler string
	// RestartGuard, if not zero, keeps a server that was started less than this ago from
	// granting: it may have forgotten the locks of a holder that has not heard of it. It
	// is then the longest TTL.
	RestartGuard time.Duration
	// CheckInterval is how often the server looks whether a client whose statement is
	// running is still there; 2 s by default.
	CheckInterval time.Duration
	// ApplicationName goes before the owner's label in the server's view of the
	// sessions, pg_stat_activity; "dlock" by default.
	ApplicationName string
	// Address is the result of String: the server's address without any secret.
	Address string

	_ struct{}
}

// Backend grants advisory locks of one PostgreSQL database.
type Backend struct {
	opt     Options
	schema  string        // of the sequence that gives tokens; empty: no tokens
	highest atomic.Uint64 // the highest token that was given to this process
	info    driver.Info
	factory func(context.Context) (*pgx.Conn, error)
	table   table
	hot     hot
	number  func(prefix, key string) lockNumber // numberOf, but for tests of collisions
	sql     queries
	ignored []string     // parameters of the URL
	role    string       // of the URL
	locks   atomic.Int64 // held by this process on the server
	room    atomic.Int64 // the size of the server's lock table, estimated

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	sessions []*session
	opening  map[time.Duration]*opening
	waiters  []*session
	coming   int            // waiters that are being opened
	noWaiter time.Time      // none is opened before this
	wanting  []*connRequest // callers that want a connection for waiting, in order
	label    string
}

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
)

// New returns a backend whose connections factory makes. It is called whenever
// one is needed, so that credentials may change, never more often at a time than
// there may be connections, and its connections are ended by the backend alone. They must be
// of one database, and of its primary.
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
		opt: opt, schema: schema, factory: factory, number: numberOf,
		table:   table{byNumber: map[lockNumber]*entry{}},
		hot:     hot{keys: map[lockNumber]time.Time{}},
		opening: map[time.Duration]*opening{},
		info: driver.Info{
			Name: "postgres", Features: driver.FeatureShared | driver.FeatureSession | driver.FeatureQueueing | driver.FeatureOrdered,
			MinTTL: minTTL, MaxTTL: maxTTL,
		},
	}
	b.sql = newQueries("")
	if schema != "" {
		b.info.Features |= driver.FeatureFencing
		b.sql = newQueries(b.sequence())
	}
	if opt.RestartGuard > 0 {
		b.info.MaxTTL = min(maxTTL, opt.RestartGuard)
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b, nil
}

// complete fills in the defaults and checks the rest.
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
		return "", driver.Invalid("prefix", "has %d bytes, and leaves none of %d to the keys", len(o.Prefix), driver.MaxKey)
	case o.MaxSessions < 1 || o.MaxWaiters < 1:
		return "", driver.Invalid("max_sessions and max_waiters", "must be at least 1")
	case o.Pooler != "" && o.Pooler != "session":
		return "", driver.Invalid("pooler", "must be session, or nothing where there is no pooler")
	case o.RestartGuard < 0 || o.RestartGuard > 0 && o.RestartGuard < time.Second:
		return "", driver.Invalid("restart_guard", "must be at least 1s")
	case o.CheckInterval < time.Millisecond:
		return "", driver.Invalid("check_interval", "must be at least 1ms")
	}
	return parseFence(o.Fencing)
}

// FromPool returns a factory for New that takes its connections from p, with p's
// settings, and never gives them back: they do not count against p's MaxConns.
func FromPool(p *pgxpool.Pool) func(context.Context) (*pgx.Conn, error) {
	return func(ctx context.Context) (*pgx.Conn, error) {
		c, err := p.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		return c.Hijack(), nil
	}
}

// Connect opens a connection as the backend opens its own. The caller closes it. It is for
// measurements and for maintenance.
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

// Acquire makes one attempt on a shared session, and where that finds the lock held and
// req.Wait allows it, waits in the server's queue.
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
	c := &claim{number: b.number(b.opt.Prefix, req.Key), key: req.Key, owner: req.Owner, mode: req.Mode}
	l, err := b.acquire(ctx, c, req)
	if err != nil {
		return nil, err
	}
	return l, nil
}

func (b *Backend) acquire(ctx context.Context, c *claim, req *driver.Request) (*lease, error) {
	if req.Wait && (b.hot.is(c.number) || b.table.queued(c.number)) {
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
func (b *Backend) try(ctx context.Context, c *claim, ttl time.Duration) (*lease, error) {
	if err := b.full(); err != nil {
		return nil, err
	}
	for end := time.Now().Add(connectTimeout); ; {
		holder, change := b.table.ask(c)
		if holder != nil {
			return nil, b.heldHere(c, holder)
		}
		if change == nil {
			break
		}
		select {
		case <-change: // within the time of a silent session
		case <-ctx.Done():
			return nil, ended(ctx)
		case <-b.ctx.Done():
			return nil, driver.ErrClosed
		}
		if time.Now().After(end) {
			return nil, errTimeout
		}
	}
	var o *op
	err := errEnded
	for n := 0; n < 3 && errors.Is(err, errEnded); n++ {
		var s *session
		if s, err = b.session(ctx, classOf(ttl)); err == nil {
			if o, err = s.lock(c, ttl); err == nil {
				return s.await(ctx, o)
			}
		}
	}
	b.table.drop(c)
	return nil, err
}

// await waits for the answer to a lock.
func (s *session) await(ctx context.Context, o *op) (*lease, error) {
	if s.answer(ctx, o, attempt(o.ttl)) {
		return o.lease, o.err
	}
	s.abandon(o)
	return nil, ended(ctx)
}

// full refuses a lock that could fill the server's lock table: one process takes at most half
// of it. The server itself refuses only when there is no room for anybody.
func (b *Backend) full() error {
	if most := b.room.Load() / 2; most > 0 && b.locks.Load() >= most {
		return &driver.RefusedError{RetryAfter: time.Second, Reason: fmt.Sprintf("postgres: this process has %d locks, half of the server's lock table: raise max_locks_per_transaction", most)}
	}
	return nil
}

// sawToken notes the highest token.
func (b *Backend) sawToken(token uint64) {
	for seen := b.highest.Load(); token > seen && !b.highest.CompareAndSwap(seen, token); {
		seen = b.highest.Load()
	}
}

// ended is the error of an attempt that took too long for its caller, or for us.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return errTimeout
}

// heldHere is the verdict that this very backend has the lock.
func (b *Backend) heldHere(c, holder *claim) error {
	if holder.key != c.key {
		b.report(driver.Notice{Kind: driver.NoticeCollision, Key: c.key, Detail: "two keys have one advisory lock, and wait for each other: " + fmt.Sprintf("%q and %q", c.key, holder.key)})
	}
	return &driver.HeldError{Holder: holder.owner, Since: holder.since, Clock: time.Now()}
}

// Close ends all sessions, and so frees their locks, and returns when nothing of
// the backend is left.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.cancel()
	all := append(append([]*session{}, b.sessions...), b.waiters...)
	b.mu.Unlock()
	for _, s := range all {
		s.close()
	}
	b.wg.Wait()
	return nil
}

func (b *Backend) closing() bool { return b.ctx.Err() != nil }

func (b *Backend) report(e driver.Notice) {
	if b.opt.Event != nil {
		b.opt.Event(e)
	}
}

// learnLabel takes the label of the first owner: the part before its last '/'.
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
// The server replaces other characters, and refuses one that is cut.
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

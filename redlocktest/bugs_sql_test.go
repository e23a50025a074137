package redlocktest

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/dsn"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// sqlServer has the tables while TestPlantedBugs runs.
var sqlServer *server.Server

func startSQL(t *testing.T) {
	sqlServer = server.Postgres(t, server.WithSetting("max_connections", "600"))
}

// statements are the statements of a driver that keeps its locks in a table. The key is $1, the
// owner $2. They use the server's time.
type statements struct {
	setup, acquire, holder, renew, release, undo string

	// Further bugs.
	keepsPool    bool // Close leaves the connections open
	keepsConn    bool // a cancelled Acquire does not return its connection
	checksFirst  bool // uses two statements instead of one
	noUndo       bool
	ignoresError bool // the error of Release
	noPrefix     bool

	within time.Duration // the timeout of a case; zero: 20 s
}

// statementTime is the longest time that the server lets a statement run.
const statementTime = 3 * time.Second

// openTables returns a pool of connections to the server.
func openTables() (*sql.DB, error) {
	return sql.Open("pgx", fmt.Sprintf("%s&statement_timeout=%d", sqlServer.URL(), statementTime.Milliseconds()))
}

const clockMicros = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

// soundStatements have no bug.
var soundStatements = statements{
	setup: `CREATE TABLE IF NOT EXISTS TABLE_ (key bytea PRIMARY KEY, owner text NOT NULL, fence bigint NOT NULL, until timestamptz NOT NULL)`,
	acquire: `INSERT INTO TABLE_ AS l (key, owner, fence, until) VALUES ($1, $2, ` + clockMicros + `, clock_timestamp() + make_interval(secs => $3))
		ON CONFLICT (key) DO UPDATE SET owner = $2, fence = greatest(l.fence + 1, ` + clockMicros + `), until = clock_timestamp() + make_interval(secs => $3)
		WHERE l.until <= clock_timestamp() RETURNING fence`,
	holder:  `SELECT owner, extract(epoch FROM until - clock_timestamp()) FROM TABLE_ WHERE key = $1 AND until > clock_timestamp()`,
	renew:   `UPDATE TABLE_ SET until = clock_timestamp() + make_interval(secs => $4) WHERE key = $1 AND owner = $2 AND fence = $3 AND until > clock_timestamp()`,
	release: `UPDATE TABLE_ SET until = '-infinity' WHERE key = $1 AND owner = $2 AND fence = $3 AND until > clock_timestamp()`,
	undo:    `UPDATE TABLE_ SET until = '-infinity' WHERE key = $1 AND owner = $2 AND until > clock_timestamp()`,
}

// tableBackend keeps its locks in a table.
type tableBackend struct {
	db     *sql.DB
	s      statements
	table  string
	prefix string
	ahead  time.Duration // makes the driver use the client's clock
	closed atomic.Bool
}

var tables atomic.Int64

// tableDriver opens backends on one table.
type tableDriver struct {
	s     statements
	table string

	mu    sync.Mutex
	pools []*sql.DB
}

// connections counts the connections of all backends.
func (d *tableDriver) connections() (n int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, db := range d.pools {
		n += db.Stats().OpenConnections
	}
	return n, nil
}

func newTableDriver(s statements) (*tableDriver, error) {
	d := &tableDriver{s: s, table: fmt.Sprintf("locks%d", tables.Add(1))}
	db, err := openTables()
	if err != nil {
		return nil, err
	}
	_, err = db.Exec(strings.ReplaceAll(s.setup, "TABLE_", d.table))
	return d, errors.Join(err, db.Close())
}

func (d *tableDriver) Open(cfg *driver.Config) (driver.Backend, error) {
	address, query, _ := strings.Cut(cfg.DSN, "?")
	if address != "table:" {
		return nil, driver.Invalid("URL", "must be table: alone")
	}
	if err := dsn.Query(query).Err(); err != nil {
		return nil, err
	}
	return d.open(cfg.Prefix, 0)
}

func (d *tableDriver) open(prefix string, ahead time.Duration) (driver.Backend, error) {
	db, err := openTables()
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(8)
	if d.s.keepsConn {
		db.SetMaxOpenConns(0)
	}
	if d.s.noPrefix {
		prefix = ""
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pools = append(d.pools, db)
	return &tableBackend{db: db, s: d.s, table: d.table, prefix: prefix, ahead: ahead}, nil
}

func (b *tableBackend) Info() driver.Info {
	return driver.Info{Name: "table", Features: driver.FeatureFencing, MinTTL: driver.MinTTL, MaxTTL: time.Hour}
}

// text fills the table, and if needed the client's clock, into a statement.
func (b *tableBackend) text(statement string) string {
	statement = strings.ReplaceAll(statement, "TABLE_", b.table)
	return strings.ReplaceAll(statement, "CLIENT_MICROS", fmt.Sprint(time.Now().Add(b.ahead).UnixMicro()))
}

func (b *tableBackend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	if err := b.Info().Check(b.prefix, req); err != nil {
		return nil, err
	}
	if b.closed.Load() {
		return nil, driver.ErrClosed
	}
	l := &tableLease{b: b, key: []byte(b.prefix + req.Key), owner: req.Owner}
	start := time.Now()
	err := b.take(ctx, l, req)
	var he *driver.HeldError
	if err != nil && !errors.As(err, &he) && !b.s.noUndo {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*statementTime)
		defer cancel()
		_, _ = b.db.ExecContext(undo, b.text(b.s.undo), l.key, l.owner)
	}
	if err != nil {
		return nil, b.closing(err)
	}
	l.set(driver.Expires(start, req.TTL))
	return l, nil
}

func (b *tableBackend) closing(err error) error {
	if b.closed.Load() && err != nil {
		return driver.ErrClosed
	}
	return err
}

func (b *tableBackend) take(ctx context.Context, l *tableLease, req *driver.Request) error {
	c, err := b.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func(ctx context.Context) {
		if ctx.Err() == nil || !b.s.keepsConn {
			_ = c.Close()
		}
	}(ctx)
	// If its context ended a statement, it could still run on the server after the clean-up. So
	// statements end by themselves, and the server ends those that take longer.
	caller := ctx
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*statementTime)
	defer cancel()
	if b.s.checksFirst {
		if err := b.heldBy(ctx, c, l); err != nil {
			return err
		}
	}
	err = c.QueryRowContext(ctx, b.text(b.s.acquire), l.key, l.owner, req.TTL.Seconds()).Scan(&l.fence)
	if err == nil {
		return caller.Err()
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	if err := b.heldBy(ctx, c, l); err != nil {
		return err
	}
	return &driver.HeldError{} // the holder's lease has just ended
}

// heldBy returns a *HeldError if another owner has the lock.
func (b *tableBackend) heldBy(ctx context.Context, c *sql.Conn, l *tableLease) error {
	var owner string
	var left float64
	err := c.QueryRowContext(ctx, b.text(b.s.holder), l.key).Scan(&owner, &left)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	return &driver.HeldError{Holder: owner, RetryAfter: time.Duration(left * float64(time.Second))}
}

func (b *tableBackend) Close() error {
	if b.closed.Swap(true) || b.s.keepsPool {
		return nil
	}
	return b.db.Close()
}

type tableLease struct {
	b     *tableBackend
	key   []byte
	owner string
	fence int64
	end   atomic.Pointer[time.Time]
}

func (l *tableLease) set(end time.Time) { l.end.Store(&end) }

func (l *tableLease) Grant() driver.Grant {
	return driver.Grant{Expires: *l.end.Load(), Fence: uint64(l.fence)}
}

func (l *tableLease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	if err := l.b.Info().CheckTTL(r.TTL); err != nil {
		return driver.Grant{}, err
	}
	if l.b.closed.Load() {
		return driver.Grant{}, driver.ErrClosed
	}
	start := time.Now()
	n, err := l.exec(ctx, l.b.s.renew, l.key, l.owner, l.fence, r.TTL.Seconds())
	switch {
	case err != nil:
		return driver.Grant{}, err
	case n == 0:
		return driver.Grant{}, driver.ErrLost
	}
	l.set(driver.Expires(start, r.TTL))
	return l.Grant(), nil
}

func (l *tableLease) Release(ctx context.Context) error {
	if l.b.closed.Load() {
		return driver.ErrClosed
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*statementTime)
	defer cancel()
	_, err := l.exec(ctx, l.b.s.release, l.key, l.owner, l.fence)
	if l.b.s.ignoresError {
		return nil
	}
	return err
}

// exec runs a statement of a lease and returns how many locks it changed.
func (l *tableLease) exec(ctx context.Context, statement string, args ...any) (int64, error) {
	text := l.b.text(statement)
	for i := len(args); i > 0 && !strings.Contains(text, fmt.Sprintf("$%d", i)); i-- {
		args = args[:i-1] // the bug's statement does not use it
	}
	result, err := l.b.db.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, l.b.closing(err)
	}
	return result.RowsAffected()
}

// sqlBug returns a bug that is planted in the statements.
func sqlBug(name, want, rule string, plant func(s *statements)) bug {
	return bug{name: name, want: want, rule: rule, check: func(t *testing.T, only string) error {
		s := soundStatements
		plant(&s)
		d, err := newTableDriver(s)
		if err != nil {
			t.Fatal(err)
		}
		return Check(Harness{
			Open:          func() (driver.Backend, error) { return d.open("app:", 0) },
			OpenWithClock: func(ahead time.Duration) (driver.Backend, error) { return d.open("app:", ahead) },
			Driver:        d, URL: "table:", Prefix: "app:", Connections: d.connections,
			TTL: 300 * time.Millisecond, Timeout: caseTime(name, cmp.Or(s.within, 20*time.Second)), Short: true, quiet: true, Only: only,
		})
	}}
}

func replace(in *string, old, new string) {
	if !strings.Contains(*in, old) {
		panic("no statement has the text " + old)
	}
	*in = strings.ReplaceAll(*in, old, new)
}

// sqlBugs are bugs that a driver over a table may have.
var sqlBugs = []bug{
	sqlBug("a check and then an insert", "exclusion/race-clients", "exclusion", func(s *statements) {
		s.checksFirst = true
		replace(&s.acquire, "WHERE l.until <= clock_timestamp()", "")
	}),
	sqlBug("an insert over what is there", "basic/held", "exclusion", func(s *statements) { replace(&s.acquire, "WHERE l.until <= clock_timestamp()", "") }),
	sqlBug("tokens by the client's clock", "fence/clock", "rule 8", func(s *statements) { replace(&s.acquire, clockMicros, "CLIENT_MICROS") }),
	sqlBug("tokens that count from one", "fence/comparable", "rule 8", func(s *statements) { replace(&s.acquire, clockMicros, "1") }),
	sqlBug("keys are hashed by hashtext", "request/key-hashes", "driver.Request", func(s *statements) {
		for _, text := range []*string{&s.acquire, &s.holder, &s.renew, &s.release, &s.undo} {
			*text = strings.ReplaceAll(*text, "$1", "int4send(hashtext(convert_from($1, 'SQL_ASCII')))")
		}
	}),
	sqlBug("keys without case", "request/odd-keys", "driver.Request", func(s *statements) {
		for _, text := range []*string{&s.acquire, &s.holder, &s.renew, &s.release, &s.undo} {
			*text = strings.ReplaceAll(*text, "$1", "convert_to(lower(encode($1, 'escape')), 'SQL_ASCII')")
		}
	}),
	sqlBug("a TTL in whole seconds", "expiry/odd-ttl", "rule 3", func(s *statements) {
		replace(&s.acquire, "secs => $3", "secs => greatest(floor($3::float8), 0.3)")
	}),
	sqlBug("a TTL that is never over", "expiry/free", "driver.Lease.Renew", func(s *statements) {
		replace(&s.acquire, "secs => $3", "secs => $3::float8 * 20")
		replace(&s.holder, "extract(epoch FROM until - clock_timestamp())", "0::float8")
	}),
	sqlBug("a renewal of another's lock", "verdict/stale-renew", "driver.Lease.Renew", func(s *statements) {
		replace(&s.renew, "AND owner = $2 AND fence = $3 AND", "AND ($2::text IS NOT NULL AND $3::bigint > 0) AND")
	}),
	sqlBug("a renewal that extends nothing", "expiry/renewal", "exclusion | rule 1", func(s *statements) {
		replace(&s.renew, "until = clock_timestamp() + make_interval(secs => $4)", "until = CASE WHEN $4::float8 > 0 THEN until END")
	}),
	sqlBug("a release of another's lock", "verdict/stale-release", "driver.Lease.Release", func(s *statements) {
		replace(&s.release, "AND owner = $2 AND fence = $3 AND", "AND ($2::text IS NOT NULL AND $3::bigint > 0) AND")
	}),
	sqlBug("a release that does nothing", "basic/grant", "driver.Lease.Release", func(s *statements) {
		replace(&s.release, "until = '-infinity'", "until = until")
	}),
	often(sqlBug("what was cancelled is not undone", "cancel/during", "rule 2", func(s *statements) {
		s.noUndo = true
		s.within = 4 * time.Second // the lock that is left behind stays until then
	})),
	often(sqlBug("a connection kept by a cancelled attempt", "leak/connections-cancelled", "rule 7", func(s *statements) { s.keepsConn, s.within = true, 2*time.Minute })),
	sqlBug("a pool that Close leaves open", "leak/connections-backend", "rule 7", func(s *statements) { s.keepsPool = true }),
	sqlBug("the prefix is ignored", "open/prefix", "driver.Driver.Open", func(s *statements) { s.noPrefix = true }),
}

// often gives a bug several tries: on a busy machine a round may interrupt no attempt.
func often(b bug) bug {
	b.tries = 5
	return b
}

// soundTable has no bug.
func soundTable() bug { return sqlBug("", "", "", func(*statements) {}) }

package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/redlock-go/redlock/driver"
)

// An operator's questions have a connection of their own, for as long as they take: a
// slow answer about pg_locks must not delay a heartbeat.
func (b *Backend) inspect(ctx context.Context, f func(context.Context, *pgconn.PgConn) error) error {
	if b.closing() {
		return driver.ErrClosed
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	stop := context.AfterFunc(b.ctx, cancel)
	defer stop()
	c, err := b.factory(ctx)
	if err != nil {
		if b.closing() {
			return driver.ErrClosed
		}
		return connectError(err)
	}
	defer closeConn(c)
	return f(ctx, c.PgConn())
}

// locksOf are the advisory locks, with who has them or waits for them.
const locksOf = `SELECT l.granted, l.mode = 'ShareLock' AS shared, l.pid,
	coalesce(a.application_name, '') AS app, coalesce(host(a.client_addr) || ':' || a.client_port, '') AS address,
	coalesce((extract(epoch FROM coalesce(CASE WHEN l.granted THEN NULL ELSE l.waitstart END, a.xact_start, a.backend_start)) * 1000000)::int8, 0) AS since,
	array_to_string(CASE WHEN l.granted THEN '{}' ELSE pg_blocking_pids(l.pid) END, ',') AS blockers
	FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
	WHERE l.locktype = 'advisory'
	AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`

// lockRow is a row of it.
type lockRow struct {
	granted      bool
	shared       bool
	pid          int64
	app, address string
	since        time.Time
	blockers     string
}

func readLocks(ctx context.Context, pc *pgconn.PgConn, where string) ([]lockRow, error) {
	results, err := pc.Exec(ctx, locksOf+where).ReadAll()
	if err != nil {
		return nil, answered(err)
	}
	var rows []lockRow
	for _, v := range results[0].Rows {
		r := lockRow{
			granted: number(v[0]) == 1, shared: number(v[1]) == 1, pid: number(v[2]),
			app: string(v[3]), address: string(v[4]), blockers: string(v[6]),
		}
		if us := number(v[5]); us > 0 {
			r.since = time.UnixMicro(us)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// Lookup returns who has key. Of holders in this process owner, token and time are
// known. Of others the server knows the session: Owner is its application_name, which
// carries the owner's label, and its process; Since is when its transaction or else
// its connection began, and so the earliest that it can be. Waiters counts those in the
// server's queue.
func (b *Backend) Lookup(ctx context.Context, key string) (*driver.State, error) {
	if key == "" {
		return nil, driver.Invalid("key", "is empty")
	}
	id := b.number(b.opt.Prefix, key)
	var rows []lockRow
	err := b.inspect(ctx, func(ctx context.Context, pc *pgconn.PgConn) (err error) {
		rows, err = readLocks(ctx, pc, id.where())
		return err
	})
	if err != nil {
		return nil, err
	}
	st := &driver.State{Key: key}
	for _, r := range rows {
		if !r.granted {
			st.Waiters++
			continue
		}
		if r.shared {
			st.Mode = driver.Shared
		}
		st.Holders = append(st.Holders, b.holders(id, r)...)
	}
	for _, h := range st.Holders {
		st.Fence = max(st.Fence, h.Fence)
	}
	return st, nil
}

// holders are the leases behind one of the server's locks: several if a session of
// ours shares it with itself, one if the session is somebody else's.
func (b *Backend) holders(id lockNumber, r lockRow) []driver.Holder {
	var ours []driver.Holder
	for _, s := range b.all() {
		s.mu.Lock()
		if int64(s.w.pid) == r.pid {
			for l := range s.leases {
				if l.claim.number == id && l.leaving == nil {
					ours = append(ours, driver.Holder{
						Owner: l.claim.owner, Fence: l.fence, Since: l.claim.since,
						TTL: max(0, time.Until(driver.Expires(l.start, l.ttl))), Address: r.address,
					})
				}
			}
		}
		s.mu.Unlock()
	}
	if len(ours) > 0 {
		return ours
	}
	return []driver.Holder{{Owner: fmt.Sprintf("%s (process %d)", r.app, r.pid), Since: r.since, Address: r.address}}
}

func (b *Backend) all() []*session {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append(slices.Clone(b.sessions), b.waiters...)
}

// List yields the keys under prefix that this process holds. The server stores a hash
// of a key: what other processes hold has no name here, and Lookup finds it by its key.
func (b *Backend) List(_ context.Context, prefix string, yield func(*driver.State) bool) error {
	if b.closing() {
		return driver.ErrClosed
	}
	states := map[string]*driver.State{}
	for _, s := range b.all() {
		s.mu.Lock()
		for l := range s.leases {
			if l.leaving != nil || !strings.HasPrefix(l.claim.key, prefix) {
				continue
			}
			st := states[l.claim.key]
			if st == nil {
				st = &driver.State{Key: l.claim.key, Mode: l.claim.mode}
				states[l.claim.key] = st
			}
			st.Fence = max(st.Fence, l.fence)
			st.Holders = append(st.Holders, driver.Holder{
				Owner: l.claim.owner, Fence: l.fence, Since: l.claim.since,
				TTL: max(0, time.Until(driver.Expires(l.start, l.ttl))),
			})
		}
		s.mu.Unlock()
	}
	for _, st := range states {
		if !yield(st) {
			break
		}
	}
	return nil
}

// Check examines the server, the way to it and its settings, and tells who waits for
// whom.
func (b *Backend) Check(ctx context.Context) ([]driver.Diagnostic, error) {
	var list []driver.Diagnostic
	err := b.inspect(ctx, func(ctx context.Context, pc *pgconn.PgConn) error {
		c := &checkup{b: b, pc: pc}
		err := c.run(ctx)
		list = c.findings
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(list, func(x, y driver.Diagnostic) int { return int(y.Severity) - int(x.Severity) })
	return list, nil
}

type checkup struct {
	b        *Backend
	pc       *pgconn.PgConn
	findings []driver.Diagnostic
}

func (c *checkup) find(s driver.Severity, fix, format string, args ...any) {
	c.findings = append(c.findings, driver.Diagnostic{Severity: s, Node: c.b.String(), Summary: fmt.Sprintf(format, args...), Remedy: fix})
}

func (c *checkup) run(ctx context.Context) error {
	version := major(c.pc.ParameterStatus("server_version"))
	if version < oldest {
		c.find(driver.SeverityUnsafe, "upgrade the server", "version %d cannot end idle sessions, and is refused", version)
		return nil
	}
	c.find(driver.SeverityNote, "", "version %s", c.pc.ParameterStatus("server_version"))
	for _, name := range c.b.ignored {
		c.find(driver.SeverityNote, "", "the URL's parameter %s has no effect on locks, and is ignored", name)
	}
	before := time.Now()
	row, err := query(ctx, c.pc, `SELECT pg_backend_pid(), pg_is_in_recovery()::int, (extract(epoch FROM clock_timestamp()) * 1000000)::int8,
		current_setting('max_locks_per_transaction')::int8 * (current_setting('max_connections')::int8 + current_setting('max_prepared_transactions')::int8),
		(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'), current_setting('max_connections')::int8,
		(current_setting('fsync') = 'on')::int, (SELECT setting::int8 FROM pg_settings WHERE name = 'idle_session_timeout'),
		(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')`)
	if err != nil {
		return err
	}
	c.place(row)
	c.room(row)
	c.clock(time.UnixMicro(number(row[2])), before)
	if number(row[6]) != 1 {
		c.find(driver.SeverityUnsafe, "turn fsync on", "fsync is off: after a crash of the machine tokens may be given a second time")
	}
	if ms := number(row[7]); ms > 0 {
		c.find(driver.SeverityNote, "", "idle sessions are ended after %v by default; the sessions here set their own limit", time.Duration(ms)*time.Millisecond)
	}
	if err := exec(ctx, c.pc, "SET client_connection_check_interval = 1000"); err != nil {
		c.find(driver.SeverityWarning, "", "the server's platform has no client_connection_check_interval: a client killed in the middle of a statement keeps its locks until TCP gives up")
	}
	if err := c.sequence(ctx); err != nil {
		return err
	}
	return c.waits(ctx)
}

func (c *checkup) place(row [][]byte) {
	if uint32(number(row[0])) != c.pc.PID() {
		severity, how := driver.SeverityUnsafe, "it is refused"
		if c.b.opt.Pooler != "" {
			severity, how = driver.SeverityWarning, "it is said to pool whole sessions"
		}
		c.find(severity, "connect to the server itself", "there is a pooler before the server; %s", how)
	}
	if number(row[1]) == 1 {
		c.find(driver.SeverityUnsafe, "connect to the primary", "the server is a standby, and is refused")
	}
}

func (c *checkup) room(row [][]byte) {
	room, used := number(row[3]), number(row[4])
	if used*2 > room {
		c.find(driver.SeverityWarning, "raise max_locks_per_transaction", "%d advisory locks are held, and the lock table has room for about %d locks", used, room)
	} else {
		c.find(driver.SeverityNote, "", "%d advisory locks are held; the lock table has room for about %d locks", used, room)
	}
	most, now, own := number(row[5]), number(row[8]), int64(c.b.opt.MaxSessions+c.b.opt.MaxWaiters)
	if now+own > most {
		c.find(driver.SeverityWarning, "raise max_connections, or lower max_sessions and max_waiters", "%d of %d connections are in use, and this process alone may need %d", now, most, own)
	}
}

func (c *checkup) clock(server, before time.Time) {
	const bearable = time.Second
	switch off := server.Sub(before); {
	case off > bearable+time.Since(before), off < -bearable:
		c.find(driver.SeverityWarning, "run NTP on both", "the server's clock and this machine's differ by %v; leases do not depend on it, tokens of other backends compare worse", off.Round(time.Millisecond))
	}
}

func (c *checkup) sequence(ctx context.Context) error {
	if c.b.schema == "" {
		c.find(driver.SeverityNote, "", "fencing is off: nothing orders two holders of which one was paused")
		return nil
	}
	row, err := query(ctx, c.pc, "SELECT "+c.b.fenceColumns()+" FROM (SELECT) AS one"+c.b.fenceTables())
	if err != nil {
		return err
	}
	f := readFence(row)
	if !f.exists && f.others == "" {
		c.find(driver.SeverityNote, "", "the sequence %s is made at the first use", c.b.sequence())
		return nil
	}
	if err := c.b.checkFence(f); err != nil {
		c.find(driver.SeverityUnsafe, "", "%v", err)
	}
	return nil
}

// waits tells which process waits for which; since when the server does not know, because a
// wait is a row of statements.
func (c *checkup) waits(ctx context.Context) error {
	rows, err := readLocks(ctx, c.pc, " AND NOT l.granted ORDER BY l.waitstart LIMIT 50")
	if err != nil {
		return err
	}
	for _, r := range rows {
		c.find(driver.SeverityNote, "", "process %d (%s) waits for process %s", r.pid, r.app, r.blockers)
	}
	return nil
}

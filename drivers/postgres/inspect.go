package postgres

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/printable"
	"github.com/redlock-go/redlock/drivers/postgres/internal/advisory"
	"github.com/redlock-go/redlock/drivers/postgres/internal/verdict"
	"github.com/redlock-go/redlock/drivers/postgres/internal/wire"
)

// An operator's query uses a connection of its own, which is closed afterwards: a slow query of
// pg_locks must not delay a heartbeat.
func (b *Backend) inspect(ctx context.Context, f func(context.Context, *pgconn.PgConn) error) error {
	return b.lookAt(ctx, func(ctx context.Context, c *pgx.Conn) error { return f(ctx, c.PgConn()) })
}

func (b *Backend) lookAt(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
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
		return verdict.Connect(err)
	}
	defer closeConn(c)
	return f(ctx, c)
}

// sessionName is the SQL of a session's name: its start and its process, as in %c of
// log_line_prefix; null if the role may not see it.
const sessionName = `to_hex(trunc(extract(epoch FROM a.backend_start))::int8) || '.' || to_hex(a.pid)`

// locksOf selects the advisory locks, with the sessions that have them or wait for them.
const locksOf = `SELECT l.granted, l.mode = 'ShareLock' AS shared, l.pid,
	coalesce(a.application_name, '') AS app, coalesce(host(a.client_addr) || ':' || a.client_port, '') AS address,
	coalesce((extract(epoch FROM coalesce(CASE WHEN l.granted THEN NULL ELSE l.waitstart END, a.xact_start, a.backend_start)) * 1000000)::int8, 0) AS since,
	array_to_string(CASE WHEN l.granted THEN '{}' ELSE pg_blocking_pids(l.pid) END, ',') AS blockers, ` + sessionName + `
	FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
	WHERE l.locktype = 'advisory'
	AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`

// lockRow is a row of locksOf.
type lockRow struct {
	granted      bool
	shared       bool
	pid          int64
	app, address string
	since        time.Time
	blockers     string
	session      string
}

func readLocks(ctx context.Context, pc *pgconn.PgConn, where string) ([]lockRow, error) {
	results, err := pc.Exec(ctx, locksOf+where).ReadAll()
	if err != nil {
		return nil, answered(err)
	}
	var rows []lockRow
	for _, v := range results[0].Rows {
		r := lockRow{
			granted: wire.Value(v[0]) == 1, shared: wire.Value(v[1]) == 1, pid: wire.Value(v[2]),
			app: string(v[3]), address: string(v[4]), blockers: string(v[6]), session: string(v[7]),
		}
		if us := wire.Value(v[5]); us > 0 {
			r.since = time.UnixMicro(us)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// goneTimeout bounds the query of processGone: the caller's lease is over already.
const goneTimeout = time.Second / 2

// processGone asks the server whether one of its processes has ended. It returns false
// if the server cannot be asked.
func (b *Backend) processGone(pid uint32) bool {
	gone := false
	ctx, cancel := context.WithTimeout(context.Background(), goneTimeout)
	defer cancel()
	err := b.inspect(ctx, func(ctx context.Context, pc *pgconn.PgConn) error {
		row, err := query(ctx, pc, fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE pid = %d", pid))
		if err == nil && row != nil {
			gone = wire.Value(row[0]) == 0
		}
		return err
	})
	return err == nil && gone
}

// Lookup returns the holders of key. For holders in this process it knows the owner, the token
// and the time. Other holders are described by their session: Owner is its application_name,
// which has the owner's label, and its process; Since is when its transaction or else its
// connection began, which is the earliest time at which it can have taken the lock. Waiters
// counts the sessions in the server's queue.
func (b *Backend) Lookup(ctx context.Context, key string) (*driver.State, error) {
	if key == "" {
		return nil, driver.Invalid("key", "is empty")
	}
	id := b.number(b.opt.Prefix, key)
	var rows []lockRow
	err := b.inspect(ctx, func(ctx context.Context, pc *pgconn.PgConn) (err error) {
		rows, err = readLocks(ctx, pc, id.Where()+" ORDER BY l.waitstart")
		return err
	})
	if err != nil {
		return nil, err
	}
	st := &driver.State{Key: key}
	for _, r := range rows {
		if !r.granted {
			st.Waiters++
			if len(st.Queue) < 100 {
				st.Queue = append(st.Queue, driver.Waiter{Owner: r.owner(), Since: r.since, Address: r.address})
			}
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

// holders returns the leases behind one of the server's locks: several if a session of this
// process has several shared leases of it, one if the session belongs to another process.
func (b *Backend) holders(id advisory.Number, r lockRow) []driver.Holder {
	var ours []driver.Holder
	for _, c := range b.all() {
		if int64(c.pid()) != r.pid {
			continue
		}
		for _, l := range c.leasesOf(func(l *Lease) bool { return l.number == id }) {
			h := l.holder()
			h.Address, h.Session = r.address, r.session
			ours = append(ours, h)
		}
	}
	if len(ours) > 0 {
		return ours
	}
	return []driver.Holder{{Owner: r.owner(), Since: r.since, Address: r.address, Session: r.session}}
}

// leasesOf returns copies of the connection's leases that match and are not being released.
func (c *conn) leasesOf(match func(*Lease) bool) (all []Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.held {
		for ; l != nil; l = l.next {
			if l.leaving == nil && match(l) {
				all = append(all, *l)
			}
		}
	}
	return all
}

// holder describes a lease of this process.
func (l *Lease) holder() driver.Holder {
	return driver.Holder{Owner: l.owner, Fence: l.fence, Since: l.since, TTL: max(0, time.Until(driver.Expires(l.start, l.ttl)))}
}

// pid returns the id of the server process, and zero if the connection is not open.
func (c *conn) pid() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end != nil || c.w == nil {
		return 0
	}
	return c.w.PID()
}

// owner describes a session that holds a lock or waits for it, by what the server knows of it.
func (r *lockRow) owner() string { return fmt.Sprintf("%s (process %d)", r.app, r.pid) }

// terminateTimeout is how long the server may take to end a session.
const terminateTimeout = 5 * time.Second

// Break ends the session h.Session if it holds key, and returns when the server has freed all of
// the session's locks, also those of other keys. The role must be that of the session, or a
// member of pg_signal_backend. The server knows no tokens: a holder without a session is
// ErrInvalid.
func (b *Backend) Break(ctx context.Context, key string, h driver.Holder) error {
	name := h.Session
	switch {
	case key == "":
		return driver.Invalid("key", "is empty")
	case name == "":
		return driver.Invalid("holder", "has no session, and PostgreSQL knows no tokens")
	}
	id := b.number(b.opt.Prefix, key)
	return b.inspect(ctx, func(ctx context.Context, pc *pgconn.PgConn) error {
		row, err := query(ctx, pc, fmt.Sprintf(`SELECT count(*) FILTER (WHERE pg_terminate_backend(pid, %d)), count(*) FROM (
			SELECT DISTINCT l.pid FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
			WHERE l.locktype = 'advisory' AND l.granted AND %s = %s
			AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())%s) AS holder`,
			terminateTimeout.Milliseconds(), sessionName, advisory.Literal(name), id.Where()))
		switch {
		case err != nil:
			return answered(err)
		case wire.Value(row[1]) == 0:
			return driver.ErrLost
		case wire.Value(row[0]) == 0:
			return &driver.RefusedError{RetryAfter: time.Second, Reason: fmt.Sprintf("postgres: the session %s did not end within %v", name, terminateTimeout)}
		}
		return nil
	})
}

// List yields the keys under prefix that this process holds, if the server answers. The server
// stores only a hash of a key, so locks of other processes cannot be listed. Lookup finds them by
// their key.
func (b *Backend) List(ctx context.Context, prefix string, yield func(*driver.State) bool) error {
	err := b.inspect(ctx, func(ctx context.Context, pc *pgconn.PgConn) error { return exec(ctx, pc, "SELECT 1") })
	if err != nil {
		return err
	}
	states := map[string]*driver.State{}
	for _, c := range b.all() {
		for _, l := range c.leasesOf(func(l *Lease) bool { return strings.HasPrefix(l.key, prefix) }) {
			st := states[l.key]
			if st == nil {
				st = &driver.State{Key: l.key, Mode: l.mode}
				states[l.key] = st
			}
			st.Fence = max(st.Fence, l.fence)
			st.Holders = append(st.Holders, l.holder())
		}
	}
	for _, st := range states {
		if !yield(st) {
			break
		}
	}
	return nil
}

// Check examines the server, the connection to it and its settings, and lists which process
// waits for which.
func (b *Backend) Check(ctx context.Context) ([]driver.Diagnostic, error) {
	var list []driver.Diagnostic
	err := b.lookAt(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		c := &checkup{b: b, pc: conn.PgConn()}
		c.encryption(conn.Config())
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

func (c *checkup) find(code string, s driver.Severity, fix, format string, args ...any) *driver.Diagnostic {
	c.findings = append(c.findings, driver.Diagnostic{Code: code, Severity: s, Node: c.b.String(), Summary: fmt.Sprintf(format, args...), Remedy: fix})
	return &c.findings[len(c.findings)-1]
}

// psql returns a command line that runs the statements in order.
func (c *checkup) psql(statements ...string) string {
	line := []string{"psql", c.b.String()}
	for _, s := range statements {
		line = append(line, "-c", s)
	}
	return printable.CommandLine(line...)
}

// set returns a command line that changes a setting of the server.
func (c *checkup) set(name, value string) string {
	return c.psql("ALTER SYSTEM SET "+name+" = "+value, "SELECT pg_reload_conf()")
}

func (c *checkup) run(ctx context.Context) error {
	if name := imitation(c.pc); name != "" {
		c.find("imitation", driver.SeverityUnsafe, "take the locks on PostgreSQL", "the server is %s, whose advisory locks exclude nobody; it is refused", name)
		return nil
	}
	version := major(c.pc.ParameterStatus("server_version"))
	if version < oldest {
		c.find("version-old", driver.SeverityUnsafe, "upgrade the server", "version %d cannot end idle sessions, and the driver refuses it", version)
		return nil
	}
	c.find("version", driver.SeverityNote, "", "version %s", c.pc.ParameterStatus("server_version"))
	for _, name := range c.b.ignored {
		c.find("ignored-parameter", driver.SeverityNote, "", "the URL's parameter %s has no effect on locks, and is ignored", name)
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
	c.clock(time.UnixMicro(wire.Value(row[2])), before)
	if wire.Value(row[6]) != 1 {
		d := c.find("fsync", driver.SeverityUnsafe, "turn fsync on", "fsync is off: after a crash of the machine tokens may be given a second time")
		d.Measured, d.Command = "off", c.set("fsync", "on")
	}
	if ms := wire.Value(row[7]); ms > 0 {
		c.find("idle-timeout", driver.SeverityNote, "", "idle sessions are ended after %v by default; the sessions here set their own limit", time.Duration(ms)*time.Millisecond)
	}
	if err := exec(ctx, c.pc, "SET client_connection_check_interval = 1000"); err != nil {
		c.find("no-connection-check", driver.SeverityWarning, "", "the server's platform has no client_connection_check_interval: a client killed in the middle of a statement keeps its locks until TCP gives up")
	}
	if err := c.keepalives(ctx); err != nil {
		return err
	}
	if err := c.sequence(ctx); err != nil {
		return err
	}
	if err := c.replication(ctx); err != nil {
		return err
	}
	return c.waits(ctx)
}

// encryption warns if a connection may send the password without TLS.
func (c *checkup) encryption(cfg *pgx.ConnConfig) {
	hosts := inClear(cfg)
	if len(hosts) == 0 {
		return
	}
	d := c.find("password-in-clear", driver.SeverityWarning, "set sslmode=verify-full with sslrootcert, or at least sslmode=require", "sslmode lets a connection to %s go without TLS, where the password may be sent in clear", strings.Join(hosts, ", "))
	d.Measured = "this connection has TLS"
	if _, ok := c.pc.Conn().(*tls.Conn); !ok {
		d.Measured = "this connection has no TLS"
	}
}

// keepalives reads the keepalive settings of a session from the server's kernel: how soon it
// notices that a client's machine is gone.
func (c *checkup) keepalives(ctx context.Context) error {
	if err := exec(ctx, c.pc, keepaliveSettings); err != nil {
		return err
	}
	row, err := query(ctx, c.pc, `SELECT current_setting('tcp_keepalives_idle'), current_setting('tcp_keepalives_interval'),
		current_setting('tcp_keepalives_count'), current_setting('tcp_user_timeout'), (inet_server_addr() IS NULL)::int`)
	if err != nil {
		return err
	}
	idle, interval, count := wire.Value(row[0]), wire.Value(row[1]), wire.Value(row[2])
	measured := fmt.Sprintf("tcp_keepalives_idle %d s, interval %d s, count %d, tcp_user_timeout %s", idle, interval, count, row[3])
	switch {
	case wire.Value(row[4]) == 1:
		c.find("keepalives", driver.SeverityNote, "", "the connection is a socket of this machine, and needs no keepalives")
	case idle == 0 || interval == 0 || count == 0:
		d := c.find("keepalives", driver.SeverityWarning, "shorten the keepalives of the server's kernel", "the server's platform does not let a session set keepalives: a client whose machine is gone keeps its locks until its idle time ends")
		d.Measured = measured
	default:
		d := c.find("keepalives", driver.SeverityNote, "", "a client whose machine is gone is noticed after %v", time.Duration(idle+interval*count)*time.Second)
		d.Measured = measured
	}
	return nil
}

// replication reports which locks and tokens a promotion may lose with the server's kind of
// replication.
func (c *checkup) replication(ctx context.Context) error {
	row, err := query(ctx, c.pc, `SELECT count(*), count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')), count(sync_state),
		current_setting('synchronous_standby_names'), current_setting('synchronous_commit') FROM pg_stat_replication`)
	if err != nil {
		return err
	}
	standbys, synchronous, visible := wire.Value(row[0]), wire.Value(row[1]), wire.Value(row[2])
	names, commit := string(row[3]), string(row[4])
	const loses = "a promotion may forget held locks, and tokens then rise only if the clocks agree"
	switch {
	case standbys == 0:
	case names == "" || visible == standbys && synchronous == 0:
		d := c.find("replication-async", driver.SeverityWarning, "make a standby synchronous, or set restart_guard", "%d standbys follow asynchronously: %s", standbys, loses)
		d.Measured, d.Command = fmt.Sprintf("synchronous_standby_names '%s'", names), c.set("synchronous_standby_names", "'*'")
	case commit == "off" || commit == "local":
		d := c.find("synchronous-commit", driver.SeverityWarning, "set synchronous_commit to on", "synchronous_commit is %s, so commits do not wait for a standby: %s", commit, loses)
		d.Measured, d.Command = commit, c.set("synchronous_commit", "on")
	default:
		c.find("replication", driver.SeverityNote, "", "%d standbys, %d of them synchronous; a promotion still forgets the locks", standbys, synchronous)
	}
	return nil
}

func (c *checkup) place(row [][]byte) {
	if uint32(wire.Value(row[0])) != c.pc.PID() {
		severity, how := driver.SeverityUnsafe, "it is refused"
		if c.b.opt.Pooler != "" {
			severity, how = driver.SeverityWarning, "the URL says that it pools whole sessions"
		}
		c.find("pooler", severity, "connect to the server itself", "there is a pooler before the server; %s", how)
	}
	if wire.Value(row[1]) == 1 {
		c.find("standby", driver.SeverityUnsafe, "connect to the primary", "the server is a standby, and is refused")
	}
}

func (c *checkup) room(row [][]byte) {
	room, used := wire.Value(row[3]), wire.Value(row[4])
	if used*2 > room {
		d := c.find("lock-table", driver.SeverityWarning, "raise max_locks_per_transaction and restart the server", "%d advisory locks are held, and the lock table has room for about %d locks", used, room)
		d.Measured, d.Command = fmt.Sprintf("%d of %d", used, room), c.psql(fmt.Sprintf("ALTER SYSTEM SET max_locks_per_transaction = %d", max(64, used*4/max(1, wire.Value(row[5])))))
	} else {
		c.find("lock-table", driver.SeverityNote, "", "%d advisory locks are held; the lock table has room for about %d locks", used, room)
	}
	most, now, own := wire.Value(row[5]), wire.Value(row[8]), int64(c.b.opt.MaxConns)
	if now+own > most {
		d := c.find("connections", driver.SeverityWarning, "raise max_connections and restart the server, or lower max_conns", "%d of %d connections are in use, and this process alone may need %d", now, most, own)
		d.Measured, d.Command = fmt.Sprintf("%d of %d", now, most), c.psql(fmt.Sprintf("ALTER SYSTEM SET max_connections = %d", 2*(now+own)))
	}
}

func (c *checkup) clock(server, before time.Time) {
	const bearable = time.Second
	switch off := server.Sub(before); {
	case off > bearable+time.Since(before), off < -bearable:
		c.find("clock-offset", driver.SeverityWarning, "run NTP on both", "the server's clock and this machine's differ by %v; leases do not depend on it, but tokens of other backends may be out of order with these", off.Round(time.Millisecond))
	}
}

func (c *checkup) sequence(ctx context.Context) error {
	if c.b.schema == "" {
		c.find("fencing-off", driver.SeverityNote, "", "fencing is off: no token refuses the late write of a holder that was paused")
		return nil
	}
	row, err := query(ctx, c.pc, "SELECT "+c.b.fenceColumns()+" FROM (SELECT) AS one"+c.b.fenceTables())
	if err != nil {
		return err
	}
	f := readFence(row)
	if !f.exists && f.others == "" {
		c.find("no-sequence", driver.SeverityNote, "", "the sequence %s is made at the first use", c.b.sequence())
		return nil
	}
	if err := c.b.checkFence(f); err != nil {
		d := c.find("sequence", driver.SeverityUnsafe, "let an administrator correct the sequence", "%v", err)
		if _, statement, ok := strings.Cut(err.Error(), verdict.MustRun); ok {
			d.Command = c.psql(statement)
		}
		if f.others != "" {
			d.Code, d.Measured = "two-sequences", f.others
			d.Remedy = "drop the unused sequence; if this URL uses it, set fencing to the other one"
			d.Command = c.psql("DROP SEQUENCE " + f.others)
		}
	}
	return nil
}

// waits lists which process waits for which. The server does not know since when, because a
// wait is a sequence of statements.
func (c *checkup) waits(ctx context.Context) error {
	rows, err := readLocks(ctx, c.pc, " AND NOT l.granted ORDER BY l.waitstart LIMIT 50")
	if err != nil {
		return err
	}
	for _, r := range rows {
		c.find("waits", driver.SeverityNote, "", "process %d (%s) waits for process %s", r.pid, r.app, r.blockers)
	}
	return nil
}

package postgres

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
	"github.com/redlock-go/redlock/driver/printable"
	"github.com/redlock-go/redlock/drivers/postgres/internal/verdict"
	"github.com/redlock-go/redlock/drivers/postgres/internal/wire"
)

// Check examines the server, the connection to it and its settings, and lists which process
// waits for which.
func (b *Backend) Check(ctx context.Context) ([]driver.Diagnostic, error) {
	c := &checkup{Findings: base.Findings{Node: b.String()}, b: b}
	err := b.lookAt(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		c.pc = conn.PgConn()
		c.encryption(conn.Config())
		return c.run(ctx)
	})
	if err != nil {
		return nil, err
	}
	return c.Result(nil)
}

type checkup struct {
	base.Findings
	b  *Backend
	pc *pgconn.PgConn
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
		c.Add("imitation", driver.SeverityUnsafe, "take the locks on PostgreSQL", "the server is %s, whose advisory locks exclude nobody; it is refused", name)
		return nil
	}
	if version := major(c.pc.ParameterStatus("server_version")); version < oldest {
		c.Add("version-old", driver.SeverityUnsafe, "upgrade the server", "version %d cannot end idle sessions, and the driver refuses it", version)
		return nil
	}
	c.Add("version", driver.SeverityNote, "", "version %s", c.pc.ParameterStatus("server_version"))
	for _, name := range c.b.ignored {
		c.Add("ignored-parameter", driver.SeverityNote, "", "the URL's parameter %s has no effect on locks, and is ignored", name)
	}
	for _, examine := range []func(context.Context) error{c.settings, c.sequence, c.waits} {
		if err := examine(ctx); err != nil {
			return err
		}
	}
	return nil
}

// encryption warns if a connection may send the password without TLS.
func (c *checkup) encryption(cfg *pgx.ConnConfig) {
	hosts := inClear(cfg)
	if len(hosts) == 0 {
		return
	}
	d := c.Add("password-in-clear", driver.SeverityWarning, "set sslmode=verify-full with sslrootcert, or at least sslmode=require", "sslmode lets a connection to %s go without TLS, where the password may be sent in clear", strings.Join(hosts, ", "))
	d.Measured = "this connection has TLS"
	if _, ok := c.pc.Conn().(*tls.Conn); !ok {
		d.Measured = "this connection has no TLS"
	}
}

// A finding is one that a predicate of the server's settings causes.
type finding struct {
	found    bool
	code     string
	severity driver.Severity
	measured string
	command  string
	remedy   string
	summary  string
}

// settings examines what the server says of itself. The keepalives are those that a session gets from
// the server's kernel: how soon it notices that a client's machine is gone.
func (c *checkup) settings(ctx context.Context) error {
	interval := exec(ctx, c.pc, "SET client_connection_check_interval = 1000")
	if err := exec(ctx, c.pc, keepaliveSettings); err != nil {
		return err
	}
	asked := time.Now()
	row, err := query(ctx, c.pc, `SELECT pg_backend_pid(), pg_is_in_recovery()::int, `+microseconds("clock_timestamp()")+`, (current_setting('fsync') = 'on')::int,
		current_setting('max_locks_per_transaction')::int8 * (current_setting('max_connections')::int8 + current_setting('max_prepared_transactions')::int8),
		(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),
		current_setting('max_connections'), (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
		current_setting('tcp_keepalives_idle'), current_setting('tcp_keepalives_interval'), current_setting('tcp_keepalives_count'), (inet_server_addr() IS NULL)::int,
		(SELECT count(*) FROM pg_stat_replication), (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')), (SELECT count(sync_state) FROM pg_stat_replication),
		current_setting('synchronous_standby_names'), current_setting('synchronous_commit')`)
	if err != nil {
		return err
	}
	n := func(i int) int64 { return wire.Value(row[i]) }
	c.Clock(time.UnixMicro(n(2)), asked)
	room, used, most, now, own := n(4), n(5), n(6), n(7), int64(c.b.opt.MaxConns)
	standbys, synchronous, visible, names, commit := n(12), n(13), n(14), string(row[15]), string(row[16])
	asynchronous := standbys > 0 && (names == "" || visible == standbys && synchronous == 0)
	pooled, how := driver.SeverityUnsafe, "it is refused"
	if c.b.opt.Pooler != "" {
		pooled, how = driver.SeverityWarning, "the URL says that it pools whole sessions"
	}
	const loses = "a promotion may forget held locks, and tokens then rise only if the clocks agree"
	for _, f := range []finding{
		{
			found: uint32(n(0)) != c.pc.PID(), code: "pooler", severity: pooled, remedy: "connect to the server itself",
			summary: "there is a pooler before the server; " + how,
		},
		{
			found: n(1) == 1, code: "standby", severity: driver.SeverityUnsafe, remedy: "connect to the primary",
			summary: "the server is a standby, and is refused",
		},
		{
			found: n(3) != 1, code: "fsync", severity: driver.SeverityUnsafe, remedy: "turn fsync on", measured: "off", command: c.set("fsync", "on"),
			summary: "fsync is off: after a crash of the machine tokens may be given a second time",
		},
		{
			found: used*2 > room, code: "lock-table", severity: driver.SeverityWarning, remedy: "raise max_locks_per_transaction and restart the server",
			measured: fmt.Sprintf("%d of %d", used, room), command: c.psql(fmt.Sprintf("ALTER SYSTEM SET max_locks_per_transaction = %d", max(64, used*4/max(1, most)))),
			summary: fmt.Sprintf("%d advisory locks are held, and the lock table has room for about %d locks", used, room),
		},
		{
			found: now+own > most, code: "connections", severity: driver.SeverityWarning, remedy: "raise max_connections and restart the server, or lower max_conns",
			measured: fmt.Sprintf("%d of %d", now, most), command: c.psql(fmt.Sprintf("ALTER SYSTEM SET max_connections = %d", 2*(now+own))),
			summary: fmt.Sprintf("%d of %d connections are in use, and this process alone may need %d", now, most, own),
		},
		{
			found: interval != nil, code: "no-connection-check", severity: driver.SeverityWarning,
			summary: "the server's platform has no client_connection_check_interval: a client killed in the middle of a statement keeps its locks until TCP gives up",
		},
		{
			found: n(11) != 1 && (n(8) == 0 || n(9) == 0 || n(10) == 0), code: "keepalives", severity: driver.SeverityWarning, remedy: "shorten the keepalives of the server's kernel",
			measured: fmt.Sprintf("tcp_keepalives_idle %d s, interval %d s, count %d", n(8), n(9), n(10)),
			summary:  "the server's platform does not let a session set keepalives: a client whose machine is gone keeps its locks until its idle time ends",
		},
		{
			found: asynchronous, code: "replication-async", severity: driver.SeverityWarning, remedy: "make a standby synchronous, or set restart_guard",
			measured: fmt.Sprintf("synchronous_standby_names '%s'", names), command: c.set("synchronous_standby_names", "'*'"),
			summary: fmt.Sprintf("%d standbys follow asynchronously: %s", standbys, loses),
		},
		{
			found: standbys > 0 && !asynchronous && (commit == "off" || commit == "local"), code: "synchronous-commit", severity: driver.SeverityWarning, remedy: "set synchronous_commit to on",
			measured: commit, command: c.set("synchronous_commit", "on"),
			summary: fmt.Sprintf("synchronous_commit is %s, so commits do not wait for a standby: %s", commit, loses),
		},
	} {
		if f.found {
			d := c.Add(f.code, f.severity, f.remedy, "%s", f.summary)
			d.Measured, d.Command = f.measured, f.command
		}
	}
	return nil
}

func (c *checkup) sequence(ctx context.Context) error {
	if c.b.schema == "" {
		c.Add("fencing-off", driver.SeverityNote, "", "fencing is off: no token refuses the late write of a holder that was paused")
		return nil
	}
	row, err := query(ctx, c.pc, "SELECT "+c.b.fenceColumns()+" FROM (SELECT) AS one"+c.b.fenceTables())
	if err != nil {
		return err
	}
	f := readFence(row)
	if !f.exists && f.others == "" { // it is made at the first use
		return nil
	}
	err = c.b.checkFence(f)
	if err == nil {
		return nil
	}
	d := c.Add("sequence", driver.SeverityUnsafe, "let an administrator correct the sequence", "%v", err)
	if _, statement, ok := strings.Cut(err.Error(), verdict.MustRun); ok {
		d.Command = c.psql(statement)
	}
	if f.others != "" {
		d.Code, d.Measured = "two-sequences", f.others
		d.Remedy = "drop the unused sequence; if this URL uses it, set fencing to the other one"
		d.Command = c.psql("DROP SEQUENCE " + f.others)
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
		c.Add("waits", driver.SeverityNote, "", "process %d (%s) waits for process %s", r.pid, r.app, r.blockers)
	}
	return nil
}

package postgres

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
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

// Check examines the server, the connection to it and its settings. That it is refused is a
// finding.
func (b *Backend) Check(ctx context.Context) ([]driver.Diagnostic, error) {
	c := &checkup{Findings: base.Findings{Node: b.String()}, b: b}
	err := b.inspect(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		c.pc = conn.PgConn()
		if hosts := inClear(conn.Config()); len(hosts) > 0 {
			d := c.Add("password-in-clear", driver.SeverityWarning, "set sslmode=verify-full with sslrootcert, or at least sslmode=require", "sslmode lets a connection to %s go without TLS, where the password may be sent in clear", strings.Join(hosts, ", "))
			d.Measured = "this connection has TLS"
			if _, ok := c.pc.Conn().(*tls.Conn); !ok {
				d.Measured = "this connection has no TLS"
			}
		}
		err := c.accepted(ctx)
		if err == nil || errors.Is(err, driver.ErrRefused) { // other causes may lie behind the first
			err = cmp.Or(err, c.settings(ctx))
		}
		if !errors.Is(err, driver.ErrRefused) {
			return err
		}
		d := c.Add("refused", driver.SeverityUnsafe, "remove this cause, or use another server", "no lock is granted: %v", err)
		if _, statement, ok := strings.Cut(err.Error(), verdict.MustRun); ok {
			d.Command = c.psql(statement)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return c.Result(nil)
}

// accepted returns why the server is refused. A missing sequence of tokens is made at the first use.
func (c *checkup) accepted(ctx context.Context) error {
	_, _, f, err := c.b.examine(ctx, c.pc)
	if err != nil || c.b.schema == "" || !f.exists && f.others == "" {
		return err
	}
	return c.b.checkFence(f)
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

// A rule is a question to the server. Where the condition holds there is a finding.
type rule struct {
	code      string
	severity  driver.Severity
	condition string // in SQL, as the next two
	measured  string
	fix       string // the statement that mends it; empty: none
	remedy    string
	summary   string
}

const (
	mostClients = `current_setting('max_connections')::int8`
	clients     = `(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')`
	locksHeld   = `(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')`
	lockRoom    = `current_setting('max_locks_per_transaction')::int8 * (` + mostClients + ` + current_setting('max_prepared_transactions')::int8)`
	standbys    = `(SELECT count(*) FROM pg_stat_replication)`
	// A role that may not see the standbys' states sees their number.
	asynchronous = `(SELECT count(*) > 0 AND (current_setting('synchronous_standby_names') = '' OR
		count(sync_state) = count(*) AND count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) = 0) FROM pg_stat_replication)`
	loses = "a promotion may forget held locks, and tokens then rise only if the clocks agree"
)

// rules are the questions for a process with at most so many connections.
func rules(own int) []rule {
	needed := fmt.Sprintf("%s + %d", clients, own)
	return []rule{
		{
			"fsync", driver.SeverityUnsafe, `current_setting('fsync') <> 'on'`, `'off'`, `'ALTER SYSTEM SET fsync = on'`,
			"turn fsync on", "fsync is off: after a crash of the machine tokens may be given a second time",
		},
		{
			"lock-table", driver.SeverityWarning, locksHeld + ` * 2 > ` + lockRoom, locksHeld + ` || ' of ' || ` + lockRoom,
			`'ALTER SYSTEM SET max_locks_per_transaction = ' || greatest(64, ` + locksHeld + ` * 4 / ` + mostClients + `)`,
			"raise max_locks_per_transaction and restart the server", "advisory locks take up half of the server's lock table, or more",
		},
		{
			"connections", driver.SeverityWarning, needed + ` > ` + mostClients, clients + ` || ' of ' || ` + mostClients,
			`'ALTER SYSTEM SET max_connections = ' || 2 * (` + needed + `)`,
			"raise max_connections and restart the server, or lower max_conns", fmt.Sprintf("too few connections are left for this process, which may need %d", own),
		},
		{
			"replication-async", driver.SeverityWarning, asynchronous, standbys + ` || ' standbys'`, `'ALTER SYSTEM SET synchronous_standby_names = ''*'''`,
			"make a standby synchronous, or set restart_guard", "standbys follow asynchronously: " + loses,
		},
	}
}

// settings asks the questions, and looks for a pooler and a wrong clock.
func (c *checkup) settings(ctx context.Context) error {
	all := rules(c.b.opt.MaxConns)
	columns := []string{"pg_backend_pid()", microseconds("clock_timestamp()")}
	for _, r := range all {
		columns = append(columns, fmt.Sprintf("CASE WHEN %s THEN %s END, %s", r.condition, r.measured, r.fix))
	}
	asked := time.Now()
	row, err := query(ctx, c.pc, "SELECT "+strings.Join(columns, ", "))
	if err != nil {
		return err
	}
	c.Clock(time.UnixMicro(wire.Value(row[1])), asked)
	if uint32(wire.Value(row[0])) != c.pc.PID() {
		c.Add("pooler", driver.SeverityWarning, "connect to the server itself", "there is a pooler before the server; the URL says that it pools whole sessions")
	}
	for i, r := range all {
		measured, fix := row[2+2*i], string(row[3+2*i])
		if measured == nil {
			continue
		}
		d := c.Add(r.code, r.severity, r.remedy, "%s", r.summary)
		if d.Measured = string(measured); fix != "" {
			d.Command = c.psql(fix, "SELECT pg_reload_conf()")
		}
	}
	return nil
}

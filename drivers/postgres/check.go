package postgres

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
	"github.com/redlock-go/redlock/driver/printable"
)

// Check examines the server, the connection to it and its settings. That it is refused is a
// finding.
func (b *Backend) Check(ctx context.Context) ([]driver.Diagnostic, error) {
	c := &checkup{Findings: base.Findings{Node: b.String()}, b: b}
	err := b.inspect(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		c.pc = conn.PgConn()
		if hosts := inClear(conn.Config()); len(hosts) > 0 {
			c.Add("password-in-clear", driver.SeverityWarning, "set sslmode=verify-full with sslrootcert, or at least sslmode=require", "sslmode lets a connection to %s go without TLS, where the password may be sent in clear", strings.Join(hosts, ", "))
		}
		err := c.accepted(ctx)
		if err == nil || errors.Is(err, driver.ErrRefused) { // other causes may lie behind the first
			err = cmp.Or(err, c.settings(ctx))
		}
		if !errors.Is(err, driver.ErrRefused) {
			return err
		}
		d := c.Add("refused", driver.SeverityUnsafe, "remove this cause, or use another server", "no lock is granted: %v", err)
		if _, statement, ok := strings.Cut(err.Error(), mustRun); ok {
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

// asynchronous says in SQL that a promotion may lose what was committed. A role that may not see the
// standbys' states sees their number.
const asynchronous = `(SELECT count(*) > 0 AND (current_setting('synchronous_standby_names') = '' OR
	count(sync_state) = count(*) AND count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) = 0) FROM pg_stat_replication)`

// settings looks for settings that lose tokens or locks, and for a wrong clock.
func (c *checkup) settings(ctx context.Context) error {
	asked := time.Now()
	row, err := query(ctx, c.pc, "SELECT "+microseconds("clock_timestamp()")+", current_setting('fsync'), "+
		asynchronous+", (SELECT count(*) || ' standbys' FROM pg_stat_replication)")
	if err != nil {
		return err
	}
	c.Clock(time.UnixMicro(value(row[0])), asked)
	if fsync := string(row[1]); fsync != "on" {
		d := c.Add("fsync", driver.SeverityUnsafe, "turn fsync on", "fsync is off: after a crash of the machine tokens may be given a second time")
		d.Measured, d.Command = fsync, c.psql("ALTER SYSTEM SET fsync = on", reload)
	}
	if value(row[2]) == 1 {
		d := c.Add("replication-async", driver.SeverityWarning, "make a standby synchronous, or set restart_guard",
			"standbys follow asynchronously: a promotion may forget held locks, and tokens then rise only if the clocks agree")
		d.Measured, d.Command = string(row[3]), c.psql("ALTER SYSTEM SET synchronous_standby_names = '*'", reload)
	}
	return nil
}

const reload = "SELECT pg_reload_conf()"

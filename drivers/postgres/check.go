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
	c := &base.Findings{Node: b.String()}
	err := b.inspect(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if hosts := inClear(conn.Config()); len(hosts) > 0 {
			c.Add("password-in-clear", driver.SeverityWarning, "set sslmode=verify-full with sslrootcert, or at least sslmode=require", "sslmode lets a connection to %s go without TLS, where the password may be sent in clear", strings.Join(hosts, ", "))
		}
		err := b.accepted(ctx, conn.PgConn())
		if err == nil || errors.Is(err, driver.ErrRefused) { // other causes may lie behind the first
			err = cmp.Or(err, b.checkSettings(ctx, conn.PgConn(), c))
		}
		if !errors.Is(err, driver.ErrRefused) {
			return err
		}
		d := c.Add("refused", driver.SeverityUnsafe, "remove this cause, or use another server", "no lock is granted: %v", err)
		if _, statement, ok := strings.Cut(err.Error(), mustRun); ok {
			d.Command = printable.CommandLine("psql", b.String(), "-c", statement)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return c.Result(nil)
}

// accepted returns why the server is refused. A missing sequence of tokens is made at the first use.
func (b *Backend) accepted(ctx context.Context, pc *pgconn.PgConn) error {
	_, _, f, err := b.examine(ctx, pc)
	if err != nil || f.missing() {
		return err
	}
	return b.checkFence(f)
}

// asynchronous says in SQL that a promotion may lose what was committed. A role that may not see the
// standbys' states sees their number.
const asynchronous = `(SELECT count(*) > 0 AND (current_setting('synchronous_standby_names') = '' OR
	count(sync_state) = count(*) AND count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) = 0) FROM pg_stat_replication)`

// checkSettings looks for settings that lose tokens or locks, and for a wrong clock.
func (b *Backend) checkSettings(ctx context.Context, pc *pgconn.PgConn, c *base.Findings) error {
	asked := time.Now()
	row, err := query(ctx, pc, "SELECT "+microseconds("clock_timestamp()")+", current_setting('fsync'), "+
		asynchronous+", (SELECT count(*) || ' standbys' FROM pg_stat_replication)")
	if err != nil {
		return err
	}
	c.Clock(time.UnixMicro(value(row[0])), asked)
	if fsync := string(row[1]); fsync != "on" {
		d := c.Add("fsync", driver.SeverityUnsafe, "turn fsync on", "fsync is off: after a crash of the machine tokens may be given a second time")
		d.Measured, d.Command = fsync, printable.CommandLine("psql", b.String(), "-c", "ALTER SYSTEM SET fsync = on", "-c", "SELECT pg_reload_conf()")
	}
	if value(row[2]) == 1 { // no command: with a lone standby that is away, commits would wait
		c.Add("replication-async", driver.SeverityWarning, "make a standby synchronous (synchronous_standby_names), or set restart_guard",
			"standbys follow asynchronously: a promotion may forget held locks, and tokens then rise only if the clocks agree").Measured = string(row[3])
	}
	return nil
}

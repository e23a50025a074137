package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/redlock-go/redlock/driver"
)

// server has the properties of the server that a session found when it began.
type server struct {
	id        string    // identifies the server process: its start time
	version   int       // major
	notBefore time.Time // the restart guard: no grant before this; zero: none
}

// oldest is the oldest version that ends idle sessions by itself.
const oldest = 14

// setUp prepares a new connection for a session, in two round trips. The first examines the
// server and changes nothing; the second applies the settings if the server is accepted.
func (b *Backend) setUp(ctx context.Context, c *pgx.Conn) (*wireConn, server, error) {
	pc := c.PgConn()
	srv, pid, f, err := b.examine(ctx, pc)
	if err == nil && f.missing() {
		if err = b.createFence(ctx, pc, f); err == nil {
			srv, pid, f, err = b.examine(ctx, pc)
		}
	}
	if err == nil {
		err = b.checkFence(f)
	}
	if err == nil && f.behind {
		err = b.raiseFence(ctx, pc)
	}
	if err != nil {
		return nil, srv, err
	}
	if err := exec(ctx, pc, b.settings(srv, pc.ParameterStatus("application_name"))+b.sql.prepare()); err != nil {
		return nil, srv, err
	}
	w, err := takeOver(ctx, c, uint32(pid))
	if err != nil {
		return nil, srv, fmt.Errorf("postgres: %w", err)
	}
	return w, srv, nil
}

// examine refuses a server that is too old, a standby, and a pooler, and looks for the
// sequence of the tokens.
func (b *Backend) examine(ctx context.Context, pc *pgconn.PgConn) (srv server, pid int64, f fenceState, err error) {
	_, _ = fmt.Sscanf(pc.ParameterStatus("server_version"), "%d", &srv.version) // 15 of "15.4 (Debian 15.4-1)"
	asked := time.Now()
	if pc.ParameterStatus("crdb_version") != "" {
		return srv, 0, f, &driver.RefusedError{Reason: "postgres: the server is CockroachDB, whose advisory locks exclude nobody: take the locks on PostgreSQL"}
	}
	if srv.version < oldest {
		return srv, 0, f, &driver.RefusedError{Reason: fmt.Sprintf("postgres: the server is version %d; leases need %d or newer (idle_session_timeout)", srv.version, oldest)}
	}
	// After a crash of a server process all processes but the postmaster start anew. The
	// checkpointer's age shows it, if the role may see it (pg_monitor). With OFFSET 0 the server plans
	// and runs that question once. The function costs a new session half of what its view costs.
	row, err := query(ctx, pc, `SELECT pg_backend_pid(), pg_is_in_recovery()::int,
		`+microseconds("clock_timestamp() - started")+`, `+microseconds("started")+`,
		`+b.fenceColumns()+`
		FROM (SELECT greatest(pg_postmaster_start_time(),
			(SELECT max(backend_start) FROM pg_stat_get_activity(NULL) WHERE backend_type = 'checkpointer')) AS started OFFSET 0) AS t`+b.fenceTables())
	if err != nil {
		return srv, 0, f, err
	}
	pid = value(row[0])
	switch {
	case uint32(pid) != pc.PID() && b.opt.Pooler == "":
		return srv, 0, f, &driver.RefusedError{Reason: "postgres: there is a pooler or a proxy before the server, which could give a session's locks to another client: connect to the server itself, or set pooler=session if it gives every client a server process of its own"}
	case value(row[1]) == 1:
		return srv, 0, f, &driver.RefusedError{RetryAfter: standbyRetry, Reason: "postgres: the server is a standby, whose locks no other server sees: connect to the primary (target_session_attrs=primary)"}
	}
	if guard := b.opt.RestartGuard; guard > 0 {
		uptime := time.Duration(value(row[2])) * time.Microsecond // when it was asked; a lower bound
		srv.notBefore = asked.Add(guard - uptime)
	}
	srv.id = string(row[3])
	return srv, pid, readFence(row[4:]), nil
}

// settings returns the SQL that sets every session's settings, in place of the defaults of the
// role, the database and the server.
func (b *Backend) settings(srv server, name string) string {
	sets := []string{
		"application_name = " + literal(b.applicationName(name)),
		"client_min_messages = error",
		"idle_session_timeout = " + milliseconds(idleClass),
		"idle_in_transaction_session_timeout = 0",
		"statement_timeout = 0", // a wait may take for ever
		"lock_timeout = " + strconv.FormatInt(sliceTime.Milliseconds(), 10),
		"default_transaction_read_only = off",
		"default_transaction_isolation = 'read committed'",
		"synchronous_commit = on", // without it tokens may repeat after a crash
		"plan_cache_mode = force_generic_plan",
		"search_path = ''", // every name has its schema
	}
	if srv.version >= 17 {
		sets = append(sets, "transaction_timeout = 0")
	}
	// Not every platform has the last setting, and the driver does not depend on it.
	return "SET " + strings.Join(sets, "; SET ") + "; " + keepaliveSettings + `; DO $$BEGIN
		PERFORM set_config('client_connection_check_interval', '` + checkInterval + `', false);
		EXCEPTION WHEN OTHERS THEN END$$; `
}

// checkInterval is how often the server looks, while a statement runs, whether the client is still
// connected.
const checkInterval = "2s"

// keepaliveSettings make the server notice a client whose machine is gone.
const keepaliveSettings = "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3; SET tcp_user_timeout = 10000"

// exec runs statements whose results do not matter.
func exec(ctx context.Context, pc *pgconn.PgConn, sql string) error {
	_, err := queryAll(ctx, pc, sql)
	return err
}

// query runs statements and returns the last one's only row.
func query(ctx context.Context, pc *pgconn.PgConn, sql string) ([][]byte, error) {
	rows, err := queryAll(ctx, pc, sql)
	if len(rows) == 0 {
		return nil, err
	}
	return rows[0], nil
}

// queryAll runs statements in one transaction and returns the last one's rows. No name without a schema
// is looked up on the role's search path.
func queryAll(ctx context.Context, pc *pgconn.PgConn, sql string) ([][][]byte, error) {
	results, err := pc.Exec(ctx, "SET LOCAL search_path = ''; "+sql).ReadAll()
	if err != nil {
		return nil, connectError(err)
	}
	return results[len(results)-1].Rows, nil
}

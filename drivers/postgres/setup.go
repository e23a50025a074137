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

// server is what a session learned of its server when it began.
type server struct {
	id       string // of the server process: when it was started
	asked    time.Time
	uptime   time.Duration // at asked, or more
	capacity int           // of the lock table, about
	version  int           // major
	calls    calls
}

// calls are the functions that a lone caller's requests call by number; zeros where
// they are not to be.
type calls struct {
	lock, unlock, next uint32
	fence              uint32 // the sequence
}

// oldest is the oldest version that ends idle sessions by itself.
const oldest = 14

// setUp makes a session of a new connection: it looks at what is at the other end, and
// changes nothing there unless that is a server of our own.
func (b *Backend) setUp(ctx context.Context, c *pgx.Conn) (*wire, server, error) {
	pc := c.PgConn()
	srv, pid, err := b.examine(ctx, pc)
	if err != nil {
		return nil, srv, err
	}
	if err := exec(ctx, pc, b.settings(srv)); err != nil {
		return nil, srv, err
	}
	// Not every platform has it, and it is a backstop.
	_ = exec(ctx, pc, "SET client_connection_check_interval = "+strconv.FormatInt(b.opt.CheckInterval.Milliseconds(), 10))
	if b.fence != "" {
		if err := ensureFence(ctx, pc, b.fence); err != nil {
			return nil, srv, err
		}
	}
	if srv.calls, err = b.prepare(ctx, pc); err != nil {
		return nil, srv, err
	}
	w, err := takeOver(ctx, c, uint32(pid))
	if err != nil {
		return nil, srv, fmt.Errorf("postgres: %w", err)
	}
	return w, srv, nil
}

// prepare prepares the session's statements, and asks for the numbers of functions. A
// pooler need not know function calls.
func (b *Backend) prepare(ctx context.Context, pc *pgconn.PgConn) (calls, error) {
	sequence := "0"
	if b.fence != "" {
		sequence = literal(b.fence) + "::regclass::oid"
	}
	row, err := query(ctx, pc, prepare(b.fence)+`SELECT 'pg_catalog.pg_try_advisory_lock(int8)'::regprocedure::oid,
		'pg_catalog.pg_advisory_unlock(int8)'::regprocedure::oid, 'pg_catalog.nextval(regclass)'::regprocedure::oid, `+sequence)
	if err != nil || b.opt.Pooler != "" {
		return calls{}, err
	}
	return calls{uint32(number(row[0])), uint32(number(row[1])), uint32(number(row[2])), uint32(number(row[3]))}, nil
}

// examine refuses a server that is too old, a standby, and a pooler.
func (b *Backend) examine(ctx context.Context, pc *pgconn.PgConn) (server, int64, error) {
	srv := server{version: major(pc.ParameterStatus("server_version")), asked: time.Now()}
	if srv.version < oldest {
		return srv, 0, &driver.RefusedError{Reason: fmt.Sprintf("postgres: the server is version %d; leases need %d or newer (idle_session_timeout)", srv.version, oldest)}
	}
	// A server process that crashed makes all others start anew, but for the first one;
	// that shows in the checkpointer's age, where the role may see it (pg_monitor).
	row, err := query(ctx, pc, `SELECT pg_backend_pid(), pg_is_in_recovery()::int,
		(extract(epoch FROM clock_timestamp() - started) * 1000000)::int8,
		(extract(epoch FROM started) * 1000000)::int8,
		current_setting('max_locks_per_transaction')::int8
			* (current_setting('max_connections')::int8 + current_setting('max_prepared_transactions')::int8)
		FROM (SELECT greatest(pg_postmaster_start_time(),
			(SELECT max(backend_start) FROM pg_stat_activity WHERE backend_type = 'checkpointer')) AS started) AS s`)
	if err != nil {
		return srv, 0, err
	}
	pid := number(row[0])
	switch {
	case uint32(pid) != pc.PID() && b.opt.Pooler == "":
		return srv, 0, &driver.RefusedError{Reason: "postgres: there is a pooler between here and the server, and a session's locks would end up with somebody else: connect to the server itself, or say pooler=session if it pools whole sessions"}
	case number(row[1]) == 1:
		return srv, 0, &driver.RefusedError{Reason: "postgres: the server is a standby, whose locks nobody else sees: connect to the primary (target_session_attrs=primary)"}
	}
	srv.uptime = time.Duration(number(row[2])) * time.Microsecond
	srv.id = string(row[3])
	srv.capacity = int(number(row[4]))
	return srv, pid, nil
}

// settings is what every session sets, against the defaults of the role, the database
// and the server.
func (b *Backend) settings(srv server) string {
	sets := []string{
		"application_name = " + literal(b.applicationName()),
		"client_min_messages = error",
		"idle_session_timeout = " + milliseconds(idleClass),
		"idle_in_transaction_session_timeout = 0",
		"statement_timeout = 0", // a wait may take for ever
		"lock_timeout = 0",
		"default_transaction_read_only = off",
		"default_transaction_isolation = 'read committed'",
		"synchronous_commit = on", // else a crash gives tokens a second time
		"plan_cache_mode = force_generic_plan",
		"tcp_keepalives_idle = 5",
		"tcp_keepalives_interval = 2",
		"tcp_keepalives_count = 3",
		"tcp_user_timeout = 10000",
	}
	if srv.version >= 17 {
		sets = append(sets, "transaction_timeout = 0")
	}
	return "SET " + strings.Join(sets, "; SET ")
}

// literal quotes a string for SQL.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// major reads the first number of a version: 15 of "15.4 (Debian 15.4-1)".
func major(version string) int {
	end := 0
	for end < len(version) && version[end] >= '0' && version[end] <= '9' {
		end++
	}
	n, _ := strconv.Atoi(version[:end])
	return n
}

// exec runs statements whose results do not matter.
func exec(ctx context.Context, pc *pgconn.PgConn, sql string) error {
	_, err := pc.Exec(ctx, sql).ReadAll()
	return answered(err)
}

// query runs statements and returns the last one's only row.
func query(ctx context.Context, pc *pgconn.PgConn, sql string) ([][]byte, error) {
	results, err := pc.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, answered(err)
	}
	rows := results[len(results)-1].Rows
	if len(rows) == 0 {
		return nil, nil
	}
	return rows[0], nil
}

// answered translates an error of a session's beginning.
func answered(err error) error {
	if err == nil {
		return nil
	}
	return connectError(err)
}

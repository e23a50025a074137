package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// inspect runs an operator's query. It uses a connection of its own, which is closed afterwards: a slow
// query of pg_locks must not delay a heartbeat.
func (b *Backend) inspect(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	return b.calls.Do(ctx, connectTimeout, func(call *base.Call) error {
		c, err := b.factory(call)
		if err != nil {
			return connectError(err)
		}
		defer closeConn(c)
		return f(call, c)
	})
}

// sessionName is the SQL of a session's name: its start and its process, as in %c of
// log_line_prefix; null if the role may not see it.
const sessionName = `to_hex(trunc(extract(epoch FROM a.backend_start))::int8) || '.' || to_hex(a.pid)`

// locksOf selects the advisory locks, with the sessions that have them or wait for them.
const locksOf = `SELECT l.granted, l.mode = 'ShareLock' AS shared, l.pid,
	coalesce(a.application_name, '') AS app, coalesce(host(a.client_addr) || ':' || a.client_port, '') AS address,
	coalesce((extract(epoch FROM coalesce(CASE WHEN l.granted THEN NULL ELSE l.waitstart END, a.xact_start, a.backend_start)) * 1000000)::int8, 0) AS since,
	` + sessionName + `
	FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
	WHERE l.locktype = 'advisory'
	AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`

// Lookup returns the holders of key by what the server knows of their sessions, those of this process
// too: Owner is a session's application_name, which has the owner's label, and its process; Since is
// when its transaction or else its connection began, which is the earliest time at which it can have
// taken the lock. Several shared leases of one session are one holder. Waiters counts the sessions in the
// server's queue.
func (b *Backend) Lookup(ctx context.Context, key string) (*driver.State, error) {
	if key == "" {
		return nil, driver.Invalid("key", "is empty")
	}
	id := numberOf(b.opt.Prefix, key)
	st := &driver.State{Key: key}
	err := b.inspect(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := queryAll(ctx, c.PgConn(), locksOf+id.where()+" ORDER BY l.waitstart")
		for _, v := range rows {
			h := driver.Holder{Owner: fmt.Sprintf("%s (process %s)", v[3], v[2]), Address: string(v[4])}
			if us := value(v[5]); us > 0 {
				h.Since = time.UnixMicro(us)
			}
			if granted := value(v[0]) == 1; granted {
				if shared := value(v[1]) == 1; shared {
					st.Mode = driver.Shared
				}
				h.Session = string(v[6])
				st.Holders = append(st.Holders, h)
				continue
			}
			st.Waiters++
			if len(st.Queue) < 100 {
				st.Queue = append(st.Queue, h)
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return st, nil
}

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
	id := numberOf(b.opt.Prefix, key)
	return b.inspect(ctx, func(ctx context.Context, c *pgx.Conn) error {
		row, err := query(ctx, c.PgConn(), fmt.Sprintf(`SELECT count(*) FILTER (WHERE pg_terminate_backend(pid, %d)), count(*) FROM (
			SELECT DISTINCT l.pid FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
			WHERE l.locktype = 'advisory' AND l.granted AND %s = %s
			AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())%s) AS holder`,
			terminateTimeout.Milliseconds(), sessionName, literal(name), id.where()))
		switch {
		case err != nil:
			return err
		case value(row[1]) == 0:
			return driver.ErrLost
		case value(row[0]) == 0:
			return &driver.RefusedError{RetryAfter: time.Second, Reason: fmt.Sprintf("postgres: the session %s did not end within %v", name, terminateTimeout)}
		}
		return nil
	})
}

// List returns driver.ErrInvalid if the server answers: it stores only a hash of a key. Lookup finds a
// lock by its key.
func (b *Backend) List(ctx context.Context, _ string, _ func(*driver.State) bool) error {
	err := b.inspect(ctx, func(ctx context.Context, c *pgx.Conn) error { return exec(ctx, c.PgConn(), "SELECT 1") })
	if err == nil {
		err = driver.Invalid("PostgreSQL", "stores no names of keys: name them, as in dlock status KEY")
	}
	return err
}

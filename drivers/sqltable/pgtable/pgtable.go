// Package pgtable registers the driver "pgtable": locks in a table of PostgreSQL, through pgx,
// for databases behind a pooler of transactions or statements. Package sqltable describes these
// locks; package drivers/postgres uses the server's own locks, which need a session.
//
//	pgtable://user:password@host:5432/database?table=dlock
//
// The parameters, beside ttl and prefix:
//
//	table          the table of the locks (dlock); schema.table names one in a schema
//	setup          true makes the table if it is missing
//	conns          connections at most (8); twice as many while other transactions lock rows
//	call_timeout   for one call (1s)
//	password, sslmode, sslcert, sslkey, sslrootcert, sslsni, target_session_attrs, passfile
//	               as in libpq
//
// Several hosts, separated by commas, are tried in order for the primary. Parts that the URL
// leaves out come from the environment (PGHOST, PGUSER, PGPASSWORD), as with libpq.
package pgtable

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/pgurl"
	"github.com/redlock-go/redlock/drivers/sqltable"
	"github.com/redlock-go/redlock/drivers/sqltable/internal/params"
)

func init() { dlock.Register("pgtable", Driver{}) }

// Driver opens backends by URL.
type Driver struct{}

var _ driver.Driver = Driver{}

// passed are the parameters that go to pgx as they are.
var passed = []string{"sslmode", "sslcert", "sslkey", "sslrootcert", "sslsni", "target_session_attrs", "passfile"}

// Open reads a URL. It reads the files of certificates and passwords, and does no other I/O.
func (Driver) Open(cfg *driver.Config) (driver.Backend, error) {
	u, err := pgurl.Parse(cfg.DSN, passed, "pgtable")
	if err != nil {
		return nil, err
	}
	o := params.Options(cfg, u.Params)
	conns := u.Int("conns", 8, 1, 1000)
	if err := u.Err(); err != nil {
		return nil, err
	}
	c, err := u.Config()
	if err != nil {
		return nil, err
	}
	c.ConnectTimeout = o.CallTimeout
	// A pooler may give each statement another server process, so no statement is prepared by name.
	c.DefaultQueryExecMode = pgx.QueryExecModeExec
	dial := c.DialFunc
	c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if ctx.Value(connecting{}) == nil {
			return nil, errNoCancel
		}
		return dial(ctx, network, addr)
	}
	o.Address = pgurl.Address("pgtable", c)
	return params.Open(sql.OpenDB(connector{stdlib.GetConnector(*c)}), conns, sqltable.Postgres, o)
}

// connecting marks the context in which a connection is made. pgx also dials without it, to ask
// the server to cancel an abandoned statement. That is not needed here, because a late
// statement has no effect, and many such requests have crashed PgBouncer.
type connecting struct{}

var errNoCancel = errors.New("requests to cancel are not sent")

// A connector removes pgx's configuration, which has the password, from errors.
type connector struct{ sqldriver.Connector }

func (c connector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := c.Connector.Connect(context.WithValue(ctx, connecting{}, true))
	var failed *pgconn.ConnectError
	if errors.As(err, &failed) {
		err = errors.Unwrap(failed)
	}
	return conn, err
}

// Package fencesql raises the marks of package fence in SQL databases. It is a package of its
// own so that a driver with its own SQL client can use the same statements.
package fencesql

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/redlock-go/redlock/driver"
)

// Dialect names a family of SQL databases.
type Dialect uint8

// The dialects. The zero Dialect is none.
const (
	Postgres Dialect = iota + 1
	MySQL
	SQLite
)

// String returns the name of the database.
func (d Dialect) String() string {
	switch d {
	case Postgres:
		return "PostgreSQL"
	case MySQL:
		return "MySQL"
	case SQLite:
		return "SQLite"
	}
	return "unknown"
}

// Tx is a transaction of any client.
type Tx interface {
	// Exec runs a statement and returns how many rows it changed.
	Exec(ctx context.Context, query string, args ...any) (int64, error)
	// Int runs a query and returns its only value.
	Int(ctx context.Context, query string, args ...any) (int64, error)
}

// Schema returns the statement that makes a table of marks.
func Schema(d Dialect, table string) string {
	switch d {
	case Postgres:
		return "CREATE TABLE IF NOT EXISTS " + d.quote(table) + " (resource bytea PRIMARY KEY, token bigint NOT NULL)"
	case MySQL:
		return "CREATE TABLE IF NOT EXISTS " + d.quote(table) + " (resource varbinary(512) PRIMARY KEY, token bigint NOT NULL) ENGINE=InnoDB"
	case SQLite:
		return "CREATE TABLE IF NOT EXISTS " + d.quote(table) + " (resource blob PRIMARY KEY NOT NULL, token integer NOT NULL)"
	}
	return ""
}

// quote quotes a name; a dot separates a schema from it.
func (d Dialect) quote(name string) string {
	q := `"`
	if d == MySQL {
		q = "`"
	}
	parts := strings.Split(name, ".")
	for i, p := range parts {
		parts[i] = q + strings.ReplaceAll(p, q, q+q) + q
	}
	return strings.Join(parts, ".")
}

// A Mark is a row of a table of marks: one for each resource, made when it is first raised.
type Mark struct {
	Tx      Tx
	Dialect Dialect
	Table   string
}

// Raise sets the mark of resource to token unless it is larger, and returns the mark. In both
// cases the row is locked until the transaction ends: another transaction that raises the mark
// waits, and then sees this token.
func (m Mark) Raise(ctx context.Context, resource string, token uint64) (uint64, error) {
	t := m.Dialect.quote(m.Table)
	key := []byte(resource) // bytes compare without a collation
	switch m.Dialect {
	case Postgres:
		return number(m.Tx.Int(ctx, "INSERT INTO "+t+" AS m (resource, token) VALUES ($1, $2)"+
			" ON CONFLICT (resource) DO UPDATE SET token = greatest(m.token, excluded.token) RETURNING m.token", key, int64(token)))
	case SQLite:
		return number(m.Tx.Int(ctx, "INSERT INTO "+t+" (resource, token) VALUES (?, ?)"+
			" ON CONFLICT (resource) DO UPDATE SET token = max(token, excluded.token) RETURNING token", key, int64(token)))
	case MySQL:
		_, err := m.Tx.Exec(ctx, "INSERT INTO "+t+" (resource, token) VALUES (?, ?)"+
			" ON DUPLICATE KEY UPDATE token = greatest(token, VALUES(token))", key, int64(token))
		if err != nil {
			return 0, err
		}
		return number(m.Tx.Int(ctx, "SELECT token FROM "+t+" WHERE resource = ? FOR UPDATE", key))
	}
	return 0, driver.Invalid("dialect", "%d is unknown", m.Dialect)
}

func number(n int64, err error) (uint64, error) {
	if err == nil && n < 0 {
		err = fmt.Errorf("the stored token is negative: %d", n)
	}
	return uint64(n), err
}

// SQL is a *sql.Tx.
type SQL struct{ Tx *sql.Tx }

// Exec runs a statement.
func (s SQL) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	r, err := s.Tx.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// Int runs a query of one value.
func (s SQL) Int(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = s.Tx.QueryRowContext(ctx, query, args...).Scan(&n)
	return n, err
}

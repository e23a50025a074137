package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/redlock-go/redlock/dlock/fence"
	"github.com/redlock-go/redlock/dlock/fence/fencesql"
	"github.com/redlock-go/redlock/driver"
)

// LockTx takes key for the caller's transaction and blocks until it is granted: the lock ends
// with tx, whether that commits, rolls back or loses its connection. It excludes leases of the
// same key, and other transactions, if tx is in the backend's database. There is no lease:
// nothing to renew, to release or to fence.
//
// If the same transaction does the work, this is the strongest form of a lock: if the lock is
// lost, the work is rolled back.
//
// In a transaction of database/sql run SELECT pg_advisory_xact_lock(n) with the number of LockID.
//
// ctx and the settings of tx's connection (lock_timeout) bound the waiting. If
// lock_timeout ends the wait the error is ErrHeld; if the server found a deadlock it is a
// *driver.RefusedError. After an error the transaction cannot be used any more. See the package's documentation on
// the deadlock that nobody finds.
func (b *Backend) LockTx(ctx context.Context, tx pgx.Tx, key string) error {
	return b.inTx(ctx, tx, key, "pg_advisory_xact_lock")
}

// TryLockTx is LockTx without waiting: the error is a *driver.HeldError if another transaction
// or lease has the key; the transaction can still be used then.
func (b *Backend) TryLockTx(ctx context.Context, tx pgx.Tx, key string) error {
	return b.inTx(ctx, tx, key, "pg_try_advisory_xact_lock")
}

// inTx runs a function that locks, or tries to, for a transaction. The lock is reentrant within the
// transaction.
func (b *Backend) inTx(ctx context.Context, tx pgx.Tx, key, function string) error {
	switch {
	case tx == nil:
		return driver.Invalid("transaction", "is nil")
	case key == "":
		return driver.Invalid("key", "is empty")
	case len(b.opt.Prefix)+len(key) > driver.MaxKey:
		return driver.Invalid("key", "has %d bytes with its prefix, the limit is %d", len(b.opt.Prefix)+len(key), driver.MaxKey)
	}
	var got string // nothing, or true or false
	if err := tx.QueryRow(ctx, "SELECT pg_catalog."+function+"("+numberOf(b.opt.Prefix, key).String()+")::text").Scan(&got); err != nil {
		return txError(ctx, err)
	}
	if got == "false" {
		return &driver.HeldError{}
	}
	return nil
}

// txError translates an error of a transaction.
func txError(ctx context.Context, err error) error {
	var e *pgconn.PgError
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case !errors.As(err, &e):
	case e.Code == codeLockTimeout:
		return &driver.HeldError{}
	default:
		err = refusalOf(e)
	}
	if errors.Is(err, driver.ErrRefused) {
		return err
	}
	return fmt.Errorf("postgres: %w", err)
}

// FenceTx is fence.Tx for a transaction of pgx: a Store whose marks are the rows of a table in
// tx's database, which fence.Schema makes. It guards the writes of tx, which may be in another
// database than the locks. After an error of the server tx can no longer be used.
func FenceTx(tx pgx.Tx, table string) fence.Store {
	return fencesql.Mark{Tx: pgxTx{tx}, Dialect: fence.Postgres, Table: table}
}

// pgxTx is a pgx.Tx for package fencesql.
type pgxTx struct{ tx pgx.Tx }

// Exec runs a statement.
func (t pgxTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := t.tx.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

// Int runs a query of one value.
func (t pgxTx) Int(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = t.tx.QueryRow(ctx, query, args...).Scan(&n)
	return n, err
}

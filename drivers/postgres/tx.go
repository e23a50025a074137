package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/redlock-go/redlock/driver"
)

// LockTx takes key for the caller's transaction and blocks until it is granted: the lock
// ends with tx, whether that commits, rolls back or loses its connection. It
// excludes leases of the same key, and other transactions, if tx is of the backend's
// database. There is no lease: nothing to renew, to release or to fence.
//
// Where the work is done by the same transaction this is the strongest form that
// there is: the lock cannot be lost without the work being undone.
//
// ctx and the settings of tx's connection (lock_timeout) bound the waiting. If
// lock_timeout ends the wait the error is ErrHeld; if the server found a deadlock it is a
// *driver.RefusedError. After an error the transaction cannot be used any more. See the package's documentation on
// the deadlock that nobody finds.
func (b *Backend) LockTx(ctx context.Context, tx pgx.Tx, key string) error {
	if tx == nil {
		return driver.Invalid("transaction", "is nil")
	}
	return b.inTx(ctx, key, "pg_advisory_xact_lock", pgxRow(ctx, tx))
}

// TryLockTx is LockTx without the waiting: *driver.HeldError if another transaction or lease
// has the key, after which the transaction can go on.
func (b *Backend) TryLockTx(ctx context.Context, tx pgx.Tx, key string) error {
	if tx == nil {
		return driver.Invalid("transaction", "is nil")
	}
	return b.inTx(ctx, key, "pg_try_advisory_xact_lock", pgxRow(ctx, tx))
}

// LockSQLTx is LockTx for a transaction of database/sql, of any driver of PostgreSQL.
func (b *Backend) LockSQLTx(ctx context.Context, tx *sql.Tx, key string) error {
	if tx == nil {
		return driver.Invalid("transaction", "is nil")
	}
	return b.inTx(ctx, key, "pg_advisory_xact_lock", sqlRow(ctx, tx))
}

// TryLockSQLTx is TryLockTx for a transaction of database/sql.
func (b *Backend) TryLockSQLTx(ctx context.Context, tx *sql.Tx, key string) error {
	if tx == nil {
		return driver.Invalid("transaction", "is nil")
	}
	return b.inTx(ctx, key, "pg_try_advisory_xact_lock", sqlRow(ctx, tx))
}

// A scan runs a query that has one row, and reads its only column.
type scan func(query string, to any) error

func pgxRow(ctx context.Context, tx pgx.Tx) scan {
	return func(query string, to any) error { return tx.QueryRow(ctx, query).Scan(to) }
}

func sqlRow(ctx context.Context, tx *sql.Tx) scan {
	return func(query string, to any) error { return tx.QueryRowContext(ctx, query).Scan(to) }
}

// inTx runs a function that locks, or tries to, for a transaction.
func (b *Backend) inTx(ctx context.Context, key, function string, row scan) error {
	n, err := b.txNumber(key)
	if err != nil {
		return err
	}
	var got string // nothing, or true or false
	if err := row("SELECT "+function+"("+n.args()+")::text", &got); err != nil {
		return txError(ctx, err)
	}
	if got == "false" {
		return &driver.HeldError{}
	}
	return nil
}

// txNumber checks the key. The lock of a transaction is reentrant, as all that a
// transaction has.
func (b *Backend) txNumber(key string) (lockNumber, error) {
	switch {
	case key == "":
		return lockNumber{}, driver.Invalid("key", "is empty")
	case len(b.opt.Prefix)+len(key) > driver.MaxKey:
		return lockNumber{}, driver.Invalid("key", "has %d bytes with its prefix, the limit is %d", len(b.opt.Prefix)+len(key), driver.MaxKey)
	}
	return b.number(b.opt.Prefix, key), nil
}

// txError translates an error of any driver's that tells the server's code.
func txError(ctx context.Context, err error) error {
	var e interface {
		error
		SQLState() string
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("postgres: %w", ctx.Err())
	case !errors.As(err, &e):
		return fmt.Errorf("postgres: %w", err)
	case e.SQLState() == codeLockTimeout:
		return &driver.HeldError{}
	}
	return verdict(e.SQLState(), err, 0)
}

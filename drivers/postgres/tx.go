package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

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
// ctx and the settings of tx's connection (lock_timeout) bound the waiting. A
// lock_timeout gives ErrHeld; a deadlock that the server found, a *driver.RefusedError. After
// an error the transaction is of no use any more. See the package's documentation on
// the deadlock that nobody finds.
func (b *Backend) LockTx(ctx context.Context, tx pgx.Tx, key string) error {
	id, err := b.txID(tx, key)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", id)
	return txError(ctx, err)
}

// TryLockTx is LockTx without the waiting: *driver.HeldError if somebody else has
// the key, after which the transaction can go on.
func (b *Backend) TryLockTx(ctx context.Context, tx pgx.Tx, key string) error {
	id, err := b.txID(tx, key)
	if err != nil {
		return err
	}
	var got bool
	if err := tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock($1)", id).Scan(&got); err != nil {
		return txError(ctx, err)
	}
	if !got {
		return &driver.HeldError{}
	}
	return nil
}

// txID checks the arguments. The lock of a transaction is reentrant, as all that a
// transaction has.
func (b *Backend) txID(tx pgx.Tx, key string) (int64, error) {
	switch {
	case tx == nil:
		return 0, driver.Invalid("transaction", "is nil")
	case key == "":
		return 0, driver.Invalid("key", "is empty")
	case len(b.opt.Prefix)+len(key) > driver.MaxKey:
		return 0, driver.Invalid("key", "has %d bytes with its prefix, the limit is %d", len(b.opt.Prefix)+len(key), driver.MaxKey)
	}
	return b.id(b.opt.Prefix, key), nil
}

func txError(ctx context.Context, err error) error {
	var e *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("postgres: %w", ctx.Err())
	case errors.As(err, &e):
		return verdict(e, 0, 0)
	}
	return fmt.Errorf("postgres: %w", err)
}

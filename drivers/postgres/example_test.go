package postgres_test

import (
	"context"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/drivers/postgres"
)

// A pool that the program has already makes the connections.
func ExampleFromPool() {
	pool, err := pgxpool.New(context.Background(), "postgres://app@db.example.com/shop")
	if err != nil {
		log.Fatal(err)
	}
	backend, err := postgres.New(postgres.FromPool(pool), &postgres.Options{MaxConns: 5})
	if err != nil {
		log.Fatal(err)
	}
	locks, err := dlock.New(backend)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close() //nolint:errcheck // the program ends
}

// Lock and work in one transaction: nothing can be lost, paused or late.
func ExampleBackend_LockTx() {
	var (
		pool    *pgxpool.Pool     // of the same database
		backend *postgres.Backend // used only for the names of keys
	)
	transfer := func(ctx context.Context, account string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := backend.LockTx(ctx, tx, "account/"+account); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance - 1 WHERE id = $1", account)
			return err
		})
	}
	_ = transfer
}

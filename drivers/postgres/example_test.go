package postgres_test

import (
	"context"
	"fmt"
	"log"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/drivers/postgres"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// The shortest way: by URL.
func Example() {
	locks, err := dlock.OpenURL("postgres://app@db.example.com/shop?ttl=10s")
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close() //nolint:errcheck // the program ends
	err = dlock.Do(context.Background(), locks, "nightly", func(ctx context.Context) error {
		return nil // the work, under ctx
	})
	if err != nil {
		log.Print(err)
	}
}

// A pool that the program has already makes the connections.
func ExampleFromPool() {
	pool, err := pgxpool.New(context.Background(), "postgres://app@db.example.com/shop")
	if err != nil {
		log.Fatal(err)
	}
	backend, err := postgres.New(postgres.FromPool(pool), &postgres.Options{MaxSessions: 2})
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
		backend *postgres.Backend // for the keys' names alone
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

// report is a store that refuses old tokens: a writer that was paused until after its
// lease has the smaller one.
const report = `UPDATE reports SET body = $1, fence = $2 WHERE name = 'nightly' AND fence < $2`

func write(ctx context.Context, db *pgx.Conn, body string, fence uint64) error {
	tag, err := db.Exec(ctx, report, body, int64(fence))
	if err == nil && tag.RowsAffected() == 0 {
		err = fmt.Errorf("token %d is too old", fence)
	}
	return err
}

// The token protects what the lock cannot: the late write of a holder that was paused.
func TestAStoreThatChecksTokensRefusesTheLateWriter(t *testing.T) {
	s := server.Postgres(t)
	db, ctx := admin(t, s.URL()), context.Background()
	if _, err := db.Exec(ctx, "CREATE TABLE reports (name text PRIMARY KEY, body text, fence int8); INSERT INTO reports VALUES ('nightly', '', 0)"); err != nil {
		t.Fatal(err)
	}
	slow, fast := opener(t, s.URL()), opener(t, s.URL())
	paused := must(t, slow, request("nightly", 300*time.Millisecond)).Grant()
	r := request("nightly", 10*time.Second)
	r.Wait = true
	l := must(t, fast, r)
	if err := write(ctx, db, "new", l.Grant().Fence); err != nil {
		t.Errorf("the holder's write: %v", err)
	}
	if err := write(ctx, db, "old", paused.Fence); err == nil {
		t.Error("the late write was accepted")
	}
	var body string
	if err := db.QueryRow(ctx, "SELECT body FROM reports").Scan(&body); err != nil || body != "new" {
		t.Errorf("the report is %q, %v", body, err)
	}
	_ = l.Release(ctx)
}

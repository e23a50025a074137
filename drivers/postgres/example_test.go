package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/drivers/postgres"
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

// A store that refuses old tokens needs a column. A report is written once under a lease;
// where a lease is for several writes, compare with <=.
const (
	createReports = `CREATE TABLE reports (name text PRIMARY KEY, body text NOT NULL, fence int8 NOT NULL DEFAULT 0)`
	writeReport   = `UPDATE reports SET body = $1, fence = $2 WHERE name = $3 AND fence < $2`
)

var errStale = errors.New("the token is too old: somebody else has had the lock since")

// save writes a report, unless a later holder of the lock has been there.
func save(ctx context.Context, db *pgx.Conn, name, body string, fence uint64) error {
	tag, err := db.Exec(ctx, writeReport, body, int64(fence), name)
	if err == nil && tag.RowsAffected() == 0 {
		err = errStale
	}
	return err
}

// lateWriter does what a lock alone cannot prevent: its holder sleeps until after the end of
// its lease, and then writes.
func lateWriter(ctx context.Context, url string, out io.Writer) error {
	db, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer db.Close(ctx) //nolint:errcheck // all is done
	if _, err := db.Exec(ctx, createReports+`; INSERT INTO reports VALUES ('nightly', '')`); err != nil {
		return err
	}
	locks, err := dlock.OpenURL(url)
	if err != nil {
		return err
	}
	defer locks.Close() //nolint:errcheck // the leases end with it

	slow, err := locks.Lock(ctx, "reports/nightly", dlock.WithTTL(500*time.Millisecond), dlock.WithMaxHold(500*time.Millisecond))
	if err != nil {
		return err
	}
	token := slow.Fence()
	<-slow.Done() // a pause that it does not notice

	quick, err := locks.Lock(ctx, "reports/nightly")
	if err != nil {
		return err
	}
	defer quick.Unlock() //nolint:errcheck // the example is over
	fmt.Fprintln(out, "quick:", save(ctx, db, "nightly", "new", quick.Fence()))
	fmt.Fprintln(out, "slow:", save(ctx, db, "nightly", "old", token))
	var body string
	if err := db.QueryRow(ctx, "SELECT body FROM reports WHERE name = 'nightly'").Scan(&body); err != nil {
		return err
	}
	fmt.Fprintln(out, "stored:", body)
	return nil
}

// The lock does not protect from the late write of a holder that was paused, but the token
// does. The example prints
//
//	quick: <nil>
//	slow: the token is too old: somebody else has had the lock since
//	stored: new
func Example_fencing() {
	if err := lateWriter(context.Background(), "postgres://app@db.example.com/shop", os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// TestAStoreThatChecksTokensRefusesTheLateWriter runs the example.
func TestAStoreThatChecksTokensRefusesTheLateWriter(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := lateWriter(context.Background(), database(t).URL(), &out); err != nil {
		t.Fatal(err)
	}
	if want := "quick: <nil>\nslow: " + errStale.Error() + "\nstored: new\n"; out.String() != want {
		t.Errorf("the example prints\n%s", out.String())
	}
}

package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"sync"
	"testing"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/dlock/fence"
)

// save writes a report, unless a later holder of the lock has been there.
func save(ctx context.Context, db *sql.DB, name, body string, token uint64) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it says that it was
	if err := fence.Check(ctx, fence.Tx(tx, fence.Postgres, "fences"), "reports/"+name, token); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE reports SET body = $1 WHERE name = $2", body, name); err != nil {
		return err
	}
	return tx.Commit()
}

// saveByRow is save with the mark in the row itself.
func saveByRow(ctx context.Context, db *sql.DB, name, body string, token uint64) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it says that it was
	if err := fence.Check(ctx, fence.Row(tx, fence.Postgres, "reports", "name", "fence"), name, token); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE reports SET body = $1 WHERE name = $2", body, name); err != nil {
		return err
	}
	return tx.Commit()
}

type saver func(ctx context.Context, db *sql.DB, name, body string, token uint64) error

const createReports = `CREATE TABLE reports (name text PRIMARY KEY, body text NOT NULL, fence bigint)`

// lateWrite stages a client that is paused beyond its lease and then writes.
func lateWrite(ctx context.Context, locks dlock.Locker, db *sql.DB, save saver) error {
	if _, err := db.ExecContext(ctx, "DROP TABLE IF EXISTS reports; "+createReports+"; INSERT INTO reports VALUES ('nightly', '')"); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, fence.Schema(fence.Postgres, "fences")); err != nil {
		return err
	}
	slow, err := locks.Lock(ctx, "reports/nightly", dlock.WithMaxHold(shortTTL))
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
	fmt.Println("quick:", save(ctx, db, "nightly", "new", quick.Fence()))
	fmt.Println("slow is refused:", errors.Is(save(ctx, db, "nightly", "old", token), fence.ErrStale))
	var body string
	err = db.QueryRowContext(ctx, "SELECT body FROM reports WHERE name = 'nightly'").Scan(&body)
	fmt.Println("stored:", body)
	return err
}

// The locks may be anywhere; the guard is in the database of the reports.
func ExampleTx() {
	locks := client(dlock.WithTTL(shortTTL))
	defer locks.Close()
	if err := lateWrite(context.Background(), locks, database, save); err != nil {
		log.Fatal(err)
	}
	// Output:
	// quick: <nil>
	// slow is refused: true
	// stored: new
}

// The row that is written keeps the token of its last writer.
func ExampleRow() {
	locks := client(dlock.WithTTL(shortTTL))
	defer locks.Close()
	if err := lateWrite(context.Background(), locks, database, saveByRow); err != nil {
		log.Fatal(err)
	}
	// Output:
	// quick: <nil>
	// slow is refused: true
	// stored: new
}

// tables makes the tables of a test anew.
func tables(t *testing.T) *sql.DB {
	t.Helper()
	for _, query := range []string{
		`DROP TABLE IF EXISTS "Fences", accounts, writes`,
		fence.Schema(fence.Postgres, "public.Fences"),
		fence.Schema(fence.Postgres, "public.Fences"), // again
		`CREATE TABLE accounts (id bigint PRIMARY KEY, fence bigint); INSERT INTO accounts VALUES (1, NULL), (2, 9)`,
		`CREATE TABLE writes (n bigserial, resource text, token bigint)`,
	} {
		if _, err := database.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	return database
}

// stores are the two guards of SQL, each with its resource.
func stores(tx *sql.Tx) map[string]fence.Store {
	return map[string]fence.Store{
		"1":           fence.Row(tx, fence.Postgres, "public.accounts", "id", "fence"),
		"any\xff\x00": fence.Tx(tx, fence.Postgres, "public.Fences"),
	}
}

func TestSQLGuards(t *testing.T) {
	db := tables(t)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // nothing is kept
	for resource, s := range stores(tx) {
		for _, step := range []struct {
			token uint64
			want  error
		}{{5, nil}, {5, nil}, {4, fence.ErrStale}, {7, nil}, {6, fence.ErrStale}, {7, nil}} {
			if err := fence.Check(t.Context(), s, resource, step.token); !errors.Is(err, step.want) {
				t.Errorf("%q: token %d: got %v, want %v", resource, step.token, err, step.want)
			}
		}
	}
	row := fence.Row(tx, fence.Postgres, "accounts", "id", "fence")
	if err := fence.Check(t.Context(), row, "2", 8); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a row with 9: %v", err)
	}
	if err := fence.Check(t.Context(), row, "3", 8); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("no row: %v", err)
	}
	if err := fence.Check(t.Context(), fence.Tx(tx, 0, "t"), "r", 8); !errors.Is(err, dlock.ErrInvalid) {
		t.Errorf("no dialect: %v", err)
	}
	if err := fence.Check(t.Context(), fence.Row(tx, 9, "t", "k", "f"), "r", 8); !errors.Is(err, dlock.ErrInvalid) {
		t.Errorf("an unknown dialect: %v", err)
	}
}

// An old holder that comes between a new one's Check and its commit waits, and is refused.
func TestAnOldHoldersCheckWaitsForTheTransactionOfALaterHolder(t *testing.T) {
	db := tables(t)
	newer, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer newer.Rollback() //nolint:errcheck // after Commit it says that it was
	var wg sync.WaitGroup
	for resource, s := range stores(newer) {
		if err := fence.Check(t.Context(), s, resource, 20); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer tx.Rollback() //nolint:errcheck // nothing is kept
			if err := fence.Check(t.Context(), stores(tx)[resource], resource, 10); !errors.Is(err, fence.ErrStale) {
				t.Errorf("%q: the old holder got %v", resource, err)
			}
		})
	}
	for waiting := 0; waiting < 2; { // both wait for the row's lock
		if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
	if err := newer.Commit(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
}

package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"testing"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/dlock/fence"
)

// saveReport writes a report, unless a later holder of the lock has been there.
func saveReport(ctx context.Context, db *sql.DB, name, body string, token uint64) error {
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

// The locks may be anywhere; the guard is in the database of the reports. A client is paused beyond
// its lease and then writes.
func ExampleTx() {
	locks := client()
	defer locks.Close()
	ctx, db := context.Background(), database
	for _, query := range []string{"CREATE TABLE reports (name text PRIMARY KEY, body text); INSERT INTO reports VALUES ('nightly', '')", fence.Schema(fence.Postgres, "fences")} {
		if _, err := db.ExecContext(ctx, query); err != nil {
			log.Fatal(err)
		}
	}
	slow, quick := tokens(locks, "reports/nightly")
	fmt.Println("quick:", saveReport(ctx, db, "nightly", "new", quick))
	fmt.Println("slow is refused:", errors.Is(saveReport(ctx, db, "nightly", "old", slow), fence.ErrStale))
	var body string
	err := db.QueryRowContext(ctx, "SELECT body FROM reports WHERE name = 'nightly'").Scan(&body)
	fmt.Println("stored:", body, err)
	// Output:
	// quick: <nil>
	// slow is refused: true
	// stored: new <nil>
}

// begin begins a transaction with a Store in it.
func begin(t *testing.T) (*sql.Tx, fence.Store) {
	t.Helper()
	for range 2 { // it may be there
		if _, err := database.ExecContext(t.Context(), fence.Schema(fence.Postgres, "public.Fences")); err != nil {
			t.Fatal(err)
		}
	}
	tx, err := database.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx, fence.Tx(tx, fence.Postgres, "public.Fences")
}

const resource = "any\xff\x00"

func TestSQLGuards(t *testing.T) {
	tx, s := begin(t)
	for _, step := range []struct {
		token uint64
		want  error
	}{{5, nil}, {5, nil}, {4, fence.ErrStale}, {7, nil}, {6, fence.ErrStale}, {7, nil}} {
		if err := fence.Check(t.Context(), s, resource, step.token); !errors.Is(err, step.want) {
			t.Errorf("token %d: got %v, want %v", step.token, err, step.want)
		}
	}
	if err := fence.Check(t.Context(), fence.Tx(tx, 0, "t"), "r", 8); !errors.Is(err, dlock.ErrInvalid) {
		t.Errorf("no dialect: %v", err)
	}
}

// An old holder that comes between a new one's Check and its commit waits, and is refused.
func TestAnOldHoldersCheckWaitsForTheTransactionOfALaterHolder(t *testing.T) {
	newer, s := begin(t)
	_, late := begin(t)
	if err := fence.Check(t.Context(), s, resource, 20); err != nil {
		t.Fatal(err)
	}
	old := make(chan error)
	go func() { old <- fence.Check(t.Context(), late, resource, 10) }()
	for waiting := 0; waiting < 1; { // for the row's lock
		if err := database.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
	if err := newer.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-old; !errors.Is(err, fence.ErrStale) {
		t.Errorf("the old holder got %v", err)
	}
}

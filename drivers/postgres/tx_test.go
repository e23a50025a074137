package postgres_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/dlock/fence"
	"github.com/redlock-go/redlock/drivers/postgres"
)

// The guard and the write are in one transaction of pgx. The locks may be anywhere.
func ExampleFenceTx() {
	var (
		locks dlock.Locker
		db    *pgx.Conn
	)
	save := func(ctx context.Context, body string) error {
		token, err := fence.Token(ctx, "reports/nightly")
		if err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			if err := fence.Check(ctx, postgres.FenceTx(tx, "fences"), "reports/nightly", token); err != nil {
				return err // fence.ErrStale: another has had the lock since
			}
			_, err := tx.Exec(ctx, "UPDATE reports SET body = $1 WHERE name = 'nightly'", body)
			return err
		})
	}
	_ = func(ctx context.Context) error {
		return dlock.Do(ctx, locks, "reports/nightly", func(ctx context.Context) error { return save(ctx, "…") })
	}
}

// A paused client's late write is refused.
func TestPgxGuardsRefuseALateWrite(t *testing.T) {
	t.Parallel()
	s := database(t)
	db, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(context.Background()) //nolint:errcheck // the test is over
	for _, query := range []string{
		`CREATE TABLE reports (id bigint PRIMARY KEY, body text); INSERT INTO reports VALUES (1)`,
		fence.Schema(fence.Postgres, "fences"),
	} {
		if _, err := db.Exec(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	save := func(body string, token uint64) error {
		return pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			if err := fence.Check(t.Context(), postgres.FenceTx(tx, "fences"), "1", token); err != nil {
				return err
			}
			_, err := tx.Exec(t.Context(), "UPDATE reports SET body = $1", body)
			return err
		})
	}
	for range 2 {
		if err := save("new", 7); err != nil {
			t.Errorf("the holder: %v", err)
		}
	}
	if err := save("old", 6); !errors.Is(err, fence.ErrStale) {
		t.Errorf("the late write: got %v, want ErrStale", err)
	}
	var body string
	if err := db.QueryRow(t.Context(), "SELECT body FROM reports").Scan(&body); err != nil || body != "new" {
		t.Errorf("stored %q, %v", body, err)
	}
}

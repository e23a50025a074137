package postgres_test

import (
	"context"
	"errors"
	"fmt"
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

// A paused client's late write is refused, and rolled back.
func TestPgxGuardsRefuseALateWrite(t *testing.T) {
	t.Parallel()
	db := admin(t, database(t).URL())
	run(t, db, "CREATE TABLE reports (body text)", fence.Schema(fence.Postgres, "fences"))
	for i, token := range []uint64{7, 7, 6} {
		err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			run(t, tx.Conn(), fmt.Sprintf("INSERT INTO reports VALUES ('%d')", i))
			return fence.Check(t.Context(), postgres.FenceTx(tx, "fences"), "1", token)
		})
		if late := i == 2; errors.Is(err, fence.ErrStale) != late || err != nil && !late {
			t.Errorf("write %d with token %d: %v", i, token, err)
		}
	}
	if n := count(t, db, "SELECT count(*) FROM reports"); n != 2 {
		t.Errorf("%d writes", n)
	}
}

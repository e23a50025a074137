package sqltable_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/redlock-go/redlock/dlock/fence"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/sqltable"
)

// fences runs the guard of package fence on a real database of the dialect, with tokens of
// this driver: it refuses an old holder's write, at any time.
func fences(t *testing.T, p *place) {
	dialect := map[sqltable.Dialect]fence.Dialect{
		sqltable.MySQL: fence.MySQL, sqltable.Postgres: fence.Postgres, sqltable.SQLite: fence.SQLite,
	}[p.dialect]
	for _, statement := range []string{"DROP TABLE IF EXISTS marks", "DROP TABLE IF EXISTS accounts", fence.Schema(dialect, "marks"),
		"CREATE TABLE accounts (id varchar(20) PRIMARY KEY, balance integer NOT NULL)", "INSERT INTO accounts (id, balance) VALUES ('a', 0)"} {
		p.do(t, statement)
	}
	b := p.open(t)
	old := must(t, b, request("a"))
	if err := b.Break(t.Context(), "a", driver.Holder{Fence: old.Grant().Fence}); err != nil {
		t.Fatal(err)
	}
	now := must(t, b, request("a"))
	write := func(token uint64) error { return fencedWrite(t.Context(), p.db, dialect, token) }
	for range 2 { // an equal token passes
		if err := write(now.Grant().Fence); err != nil {
			t.Errorf("the holder: %v", err)
		}
	}
	var stale *fence.StaleError
	if err := write(old.Grant().Fence); !errors.As(err, &stale) || stale.Seen != now.Grant().Fence {
		t.Errorf("the old holder: %v", err)
	}
}

func fencedWrite(ctx context.Context, db *sql.DB, dialect fence.Dialect, token uint64) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it says that it was
	if err := fence.Check(ctx, fence.Tx(tx, dialect, "marks"), "a", token); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance + 1 WHERE id = 'a'"); err != nil {
		return err
	}
	return tx.Commit()
}

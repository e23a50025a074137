package sqltable_test

import (
	"errors"
	"testing"

	"github.com/redlock-go/redlock/dlock/fence"
	"github.com/redlock-go/redlock/drivers/sqltable"
)

// fences runs the guard of package fence on a real database of the dialect: it refuses an old
// holder's write, at any time.
func fences(t *testing.T, p *place) {
	dialect := map[sqltable.Dialect]fence.Dialect{
		sqltable.MySQL: fence.MySQL, sqltable.Postgres: fence.Postgres, sqltable.SQLite: fence.SQLite,
	}[p.dialect]
	p.do(t, "DROP TABLE IF EXISTS marks")
	p.do(t, fence.Schema(dialect, "marks"))
	for _, write := range []struct{ token, seen uint64 }{{5, 5}, {5, 5}, {7, 7}, {5, 7}, {7, 7}} {
		tx, err := p.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		err = fence.Check(t.Context(), fence.Tx(tx, dialect, "marks"), "a", write.token)
		var stale *fence.StaleError
		if late := errors.As(err, &stale); late != (write.token < write.seen) || late && stale.Seen != write.seen || !late && err != nil {
			t.Errorf("token %d, where the mark is %d: %v", write.token, write.seen, err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

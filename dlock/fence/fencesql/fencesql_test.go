package fencesql

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
)

// fake is a transaction on one row. Like MySQL, it does not count a row as changed if the
// update sets the values that the row has already.
type fake struct {
	t       *testing.T
	exists  bool
	token   int64
	comes   int64 // another client inserts the row with this token after an update
	refuses bool  // no update ever changes anything
}

func (f *fake) Exec(_ context.Context, query string, args ...any) (int64, error) {
	if n := strings.Count(query, "?"); n != len(args) {
		f.t.Errorf("%d arguments for %q", len(args), query)
	}
	token := args[0].(int64)
	if !f.exists || f.refuses || f.token >= token {
		if f.comes > 0 {
			f.exists, f.token, f.comes = true, f.comes, 0
		}
		return 0, nil
	}
	f.token = token
	return 1, nil
}

func (f *fake) Int(_ context.Context, query string, args ...any) (int64, error) {
	if n := strings.Count(query, "?"); n != len(args) || !strings.HasSuffix(query, " FOR UPDATE") {
		f.t.Errorf("%q", query)
	}
	if !f.exists {
		return 0, sql.ErrNoRows
	}
	return f.token, nil
}

// Zero rows of an UPDATE have four reasons.
func TestNoRowIsLookedAtAgain(t *testing.T) {
	for name, c := range map[string]struct {
		row  fake
		seen uint64
		err  error
	}{
		"smaller":   {row: fake{exists: true, token: 4}, seen: 5},
		"unchanged": {row: fake{exists: true, token: 5}, seen: 5},
		"stale":     {row: fake{exists: true, token: 6}, seen: 6},
		"missing":   {err: sql.ErrNoRows},
		"came":      {row: fake{comes: 3}, seen: 5},
	} {
		row := c.row
		row.t = t
		seen, err := Row{Tx: &row, Dialect: MySQL, Table: "t", Key: "k", Column: "fence"}.Raise(t.Context(), "1", 5)
		if seen != c.seen || !errors.Is(err, c.err) {
			t.Errorf("%s: %d, %v", name, seen, err)
		}
		if c.err == nil && row.token != int64(c.seen) {
			t.Errorf("%s: the row has %d", name, row.token)
		}
	}
	row := fake{t: t, exists: true, token: 4, refuses: true}
	if seen, err := (Row{Tx: &row, Dialect: MySQL}).Raise(t.Context(), "1", 5); err == nil {
		t.Errorf("an update that never takes effect: %d", seen)
	}
}

func TestNamesAreQuoted(t *testing.T) {
	if got := Postgres.quote(`app.mar"ks`); got != `"app"."mar""ks"` {
		t.Error(got)
	}
	if got := MySQL.quote("mar`ks"); got != "`mar``ks`" {
		t.Error(got)
	}
}

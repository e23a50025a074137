package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/redlock-go/redlock/dlock/fence"
	"github.com/redlock-go/redlock/dlock/fence/fencesql"
)

// FenceTx is fence.Tx for a transaction of pgx: a Store whose marks are the rows of a table in
// tx's database, which fence.Schema makes. It guards the writes of tx, which may be in another
// database than the locks. After an error of the server tx can no longer be used.
func FenceTx(tx pgx.Tx, table string) fence.Store {
	return fencesql.Mark{Tx: pgxTx{tx}, Dialect: fence.Postgres, Table: table}
}

// pgxTx is a pgx.Tx for package fencesql.
type pgxTx struct{ tx pgx.Tx }

// Exec runs a statement.
func (t pgxTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := t.tx.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

// Int runs a query of one value.
func (t pgxTx) Int(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = t.tx.QueryRow(ctx, query, args...).Scan(&n)
	return n, err
}

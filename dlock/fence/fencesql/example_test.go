package fencesql_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/redlock-go/redlock/dlock/fence"
	"github.com/redlock-go/redlock/dlock/fence/fencesql"
)

// transaction is a transaction of a client for which there is no guard yet. This one shows
// what it is asked to run, in a database whose largest token is 7.
type transaction struct{}

func (transaction) Exec(context.Context, string, ...any) (int64, error) { return 1, nil }

func (transaction) Int(_ context.Context, query string, _ ...any) (int64, error) {
	fmt.Println(query)
	return 7, nil
}

// Two methods of a client's transaction are enough for a fence.Store.
func Example() {
	mark := fencesql.Mark{Tx: transaction{}, Dialect: fencesql.SQLite, Table: "fences"}
	err := fence.Check(context.Background(), mark, "account/42", 6)
	fmt.Println("stale:", errors.Is(err, fence.ErrStale))
	// Output:
	// INSERT INTO "fences" (resource, token) VALUES (?, ?) ON CONFLICT (resource) DO UPDATE SET token = max(token, excluded.token) RETURNING token
	// stale: true
}

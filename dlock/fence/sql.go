package fence

import (
	"database/sql"

	"github.com/redlock-go/redlock/dlock/fence/fencesql"
)

// Dialect names a family of SQL databases, which differ in how a mark is raised.
type Dialect = fencesql.Dialect

// The dialects. MySQL is MariaDB's as well; SQLite must be 3.35 or newer.
const (
	Postgres = fencesql.Postgres
	MySQL    = fencesql.MySQL
	SQLite   = fencesql.SQLite
)

// Tx returns a Store that keeps its marks in a table of tx's database, one row for each
// resource, and guards the writes of the same transaction. Schema makes the table. Call Check
// first in the transaction: from then on everybody else's Check of the resource waits until
// tx ends, so keep it short.
//
// It takes a transaction and not a *sql.DB, because a mark guards only a write in the same
// transaction. Any isolation level serves; at PostgreSQL's repeatable read and above a conflict
// is an error of the database: then repeat the transaction, with the Check. table may be
// "schema.table"; the names are quoted, so write them as the database stores them. A Store is
// as safe for concurrent use as tx is.
func Tx(tx *sql.Tx, d Dialect, table string) Store {
	return fencesql.Mark{Tx: fencesql.SQL{Tx: tx}, Dialect: d, Table: table}
}

// Schema returns the statement that makes the table of marks for Tx, if it does not exist yet.
// Resources are at most 512 bytes, of any value. Rows are never removed: to remove the row of
// a resource is to accept every token for it again.
func Schema(d Dialect, table string) string { return fencesql.Schema(d, table) }

package mysql

import (
	"context"
	sqldriver "database/sql/driver"

	"github.com/redlock-go/redlock/driver/base"
)

// careful makes a panic of the client in Connect an error: go-sql-driver/mysql 1.9.3 panics on a first
// packet that is too short, and on others.
type careful struct{ sqldriver.Connector }

func (c careful) Connect(ctx context.Context) (conn sqldriver.Conn, err error) {
	defer base.Contain(&err)
	return c.Connector.Connect(ctx)
}

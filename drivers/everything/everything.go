// Package everything registers all drivers: those of drivers/all, and those that are separate
// modules because their dependencies are heavy.
//
//	import _ "github.com/redlock-go/redlock/drivers/everything"
//
// It is a module of its own, for programs that take any backend from their
// configuration. The commands cmd/dlock and cmd/redlocktest have all of them.
package everything

import (
	_ "github.com/redlock-go/redlock/drivers/all" // all drivers of the main module
	_ "github.com/redlock-go/redlock/drivers/consul"
	_ "github.com/redlock-go/redlock/drivers/etcd" // its client brings gRPC
	_ "github.com/redlock-go/redlock/drivers/nats"
	_ "github.com/redlock-go/redlock/drivers/zookeeper"

	// Each brings the client of a database.
	_ "github.com/redlock-go/redlock/drivers/sqltable/mysql"
	_ "github.com/redlock-go/redlock/drivers/sqltable/pgtable"
	_ "github.com/redlock-go/redlock/drivers/sqltable/sqlite"
)

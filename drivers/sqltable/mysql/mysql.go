// Package mysql registers the drivers "mysql" and "mariadb": locks in a table of MySQL or
// MariaDB, by go-sql-driver/mysql. Package sqltable describes them.
//
//	mysql://user:password@host:3306/database?table=dlock
//
// The parameters, beside ttl and prefix:
//
//	table          the table of the locks (dlock)
//	setup          true makes the table if it is missing
//	socket         the path of a unix socket, instead of the host's address
//	tls            on makes every connection with TLS (off)
//	ca             a file of PEM certificates to trust instead of the system's
//	cert, key      files of the client's certificate
//	server_name    the name to expect in the server's certificate
//	insecure       true does not verify the server's certificate
//	conns          connections at most (8); twice as many while other transactions lock rows
//	call_timeout   for one call (1s)
//	single_writer  true: all clients reach the same node of a cluster (Galera)
package mysql

import (
	"database/sql"
	"strings"

	client "github.com/go-sql-driver/mysql"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/dsn"
	"github.com/redlock-go/redlock/drivers/sqltable"
	"github.com/redlock-go/redlock/drivers/sqltable/internal/params"
)

func init() {
	dlock.Register("mysql", Driver{})
	dlock.Register("mariadb", Driver{})
}

// Driver opens backends by URL.
type Driver struct{}

var _ driver.Driver = Driver{}

// Open reads a URL. It reads the files of certificates, and does no other I/O.
func (Driver) Open(cfg *driver.Config) (driver.Backend, error) {
	u, err := dsn.Parse(cfg.DSN, "3306", "mysql", "mariadb")
	if err != nil {
		return nil, err
	}
	o := params.Options(cfg, u.Params)
	o.SingleWriter = u.Params.Bool("single_writer", false)
	conns := u.Params.Int("conns", 8, 1, 1000)
	c := client.NewConfig()
	if socket := u.Params.String("socket", ""); socket != "" {
		c.Net, c.Addr = "unix", socket
	} else {
		c.Net, c.Addr = "tcp", u.Hosts[0]
	}
	secure := u.Params.TLS(u.Params.Bool("tls", false))
	database := strings.TrimPrefix(u.Path, "/")
	if bad := u.Params.Err(); bad != nil {
		return nil, bad
	}
	switch {
	case len(u.Hosts) > 1:
		return nil, driver.Invalid("URL", "names %d hosts: locks are in one server's table, or behind one address", len(u.Hosts))
	case database == "":
		return nil, driver.Invalid("URL", "names no database: mysql://host/database")
	case u.User == "":
		return nil, driver.Invalid("URL", "names no user")
	}
	c.User, c.Passwd, c.DBName, c.TLS = u.User, u.Password, database, secure
	c.Timeout = o.CallTimeout
	c.ReadTimeout = 10 * o.CallTimeout // the longest call; the client reads the end of a result without a context
	c.Logger = &client.NopLogger{}     // errors that matter are also returned
	c.DialFunc = dial
	c.Params = map[string]string{
		// How long a statement waits for a row or a table that another transaction has locked, in
		// seconds. By default it waits longer than any call, and a call that gives up cannot end it.
		"innodb_lock_wait_timeout": "1", "lock_wait_timeout": "1",
		"sql_mode": "'STRICT_ALL_TABLES'", // the server's own may make an empty name NULL
	}
	o.Address = u.Scheme + "://" + c.Addr + "/" + strings.ReplaceAll(database, "%", "%25")
	connector, err := client.NewConnector(c)
	if err != nil {
		return nil, driver.Invalid("URL", "cannot be used: %v", err)
	}
	return params.Open(sql.OpenDB(careful{connector}), conns, sqltable.MySQL, o)
}

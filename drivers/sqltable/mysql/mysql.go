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
//	tls            off (default), on, or insecure, which verifies no certificate
//	ca             a file of PEM certificates to trust instead of the system's
//	cert, key      files of the client's certificate
//	server_name    the name to expect in the server's certificate
//	conns          connections at most (8)
//	call_timeout   for one call (1s)
//	single_writer  true: all clients reach the same node of a cluster (Galera)
package mysql

import (
	"database/sql"
	"net"
	"strings"
	"time"

	client "github.com/go-sql-driver/mysql"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/sqltable"
	"github.com/redlock-go/redlock/drivers/sqltable/internal/target"
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
	t, err := target.Parse(cfg.DSN)
	if err != nil {
		return nil, err
	}
	o := target.Options(cfg, t.Params)
	o.SingleWriter = t.Params.Bool("single_writer", false)
	conns := t.Params.Int("conns", 8, 1, 1000)
	c := client.NewConfig()
	if socket := t.Params.String("socket", ""); socket != "" {
		c.Net, c.Addr = "unix", socket
	} else {
		c.Net, c.Addr = "tcp", net.JoinHostPort(t.Hosts[0], port(t.Ports[0]))
	}
	secure, err := target.TLS(t.Params, t.Hosts[0])
	if bad := t.Params.Err(); bad != nil {
		return nil, bad
	}
	switch {
	case err != nil:
		return nil, err
	case len(t.Hosts) > 1:
		return nil, driver.Invalid("URL", "names %d hosts: locks are in one server's table, or behind one address", len(t.Hosts))
	case t.Database == "":
		return nil, driver.Invalid("URL", "names no database: mysql://host/database")
	case t.User == "":
		return nil, driver.Invalid("URL", "names no user")
	}
	c.User, c.Passwd, c.DBName, c.TLS = t.User, t.Password, t.Database, secure
	c.Timeout = o.CallTimeout
	c.Logger = &client.NopLogger{} // what matters is in the errors
	o.Address = t.Scheme + "://" + c.Addr + "/" + strings.ReplaceAll(t.Database, "%", "%25")
	connector, err := client.NewConnector(c)
	if err != nil {
		return nil, driver.Invalid("URL", "cannot be used: %v", err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	db.SetConnMaxIdleTime(time.Minute)
	return sqltable.New(db, sqltable.MySQL, o)
}

func port(s string) string {
	if s == "" {
		return "3306"
	}
	return s
}

// Package params has what the URLs of all databases have in common.
package params

import (
	"cmp"
	"database/sql"
	"errors"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/dsn"
	"github.com/redlock-go/redlock/drivers/sqltable"
)

// noName is no table's name. In sqltable.Options an empty one stands for the default.
const noName = " "

// Options reads the parameters that all databases have.
func Options(cfg *driver.Config, p *dsn.Params) *sqltable.Options {
	return &sqltable.Options{
		Prefix:      cfg.Prefix,
		Table:       cmp.Or(p.String("table", sqltable.DefaultTable), noName),
		Setup:       p.Bool("setup", false),
		CallTimeout: p.Duration("call_timeout", sqltable.DefaultCallTimeout, driver.MinTTL),
	}
}

// Open makes the backend of a URL, whose Close closes the database too.
func Open(db *sql.DB, conns int, d sqltable.Dialect, o *sqltable.Options) (driver.Backend, error) {
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	db.SetConnMaxIdleTime(time.Minute)
	b, err := sqltable.New(db, d, o)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return owner{b, db}, nil
}

// An owner is a backend that has a database to itself.
type owner struct {
	*sqltable.Backend
	db *sql.DB
}

// Close closes the backend and the database.
func (o owner) Close() error { return errors.Join(o.Backend.Close(), o.db.Close()) }

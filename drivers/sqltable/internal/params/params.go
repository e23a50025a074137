// Package params reads the parameters that the URLs of all databases have.
package params

import (
	"cmp"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/dsn"
	"github.com/redlock-go/redlock/drivers/sqltable"
)

// noName is no table's name. In sqltable.Options an empty one stands for the default.
const noName = " "

// Options reads the parameters that all databases have.
func Options(cfg *driver.Config, p *dsn.Params) *sqltable.Options {
	return &sqltable.Options{
		Prefix: cfg.Prefix, Notify: cfg.Notify, CloseDB: true,
		Table:       cmp.Or(p.String("table", sqltable.DefaultTable), noName),
		Setup:       p.Bool("setup", false),
		CallTimeout: p.Duration("call_timeout", sqltable.DefaultCallTimeout, driver.MinTTL),
	}
}

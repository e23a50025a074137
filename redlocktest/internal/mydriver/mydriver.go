// Package mydriver is the driver of the page "Test your driver in twenty lines" in the
// documentation of package redlocktest, so that the page is a test that runs.
package mydriver

import (
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/goredis"
)

// New returns a backend on the Redis at addr.
func New(addr string) (driver.Backend, error) {
	return goredis.Driver{}.Open(&driver.Config{DSN: "redis://" + addr})
}

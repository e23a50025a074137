package driver_test

import (
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest"
)

// The guide's example must be a correct driver.
func TestTheExampleKeepsTheContract(t *testing.T) {
	d := &kvDriver{server: &server{rows: map[string]row{}}}
	redlocktest.Run(t, redlocktest.Harness{
		Open:   func() (driver.Backend, error) { return d.Open(&driver.Config{DSN: "kv:"}) },
		Driver: d, URL: "kv:", LocalClock: true,
		TTL: 100 * time.Millisecond,
	})
}

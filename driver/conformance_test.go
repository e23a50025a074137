package driver_test

import (
	"testing"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest"
)

// What the guide shows has to be right.
func TestTheExampleKeepsTheContract(t *testing.T) {
	d := &toy{keys: map[string]held{}}
	redlocktest.Run(t, redlocktest.Harness{
		Open: func() (driver.Backend, error) { return d.Open(&driver.Config{DSN: "toy:"}) },
	})
}

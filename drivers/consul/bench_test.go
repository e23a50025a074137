package consul_test

import (
	"testing"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/consul"
	"github.com/redlock-go/redlock/redlocktest"
)

func Benchmark(b *testing.B) {
	_, url := single(b)
	redlocktest.Benchmark(b, redlocktest.Harness{Open: func() (driver.Backend, error) {
		return consul.Driver{}.Open(&driver.Config{DSN: url})
	}})
}

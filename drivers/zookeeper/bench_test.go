package zookeeper_test

import (
	"testing"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/zookeeper"
	"github.com/redlock-go/redlock/redlocktest"
)

func Benchmark(b *testing.B) {
	g := single(b)
	redlocktest.Benchmark(b, redlocktest.Harness{Open: func() (driver.Backend, error) {
		return zookeeper.Driver{}.Open(&driver.Config{DSN: urlOf(g)})
	}})
}

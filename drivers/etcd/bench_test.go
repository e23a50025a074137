package etcd_test

import (
	"testing"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/etcd"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func Benchmark(b *testing.B) {
	g := server.Etcd(b, 1)
	redlocktest.Benchmark(b, redlocktest.Harness{Open: func() (driver.Backend, error) {
		return etcd.Driver{}.Open(&driver.Config{DSN: urlOf(g)})
	}})
}

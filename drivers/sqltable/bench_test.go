package sqltable_test

import (
	"testing"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest"
)

func BenchmarkMariaDB(b *testing.B) {
	p := mariadb(b)
	redlocktest.Benchmark(b, redlocktest.Harness{Open: func() (driver.Backend, error) {
		return p.driver.Open(&driver.Config{DSN: p.url + "&" + patient})
	}})
}

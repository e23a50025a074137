package sqltable_test

import (
	"testing"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest"
)

// BenchmarkMariaDB measures locks beside the two bare statements that any lock in a table needs, on
// a client of the same library.
func BenchmarkMariaDB(b *testing.B) {
	p := mariadb(b)
	b.Run("bare", func(b *testing.B) {
		p.do(b, "CREATE TABLE IF NOT EXISTS bare (name varbinary(512) PRIMARY KEY, owner varbinary(64) NOT NULL) ENGINE=InnoDB")
		p.do(b, "REPLACE INTO bare VALUES ('k', '')")
		for b.Loop() {
			p.do(b, "UPDATE bare SET owner = 'me' WHERE name = 'k' AND owner = ''")
			p.do(b, "UPDATE bare SET owner = '' WHERE name = 'k' AND owner = 'me'")
		}
	})
	redlocktest.RunBenchmarks(b, redlocktest.Harness{
		Open: func() (driver.Backend, error) { return p.driver.Open(&driver.Config{DSN: p.url}) },
	})
}

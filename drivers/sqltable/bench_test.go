package sqltable_test

import (
	"context"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest"
)

func BenchmarkMariaDB(b *testing.B) {
	p := mariadb(b)
	redlocktest.RunBenchmarks(b, p.benchmarked())
}

func (p *place) benchmarked() redlocktest.Harness {
	return redlocktest.Harness{Open: func() (driver.Backend, error) {
		return p.driver.Open(&driver.Config{DSN: p.url + "&" + patient})
	}}
}

// BenchmarkBesideBareStatements compares with the two statements that any lock in a table needs,
// on a client of the same library, which writes the arguments into the statements as ours does.
// They have no TTL and no token.
func BenchmarkBesideBareStatements(b *testing.B) {
	p := mariadb(b)
	db := database(b, p.dsn[0], p.dsn[1]+"?interpolateParams=true")
	db.SetMaxIdleConns(16)
	p.do(b, "CREATE TABLE bare (name varbinary(512) PRIMARY KEY, owner varbinary(64) NOT NULL) ENGINE=InnoDB")
	change := func(ctx context.Context, statement, key string) (bool, error) {
		r, err := db.ExecContext(ctx, statement, key)
		if err != nil {
			return false, err
		}
		n, err := r.RowsAffected()
		return n == 1, err
	}
	redlocktest.RunBeside(b, p.benchmarked(), func(*testing.B) redlocktest.Locker {
		return func(ctx context.Context, key string) (func(context.Context) error, error) {
			for {
				ok, err := change(ctx, "UPDATE bare SET owner = 'me' WHERE name = ? AND owner = ''", key)
				if err != nil {
					return nil, err
				}
				if ok {
					return func(ctx context.Context) error {
						_, err := change(ctx, "UPDATE bare SET owner = '' WHERE name = ? AND owner = 'me'", key)
						return err
					}, nil
				}
				made, err := change(ctx, "INSERT IGNORE INTO bare VALUES (?, '')", key)
				if err != nil {
					return nil, err
				}
				if !made { // it is held
					time.Sleep(time.Millisecond)
				}
			}
		}
	})
}

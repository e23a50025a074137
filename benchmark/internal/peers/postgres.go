package peers

import (
	"context"
	"database/sql"
	"errors"

	"github.com/allisson/go-pglock/v3"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redlock-go/redlock/benchmark/internal/bench"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// overPostgres returns the libraries that use advisory locks.
func overPostgres() []bench.Contestant {
	return []bench.Contestant{{
		Name: "go-pglock", Client: "pgx", Kind: bench.Peer, Serves: bench.One(server.KindPostgres), Waits: true,
		How: "go-pglock over database/sql and pgx, with at most 64 connections: each lock has one; without lease and token",
		Open: func(_ context.Context, s *bench.Setup) (*bench.Client, error) {
			db, err := sql.Open("pgx", bench.PostgresURL(s.Addrs[0]))
			if err != nil {
				return nil, err
			}
			const most = 64 // below the server's max_connections, like the limit of the same scenario
			db.SetMaxOpenConns(most)
			db.SetMaxIdleConns(most)
			return &bench.Client{Close: db.Close, Lock: func(ctx context.Context, key string, wait bool) (func() error, error) {
				lock, err := pglock.NewLock(ctx, bench.AdvisoryKey(key), db)
				if err != nil {
					return nil, err
				}
				ok := true
				if wait {
					err = lock.WaitAndLock(ctx)
				} else {
					ok, err = lock.Lock(ctx)
				}
				if err == nil && !ok {
					err = errors.New("held")
				}
				if err != nil {
					return nil, errors.Join(err, lock.Close())
				}
				return func() error { return errors.Join(lock.Unlock(context.Background()), lock.Close()) }, nil
			}}, nil
		},
	}}
}

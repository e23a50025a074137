package peers

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"

	"github.com/allisson/go-pglock/v3"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redlock-go/redlock/benchmark/internal/bench"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// overPostgres returns the libraries that use advisory locks.
func overPostgres() []bench.Contestant {
	return []bench.Contestant{{
		Name: "go-pglock, pgx", Kind: bench.Peer, Client: "pgx", Serves: bench.One(server.KindPostgres), Waits: true,
		How: "go-pglock over database/sql and pgx, with at most 64 connections: each lock has one; without lease and token",
		Open: func(_ context.Context, s *bench.Setup) (bench.Locker, error) {
			db, err := sql.Open("pgx", bench.PostgresURL(s.Nodes[0].Addr))
			if err != nil {
				return nil, err
			}
			const most = 64 // below the server's max_connections, like the limit of the same scenario
			db.SetMaxOpenConns(most)
			db.SetMaxIdleConns(most)
			return pglockLocker{db}, nil
		},
	}}
}

type pglockLocker struct{ db *sql.DB }

func (l pglockLocker) Lock(ctx context.Context, key string, wait bool) (bench.Held, error) {
	sum := sha256.Sum256([]byte(key))
	lock, err := pglock.NewLock(ctx, int64(binary.BigEndian.Uint64(sum[:])), l.db)
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
	return pglockHeld{&lock}, nil
}

func (l pglockLocker) Close() error { return l.db.Close() }

type pglockHeld struct{ l *pglock.Lock }

func (h pglockHeld) Unlock() error {
	return errors.Join(h.l.Unlock(context.Background()), h.l.Close())
}

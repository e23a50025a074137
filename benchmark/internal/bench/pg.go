package bench

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/redlock-go/redlock/redlocktest/server"
)

// postgresLimits returns the contestants that only send the statements.
func postgresLimits() []Contestant {
	return []Contestant{{
		Name: "bare, pgx", Kind: Limit, Client: "pgx", Serves: One(server.KindPostgres), Waits: true,
		How: "pg_try_advisory_lock or pg_advisory_lock, and pg_advisory_unlock, on a connection for each lock, of a pool of 64; without lease and token",
		Open: func(ctx context.Context, s *Setup) (Locker, error) {
			pool, err := pgxpool.New(ctx, PostgresURL(s.Nodes[0].Addr)+"&pool_max_conns=64") // below the server's max_connections
			return dedicated{pool}, err
		},
	}}
}

// dedicated is the limit on PostgreSQL: each lock has a connection from a pool.
type dedicated struct{ *pgxpool.Pool }

func (d dedicated) Lock(ctx context.Context, key string, wait bool) (Held, error) {
	c, err := d.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(key))
	h := dedicatedHeld{c, int64(binary.BigEndian.Uint64(sum[:]))}
	ok := true
	if wait {
		_, err = c.Exec(ctx, "SELECT pg_advisory_lock($1)", h.key)
	} else {
		err = c.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", h.key).Scan(&ok)
	}
	if err == nil && !ok {
		err = errHeld
	}
	if err != nil {
		c.Release()
		return nil, err
	}
	return h, nil
}

func (d dedicated) Close() error { d.Pool.Close(); return nil }

type dedicatedHeld struct {
	c   *pgxpool.Conn
	key int64
}

func (h dedicatedHeld) Unlock() error {
	defer h.c.Release()
	var ok bool
	err := h.c.QueryRow(context.Background(), "SELECT pg_advisory_unlock($1)", h.key).Scan(&ok)
	if err == nil && !ok {
		err = errors.New("it was not locked")
	}
	return err
}

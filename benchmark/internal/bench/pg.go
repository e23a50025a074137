package bench

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// dedicated is the limit on PostgreSQL: a connection for each lock, taken from a pool.
type dedicated struct {
	url   string
	slots chan struct{}

	mu   sync.Mutex
	idle []*pgx.Conn // the last one used is the next
}

// dedicatedPool is how many connections it has: below the server's max_connections.
const dedicatedPool = 64

// postgresLimits returns the contestants that do nothing but the statements.
func postgresLimits() []Contestant {
	return []Contestant{{
		Name: "bare, pgx", Kind: Limit, Client: "pgx", Serves: OnePostgres, Waits: true,
		How: "pg_try_advisory_lock or pg_advisory_lock, and pg_advisory_unlock, on a connection for each lock, of a pool of 64; without lease and token",
		Open: func(_ context.Context, s *Setup) (Locker, error) {
			return &dedicated{url: PostgresURL(s.Nodes[0].Addr), slots: make(chan struct{}, dedicatedPool)}, nil
		},
	}}
}

func (d *dedicated) Lock(ctx context.Context, key string, wait bool) (Held, error) {
	c, err := d.conn(ctx)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(key))
	h := &dedicatedHeld{d: d, c: c, key: int64(binary.BigEndian.Uint64(sum[:]))}
	if err := h.lock(ctx, wait); err != nil {
		h.back()
		return nil, err
	}
	return h, nil
}

// conn takes a connection out of the pool.
func (d *dedicated) conn(ctx context.Context) (*pgx.Conn, error) {
	select {
	case d.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.idle); n > 0 {
		c := d.idle[n-1]
		d.idle = d.idle[:n-1]
		return c, nil
	}
	c, err := pgx.Connect(ctx, d.url)
	if err != nil {
		<-d.slots
	}
	return c, err
}

func (d *dedicated) Close() error {
	var errs []error
	for _, c := range d.idle {
		errs = append(errs, closeConn(c))
	}
	return errors.Join(errs...)
}

func closeConn(c *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return c.Close(ctx)
}

type dedicatedHeld struct {
	d   *dedicated
	c   *pgx.Conn
	key int64
}

// back returns the connection; a broken one makes room for a new one.
func (h *dedicatedHeld) back() {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	if !h.c.IsClosed() {
		h.d.idle = append(h.d.idle, h.c)
	}
	<-h.d.slots
}

func (h *dedicatedHeld) lock(ctx context.Context, wait bool) error {
	if wait {
		_, err := h.c.Exec(ctx, "SELECT pg_advisory_lock($1)", h.key)
		return err
	}
	var ok bool
	if err := h.c.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", h.key).Scan(&ok); err != nil {
		return err
	}
	if !ok {
		return errHeld
	}
	return nil
}

func (h *dedicatedHeld) Renew(context.Context) error { return nil }

func (h *dedicatedHeld) Unlock() error {
	defer h.back()
	var ok bool
	if err := h.c.QueryRow(context.Background(), "SELECT pg_advisory_unlock($1)", h.key).Scan(&ok); err != nil {
		return err
	}
	if !ok {
		return errors.New("it was not locked")
	}
	return nil
}

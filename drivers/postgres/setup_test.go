package postgres_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/redlock-go/redlock/drivers/postgres"
)

// countingConn counts what is sent.
type countingConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c countingConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

// A new connection looks at the server, and sets the session up; the lock is the third trip.
func TestFirstContactTakesTwoRoundTrips(t *testing.T) {
	t.Parallel()
	s := database(t)
	_ = must(t, opener(t, s.URL()), request("k", time.Minute)).Release(context.Background()) // makes the sequence
	cfg, err := pgx.ParseConfig(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	var writes atomic.Int64
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return countingConn{c, &writes}, err
	}
	// On a machine that stands still for a moment the session sends more, so one of ten
	// attempts must need three round trips.
	var trips int64
	for range 10 {
		b, err := postgres.New(func(ctx context.Context) (*pgx.Conn, error) {
			c, err := pgx.ConnectConfig(ctx, cfg.Copy())
			writes.Store(0)
			return c, err
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		l := must(t, b, request("k", time.Minute))
		trips = writes.Load()
		_ = l.Release(context.Background())
		_ = b.Close()
		if trips == 3 {
			return
		}
	}
	t.Errorf("the first lock of a connection takes %d round trips", trips)
}

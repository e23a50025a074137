package postgres_test

import (
	"context"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/redlock-go/redlock/driver"
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

// A handoff is the waiter's statement and the holder's unlock.
func TestAHandoffTakesTwoMessages(t *testing.T) {
	t.Parallel()
	s := database(t)
	cfg, err := pgx.ParseConfig(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	var writes atomic.Int64
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return countingConn{c, &writes}, err
	}
	connect := func(ctx context.Context) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, cfg.Copy()) }
	both := []*postgres.Backend{built(t, connect, nil), built(t, connect, nil)}
	db := admin(t, s.URL())
	holder := must(t, both[0], request("k", time.Minute))
	var took []int64
	for i := range 30 {
		before := writes.Load()
		next := make(chan driver.Lease, 1)
		waits(t, both[(i+1)%2], func() int64 { return count(t, db, advisory+" AND NOT granted") }, "k", func(l driver.Lease, err error) {
			if err != nil {
				t.Error(err)
			}
			next <- l
		})
		if err := release(holder); err != nil {
			t.Fatal(err)
		}
		if holder = <-next; holder == nil {
			return
		}
		took = append(took, writes.Load()-before)
	}
	_ = release(holder)
	slices.Sort(took)
	// An attempt before the wait, once a second, and a slice that ends cost more.
	if took[len(took)/2] != 2 {
		t.Errorf("handoffs take %v messages", took)
	}
}

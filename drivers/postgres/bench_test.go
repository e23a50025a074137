package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/postgres"
	"github.com/redlock-go/redlock/redlocktest/server"
)

const many = 64

// BenchmarkThroughput is 64 goroutines, each with a key of its own: ours against one
// dedicated connection per lock, from a pool of 64.
func BenchmarkThroughput(b *testing.B) {
	s := server.Postgres(b, server.WithSetting("max_connections", "200"))
	b.Run("dedicated", func(b *testing.B) {
		cfg, err := pgxpool.ParseConfig(s.URL() + "&pool_max_conns=64")
		if err != nil {
			b.Fatal(err)
		}
		pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
		if err != nil {
			b.Fatal(err)
		}
		defer pool.Close()
		inParallel(b, func(id int64) error {
			c, err := pool.Acquire(context.Background())
			if err != nil {
				return err
			}
			defer c.Release()
			return bare(c.Conn(), id)
		})
	})
	b.Run("ours", func(b *testing.B) { ours(b, s.URL()) })
	b.Run("ours-unfenced", func(b *testing.B) { ours(b, s.URL()+"&fencing=off") })
}

func ours(b *testing.B, url string) {
	l, err := open(url)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the benchmark's own
	inParallel(b, func(id int64) error { return cycle(l, fmt.Sprint("k", id)) })
	b.ReportMetric(float64(l.Conns()), "conns")
}

// bare is what a lock costs at the least.
func bare(c *pgx.Conn, id int64) error {
	var ok bool
	if err := c.QueryRow(context.Background(), "SELECT pg_try_advisory_lock($1)", id).Scan(&ok); err != nil || !ok {
		return fmt.Errorf("lock: %v, %w", ok, err)
	}
	if err := c.QueryRow(context.Background(), "SELECT pg_advisory_unlock($1)", id).Scan(&ok); err != nil || !ok {
		return fmt.Errorf("unlock: %v, %w", ok, err)
	}
	return nil
}

func cycle(b *postgres.Backend, key string) error {
	l, err := b.Acquire(context.Background(), &driver.Request{Key: key, Owner: "bench/1", TTL: 10 * time.Second})
	if err != nil {
		return err
	}
	return l.Release(context.Background())
}

func inParallel(b *testing.B, f func(id int64) error) {
	for i := range many { // connect
		if err := f(int64(i)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for i := range many {
		n := b.N / many
		if i < b.N%many {
			n++
		}
		wg.Go(func() {
			for range n {
				if err := f(int64(i)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "locks/s")
}

// BenchmarkLatency is one goroutine: ours against pg_try_advisory_lock and
// pg_advisory_unlock on a connection of its own, in turns, since a machine is not equally
// fast for two minutes. An operation is a turn of each.
func BenchmarkLatency(b *testing.B) {
	s := server.Postgres(b)
	dedicated, fenced, unfenced := admin(b, s.URL()), opener(b, s.URL()), opener(b, s.URL()+"&fencing=off")
	contestants := []struct {
		name string
		once func() error
		took []time.Duration
	}{
		{name: "bare", once: func() error { return bare(dedicated, 1) }},
		{name: "ours", once: func() error { return cycle(fenced, "k") }},
		{name: "unfenced", once: func() error { return cycle(unfenced, "l") }},
	}
	turn := func() {
		for i := range contestants {
			c := &contestants[i]
			for range 10 { // a change of connections has its price
				start := time.Now()
				if err := c.once(); err != nil {
					b.Fatal(err)
				}
				c.took = append(c.took, time.Since(start))
			}
		}
	}
	turn() // connects
	for i := range contestants {
		contestants[i].took = nil
	}
	for b.Loop() {
		turn()
	}
	var least time.Duration
	for _, c := range contestants {
		slices.Sort(c.took)
		p50 := c.took[len(c.took)/2]
		if c.name == "bare" {
			least = p50
		}
		b.ReportMetric(float64(p50.Nanoseconds())/1000, c.name+"-us")
		b.ReportMetric(float64(p50)/float64(least), c.name+"/bare")
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkHandoff is 32 clients that want one key, each as a process would have it.
func BenchmarkHandoff(b *testing.B) {
	const clients = 32
	s := server.Postgres(b, server.WithSetting("max_connections", "200"))
	// The handoff is from before the release to after the next grant.
	contend := func(b *testing.B, lock func(i int) (unlock func() error, err error)) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		var took []time.Duration
		var released time.Time // only the holder touches it
		b.ResetTimer()
		for i := range clients {
			n := b.N / clients
			if i < b.N%clients {
				n++
			}
			wg.Go(func() {
				for range n {
					unlock, err := lock(i)
					if err != nil {
						b.Error(err)
						return
					}
					mu.Lock()
					if !released.IsZero() {
						took = append(took, time.Since(released))
					}
					released = time.Now()
					mu.Unlock()
					if err := unlock(); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		slices.Sort(took)
		if n := len(took); n > 0 {
			b.ReportMetric(float64(took[n/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(took[n*99/100].Microseconds()), "p99-us")
		}
	}
	b.Run("bare", func(b *testing.B) {
		conns := make([]*pgx.Conn, clients)
		for i := range conns {
			conns[i] = admin(b, s.URL())
		}
		contend(b, func(i int) (func() error, error) {
			_, err := conns[i].Exec(context.Background(), "SELECT pg_advisory_lock($1)", 7)
			return func() error {
				_, err := conns[i].Exec(context.Background(), "SELECT pg_advisory_unlock($1)", 7)
				return err
			}, err
		})
	})
	b.Run("ours", func(b *testing.B) {
		backends := make([]*postgres.Backend, clients)
		for i := range backends {
			backends[i] = opener(b, s.URL())
			if err := cycle(backends[i], fmt.Sprint("warm", i)); err != nil {
				b.Fatal(err)
			}
		}
		contend(b, func(i int) (func() error, error) {
			l, err := backends[i].Acquire(context.Background(), &driver.Request{Key: "k", Owner: "bench/1", TTL: 10 * time.Second, Wait: true})
			if err != nil {
				return nil, err
			}
			return func() error { return l.Release(context.Background()) }, nil
		})
	})
}

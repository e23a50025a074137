package etcd_test

import (
	"context"
	"testing"

	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/etcd"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func Benchmark(b *testing.B) {
	redlocktest.RunBenchmarks(b, benchmarked(server.Etcd(b, 1)))
}

func benchmarked(g *server.Group) redlocktest.Harness {
	return redlocktest.Harness{Open: func() (driver.Backend, error) {
		return etcd.Driver{}.Open(&driver.Config{DSN: urlOf(g)})
	}}
}

// BenchmarkBesideConcurrency compares with the mutex of etcd's own client, one session a client.
func BenchmarkBesideConcurrency(b *testing.B) {
	g := server.Etcd(b, 1)
	redlocktest.RunBeside(b, benchmarked(g), func(b *testing.B) redlocktest.Locker {
		session, err := concurrency.NewSession(client(b, g), concurrency.WithTTL(10))
		must(b, err)
		b.Cleanup(func() { _ = session.Close() })
		return func(ctx context.Context, key string) (func(context.Context) error, error) {
			m := concurrency.NewMutex(session, "/theirs/"+key)
			return m.Unlock, m.Lock(ctx)
		}
	})
}

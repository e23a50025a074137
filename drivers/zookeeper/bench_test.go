package zookeeper_test

import (
	"context"
	"net/url"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/zookeeper"
	"github.com/redlock-go/redlock/redlocktest"
)

func Benchmark(b *testing.B) { redlocktest.RunBenchmarks(b, benchmarked(b)) }

func benchmarked(b *testing.B) redlocktest.Harness {
	g := single(b)
	return redlocktest.Harness{Open: func() (driver.Backend, error) {
		return zookeeper.Driver{}.Open(&driver.Config{DSN: urlOf(g)})
	}}
}

// BenchmarkBesideGoZooKeeper compares with the lock of go-zookeeper, the client that both use.
func BenchmarkBesideGoZooKeeper(b *testing.B) {
	redlocktest.RunBeside(b, benchmarked(b), func(b *testing.B) redlocktest.Locker {
		conn := client(b, single(b))
		return func(_ context.Context, key string) (func(context.Context) error, error) {
			l := zk.NewLock(conn, "/theirs/"+url.PathEscape(key), zk.WorldACL(zk.PermAll))
			return func(context.Context) error { return l.Unlock() }, l.Lock()
		}
	})
}

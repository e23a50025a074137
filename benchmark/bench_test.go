package main

import (
	"testing"

	"github.com/redlock-go/redlock/benchmark/internal/bench"
	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// These benchmarks measure single operations of every driver, with their allocations. The
// program makes the report that compares them with the limits.
func BenchmarkMemory(b *testing.B) { onURL(b, "memory:benchmark") }

func BenchmarkFile(b *testing.B) { onURL(b, "file://"+b.TempDir()) }

func BenchmarkGoRedis(b *testing.B) {
	onURL(b, "redis://"+server.Redis(b).Addr())
}

func BenchmarkValkeyGo(b *testing.B) {
	onURL(b, "valkey://"+server.Valkey(b).Addr())
}

func BenchmarkRedlockOverGoRedis(b *testing.B) { onURL(b, quorumOf(b, "redis")) }

func BenchmarkRedlockOverValkeyGo(b *testing.B) { onURL(b, quorumOf(b, "valkey")) }

func BenchmarkPostgres(b *testing.B) {
	onURL(b, "postgres://"+server.Superuser+"@"+server.Postgres(b).Addr()+"/postgres?sslmode=disable")
}

// quorumOf starts five servers and returns the URL of their quorum.
func quorumOf(b *testing.B, scheme string) string {
	var addrs []string
	for range 5 {
		addrs = append(addrs, server.Redis(b).Addr())
	}
	return bench.QuorumURL(scheme, addrs, true)
}

func onURL(b *testing.B, url string) {
	redlocktest.Benchmark(b, redlocktest.Harness{
		Open: func() (driver.Backend, error) { return dlock.OpenBackend(url) },
	})
}

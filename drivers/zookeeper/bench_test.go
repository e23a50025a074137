package zookeeper_test

import (
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/zookeeper"
	"github.com/redlock-go/redlock/redlocktest"
)

func Benchmark(b *testing.B) {
	g := single(b)
	redlocktest.RunBenchmarks(b, redlocktest.Harness{Open: func() (driver.Backend, error) {
		return zookeeper.Driver{}.Open(&driver.Config{DSN: urlOf(g)})
	}})
}

// BenchmarkBesideGoZooKeeper takes and releases one lock of ours and one of go-zookeeper's in
// turns, and reports the quotient of the medians.
func BenchmarkBesideGoZooKeeper(b *testing.B) {
	g := single(b)
	ours, conn := open(b, urlOf(g)), client(b, g)
	theirs := zk.NewLock(conn, ours.Path("theirs"), zk.WorldACL(zk.PermAll))
	var us, them []time.Duration
	for b.Loop() {
		start := time.Now()
		l, err := ours.Acquire(b.Context(), request("ours", 10*time.Second))
		must(b, err)
		must(b, l.Release(b.Context()))
		us = append(us, time.Since(start))
		start = time.Now()
		must(b, theirs.Lock())
		must(b, theirs.Unlock())
		them = append(them, time.Since(start))
	}
	slices.Sort(us)
	slices.Sort(them)
	mine, yours := us[len(us)/2], them[len(them)/2]
	b.ReportMetric(float64(mine.Microseconds()), "ours-µs")
	b.ReportMetric(float64(yours.Microseconds()), "theirs-µs")
	b.ReportMetric(float64(mine)/float64(yours), "ours/theirs")
}

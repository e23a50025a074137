//go:build unix

package promlock_test

import (
	"flag"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/dlock/internal/paired"
	"github.com/redlock-go/redlock/dlock/promlock"
	"github.com/redlock-go/redlock/redlocktest/server"
)

var usedCPU = regexp.MustCompile(`used_cpu_(?:sys|user):([0-9.]+)`)

var rounds = flag.Int("rounds", 50, "how many rounds of BenchmarkFiveNodes are compared")

// What it costs with all metrics: 64 goroutines lock and unlock on five nodes, with and without in
// turns. cpu/without, of this process and the servers, and time/without are ratios; their
// intervals are in the log.
func BenchmarkFiveNodes(b *testing.B) {
	const goroutines, pairs = 64, 64 * 8
	url := "redlock:"
	var nodes []*server.Server
	for range 5 {
		nodes = append(nodes, server.Redis(b))
		url += nodes[len(nodes)-1].URL() + ","
	}
	processor := func() time.Duration {
		sum := paired.Processor()
		for _, n := range nodes {
			reply, err := n.Do("INFO", "cpu")
			if err != nil {
				b.Fatal(err)
			}
			for _, m := range usedCPU.FindAllStringSubmatch(fmt.Sprint(reply), -1) {
				seconds, err := strconv.ParseFloat(m[1], 64)
				if err != nil {
					b.Fatal(err)
				}
				sum += time.Duration(seconds * float64(time.Second))
			}
		}
		return sum
	}
	client := func(h dlock.Hooks) *dlock.Client {
		c, err := dlock.OpenURL(url+"bootstrap=true", dlock.WithHooks(h), dlock.WithLogger(nil))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = c.Close() }) // nothing is held
		return c
	}
	metrics := promlock.New(nil)
	with := client(metrics.Hooks())
	metrics.Add(with)
	without := client(dlock.Hooks{})
	run := func(c *dlock.Client) {
		var all sync.WaitGroup
		for i := range goroutines {
			all.Go(func() {
				for range pairs / goroutines {
					l, err := c.Lock(b.Context(), fmt.Sprint("k", i))
					if err != nil {
						b.Error(err)
						return
					}
					_ = l.Unlock() // it ends with its TTL
				}
			})
		}
		all.Wait()
	}
	run(without)
	run(with)
	b.ResetTimer()
	for b.Loop() {
		cpu, wall := paired.Compare(*rounds, processor, func() { run(without) }, func() {
			run(with)
		})
		b.ReportMetric(cpu.Median, "cpu/without")
		b.ReportMetric(wall.Median, "time/without")
		b.Logf("with it takes %v times the processor time, and %v times the time", cpu, wall)
	}
}

//go:build unix

package paired

import (
	"flag"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/redlocktest/server"
)

var rounds = flag.Int("rounds", 50, "how many rounds of BenchmarkFiveNodes are compared")

var usedCPU = regexp.MustCompile(`used_cpu_(?:sys|user):([0-9.]+)`)

// Pairs is how many locks FiveNodes takes and releases in one turn.
const Pairs = goroutines * 8

const goroutines = 64

// FiveNodes reports what observing a client costs: 64 goroutines lock and unlock on five nodes,
// with hooks and without in turns. cpu/without, of this process and the servers, and time/without
// are ratios; their intervals are in the log. observe gets the client that has the hooks, before
// it locks; done is called after each of its turns. Both may be nil.
func FiveNodes(b *testing.B, hooks dlock.Hooks, observe func(*dlock.Client), done func()) {
	url := "redlock:"
	var nodes []*server.Server
	for range 5 {
		nodes = append(nodes, server.Redis(b))
		url += nodes[len(nodes)-1].URL() + ","
	}
	client := func(h dlock.Hooks) *dlock.Client {
		c, err := dlock.OpenURL(url+"bootstrap=true", dlock.WithHooks(h), dlock.WithLogger(nil))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = c.Close() }) // nothing is held
		return c
	}
	with, without := client(hooks), client(dlock.Hooks{})
	if observe != nil {
		observe(with)
	}
	runWith := func() {
		lockAll(b, with)
		if done != nil {
			done()
		}
	}
	runWithout := func() { lockAll(b, without) }
	runWithout()
	runWith()
	b.ResetTimer()
	for b.Loop() {
		cpu, wall := Compare(*rounds, func() time.Duration { return processorOf(b, nodes) }, runWithout, runWith)
		b.ReportMetric(cpu.Median, "cpu/without")
		b.ReportMetric(wall.Median, "time/without")
		b.Logf("with it takes %v times the processor time, and %v times the time", cpu, wall)
	}
}

// processorOf is the processor time of this process and of servers.
func processorOf(b *testing.B, nodes []*server.Server) time.Duration {
	sum := Processor()
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

// lockAll takes and releases Pairs locks.
func lockAll(b *testing.B, c *dlock.Client) {
	var all sync.WaitGroup
	for i := range goroutines {
		all.Go(func() {
			for range Pairs / goroutines {
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

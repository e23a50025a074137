//go:build unix

package otellock_test

import (
	"flag"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/dlock/internal/paired"
	"github.com/redlock-go/redlock/dlock/otellock"
	"github.com/redlock-go/redlock/redlocktest/server"
)

var usedCPU = regexp.MustCompile(`used_cpu_(?:sys|user):([0-9.]+)`)

var rounds = flag.Int("rounds", 50, "how many rounds of BenchmarkFiveNodes are compared")

// What it costs where every span is recorded in memory, and where one of a hundred is: 64
// goroutines lock and unlock on five nodes, with and without in turns. cpu/without, of this
// process and the servers, and time/without are ratios; their intervals are in the log.
func BenchmarkFiveNodes(b *testing.B) {
	for name, sampler := range map[string]sdktrace.Sampler{"every span": sdktrace.AlwaysSample(), "one of 100": sdktrace.TraceIDRatioBased(0.01)} {
		b.Run(name, func(b *testing.B) { fiveNodes(b, sampler) })
	}
}

func fiveNodes(b *testing.B, sampler sdktrace.Sampler) {
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
	exporter := tracetest.NewInMemoryExporter()
	telemetry, err := otellock.New(otellock.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler), sdktrace.WithSyncer(exporter))),
		otellock.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(metric.NewManualReader()))))
	if err != nil {
		b.Fatal(err)
	}
	with := client(telemetry.Hooks())
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
	exporter.Reset()
	b.ResetTimer()
	for b.Loop() {
		cpu, wall := paired.Compare(*rounds, processor, func() { run(without) }, func() {
			run(with)
			if n := len(exporter.GetSpans()); sampler == sdktrace.AlwaysSample() && n < 2*pairs {
				b.Fatalf("%d spans of %d pairs are recorded", n, pairs)
			}
			exporter.Reset()
		})
		b.ReportMetric(cpu.Median, "cpu/without")
		b.ReportMetric(wall.Median, "time/without")
		b.Logf("with it takes %v times the processor time, and %v times the time", cpu, wall)
	}
}

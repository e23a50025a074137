package otellock_test

import (
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/dlock/otellock"
	"github.com/redlock-go/redlock/driver/quorum"
)

// BenchmarkHooks measures the hooks alone, for a Lock and an Unlock on five nodes: with all
// spans recorded in memory, and with none recorded.
func BenchmarkHooks(b *testing.B) {
	b.Run("recorded", func(b *testing.B) { hooks(b, sdktrace.AlwaysSample()) })
	b.Run("dropped", func(b *testing.B) { hooks(b, sdktrace.NeverSample()) })
}

func hooks(b *testing.B, sampler sdktrace.Sampler) {
	exporter := tracetest.NewInMemoryExporter()
	telemetry, err := otellock.New(otellock.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler), sdktrace.WithSyncer(exporter))),
		otellock.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(metric.NewManualReader()))))
	if err != nil {
		b.Fatal(err)
	}
	h := telemetry.Hooks()
	e := dlock.Event{Op: "lock", Key: "reports/2026-11", Fence: 1795363777814286, Attempt: 1, Latency: time.Millisecond, Waited: time.Millisecond}
	for _, node := range []string{"a", "b", "c", "d", "e"} {
		e.Votes = append(e.Votes, quorum.Vote{Node: "redis://" + node + ":6379/0", Granted: true, Latency: time.Millisecond})
	}
	attempt, released := e, e
	attempt.Op = "attempt"
	released.Op, released.Attempt = "unlock", 0
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		ctx := h.Start(b.Context(), "lock", e.Key)
		h.Event(ctx, attempt)
		h.Event(ctx, e)
		ctx = h.Start(b.Context(), "unlock", e.Key)
		h.Event(ctx, released)
		if n++; n%1000 == 0 {
			exporter.Reset()
		}
	}
}

//go:build unix

package otellock_test

import (
	"testing"

	"go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/redlock-go/redlock/dlock/internal/paired"
	"github.com/redlock-go/redlock/dlock/otellock"
)

// The cost of telemetry if every span is recorded in memory, and if one in a hundred is: see
// paired.FiveNodes.
func BenchmarkFiveNodes(b *testing.B) {
	for name, sampler := range map[string]sdktrace.Sampler{"every span": sdktrace.AlwaysSample(), "one of 100": sdktrace.TraceIDRatioBased(0.01)} {
		b.Run(name, func(b *testing.B) { fiveNodes(b, sampler) })
	}
}

func fiveNodes(b *testing.B, sampler sdktrace.Sampler) {
	exporter := tracetest.NewInMemoryExporter()
	telemetry, err := otellock.New(otellock.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler), sdktrace.WithSyncer(exporter))),
		otellock.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(metric.NewManualReader()))))
	if err != nil {
		b.Fatal(err)
	}
	paired.FiveNodes(b, telemetry.Hooks(), nil, func() {
		if n := len(exporter.GetSpans()); sampler == sdktrace.AlwaysSample() && n < 2*paired.Pairs {
			b.Fatalf("%d spans of %d pairs are recorded", n, paired.Pairs)
		}
		exporter.Reset()
	})
}

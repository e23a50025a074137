package otellock_test

import (
	"context"
	"fmt"
	"log"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/dlock/otellock"
	_ "github.com/redlock-go/redlock/drivers/memory"
)

func Example() {
	exporter := tracetest.NewInMemoryExporter() // yours sends them somewhere
	telemetry, err := otellock.New(otellock.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))))
	if err != nil {
		log.Fatal(err)
	}
	locks, err := dlock.OpenURL("memory:", dlock.WithHooks(telemetry.Hooks()))
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	if err := telemetry.Observe(locks); err != nil { // how many are held, and wait
		log.Fatal(err)
	}

	err = dlock.Do(context.Background(), locks, "nightly", func(context.Context) error { return nil })
	if err != nil {
		log.Fatal(err)
	}
	for _, span := range exporter.GetSpans() {
		fmt.Println(span.Name)
	}
	// Output:
	// dlock.lock
	// dlock.unlock
}

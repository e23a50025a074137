package promlock_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/dlock/promlock"
	_ "github.com/redlock-go/redlock/drivers/memory"
)

func Example() {
	metrics := promlock.New(&promlock.Options{
		Class: func(key string) string { class, _, _ := strings.Cut(key, "/"); return class },
	})
	registry := prometheus.NewRegistry() // yours is behind promhttp.Handler
	registry.MustRegister(metrics)
	locks, err := dlock.OpenURL("memory:", dlock.WithHooks(metrics.Hooks()))
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	metrics.Add(locks)

	err = dlock.Do(context.Background(), locks, "reports/nightly", func(context.Context) error { return nil })
	if err != nil {
		log.Fatal(err)
	}
	all, err := registry.Gather()
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range all {
		if m.GetName() == "dlock_acquired_total" {
			fmt.Println(m.GetName(), m.GetMetric()[0].GetCounter().GetValue())
		}
	}
	// Output: dlock_acquired_total 1
}

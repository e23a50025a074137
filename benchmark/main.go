// Command benchmark measures locks: its own, the parts they are made of, the limits
// beside which they stand and, with -peers, other libraries. It starts the servers that
// it needs. It is a module of its own, so that its dependencies burden no user.
//
//	go run -C benchmark .                                  # everything, in under ten minutes
//	go run -C benchmark . -quick                           # a first look, in under one
//	go run -C benchmark . -scenario quorum,handoff -for 2m # some of it, for longer
//	go run -C benchmark . -scenario quorum -case ', 5 nodes$' -for 30s
//	go run -C benchmark . -url redis://localhost:6379      # a deployment of your own
//	go run -C benchmark . -peers                           # other libraries too
//
// How long is what it is given: the time is divided among what there is to measure.
// Clients that wait for one key are processes: this program, started once more for each.
//
// It prints where the report is: report.html for people, report.md for a repository,
// report.json for programs. Figures of two runs are not to be compared unless the
// machine did nothing else in both.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/redlock-go/redlock/benchmark/internal/bench"
	"github.com/redlock-go/redlock/benchmark/internal/peers"
	_ "github.com/redlock-go/redlock/drivers/file"
	_ "github.com/redlock-go/redlock/drivers/goredis"
	_ "github.com/redlock-go/redlock/drivers/memory"
	_ "github.com/redlock-go/redlock/drivers/postgres"
	_ "github.com/redlock-go/redlock/drivers/redlock"
	_ "github.com/redlock-go/redlock/drivers/valkeygo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := bench.Main(ctx, os.Args[1:], os.Stdout, os.Stderr, peers.Contestants()...)
	stop()
	switch {
	case errors.Is(err, bench.ErrUsage):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "benchmark:", err)
		os.Exit(1)
	}
}

// Command peers measures other libraries of locks in the scenarios of benchmark, beside
// this module's own locks and the same limits. It is a module of its own, so that nobody
// else depends on them.
//
//	cd benchmark/peers && go run . -quick
//
// The locks of etcd take part where the program etcd is in PATH (Debian: etcd-server).
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"

	"github.com/redlock-go/redlock/benchmark/internal/bench"
	_ "github.com/redlock-go/redlock/drivers/file"
	_ "github.com/redlock-go/redlock/drivers/goredis"
	_ "github.com/redlock-go/redlock/drivers/memory"
	_ "github.com/redlock-go/redlock/drivers/postgres"
	_ "github.com/redlock-go/redlock/drivers/redlock"
	_ "github.com/redlock-go/redlock/drivers/valkeygo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := bench.Main(ctx, os.Args[1:], os.Stdout, os.Stderr, peers()...)
	stop()
	switch {
	case errors.Is(err, bench.ErrUsage):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// peers returns one contestant for each library and each way to set it up.
func peers() []bench.Contestant {
	return slices.Concat(overRedis(), trackers(), overPostgres(), overEtcd())
}

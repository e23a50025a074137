// Command dlock runs a command under a distributed lock, so that only one copy runs at a time, on
// one machine or across machines:
//
//	dlock run nightly -- /usr/local/bin/nightly-report
//
// Its manual is the documentation of package
// [github.com/redlock-go/redlock/dlock/cli]; "dlock help" prints it, part by part.
package main

import (
	"context"
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/dlock/cli"
	_ "github.com/redlock-go/redlock/drivers/all"
)

// silence keeps go-redis' own log out of stderr, and so out of cron's mail: dlock says what fails.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

func main() {
	redis.SetLogger(silence{})
	os.Exit(cli.Main(os.Args, os.Stdin, os.Stdout, os.Stderr))
}

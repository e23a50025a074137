// Command dlock is the main module's command dlock, with the drivers that are separate modules
// as well.
//
//	go install github.com/redlock-go/redlock/drivers/everything/cmd/dlock@latest
package main

import (
	"context"
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/dlock/cli"
	_ "github.com/redlock-go/redlock/drivers/everything"
)

// silence keeps go-redis' own log out of stderr, and so out of cron's mail: dlock says what fails.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

func main() {
	redis.SetLogger(silence{})
	os.Exit(cli.Main(os.Args, os.Stdin, os.Stdout, os.Stderr))
}

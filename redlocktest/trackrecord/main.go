// Command trackrecord is the command redlocktest with drivers over other libraries' locks:
// redsync, redislock and valkeylock. README.md says what the suite found in them and in ours.
// It is a separate module, so that users of this library do not get the other libraries as
// dependencies.
//
//	go run -C redlocktest/trackrecord . redislock://127.0.0.1:6379
package main

import (
	"os"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/redlocktest/cli"
)

func init() {
	dlock.Register("redsync", library{open: openRedsync})
	dlock.Register("redislock", library{open: openRedislock})
	dlock.Register("valkeylock", library{open: openValkeylock, session: true})
}

func main() { os.Exit(cli.Main(os.Args, os.Stdout, os.Stderr)) }

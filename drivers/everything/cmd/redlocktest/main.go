// Command redlocktest is the main module's command redlocktest, with the drivers that are separate
// modules as well: it tests whether the locks behind a URL keep the promises of their driver.
//
//	go install github.com/redlock-go/redlock/drivers/everything/cmd/redlocktest@latest
package main

import (
	"os"

	_ "github.com/redlock-go/redlock/drivers/everything"
	"github.com/redlock-go/redlock/redlocktest/cli"
)

func main() { os.Exit(cli.Main(os.Args, os.Stdout, os.Stderr)) }

// Command redlocktest tests whether the locks behind a URL keep the promises of their
// driver: redlocktest --help.
//
// It has the drivers of drivers/all; drivers/everything/cmd/redlocktest has all drivers. A program
// with other drivers has the same command by package redlocktest/cli.
package main

import (
	"os"

	_ "github.com/redlock-go/redlock/drivers/all"
	"github.com/redlock-go/redlock/redlocktest/cli"
)

func main() { os.Exit(cli.Main(os.Args, os.Stdout, os.Stderr)) }

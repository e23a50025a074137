// Command dlock is the main module's command dlock, with the drivers that are separate modules
// as well.
//
//	go install github.com/redlock-go/redlock/drivers/everything/cmd/dlock@latest
package main

import (
	"os"

	"github.com/redlock-go/redlock/dlock/cli"
	_ "github.com/redlock-go/redlock/drivers/everything"
)

func main() { os.Exit(cli.Main(os.Args, os.Stdin, os.Stdout, os.Stderr)) }

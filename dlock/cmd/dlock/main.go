package main

import (
	"os"

	"github.com/redlock-go/redlock/dlock/cli"
	_ "github.com/redlock-go/redlock/drivers/all"
)

func main() { os.Exit(cli.Main(os.Args, os.Stdin, os.Stdout, os.Stderr)) }

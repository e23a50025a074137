// Command benchmark measures locks. Without a URL it starts its own servers, and compares this
// module with its own parts, with the fastest possible commands, and with other libraries. With
// a URL it measures a deployment: a quorum, a server, or any other backend of a registered
// driver. It is a separate module, so that users do not get its dependencies.
//
//	go run -C benchmark . -url redlock:redis://a,redis://b,redis://c   # a deployment, in half a minute
//	DLOCK_URL=redis://user:password@host:6379 go run -C benchmark .    # the same, with a password
//	go run -C benchmark .                                              # everything, in under ten minutes
//	go run -C benchmark . -run 'quorum/.*/(ours|redsync) over' -for 2m # a part
//
// It has all drivers but SQLite, whose code takes longer to compile than everything else together.
// The report is Markdown on standard output, the progress goes to standard error. Package cli has
// the command as a function, for programs with other drivers.
package main

import (
	"os"

	"github.com/redlock-go/redlock/benchmark/cli"
	_ "github.com/redlock-go/redlock/drivers/all"
	_ "github.com/redlock-go/redlock/drivers/consul"
	_ "github.com/redlock-go/redlock/drivers/etcd"
	_ "github.com/redlock-go/redlock/drivers/sqltable/mysql"
	_ "github.com/redlock-go/redlock/drivers/sqltable/pgtable"
	_ "github.com/redlock-go/redlock/drivers/zookeeper"
)

func main() { os.Exit(cli.Main(os.Args, os.Stdout, os.Stderr)) }

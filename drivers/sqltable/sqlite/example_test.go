package sqlite_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/redlock-go/redlock/dlock"
	_ "github.com/redlock-go/redlock/drivers/sqltable/sqlite"
)

// Programs of one machine that name the same file exclude each other.
func Example() {
	dir, err := os.MkdirTemp("", "locks-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	locks, err := dlock.OpenURL("sqlite://" + filepath.ToSlash(dir) + "/locks.db?setup=true&ttl=10s")
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	lease, err := locks.Lock(context.Background(), "nightly")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("a token:", lease.Fence() > 0)
	fmt.Println("released:", lease.Unlock())
	// Output:
	// a token: true
	// released: <nil>
}

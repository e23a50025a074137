package sqlite_test

import (
	"fmt"
	"log"

	"github.com/redlock-go/redlock/dlock"
	_ "github.com/redlock-go/redlock/drivers/sqltable/sqlite"
)

// Programs of one machine that name the same file exclude each other. Opening makes no file.
func Example() {
	locks, err := dlock.OpenURL("sqlite:///var/lib/app/locks.db?setup=true&ttl=10s")
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	fmt.Println(locks.TTL(), locks.Backend().Info().Features)
	// Output: 10s shared,fencing,keep,tokens
}

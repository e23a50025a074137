package pgtable_test

import (
	"fmt"
	"log"

	"github.com/redlock-go/redlock/dlock"
	_ "github.com/redlock-go/redlock/drivers/sqltable/pgtable"
)

// Opening connects to nothing, so a program starts while its database is away.
func Example() {
	locks, err := dlock.OpenURL("pgtable://app@db.example.com:6432/shop?ttl=10s")
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	fmt.Println(locks.TTL(), locks.Backend().Info().Features)
	// Output: 10s shared,fencing,keep,tokens
}

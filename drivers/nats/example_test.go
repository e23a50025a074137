package nats_test

import (
	"context"
	"fmt"
	"log"

	"github.com/redlock-go/redlock/dlock"
	_ "github.com/redlock-go/redlock/drivers/nats"
)

// A URL names three servers, and the bucket that has the locks.
func Example() {
	lock, err := dlock.OpenURL("nats://app:secret@a:4222,b:4222,c:4222/locks?ttl=10s")
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Close()
	fmt.Println(dlock.Do(context.Background(), lock, "nightly-report", func(context.Context) error {
		return nil // the work
	}))
}

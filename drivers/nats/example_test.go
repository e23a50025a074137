package nats_test

import (
	"context"
	"fmt"

	"github.com/redlock-go/redlock/dlock"
	_ "github.com/redlock-go/redlock/drivers/nats"
)

func Example() {
	lock, err := dlock.OpenURL("nats://app:secret@a:4222,b:4222,c:4222/locks?ttl=10s")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Close() //nolint:errcheck // of an example
	err = dlock.Do(context.Background(), lock, "nightly-report", func(ctx context.Context) error {
		return nil // the work
	})
	fmt.Println(err)
}

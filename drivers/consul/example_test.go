package consul_test

import (
	"context"
	"fmt"

	"github.com/redlock-go/redlock/dlock"
	_ "github.com/redlock-go/redlock/drivers/consul"
)

func Example() {
	lock, err := dlock.OpenURL("consul://localhost:8500/locks?ttl=30s")
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

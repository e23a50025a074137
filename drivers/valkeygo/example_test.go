package valkeygo_test

import (
	"context"
	"fmt"
	"log"

	"github.com/valkey-io/valkey-go"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/drivers/valkeygo"
)

// By URL. Opening connects to nothing, so a program starts while its server is away.
func Example() {
	locks, err := dlock.OpenURL("valkey://localhost:6379/0?prefix=shop/&ttl=10s")
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	fmt.Println(locks.TTL(), locks.Backend().Info().Features)
	// Output: 10s shared,fencing,node,keep,ordered,tokens
}

// On the client that the program already has. Close leaves it open.
func ExampleNew() {
	client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{"localhost:6379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	backend, err := valkeygo.New(client, nil)
	if err != nil {
		log.Fatal(err)
	}
	locks, err := dlock.New(backend)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	err = dlock.Do(context.Background(), locks, "nightly", func(ctx context.Context) error {
		return client.Do(ctx, client.B().Set().Key("report").Value("done").Build()).Error()
	})
	if err != nil {
		log.Print(err)
	}
}

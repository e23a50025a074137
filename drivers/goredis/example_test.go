package goredis_test

import (
	"context"
	"fmt"
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/drivers/goredis"
)

// By URL. Opening connects to nothing, so a program starts while its server is away.
func Example() {
	locks, err := dlock.OpenURL("redis://localhost:6379/0?prefix=shop/&ttl=10s")
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	fmt.Println(locks.TTL(), locks.Backend().Info().Features)
	// Output: 10s shared,fencing,node,keep,ordered,tokens
}

// On the client that the program already has. Close leaves it open.
func ExampleNew() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	backend, err := goredis.New(client, nil)
	if err != nil {
		log.Fatal(err)
	}
	locks, err := dlock.New(backend)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	err = dlock.Do(context.Background(), locks, "nightly", func(ctx context.Context) error {
		return client.Set(ctx, "report", "done", 0).Err() // ctx ends if the lock is lost
	})
	if err != nil {
		log.Print(err)
	}
}

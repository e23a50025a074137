package consul_test

import (
	"context"
	"fmt"
	"log"

	"github.com/hashicorp/consul/api"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/drivers/consul"
)

// A program that has a client of Consul makes the backend of that.
func ExampleNew() {
	client, err := api.NewClient(api.DefaultConfig())
	if err != nil {
		log.Fatal(err)
	}
	backend, err := consul.New(client, &consul.Options{Path: "locks"})
	if err != nil {
		log.Fatal(err)
	}
	lock, err := dlock.New(backend)
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Close()
	fmt.Println(dlock.Do(context.Background(), lock, "nightly-report", func(context.Context) error {
		return nil // the work
	}))
}

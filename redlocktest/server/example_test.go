package server_test

import (
	"context"
	"fmt"
	"log"
	"testing"
	"time"

	"github.com/redlock-go/redlock/redlocktest/server"
)

// In a test the server ends with the test, and a missing program skips the test.
func Example() {
	test := func(t *testing.T) {
		s := server.Redis(t, server.WithClock())
		fmt.Println("dial", s.Addr())
		for _, step := range []func() error{
			s.Pause, // the server does not answer
			s.Resume,
			func() error { return s.SetClock(time.Hour) }, // the server's clock jumps ahead
			s.Kill,  // the server crashes
			s.Start, // the server comes back with its data on disk
		} {
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = test
}

// Start works outside of tests.
func ExampleStart() {
	s, err := server.Start(context.Background(), server.Config{Kind: server.KindRedis})
	if err != nil {
		log.Fatal(err) // a *server.MissingError names the package to install
	}
	defer s.Close() //nolint:errcheck // an example
	fmt.Println(s.URL())
}

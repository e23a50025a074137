package server_test

import (
	"context"
	"fmt"
	"log"
	"testing"
	"time"

	"github.com/redlock-go/redlock/redlocktest/server"
)

// In a test: the server ends with the test, and a program that is not installed skips it.
func Example() {
	test := func(t *testing.T) {
		s := server.Redis(t, server.WithClock())
		fmt.Println("dial", s.Addr())
		for _, step := range []func() error{
			s.Pause, // it does not answer
			s.Resume,
			func() error { return s.SetClock(time.Hour) }, // its clock jumps ahead
			s.Kill,  // it crashes
			s.Start, // and comes back with the data that it has on disk
		} {
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = test
}

// Outside of a test.
func ExampleStart() {
	s, err := server.Start(context.Background(), server.Config{Kind: server.KindRedis})
	if err != nil {
		log.Fatal(err) // a *server.MissingError names the package to install
	}
	defer s.Close() //nolint:errcheck // an example
	fmt.Println(s.URL())
}

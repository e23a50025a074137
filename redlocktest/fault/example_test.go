package fault_test

import (
	"log"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/redlocktest/fault"
)

// The proxy of a connection stops answering. It works with any client and server.
func ExampleProxy() {
	proxy, err := fault.Start("127.0.0.1:6379")
	if err != nil {
		log.Fatal(err)
	}
	defer proxy.Close() //nolint:errcheck // an example
	locks, err := dlock.OpenURL("redis://" + proxy.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	proxy.BlackHole() // from here on the proxy forwards nothing
}

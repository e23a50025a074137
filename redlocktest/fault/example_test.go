package fault_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/drivers/memory"
	"github.com/redlock-go/redlock/redlocktest/fault"
)

// The backend's first answer is lost: the lock was granted, but the client does not know.
// TryLock says that the outcome is unknown, and the grant is released.
func ExampleWrap() {
	script := &fault.Script{}
	locks, err := dlock.New(fault.Wrap(memory.New(), script), dlock.WithLogger(nil))
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	script.Next(fault.Acquire, fault.Fault{After: fault.ErrReplyLost})
	_, err = locks.TryLock(context.Background(), "nightly")
	fmt.Println("outage:", errors.Is(err, dlock.ErrUnavailable))
	lease, err := locks.Lock(context.Background(), "nightly")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("then:", lease.Unlock())
	// Output:
	// outage: true
	// then: <nil>
}

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
